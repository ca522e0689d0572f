"""A conversion and its verification, as a user asks for them."""

import collections
import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from library.convert.finish import finish, put_in_place
from library.convert.jobs import Job
from library.convert.listing import LabeledFile, list_files
from library.convert.options import ConvertOptions
from library.convert.plan import Plan, counted
from library.convert.workers import Tell, run_jobs
from library.data import Card, Modality, Target
from library.util import Progress, UserError


def convert(options: ConvertOptions, shard_options: Any, modality: Modality) -> None:
    """Convert files into a dataset, or two, as the options say.

    Raises:
        UserError: the input cannot be used, or the output exists already.
        RunError: a disk is full, or a file cannot be read; the same command resumes.
    """
    options.check()
    complete = options.tfrecord_dir / f".{options.name}.complete"
    if complete.exists():  # a conversion was stopped while it put its files in their places
        put_in_place(complete)
    listing = list_files(
        options.root,
        labels=options.labels,
        unlabeled=options.unlabeled,
        known=options.known_target,
        follow_links=options.follow_links,
    )
    options.check_places(modality.UNIT)
    plan = Plan(options, shard_options, modality, listing)
    plan.describe()
    plan.open()
    jobs = {name: plan.shard_jobs(name, files) for name, files in plan.split().items()}
    if not options.finalize:
        chosen = [job for of_set in jobs.values() for job in options.chosen(of_set)]
        plan.run(chosen, modality.UNIT, "shards")
    if options.shards:
        print(f"shards {options.shards} are written; --finalize ends it when all are there")
    else:
        finish(plan, jobs)


def verify(options: ConvertOptions, modality: Modality) -> None:
    """Read every shard of a dataset: checksums, counts, labels, and each example.

    Raises:
        UserError: there are faults: the first one, with its shard and record, and their number.
    """
    path = options.path
    card = Card.load(f"{path}.json")
    faults: list[str] = []
    count = collections.Counter(dict.fromkeys(card.examples_per_class, 0))
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            _VerifyJob(
                Path(folder, str(number)),
                path.parent,
                [LabeledFile(shard.file, 0)],
                modality.__name__,
                card.target,
            )
            for number, shard in enumerate(card.shards)
        ]
        with Progress(card.num_examples, "examples") as progress:
            for examples, size in run_jobs(jobs, options.processes):
                progress.update(examples, size)
        for job, shard in zip(jobs, card.shards, strict=True):
            report = job.read_report()
            faults += report["faults"]
            count.update(report["examples_per_class"])
            if report["examples"] != shard.examples:
                faults.append(
                    f"{shard.file}: {counted(report['examples'], 'records')}, but the card says "
                    f"{shard.examples}"
                )
            if report["sha256"] != shard.sha256:
                faults.append(f"{shard.file}: its SHA-256 is not that of the card")
    faults = faults or [
        f"{counted(count[name], 'examples')} of {name}, but the card says {examples}"
        for name, examples in card.examples_per_class.items()
        if count[name] != examples
    ]
    if faults:
        more = f"{len(faults)} faults, the first one: " if len(faults) > 1 else ""
        raise UserError(f"{path}: {more}{faults[0]}")
    modality.open_data(path)  # which looks at the index
    shards = counted(len(card.shards), "shards")
    print(f"{path}: {counted(card.num_examples, 'examples')} in {shards} verified")


@dataclasses.dataclass(frozen=True)
class _VerifyJob(Job):
    """A shard to read."""

    target: Target

    def __call__(self, bad: Mapping[int, str], tell: Tell) -> None:
        shard = self.root / self.files[0].name
        self.write_report(**self.modality.verify_shard(shard, self.target, bad, tell))
