"""A conversion and its verification, as a user asks for them."""

import collections
import contextlib
import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

from library.convert.contact_sheet import write_contact_sheet
from library.convert.corrections import correct
from library.convert.finish import finish, put_in_place
from library.convert.jobs import ShardJob, verify_copy, verify_shard
from library.convert.listing import SPLITS, Files, list_files, some_paths, split_folders
from library.convert.options import VALIDATION, ConvertOptions
from library.convert.plan import Plan
from library.convert.workers import run_jobs
from library.data import Card, Modality, copy_file, names_in
from library.util import Progress, UserError, check_folder, counted, locked, replacing


def convert(options: ConvertOptions, shard_options: Any, modality: Modality) -> None:
    """Convert files into a dataset, or two, as the options say.

    Raises:
        UserError: the input cannot be used, or the output exists already.
        RunError: a disk is full, or fails; the same command resumes.
    """
    if options.url:
        _fetch(options)
    splits = {} if options.labels or options.unlabeled else split_folders(options.root)
    if splits:
        _convert_each(splits, options, shard_options, modality)
        return
    options.check()
    lock = locked("tfrecord_dir", options.folder, options.hidden("lock").name)
    with contextlib.nullcontext() if options.shards else lock:  # shards: several machines at once
        _convert(options, shard_options, modality)


def _fetch(options: ConvertOptions) -> None:
    """Make the folder of a URL agree with it: what checks read, and reports of shards there."""
    if options.url.startswith("http"):
        raise UserError(f"tfrecord_dir: {options.url}: a web server is read only: give a bucket")
    if options.overwrite:
        raise UserError(f"overwrite: {options.url} is no folder of this machine: {options.remedy}")
    check_folder("tfrecord_dir", options.folder)
    options.folder.mkdir(parents=True, exist_ok=True)
    reports = [*options.folder.glob(".*.partial/*-of-*.npz")]
    there = names_in(options.url)
    kinds = ("json", "sha256", "thumbnails")
    for name in {f"{name}.{kind}" for name in (options.name, *SPLITS.values()) for kind in kinds}:
        if name in there:
            with replacing(options.folder / name) as temporary:
                copy_file(f"{options.url}/{name}", temporary)
        else:
            (options.folder / name).unlink(missing_ok=True)
    for report in reports:
        if report.stem not in there:
            report.unlink(missing_ok=True)


def _convert_each(
    splits: dict[str, Path],
    options: ConvertOptions,
    shard_options: Any,
    modality: Modality,
) -> None:
    """Convert folders that are datasets, training data first: it says which classes there are."""
    names = counted(len(splits), "datasets") + f": {', '.join(map(str, splits.values()))}"
    if options.tfrecord_filename:
        raise UserError(f"tfrecord_filename: {options.root} contains {names}: leave it out")
    print(f"{options.root} contains {names}")
    cards = {name: options.folder / f"{name}.json" for name in splits}
    resumes = not options.overwrite and not all(card.exists() for card in cards.values())
    for name, folder in splits.items():
        if resumes and cards[name].exists():
            print(f"{cards[name]} already exists and is kept; {options.remedy}")
            continue
        one = dataclasses.replace(options, dataset_dir=folder, tfrecord_filename=name)
        if name != "train":
            one = dataclasses.replace(one, validation_fraction=None, group_by=None)
            one = dataclasses.replace(one, leave_out=None, relabel=None)
        convert(one, shard_options, modality)


def _convert(options: ConvertOptions, shard_options: Any, modality: Modality) -> None:
    """Convert, while no other process writes the same dataset."""
    if options.hidden("complete").exists():  # it was stopped while the files were moved
        if options.shards:  # which takes no lock, and another process may move them at this moment
            raise UserError(
                f"shards: all of {options.place}/{options.name} are written; --finalize puts them "
                "in their place, if no other process does"
            )
        put_in_place(options)
    card = Card.load(options.card_of_classes) if options.card_of_classes else None
    known = card.target if card else None
    names = ("labels", "unlabeled", "follow_links", "group_by")
    given = {name: getattr(options, name) for name in names}
    listing = list_files(options.root, known=known, optional=options.may_differ, **given)
    if options.contact_sheet and not options.overwrite and Path(f"{options.path}.json").exists():
        write_contact_sheet(options, listing, modality)
        return
    options.check_places(modality.UNIT)
    listing = correct(listing, leave_out=options.leave_out, relabel=options.relabel)
    if listing.unlisted:
        print(f"{counted(listing.unlisted, 'files')} in {options.root} not in {options.labels}")
    if options.card_of_classes and not options.classes_from:
        if listing.target == known:
            print(f"the classes are those of {options.card_of_classes}")
        elif options.may_differ and listing.target.label != "none":
            print(f"its labels are not those of {options.card_of_classes}: a dataset of its own")
    if keys := listing.keys:
        groups = f"{counted(len({*keys} - {''}), 'groups')} by {options.group_by}"
        none = f"; {keys.count('')} of {len(keys)} files are in none" * ("" in keys)
        print(f"group_by: {groups}{none}")
    if options.fraction and options.validation_fraction is None:
        print(f"{100 * options.fraction:g} % of the {modality.UNIT} are kept for {VALIDATION}")

    some = some_paths(options.root, listing.files)
    resolved = modality.resolve_options(shard_options, some, card.options if card else {})
    plan = Plan(options, resolved, modality, listing)
    with plan.translate_errors():
        plan.open()
        jobs = {name: plan.shard_jobs(name, files) for name, files in plan.split().items()}
        if not options.finalize:
            chosen = [job for of_set in jobs.values() for job in of_set[options.chosen]]
            plan.run(chosen, modality.UNIT, "shards")
        if options.shards:
            print(f"shards {options.shards} are written; --finalize ends it when all are there")
        else:
            finish(plan, jobs)
            if options.contact_sheet:
                write_contact_sheet(options, listing, modality)


def verify(options: ConvertOptions, modality: Modality) -> None:
    """Read every shard of a dataset: checksums, counts, labels, and each example.

    Raises:
        UserError: there are faults: the first one, with its shard and record, and their number.
    """
    path = f"{options.place}/{options.name}"
    card = Card.load(f"{path}.json")
    faults: list[str] = []
    count = collections.Counter(dict.fromkeys(card.classes, 0))
    with tempfile.TemporaryDirectory() as folder:
        what = (modality.__name__, card.target)
        jobs = []
        for shard in card.shards:
            url = f"{options.url}/{shard.file}"
            work = functools.partial(verify_copy, url) if options.url else verify_shard
            report, files = Path(folder, shard.file), Files([shard.file], [0])
            jobs.append(ShardJob(work, report, options.folder, files, *what))
        with Progress(card.num_examples, "examples") as progress:
            for examples, size in run_jobs(jobs, options.processes):
                progress.update(examples, size)
        for job, shard in zip(jobs, card.shards, strict=True):
            faults += job.load("faults")
            count.update(job.load("examples_per_class"))
            if (examples := job.load("examples")) != shard.examples:
                records = counted(examples, "records")
                faults.append(f"{shard.file}: {records}, but the card says {shard.examples}")
            if job.load("sha256") != shard.sha256:
                faults.append(f"{shard.file}: its SHA-256 is not that of the card")
    if not faults:
        faults = [
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
