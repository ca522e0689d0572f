"""Convert files into a data set: shards, an index and a card.

python convert_dataset.py --dataset_dir mine/train --tfrecord_dir data \\
    --tfrecord_filename train --validation_fraction 0.1

The files are in a folder for each class, whose names are those of the
classes; or in any folder, and --labels is a CSV file with file and label.
What cannot be used is listed, with the reason, in <name>.rejected.csv. A
conversion that was stopped goes on when the same command is given again.
"""

import collections
import dataclasses
import errno
import functools
import os
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from library.config import REQUIRED, Parser, option
from library.convert import Task, conversion, duplicates, run_tasks, verify
from library.convert import scan as layouts
from library.data import Card
from library.util import Progress, RunError, UserError, check_folder, run_main
from project.settings import modality as shards

UNIT = shards.UNIT
EXAMPLES_PER_SHARD, FEW_EXAMPLES, MANY_SHARDS = 1000, 64, 16
VALIDATION = "validation"
GOES_ON = "the same command goes on with the others"
SELECTION, SHARDS, WORK = "what is converted", "shards", "the work"


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of this program."""

    tfrecord_filename: str = option(REQUIRED, "name of the data set, as train")
    tfrecord_dir: Path = option(REQUIRED, "folder to write to, as data")
    dataset_dir: Path | None = option(None, "folder of the files", group=SELECTION)
    labels: Path | None = option(
        None, "CSV file with the columns file and label, instead of folders", group=SELECTION
    )
    unlabeled: bool = option(False, "all files below the folder, of no class", group=SELECTION)
    classes_from: Path | None = option(
        None, "card of a set whose classes these are, as data/train.json", group=SELECTION
    )
    follow_links: bool = option(False, "also links that lead out of the data set", group=SELECTION)
    validation_fraction: float = option(
        0.0,
        f"share of the files for a second set, {VALIDATION}",
        group=SELECTION,
        minimum=0,
        maximum=0.9,
    )
    max_rejected: float = option(
        0.01,
        "share of unusable files above which all fails",
        group=SELECTION,
        minimum=0,
        maximum=1,
    )
    num_shards: int | None = option(
        None,
        f"files to write; null: one for {EXAMPLES_PER_SHARD} {UNIT}, {MANY_SHARDS} or less "
        "where there are few",
        group=SHARDS,
        minimum=1,
    )
    random_seed: int = option(
        0, f"fixes the order of the {UNIT} in the shards", group=SHARDS, minimum=0
    )
    overwrite: bool = option(False, "replace a data set of this name", group=SHARDS)
    num_workers: int | None = option(
        None, "processes; null: one for each core", group=WORK, minimum=1
    )
    shards: str | None = option(
        None, "only these, as 0-99: other machines write the others", group=WORK
    )
    finalize: bool = option(
        False, "only index and card, of shards that other machines wrote", group=WORK
    )
    runner: str | None = option(
        None, "Apache Beam's runner, as DirectRunner, instead of processes", group=WORK
    )
    beam_options: str | None = option(None, "Beam's own options, in one line", group=WORK)
    verify: bool = option(False, "read a finished data set, and name its faults", group=WORK)

    @property
    def root(self) -> Path:
        """The folder of the files, without which nothing can be converted."""
        if self.dataset_dir is None:
            raise UserError("dataset_dir: missing: the folder of the files")
        return self.dataset_dir


def main() -> None:
    parser = Parser(__doc__ + shards.HELP, Options, shards.ShardOptions)
    parser.parse(sys.argv[1:])
    resolved, of_shards = parser.resolve(Options), parser.resolve(shards.ShardOptions)
    parser.raise_errors()
    options = resolved.options
    if options.verify:
        path = options.tfrecord_dir / options.tfrecord_filename
        verified = verify(path, shards.verify_shard, workers(options))
        shards.open_data(path)
        print(verified)
    else:
        convert(options, of_shards.options)


def convert(options: Options, shard_options: shards.ShardOptions) -> None:
    """Do what the flags say.

    Raises:
        UserError: the input cannot be used, or the output is there already.
    """
    name, folder = options.tfrecord_filename, options.tfrecord_dir
    check_options(options)
    layout = find_files(options)
    files, known = layout.files, used(options) | dataclasses.asdict(shard_options)
    partial, complete = (folder / f".{name}.{word}" for word in ("partial", "complete"))
    if complete.exists():  # a conversion was stopped while it put its files in their places
        conversion.put_in_place(complete)
    check_places(folder, options)
    plan = conversion.fingerprint(options.root, files, classes=layout.classes, **known)
    conversion.open_partial(partial, plan, shared=bool(options.shards or options.finalize))

    files = random.Random(options.random_seed).sample(files, len(files))
    sets = {name: files}
    if options.validation_fraction:
        sets = split(partial, files, options)
    tasks = {
        name: shard_tasks(partial, name, members, layout.classes, options, shard_options)
        for name, members in sets.items()
    }
    if not options.finalize:
        wanted = [task for of_set in tasks.values() for task in chosen(of_set, options)]
        write = functools.partial(
            conversion.convert_shard, standard=shards.standard, write_shard=shards.write_shard
        )
        run_missing(write, wanted, options, UNIT)
    if options.shards:
        print(f"shards {options.shards} are written; --finalize ends it when all are there")
        return

    cards, reports = {}, {}
    for name, of_set in tasks.items():
        finished = conversion.finish(partial, name, of_set, layout.classes, known)
        cards[name], reports[name] = finished
        shards.write_index(partial / name, [task.output for task in of_set])
    report_rejected(layout, reports, options)
    report_duplicates(partial, reports, options)
    for card in cards.values():
        if not card.num_examples:
            raise UserError(
                f"dataset_dir: none of the files in {options.dataset_dir} could be used"
            )
    conversion.remove_reports(partial)
    os.replace(partial, complete)
    conversion.put_in_place(complete)
    for name, card in cards.items():
        of_classes = f" of {len(card.classes)} classes" if card.classes else ""
        print(f"{folder / name}: {card.num_examples} {UNIT}{of_classes}")
        without = [each for each, examples in card.examples_per_class.items() if not examples]
        if without:
            print(f"{folder / name}: none of {', '.join(without)}")


def workers(options: Options) -> int:
    return options.num_workers or os.cpu_count() or 1


def check_options(options: Options) -> None:
    """Refuse flags that make no sense together."""
    name = options.tfrecord_filename
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(
            f"tfrecord_filename: {name} is not a name of letters, digits, ., - and _; the folder "
            "is tfrecord_dir"
        )
    if not options.root.is_dir():
        raise UserError(f"dataset_dir: {options.root} is not a folder")
    check_folder("tfrecord_dir", options.tfrecord_dir)
    if options.classes_from and options.classes_from.suffix != ".json":
        raise UserError(
            f"classes_from: {options.classes_from} is not a card: that of a data set is its name "
            f"with .json, {options.classes_from}.json"
        )
    if options.labels and options.unlabeled:
        raise UserError("unlabeled: --labels gives each file a label: leave out one of them")
    if options.validation_fraction and name == VALIDATION:
        raise UserError(f"tfrecord_filename: {VALIDATION} is the name of the second set")
    if options.shards:
        if not re.fullmatch(r"\d+(-\d+)?", options.shards):
            raise UserError(f"shards: {options.shards} is not a number, or two as 0-99")
        if options.finalize:
            raise UserError("shards: --finalize comes when all shards are there: leave out one")
        if not options.num_shards:
            raise UserError("shards: give --num_shards too: it has to be the same everywhere")
        first, *last = map(int, options.shards.split("-"))
        if not first <= (last or [first])[0] < options.num_shards:
            raise UserError(
                f"shards: {options.shards} is not within 0-{options.num_shards - 1}, all of "
                f"num_shards, {options.num_shards}"
            )


def find_files(options: Options) -> layouts.Layout:
    """The files to convert, in the layout that the flags name."""
    root, links = options.root, options.follow_links
    classes = Card.load(options.classes_from).classes if options.classes_from else None
    if options.unlabeled:
        layout = layouts.files_without_labels(root, follow_links=links)
    elif options.labels:
        layout = layouts.files_with_csv(root, options.labels, classes=classes, follow_links=links)
        others = sum(not reason for _, reason in layouts.files_below(root)) - len(layout.files)
        if others > 0:
            print(f"{others} files in {root} are not in {options.labels}: left out")
    else:
        layout = layouts.folder_per_class(root, classes=classes, follow_links=links)
    if not layout.files:
        raise UserError(f"dataset_dir: there are no files in {root}")
    return layout


def used(options: Options) -> dict[str, Any]:
    """The options that make a difference to the result."""
    names = ["tfrecord_filename", "unlabeled", "follow_links", "validation_fraction"]
    names += ["num_shards", "random_seed"]
    return {name: getattr(options, name) for name in names}


def split(
    partial: Path, files: Sequence[layouts.Found], options: Options
) -> dict[str, list[layouts.Found]]:
    """The two sets to write."""
    size = conversion.FILES_PER_SCAN
    parts = [files[begin : begin + size] for begin in range(0, len(files), size)]
    tasks = [
        Task(partial / f"scan-{number:05}", options.root, part) for number, part in enumerate(parts)
    ]
    scan = functools.partial(conversion.scan_files, thumbnail=shards.thumbnail)
    run_missing(scan, tasks, options, "files compared")
    scanned: dict[str, tuple[str, str]] = {}
    for task in tasks:
        report = conversion.load_report(task)
        if report is None:
            raise UserError(f"finalize: {task.report} is missing: the shards were not written here")
        scanned |= report["scanned"]
    train, validation = duplicates.split_by_content(files, options.validation_fraction, scanned)
    sets = {options.tfrecord_filename: train, VALIDATION: validation}
    for name, members in sets.items():
        if not members:
            raise UserError(
                f"validation_fraction: {options.validation_fraction:g} of {len(files)} {UNIT} "
                f"leaves none for {name}"
            )
    return sets


def shard_tasks(
    partial: Path,
    name: str,
    files: Sequence[layouts.Found],
    classes: Sequence[str],
    options: Options,
    shard_options: shards.ShardOptions,
) -> list[Task]:
    """A task for each shard of a set; how many follows from the files alone."""
    few = min(MANY_SHARDS, -(-len(files) // FEW_EXAMPLES))
    wanted = options.num_shards or max(few, -(-len(files) // EXAMPLES_PER_SHARD))
    num_shards = min(wanted, len(files))
    return [
        Task(
            partial / f"{name}-{number:05}-of-{num_shards:05}{shards.SUFFIX}",
            options.root,
            files[number::num_shards],
            classes,
            shard_options,
        )
        for number in range(num_shards)
    ]


def chosen(tasks: Sequence[Task], options: Options) -> Sequence[Task]:
    """Those that `shards` names, or all."""
    if not options.shards:
        return tasks
    first, *last = map(int, options.shards.split("-"))
    return tasks[first : (last[0] if last else first) + 1]


def run_missing(function: Any, tasks: Sequence[Task], options: Options, unit: str) -> None:
    """Do the tasks that have no report yet."""
    missing = [task for task in tasks if not task.report.exists()]
    if missing and len(missing) < len(tasks):
        print(f"going on: {len(tasks) - len(missing)} of {len(tasks)} parts are there already")
    if options.runner:
        from library.convert import run_with_beam

        run_with_beam(function, missing, options.runner, options.beam_options or "")
        return
    try:
        with Progress(sum(len(task.files) for task in missing), unit) as progress:
            for count, size in run_tasks(function, missing, workers(options)):
                progress.update(count, size)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"finished shards are kept: {GOES_ON}") from interrupt
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise RunError(
            f"no space left for {options.tfrecord_dir}; finished shards are kept: {GOES_ON}, when "
            "there is room"
        ) from error


def report_rejected(
    layout: layouts.Layout, reports: dict[str, list[conversion.Report]], options: Options
) -> None:
    """List what could not be used; too much of it is an error.

    Raises:
        UserError: it is more than `max_rejected` of the files.
    """
    rejected = list(layout.rejected)
    for of_set in reports.values():
        rejected += [tuple(row) for report in of_set for row in report["rejected"]]
    file = options.tfrecord_dir / f"{options.tfrecord_filename}.rejected.csv"
    conversion.write_table(file, [("file", "reason"), *sorted(rejected)])
    total = len(layout.files) + len(layout.rejected)
    if len(rejected) > options.max_rejected * total:
        top = collections.Counter(reason for _, reason in rejected).most_common(3)
        reasons = ", ".join(f"{count} {reason}" for reason, count in top)
        raise UserError(
            f"max_rejected: {len(rejected)} of {total} files could not be used, more than "
            f"{options.max_rejected:g} of them ({reasons}): see {file}"
        )
    if rejected:
        print(f"{len(rejected)} files could not be used: see {file}")


def report_duplicates(
    partial: Path, reports: dict[str, list[conversion.Report]], options: Options
) -> None:
    """List the files that are there twice, also in the set of `classes_from`."""
    files = {
        name: [duplicates.Used(*row) for report in of_set for row in report["used"]]
        for name, of_set in reports.items()
    }
    for name, rows in files.items():
        duplicates.write_checksums(partial / f"{name}.sha256", rows)
    known = {}
    if options.classes_from:
        for name in dict.fromkeys((options.classes_from.stem, VALIDATION)):
            checksums = options.classes_from.with_name(f"{name}.sha256")
            if name not in files and (name != VALIDATION or checksums.exists()):
                known[name] = duplicates.read_checksums(checksums)
    found = [row for row in duplicates.exact_duplicates({**known, **files}) if row.set in files]
    table = options.tfrecord_dir / f"{options.tfrecord_filename}.duplicates.csv"
    conversion.write_table(table, [("set", "file", "same as", "which is of class"), *found])
    leaks = [row for row in found if row.same_as.startswith(tuple(f"{name}: " for name in known))]
    contradictions = [row for row in found if row.other_class]
    if found:
        print(f"{len(found)} files are there twice: see {table}")
    if contradictions:
        print(f"contradiction: {len(contradictions)} of them are of another class there")
    if leaks:
        print(f"leak: {len(leaks)} of them are in {' or '.join(known)} as well")


def check_places(folder: Path, options: Options) -> None:
    """Refuse to replace what nobody asked to replace, and to leave a split that is no more."""
    fraction, name = options.validation_fraction, options.tfrecord_filename
    sets = [name, VALIDATION] if fraction else [name]
    for card in (folder / f"{name}.json" for name in sets):
        if card.exists() and not options.overwrite:
            raise UserError(f"tfrecord_filename: {card} is there already: --overwrite replaces it")
    validation = folder / f"{VALIDATION}.json"
    if not validation.exists() or name == VALIDATION:
        return
    known = Card.load(validation).options
    source, before = known.get("tfrecord_filename"), known.get("validation_fraction", 0)
    if VALIDATION in sets and source != name:
        raise UserError(
            f"validation_fraction: {validation} is not of {name}, but of {source}: take another "
            "tfrecord_dir"
        )
    if VALIDATION not in sets and source == name:
        raise UserError(
            f"validation_fraction: {validation} has {UNIT} of {source}, which would be in "
            f"both: give {before:g} again, or delete it"
        )


if __name__ == "__main__":
    run_main(main)
