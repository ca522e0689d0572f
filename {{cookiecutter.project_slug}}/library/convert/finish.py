"""The end of a conversion: card, index and lists, all moved to their places together."""

import collections
import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from library.convert.duplicates import write_seen
from library.convert.jobs import Report, ShardJob
from library.convert.leaks import class_names, report_duplicates, write_table
from library.convert.listing import Files
from library.convert.plan import Plan
from library.data import Card, Shard, write_index
from library.util import UserError, counted

MOST = 10
"""Classes that are listed at the end."""


def finish(plan: Plan, jobs: Mapping[str, Sequence[ShardJob]]) -> None:
    """Make datasets of shards that are all there.

    Raises:
        UserError: a shard is missing, or too many files were rejected, or all.
    """
    options, partial = plan.options, plan.partial
    reports = {name: _reports(name, of_set) for name, of_set in jobs.items()}
    rejected = [
        (job.files[number].name, reason)
        for name, of_set in jobs.items()
        for job, report in zip(of_set, reports[name], strict=True)
        for number, reason in report["rejected"]
    ]
    _report_rejected(plan, rejected)
    used = {name: _used(of_set, reports[name]) for name, of_set in jobs.items()}
    seen = {name: [job.load_seen() for job in of_set] for name, of_set in jobs.items()}
    for name, files in used.items():
        if not len(files):
            raise UserError(f"dataset_dir: all files of {name} in {options.root} were rejected")
        write_seen(partial / name, (file.name for file in files), seen[name])
    report_duplicates(plan, used)
    target = plan.listing.target
    if target.label == "value" and not options.card_of_classes:
        values = np.array([file.label for file in used[options.name]])
        std = float(values.std()) or 1.0
        if not values.std():
            print(f"warning: all values are {values[0]:g}: there is nothing to learn")
        target = dataclasses.replace(target, mean=float(values.mean()), std=std)
    cards = {}
    for name, of_set in jobs.items():
        count = collections.Counter(dict.fromkeys(target.classes, 0))
        count.update(each for file in used[name] for each in class_names(target, file.label))
        shards = [Shard(**report["shard"]) for report in reports[name]]
        kind = (target.label, target.mean, target.std)
        cards[name] = Card([*target.classes], dict(count), shards, plan.recorded, *kind)
        cards[name].save(partial / f"{name}.json")
        write_index(partial / name, [np.load(job.rows) for job in of_set])
    for pattern in ("scan-*", "*-?????-of-?????.*.json", "*-?????-of-?????.*.npy"):
        for file in partial.glob(pattern):
            file.unlink()
    (partial / "plan").unlink()  # last: until then the conversion can resume
    os.replace(partial, options.hidden("complete"))
    put_in_place(options.hidden("complete"))
    for name, card in cards.items():
        _describe(options.tfrecord_dir / name, card, plan.modality.UNIT)


def put_in_place(complete: Path) -> None:
    """Move whole datasets to the folder above, where they replace those of their names.

    It can be stopped at any moment, and called again: what is not moved yet is in `complete`, and
    no card is there before all that it names.
    """
    folder = complete.parent
    for path in sorted(complete.glob("*.json")):
        name, card = path.stem, Card.load(path)
        new = [shard.file for shard in card.shards]
        new += [f"{name}.index", f"{name}.sha256", f"{name}.thumbnails"]
        old = [*folder.glob(f"{name}-?????-of-?????.*"), folder / f"{name}.index"]
        (folder / path.name).unlink(missing_ok=True)
        for file in (file for file in old if file.name not in new):
            file.unlink(missing_ok=True)
        for file in (complete / file for file in new):
            if file.exists():
                os.replace(file, folder / file.name)
        os.replace(path, folder / path.name)
    shutil.rmtree(complete)


def _reports(name: str, jobs: Sequence[ShardJob]) -> list[Report]:
    missing = [str(number) for number, job in enumerate(jobs) if not job.report.exists()]
    if missing:
        some = ", ".join(missing[:10]) + (" ..." if len(missing) > 10 else "")
        raise UserError(f"finalize: {len(missing)} of {len(jobs)} shards of {name} missing: {some}")
    return [job.read_report() for job in jobs]


def _used(jobs: Sequence[ShardJob], reports: Sequence[Report]) -> Files:
    """The files that are in the shards, in their order."""
    ids = [
        np.delete(job.files.ids, np.array([number for number, _ in report["rejected"]], np.int64))
        for job, report in zip(jobs, reports, strict=True)
    ]
    return Files(jobs[0].files.names, jobs[0].files.labels, np.concatenate(ids))


def _report_rejected(plan: Plan, rejected: Sequence[tuple[str, str]]) -> None:
    """List the rejected files; UserError where they are more than `max_rejected`."""
    options, listing = plan.options, plan.listing
    rejected = [*listing.rejected, *rejected]
    table = write_table(plan, "rejected", [("file", "reason"), *sorted(rejected)])
    total = len(listing.files) + len(listing.rejected)
    if len(rejected) > options.max_rejected * total:
        top = collections.Counter(reason for _, reason in rejected).most_common(3)
        reasons = ", ".join(f"{count} {reason}" for reason, count in top)
        raise UserError(
            f"max_rejected: {len(rejected)} of {counted(total, 'files')} rejected, above the "
            f"limit of {100 * options.max_rejected:g} % ({reasons}): see {table}"
        )
    if rejected:
        print(f"{counted(len(rejected), f'rejected {plan.modality.UNIT}')}: see {table}")


def _describe(path: Path, card: Card, unit: str) -> None:
    """Say what a dataset holds."""
    some = ", ".join(f"{name} {count}" for name, count in [*card.examples_per_class.items()][:MOST])
    more = f" and {len(card.classes) - MOST} more" if len(card.classes) > MOST else ""
    what = f" of {counted(len(card.classes), 'classes')}" if card.classes else ""
    if card.label == "value":
        what = f" with values: mean {card.value_mean:.4g}, standard deviation {card.value_std:.4g}"
    print(f"{path}: {counted(card.num_examples, unit)}{what}")
    if card.classes:
        print(f"  {some}{more}")
    if without := [name for name, examples in card.examples_per_class.items() if not examples]:
        print(f"{path}: no examples of {', '.join(without)}")
    if card.label == "class" and len(card.classes) == 1:
        print(
            f"warning: {card.classes[0]} is the only class: there is nothing to learn; dataset_dir "
            "is the folder that contains a folder for each class"
        )
