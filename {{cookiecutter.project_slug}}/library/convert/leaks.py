"""Duplicates within the datasets of a conversion, and of those that are beside them."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from library.convert.duplicates import (
    equal_files,
    near_duplicates,
    read_checksums,
    read_seen,
    stacked,
)
from library.convert.listing import SPLITS, Files
from library.convert.options import VALIDATION
from library.convert.plan import Plan
from library.data import Label, Target
from library.util import UserError, counted, replacing

HEADER = ("set", "file", "same as", "kind", "conflicting label")


def report_duplicates(plan: Plan, used: Mapping[str, Files]) -> None:
    """List the duplicates of the datasets in `plan.partial`, also of those that are there."""
    target, known = plan.listing.target, _known(plan, used)
    sets = [read_seen(path) for path in known.values()]
    first_used = sum(len(checksums) for checksums, _ in sets)
    sets += [read_seen(plan.partial / name) for name in used]
    equal = near = equal_files(np.concatenate([checksums for checksums, _ in sets]))
    if plan.options.near_duplicates:
        near = near_duplicates(stacked([thumbnails for _, thumbnails in sets], plan.partial))
    leaks_only_near = (equal >= first_used) & (near < first_used)
    numbers = np.arange(len(equal))
    same = np.where((equal == numbers) | leaks_only_near, near, equal)
    numbers = numbers[first_used:][same[first_used:] != numbers[first_used:]]
    files = dict(_chosen(known, used, {*numbers.tolist(), *same[numbers].tolist()}))
    rows, conflicts = [], 0
    for number in numbers.tolist():
        (name, file, label), (of, original, other) = files[number], files[int(same[number])]
        conflict = None if other in (None, label) else other
        conflicts += conflict is not None
        kind = "exact" if equal[number] == same[number] else "near"
        names = ";".join(class_names(target, conflict))
        rows.append((name, file, f"{of}: {original}", kind, names))
    table = write_table(plan, "duplicates", [HEADER, *sorted(rows)])
    _describe(plan, table, rows, conflicts, [*known])


def _known(plan: Plan, used: Mapping[str, Files]) -> dict[str, Path]:
    """The datasets beside those of a conversion, which should have no files of them."""
    options = plan.options
    paths = {name: options.tfrecord_dir / name for name in SPLITS.values()}
    if card := options.classes_from:
        paths = {name: card.with_name(name) for name in (card.stem, VALIDATION)}
        if not (checksums := card.with_suffix(".sha256")).exists():
            raise UserError(f"classes_from: {checksums}: there is no such file")
    names = [name for name in paths if name not in used]
    return {name: paths[name] for name in names if _beside(paths[name], ".sha256").exists()}


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _chosen(
    known: Mapping[str, Path], used: Mapping[str, Files], wanted: set[int]
) -> Iterator[tuple[int, tuple[str, str, Label | None]]]:
    """Dataset, name and label of the files of these numbers; of known ones without the label."""
    number = 0
    for name, path in known.items():
        for _, file in read_checksums(_beside(path, ".sha256")):
            if number in wanted:
                yield number, (name, file, None)
            number += 1
    for name, files in used.items():
        for each in sorted(wanted):
            if number <= each < number + len(files):
                yield each, (name, *files[each - number])
        number += len(files)


def _describe(
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
