"""The end of a conversion: card, index and lists, all moved to their places together."""

import collections
import csv
import dataclasses
import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from library.convert import duplicates
from library.convert.jobs import ShardJob
from library.convert.listing import SPLITS, Files
from library.convert.options import VALIDATION, ConvertOptions
from library.convert.plan import Plan, used_files
from library.data import Card, Label, Shard, Target, write_file, write_index
from library.util import UserError, counted, replacing

MOST = 10
"""Classes that are listed at the end."""
HEADER = ("set", "file", "same as", "kind", "conflicting label")


def finish(plan: Plan, jobs: Mapping[str, Sequence[ShardJob]]) -> None:
    """Make datasets of shards that are all there.

    Raises:
        UserError: a shard is missing, or too many files were rejected, or all.
    """
    options, partial, target = plan.options, plan.partial, plan.listing.target
    for name, of_set in jobs.items():
        missing = [str(number) for number, job in enumerate(of_set) if not job.report.exists()]
        if missing:
            some = ", ".join(missing[:10]) + (" ..." if len(missing) > 10 else "")
            lacks = f"{len(missing)} of {len(of_set)} shards of {name} missing: {some}"
            raise UserError(f"finalize: {lacks}")
    _report_rejected(plan, [job for of_set in jobs.values() for job in of_set])
    used = {name: used_files(of_set) for name, of_set in jobs.items()}
    for name, files in used.items():
        if not len(files):
            raise UserError(f"dataset_dir: all files of {name} in {options.root} were rejected")
        duplicates.write_seen(partial / name, (file.name for file in files), *plan.seen(jobs[name]))
    report_duplicates(plan, used)
    train = options.card_of_classes  # whose mean it is, if that has values
    if target.label == "value" and not (train and Card.load(train).label == "value"):
        values = np.array([file.label for file in used[options.name]])
        std = float(values.std()) or 1.0
        if not values.std():
            print(f"warning: all values are {values[0]:g}: there is nothing to learn")
        target = dataclasses.replace(target, mean=float(values.mean()), std=std)
    cards, recorded = {}, options.recorded | dataclasses.asdict(plan.shard_options)
    for name, of_set in jobs.items():
        count = collections.Counter(dict.fromkeys(target.classes, 0))
        count.update(each for file in used[name] for each in class_names(target, file.label))
        shards = [Shard(**job.load("shard")) for job in of_set]
        kind = (target.label, target.mean, target.std)
        cards[name] = Card([*target.classes], dict(count), shards, recorded, *kind)
        cards[name].save(partial / f"{name}.json")
        write_index(partial / name, [job.load("rows") for job in of_set])
    for file in partial.glob("*.npz"):
        file.unlink()
    (partial / "plan").unlink()  # last: until then the conversion can resume
    os.replace(partial, options.hidden("complete"))
    put_in_place(options)
    for name, card in cards.items():
        _describe(f"{options.place}/{name}", card, plan.modality.UNIT, used[name])


def put_in_place(options: ConvertOptions) -> None:
    """Move whole datasets from "complete" to their places, where they replace those of their names.

    It can be stopped at any moment, and called again: what is not moved yet is in "complete", and
    no card is there before all that it names.
    """
    complete, folder = options.hidden("complete"), options.folder

    def move(file: Path) -> None:
        if options.url:
            write_file(f"{options.url}/{file.name}", file)
        os.replace(file, folder / file.name)

    for path in sorted(complete.glob("*.json")):
        name, card = path.stem, Card.load(path)
        new = [shard.file for shard in card.shards]
        new += [f"{name}.index", f"{name}.sha256", f"{name}.thumbnails"]
        old = [*folder.glob(f"{name}-?????-of-?????.*"), folder / f"{name}.index"]
        (folder / path.name).unlink(missing_ok=True)
        for file in (file for file in old if file.name not in new):
            file.unlink(missing_ok=True)
        for file in [*(complete / file for file in new), *folder.glob(f"{name}.*.csv")]:
            if file.exists():
                move(file)
        card.files(f"{options.place}/{name}")  # all there
        move(path)
    shutil.rmtree(complete)


def _report_rejected(plan: Plan, jobs: Sequence[ShardJob]) -> None:
    """List the rejected files; UserError where they are more than `max_rejected`."""
    options, listing = plan.options, plan.listing
    found = [(job.files[n].name, reason) for job in jobs for n, reason in job.load("rejected")]
    rejected = sorted([*listing.rejected, *found])
    table = write_table(plan, "rejected", [("file", "reason"), *rejected])
    total = len(listing.files) + len(listing.rejected)
    if len(rejected) > options.max_rejected * total:
        top = collections.Counter(reason for _, reason in rejected).most_common(3)
        reasons = ", ".join(f"{count} {reason}" for reason, count in top)
        if others := len(rejected) - sum(count for _, count in top):
            reasons += f", {others} others"
        raise UserError(
            f"max_rejected: {len(rejected)} of {counted(total, 'files')} rejected, above the "
            f"limit of {100 * options.max_rejected:g} % ({reasons}): see {table}"
        )
    if rejected:
        print(f"{counted(len(rejected), f'rejected {plan.modality.UNIT}')}: see {table}")


def _describe(path: str, card: Card, unit: str, used: Files) -> None:
    """Say what a dataset holds."""
    some = ", ".join(f"{name} {count}" for name, count in [*card.examples_per_class.items()][:MOST])
    more = f" and {len(card.classes) - MOST} more" if len(card.classes) > MOST else ""
    what = f" of {counted(len(card.classes), 'classes')}" if card.classes else ""
    if card.label == "value":
        values = np.array([file.label for file in used])  # the card has those of training data
        what = f" with values: mean {values.mean():.4g}, standard deviation {values.std():.4g}"
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


# ---- duplicates ----------------------------------------------------------------------------------


def report_duplicates(plan: Plan, used: Mapping[str, Files]) -> None:
    """List the duplicates of the datasets in `plan.partial`, also of those that are there."""
    target, known = plan.listing.target, _known(plan, used)
    paths = [*known.values(), *(plan.partial / name for name in used)]
    checksums, thumbnails = zip(*map(duplicates.read_seen, paths), strict=True)
    first_used = sum(map(len, checksums[: len(known)]))
    equal = near = duplicates.equal_files(np.concatenate(checksums))
    if plan.options.near_duplicates:
        size = thumbnails[-1].shape[1]  # zeros stand for thumbnails that an older dataset has not
        parts = [
            n if n.shape[1] == size else np.zeros([len(n), size], np.uint8) for n in thumbnails
        ]
        near = duplicates.near_duplicates(duplicates.stacked(parts, len(equal), plan.partial))
    leaks_only_near = (equal >= first_used) & (near < first_used)
    numbers = np.arange(len(equal))
    same = np.where((equal == numbers) | leaks_only_near, near, equal)
    numbers = numbers[first_used:][same[first_used:] != numbers[first_used:]]
    wanted = {*numbers.tolist(), *same[numbers].tolist()}
    # Dataset, name and label; the labels of known ones are not kept.
    before = ((of, f, None) for of, at in known.items() for _, f in duplicates.read_checksums(at))
    new = ((of, *file) for of, some in used.items() for file in some)
    files = {n: file for n, file in enumerate(itertools.chain(before, new)) if n in wanted}
    rows, conflicts = [], 0
    for number in numbers.tolist():
        (name, file, label), (of, original, other) = files[number], files[int(same[number])]
        conflict = None if other in (None, label) else other
        conflicts += conflict is not None
        kind = "exact" if equal[number] == same[number] else "near"
        names = ";".join(class_names(target, conflict))
        if isinstance(conflict, float):
            names = f"{conflict:g}"
        rows.append((name, file, f"{of}: {original}", kind, names))
    table = write_table(plan, "duplicates", [HEADER, *sorted(rows)])
    _print_duplicates(plan, table, rows, conflicts, [*known])


def _known(plan: Plan, used: Mapping[str, Files]) -> dict[str, Path]:
    """The datasets beside those of a conversion, which should have no files of them."""
    options = plan.options
    paths = {name: options.folder / name for name in SPLITS.values()}
    if card := options.classes_from:
        paths = {name: card.with_name(name) for name in (card.stem, VALIDATION)}
        if not (checksums := card.with_suffix(".sha256")).exists():
            raise UserError(f"classes_from: {checksums}: there is no such file")
    there = {name: path for name, path in paths.items() if Path(f"{path}.sha256").exists()}
    return {name: path for name, path in there.items() if name not in used}


def _print_duplicates(
    plan: Plan, table: Path, rows: Sequence[Sequence[str]], conflicts: int, known: Sequence[str]
) -> None:
    near = sum(row[3] == "near" for row in rows)
    leaks = [row for row in rows if row[2].partition(": ")[0] in known]
    if rows:
        kinds = f", {near} of them near ones" if near else ""
        print(f"{counted(len(rows), 'duplicate files')}{kinds}: see {table}")
    if conflicts:
        have = f"{counted(conflicts, 'duplicates')} {'has' if conflicts == 1 else 'have'}"
        different = "class" if plan.listing.target.classes else "value"
        print(f"label conflict: {have} a different {different}")
    for name in dict.fromkeys(row[0] for row in leaks):
        count = sum(row[0] == name for row in leaks)
        are = f"{counted(count, f'{name} files')} {'is' if count == 1 else 'are'}"
        print(f"leak: {are} also in {' or '.join(known)}")


def class_names(target: Target, label: Label | None) -> list[str]:
    numbers = label if isinstance(label, tuple) else (label,)
    return [target.classes[int(each)] for each in numbers if target.classes and each is not None]


def write_table(plan: Plan, what: str, rows: Sequence[Sequence[str]]) -> Path:
    """A CSV file, the first row of which is its header; none where that is all."""
    path = plan.options.path.with_name(f"{plan.options.name}.{what}.csv")
    path.unlink(missing_ok=True)
    if len(rows) > 1:
        with (
            replacing(path) as temporary,
            open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            csv.writer(file).writerows(rows)
    return path
