"""The files of a dataset as people have them, and the label of each."""

import csv
import math
import os
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from library.data import UNLABELED, Label, Target
from library.util import LINK_OUT, UserError, did_you_mean, files_below, is_inside, is_junk

LARGEST_FLOAT = 3.4e38
"""Values are stored in 32 bits."""

TRAIN = frozenset(("train", "training"))
SPLITS = TRAIN | {"test", "testing", "val", "valid", "validation"}
"""Folders of these names, and no others, are datasets: no project has such classes."""

Given = tuple[str, ...] | float
"""A label as people give it: the names of classes, or a value."""


class LabeledFile(NamedTuple):
    """A file, and its label."""

    name: str  # from the folder of the dataset on, with /
    label: Label


class FileListing(NamedTuple):
    """What a dataset is made of."""

    target: Target
    files: list[LabeledFile]
    rejected: list[tuple[str, str]]  # name and reason
    unlisted: int = 0  # files in the folder of which a CSV file says nothing


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
    below = {
        path.relative_to(root).as_posix(): reason
        for path, reason in files_below(root, follow_links=follow_links)
    }
    given: dict[str, Given] = dict.fromkeys(below, ())
    kind, classes, found = "none", set[str](), below
    if labels:
        kind, given = _read_csv(labels)
        classes = {name for label in given.values() if isinstance(label, tuple) for name in label}
        found = {name: _refusal(root, name, follow_links) for name in given}
    elif not unlabeled:
        kind, classes = "class", _class_folders(root, below)
        given = {name: (name.partition("/")[0],) for name in below}
        found = {
            name: reason or ("" if "/" in name else "not in the folder of a class")
            for name, reason in below.items()
        }
    target = _target(kind, classes, known, "labels" if labels else "dataset_dir")
    if kind == "labels" and not target.classes:
        raise UserError(f"labels: {labels} gives no file a class")
    numbers = {name: number for number, name in enumerate(target.classes)}

    def label_of(label: Given) -> Label:
        if not isinstance(label, tuple):
            return label
        several = tuple(sorted(numbers[name] for name in label))
        return several if kind == "labels" else (*several, UNLABELED)[0]

    files = [LabeledFile(name, label_of(given[name])) for name in found if not found[name]]
    if not files:
        raise _no_files(root, labels, found)
    unlisted = sum(not reason and name not in found for name, reason in below.items())
    return FileListing(target, files, [row for row in found.items() if row[1]], unlisted)


def _no_files(root: Path, labels: Path | None, found: dict[str, str]) -> UserError:
    """Nothing can be converted: the reason of the first file that was expected."""
    if not labels:
        return UserError(f"dataset_dir: there are no files in {root}")
    if not found:
        return UserError(f"labels: {labels} lists no files")
    name, reason = next(iter(found.items()))
    return UserError(
        f"labels: none of its files can be used; the first one is {name}: {reason} (names are "
        f"relative to {root})"
    )


def _class_folders(root: Path, below: dict[str, str]) -> set[str]:
    """The classes: the folders in `root`, but for links that lead out of it."""
    folders = [path for path in root.iterdir() if path.is_dir() and not is_junk(path.name)]
    names = {path.name for path in folders if not below.get(path.name)}
    if not names:
        raise UserError(
            f"dataset_dir: {root} contains no class folders; give their parent folder, or --labels "
            "with a CSV file, or --unlabeled"
        )
    if names <= SPLITS:
        raise UserError(
            f"dataset_dir: {root} contains datasets, not classes: give one of them, as "
            f"{root / min(names & TRAIN or names)}"
        )
    for name in names:
        if name.encode(errors="replace").decode() != name:
            raise UserError(f"dataset_dir: the name of {ascii(str(root / name))} is not in UTF-8")
    return names


def _read_csv(table: Path) -> tuple[str, dict[str, Given]]:
    """The kind of label in a CSV file, and the label of each file in it."""
    found: dict[str, Given] = {}
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            kinds = columns & {"label", "labels", "value"}
            if "file" not in columns or len(kinds) != 1:
                raise UserError(
                    f"labels: {table}: its first line is {','.join(reader.fieldnames or ())!r}, "
                    "but has to be the columns file,label or file,labels or file,value"
                )
            (kind,) = kinds
            for row in reader:
                name, place = row["file"] or "", f"labels: {table}, line {reader.line_num}"
                for column in ("file", kind):
                    if not row[column] and column != "labels":
                        raise UserError(f"{place}: {column} is empty")
                label = _parse(kind, row[kind] or "", place)
                name = PurePosixPath(name.replace(os.sep, "/")).as_posix()
                if found.setdefault(name, label) != label:
                    raise UserError(f"labels: {table} gives {name} two labels")
    except OSError as error:
        raise UserError(f"labels: {table}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"labels: {table} is not a CSV file in UTF-8: {error}") from error
    return "class" if kind == "label" else kind, found


def _parse(kind: str, text: str, place: str) -> Given:
    if kind == "label":
        return (text,) if text else ()
    if kind == "labels":
        return tuple(sorted({name.strip() for name in text.split(";")} - {""}))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) < LARGEST_FLOAT:
        raise UserError(f"{place}: {text} is not a finite number")
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
    return float(name) if name.isdecimal() else math.inf, name


def _target(kind: str, classes: set[str], known: Target | None, option: str) -> Target:
    """The classes in the order of their labels: the known ones, or those that there are."""
    names = sorted(classes, key=_numbers_by_value)
    if known is None or kind == "none":
        return Target(kind, tuple(names))
    if known.label != kind:
        raise UserError(f"{option}: the kind of label is {kind}, but {known.label} in classes_from")
    unknown = [
        f"{option}: the class {name} is not in classes_from{did_you_mean(name, known.classes)}"
        for name in names
        if name not in known.classes
    ]
    if unknown:
        more = [f"{option}: and {len(unknown) - 5} more"] if len(unknown) > 5 else []
        raise UserError(*unknown[:5], *more)
    return known
