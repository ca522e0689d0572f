"""A look at a dataset's files: a page with examples, counts, sizes, duplicates and rejections."""

import base64
import collections
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from library.convert.finish import class_names
from library.convert.jobs import read_whole
from library.convert.listing import FileListing, LabeledFile
from library.convert.options import VALIDATION, ConvertOptions
from library.data import Modality
from library.util import BadFileError, counted, replacing

T = TypeVar("T")

GROUPS, EXAMPLES, PER_CLASS = 200, 400, 8
"""Classes of which files are shown; files that are shown, and of each class."""
PAIRS, ROWS, MEASURED = 60, 500, 5_000
"""Duplicates that are shown, rejected files that are listed, files whose sizes are read."""
QUANTILES = {"smallest": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "largest": 1.0}


def write_contact_sheet(options: ConvertOptions, listing: FileListing, modality: Modality) -> None:
    """Write <name>.contact_sheet.html beside a finished dataset, from the files as they are."""
    from library.report import render  # not at the start of each conversion: Jinja2 takes its time

    tables = {what: f"{options.name}.{what}.csv" for what in ("rejected", "duplicates")}
    rejected, duplicates = (_rows(options.folder / table) for table in tables.values())
    for row in duplicates:
        row["of"], _, row["original"] = row["same as"].partition(": ")
    duplicates.sort(key=lambda row: not row["conflicting label"])
    unusable = {row["file"] for row in rejected}
    files = [file for file in listing.files if file.name not in unusable]
    groups = _groups(files, listing)
    written = (options.name, VALIDATION) if options.fraction else (options.name,)

    def preview(name: str, of: str) -> str:
        """A file as an address; "" where it is not there, or is of another dataset."""
        if of not in written:
            return ""
        try:
            kind, content = modality.preview(read_whole(options.root / name))
        except (OSError, BadFileError):
            return ""
        return f"data:{kind};base64,{base64.b64encode(content).decode()}"

    page = render(
        Path(__file__).with_suffix(".html"),
        title=f"{options.root}: {counted(len(files), modality.UNIT)}",
        quantiles=QUANTILES,
        measures=_measures(files, options.root, modality),
        groups=groups,
        most=max(1, *map(len, groups.values())),
        examples=_examples(groups),
        values=listing.target.label == "value",
        dataset=options.name,
        duplicates=duplicates,
        rejected=rejected,
        tables=tables,
        limits={"pairs": PAIRS, "rows": ROWS},
        preview=preview,
    )
    path = options.path.with_name(f"{options.name}.contact_sheet.html")
    with replacing(path) as temporary:
        temporary.write_bytes(page)
    print(f"{path}: {counted(len(files), modality.UNIT)} at a glance")


def _rows(table: Path) -> list[dict[str, str]]:
    """The rows of a CSV file that a conversion has written, or not."""
    if not table.exists():
        return []
    with open(table, newline="", encoding="utf-8", errors="surrogateescape") as file:
        return [*csv.DictReader(file)]


def _groups(files: Sequence[LabeledFile], listing: FileListing) -> dict[str, list[LabeledFile]]:
    """The files of each class, and under "" those without, in the order of their values."""
    found = collections.defaultdict[str, list[LabeledFile]](list)
    found |= {name: [] for name in listing.target.classes}
    for file in files:
        for name in class_names(listing.target, file.label) or [""]:
            found[name].append(file)
    if listing.target.label == "value":
        found[""].sort(key=lambda file: file.label)
    return dict(found)


def _examples(groups: dict[str, list[LabeledFile]]) -> dict[str, list[LabeledFile]]:
    """Some files of each group."""
    count = max(1, min(PER_CLASS, EXAMPLES // len(groups))) if len(groups) > 1 else EXAMPLES // 10
    return {name: _spread(groups[name], count) for name in [*groups][:GROUPS]}


def _spread(files: Sequence[T], count: int) -> list[T]:
    """At most so many, evenly apart."""
    count = min(count, len(files))
    return [files[i * len(files) // count] for i in range(count)]


def _measures(files: Sequence[LabeledFile], root: Path, modality: Modality) -> dict[str, list]:
    """QUANTILES of what the modality measures of a file, by its name."""
    found = collections.defaultdict[str, list[float]](list)
    for file in _spread(files, MEASURED):
        for name, value in modality.measures(root / file.name).items():
            found[name].append(value)
    return {name: np.quantile(each, [*QUANTILES.values()]).tolist() for name, each in found.items()}
