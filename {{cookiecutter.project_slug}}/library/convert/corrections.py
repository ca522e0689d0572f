"""Corrections of labels: the tables of --leave_out and --relabel, as `run.py audit` writes them."""

import csv
from collections.abc import Iterator
from pathlib import Path

from library.convert.listing import FileListing, Files
from library.util import UserError, counted, did_you_mean


def correct(listing: FileListing, *, leave_out: Path | None, relabel: Path | None) -> FileListing:
    """The listing without the files of one table, and with the labels of another one.

    The new label is in the column `suggested`, or else in `label`. UserError: a table cannot be
    read, or names an unknown file or class.
    """
    names, labels, target = listing.files.names, [*listing.files.labels], listing.target
    numbers = {name: number for number, name in enumerate(names)}
    if relabel:
        if target.label != "class":
            raise UserError(f"relabel: needs a class for each file, but there are {target}")
        classes, changed = {name: number for number, name in enumerate(target.classes)}, 0
        for place, row in _rows("relabel", relabel, numbers, ("suggested", "label")):
            label = row.get("suggested") or row.get("label") or ""
            if label not in classes:
                raise UserError(f"{place}: {label} is no class{did_you_mean(label, classes)}")
            changed += labels[numbers[row["file"]]] != classes[label]
            labels[numbers[row["file"]]] = classes[label]
        print(f"relabel: {counted(changed, 'files')} of {len(names):,} get another label")
    without = set[str]()
    if leave_out:
        without = {row["file"] for _, row in _rows("leave_out", leave_out, numbers)}
        print(f"leave_out: {counted(len(without), 'files')} of {len(names):,} are left out")
    kept = [number for name, number in numbers.items() if name not in without]
    if not kept:
        raise UserError(f"leave_out: {leave_out} lists all files")
    keys = listing.keys and [listing.keys[number] for number in kept]
    files = Files([names[number] for number in kept], [labels[number] for number in kept])
    return listing._replace(files=files, keys=keys)


def _rows(
    option: str, table: Path, known: dict[str, int], one_of: tuple[str, ...] = ("file",)
) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row of a table, with the place where it stands; its files are known."""
    try:
        with open(table, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            if "file" not in columns or not {*columns} & {*one_of}:
                needed = " and ".join(dict.fromkeys(["file", " or ".join(one_of)]))
                raise UserError(f"{option}: {table} has no columns {needed} in its first line")
            for row in reader:
                place = f"{option}: {table}, line {reader.line_num}"
                if row["file"] not in known:
                    raise UserError(f"{place}: the dataset has no file {row['file']}")
                yield place, row
    except OSError as error:
        raise UserError(f"{option}: {table}: {error.strerror}") from error
    except csv.Error as error:
        raise UserError(f"{option}: {table} is not a CSV file: {error}") from error
