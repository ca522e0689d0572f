"""The files of a dataset as people have them, and the label of each."""

import csv
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from library.data import UNLABELED, Label, Target
from library.util import LINK_OUT, UserError, did_you_mean, files_below, is_inside, is_junk

LARGEST_FLOAT = 3.4e38
"""Values are stored in 32 bits."""

_Row = tuple[str, tuple[str, ...] | float, str]
"""A file, the names of its classes or its value, and why it is rejected, or ""."""


class LabeledFile(NamedTuple):
    """A file, and its label."""

    name: str  # from the folder of the dataset on, with /
    label: Label


class FileListing(NamedTuple):
    """What a dataset is made of."""

    target: Target
    files: list[LabeledFile]
    rejected: list[tuple[str, str]]  # name and reason


def list_files(
    root: Path,
    *,
    labels: Path | None = None,
    unlabeled: bool = False,
    known: Target | None = None,
    follow_links: bool = False,
) -> FileListing:
    """The files below a folder, each with its label.

    Args:
        root: the folder; it has one for each class unless one of the next two says otherwise.
        labels: a CSV file of files and their labels.
        unlabeled: whether no file has a label.
        known: the target of another dataset, whose classes these are.
        follow_links: also out of the folder.

    Raises:
        UserError: there are no files, or the labels cannot be used.
    """
    classes: list[str] = []
    if unlabeled:
        kind, rows = "none", _rows_below(root, root, (), follow_links)
    elif labels:
        kind, given = _read_csv(labels)
        rows = ((name, each, _refusal(root, name, follow_links)) for name, each in given.items())
        classes = [name for each in given.values() if isinstance(each, tuple) for name in each]
    else:
        kind, (classes, rows) = "class", _class_folders(root, follow_links)
    option = "labels" if labels else "dataset_dir"
    target = Target(kind) if unlabeled else _target(kind, set(classes), known, option)
    numbers = {name: number for number, name in enumerate(target.classes)}

    def label(given: tuple[str, ...] | float) -> Label:
        if not isinstance(given, tuple):
            return given
        several = tuple(sorted(numbers[name] for name in given))
        return several if kind == "labels" else (*several, UNLABELED)[0]

    listing = FileListing(target, [], [])
    for name, given_label, reason in rows:
        if reason:
            listing.rejected.append((name, reason))
        else:
            listing.files.append(LabeledFile(name, label(given_label)))
    if not listing.files:
        raise UserError(f"dataset_dir: there are no files in {root}")
    return listing


def _rows_below(
    folder: Path, root: Path, classes: tuple[str, ...], follow_links: bool
) -> Iterator[_Row]:
    for path, reason in files_below(folder, root=root, follow_links=follow_links):
        yield path.relative_to(root).as_posix(), classes, reason


def _class_folders(root: Path, follow_links: bool) -> tuple[list[str], Iterable[_Row]]:
    """The classes, and the files of `root`/<class>/..., at any depth."""
    inside, folders = os.path.realpath(root), []
    rows: list[_Row] = []
    for path in sorted(root.iterdir()):
        if is_junk(path.name):
            continue
        if not follow_links and not is_inside(os.path.realpath(path), inside):
            rows.append((path.name, (), LINK_OUT))
        elif path.is_dir():
            folders.append(path)
        else:
            rows.append((path.name, (), "not in the folder of a class"))
    if not folders:
        raise UserError(
            f"dataset_dir: {root} contains no class folders; give their parent folder, or --labels "
            "with a CSV file, or --unlabeled"
        )
    for folder in sorted(folders, key=lambda path: _numbers_by_value(path.name)):
        if folder.name.encode(errors="replace").decode() != folder.name:
            raise UserError(f"dataset_dir: the name of {ascii(str(folder))} is not in UTF-8")
        rows += _rows_below(folder, root, (folder.name,), follow_links)
    return [folder.name for folder in folders], rows


def _read_csv(table: Path) -> tuple[str, dict[str, tuple[str, ...] | float]]:
    """The kind of label in a CSV file, and the label of each file in it."""
    found: dict[str, tuple[str, ...] | float] = {}
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            kind, *more = sorted(columns & {"label", "labels", "value"}) or [""]
            if "file" not in columns or not kind or more:
                raise UserError(
                    f"labels: {table} has no header with file and one of label, labels and value, "
                    "and a comma between"
                )
            for row in reader:
                name, place = row["file"] or "", f"labels: {table}, line {reader.line_num}"
                label = _parse(kind, row[kind] or "", place)
                if not name or (kind == "label" and not label):
                    raise UserError(f"{place}: file or {kind} is empty")
                name = PurePosixPath(name.replace(os.sep, "/")).as_posix()
                if found.setdefault(name, label) != label:
                    raise UserError(f"labels: {table} gives {name} two labels")
    except OSError as error:
        raise UserError(f"labels: {table}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"labels: {table} is not a CSV file in UTF-8: {error}") from error
    return "class" if kind == "label" else kind, found


def _parse(kind: str, text: str, place: str) -> tuple[str, ...] | float:
    """What stands in a CSV file: the names of classes, or a value."""
    if kind == "label":
        return (text,) if text else ()
    if kind == "labels":
        return tuple(sorted({name.strip() for name in text.split(";")} - {""}))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) < LARGEST_FLOAT:
        raise UserError(f"{place}: {text or 'nothing'} is not a finite number")
    return value


def _refusal(root: Path, name: str, follow_links: bool) -> str:
    """Why a file that a table names is rejected, or ""."""
    parts = PurePosixPath(name)
    if ".." in parts.parts or parts.is_absolute():
        return "a name that leads out of the dataset"
    if not (root / name).is_file():
        return "no such file"
    inside = is_inside(os.path.realpath(root / name), os.path.realpath(root))
    return "" if follow_links or inside else LINK_OUT


def _numbers_by_value(name: str) -> tuple[float, str]:
    """The order of class names: numbers first, by their value."""
    return float(name) if name.isdecimal() else float("inf"), name


def _target(kind: str, classes: set[str], known: Target | None, option: str) -> Target:
    """The classes in the order of their labels: the known ones, or those that there are."""
    names = sorted(classes, key=_numbers_by_value)
    if known is None:
        return Target(kind, tuple(names))
    if known.label != kind:
        raise UserError(
            f"{option}: the kind of label is {kind} here, and {known.label} in classes_from"
        )
    lines = [
        f"{option}: the class {name} is not in classes_from{did_you_mean(name, known.classes)}"
        for name in names
        if name not in known.classes
    ]
    if lines:
        raise UserError(*lines)
    return known
