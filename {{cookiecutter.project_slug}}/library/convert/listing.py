"""The files of a dataset as people have them, and the label of each."""

import csv
import functools
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from library.convert.packed import Packed
from library.data import UNLABELED, Label, Target
from library.util import LINK_OUT, UserError, did_you_mean, files_below, is_inside, is_junk

LARGEST_FLOAT = 3.4e38
"""Values are stored in 32 bits."""

FILES_SURVEYED = 100

SPLITS = {"train": "train", "training": "train"}
SPLITS |= dict.fromkeys(("validation", "valid", "val"), "validation")
SPLITS |= {"test": "test", "testing": "test"}
"""Folders of these names, and no others, are datasets: no project has such classes."""

Given = tuple[str, ...] | float
"""A label as people give it: the names of classes, or a value."""


class LabeledFile(NamedTuple):
    name: str  # from the folder of the dataset on, with /
    label: Label


class Files(Sequence[LabeledFile]):
    """Files, each with its label, in about 100 bytes; a part shares the names with the whole."""

    def __init__(self, names: list[str], labels: list[Label], ids: np.ndarray | None = None):
        self.names, self.labels = names, labels
        self.ids = np.arange(len(names)) if ids is None else ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: Any) -> Any:
        """A file by its number; a part by a slice, numbers int64 [n] or a mask bool [n]."""
        if not isinstance(at, slice | np.ndarray):
            return LabeledFile(self.names[self.ids[at]], self.labels[self.ids[at]])
        return Files(self.names, self.labels, self.ids[at])

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets the names of a part only."""
        names, labels = [self.names[i] for i in self.ids], [self.labels[i] for i in self.ids]
        return Files, (names, labels)


class FileListing(NamedTuple):
    target: Target
    files: Files
    rejected: list[tuple[str, str]]  # name and reason
    unlisted: int = 0  # files in the folder of which a CSV file says nothing
    keys: list[str] | None = None  # files of the same key stay together


def some_paths(root: Path, files: Files) -> list[Path]:
    """FILES_SURVEYED of many, from all over."""
    return [root / file.name for file in files[:: -(-len(files) // FILES_SURVEYED)]]


def list_files(
    root: Path,
    *,
    labels: Path | None = None,
    unlabeled: bool = False,
    known: Target | None = None,
    optional: bool = False,
    follow_links: bool = False,
    group_by: str | None = None,
) -> FileListing:
    """The files below a folder, each with its label.

    Args:
        root: the folder; it has one for each class unless one of the next two says otherwise, or
            each file of an archive has its class beside it.
        labels: a CSV file of files and their labels.
        unlabeled: whether no file has a label.
        known: the target of another dataset, whose classes these are.
        optional: whether it may also have other ones.
        follow_links: also out of the folder.
        group_by: a column of the CSV file, or a regular expression for names, that gives keys.

    Raises:
        UserError: there are no files, or the labels cannot be used.
    """
    if isinstance(root, Packed):
        below = root.files()
    else:
        below = (
            (path.relative_to(root).as_posix(), reason)
            for path, reason in files_below(root, follow_links=follow_links)
        )
    given: dict[str, Given] = {}
    column: dict[str, str] | None = None
    unlisted = 0
    if labels:
        kind, given, column = _read_csv(labels, group_by)
        unlisted = sum(not reason and name not in given for name, reason in below)
        below = ((name, _refusal(root, name, follow_links)) for name in given)
    elif isinstance(root, Packed) and not unlabeled and (classes_beside := root.classes()):
        kind, given = "class", {name: each for name, each in classes_beside.items() if each}
        below = (
            (name, reason or ("" if name in given else "it has no class"))
            for name, reason in below
            if reason or name in classes_beside
        )
    tabled = bool(labels or given)
    names, reasons = list[str](), dict[str, str]()
    for name, reason in below:
        if not (reason or tabled or unlabeled or "/" in name):
            reason = "not in the folder of a class"
        names.append(name) if not reason else reasons.update({name: reason})
    if tabled:
        classes = {each for label in given.values() if isinstance(label, tuple) for each in label}
    else:
        kind, classes = ("none", set()) if unlabeled else ("class", _class_folders(root, reasons))
    target = _target(kind, classes, known, "labels" if labels else "dataset_dir", optional)
    if kind == "labels" and not target.classes:
        raise UserError(f"labels: {labels} gives no file a class")
    if not names:
        raise _no_files(root, labels, reasons)
    numbers = {name: number for number, name in enumerate(target.classes)}

    def folder_of(name: str) -> Given:
        return () if unlabeled else (sys.intern(name.partition("/")[0]),)

    @functools.cache
    def label_of(label: tuple[str, ...]) -> Label:
        several = tuple(sorted(numbers[name] for name in label))
        return several if kind == "labels" else (*several, UNLABELED)[0]

    found: list[Label] = [
        label if isinstance(label, float) else label_of(label)
        for label in (given[name] if tabled else folder_of(name) for name in names)
    ]
    keys = _keys(names, group_by, column) if group_by else None
    return FileListing(target, Files(names, found), [*reasons.items()], unlisted, keys)


def _keys(names: Sequence[str], group_by: str, column: dict[str, str] | None) -> list[str]:
    """What keeps files together: of each one its value in the column, or what the pattern finds."""
    if column is not None:
        if not any(column[name] for name in names):
            raise UserError(f"group_by: the column {group_by} is empty")
        return [sys.intern(column[name]) for name in names]
    try:
        pattern = re.compile(group_by)
    except re.error as error:
        raise UserError(f"group_by: {group_by} is not a regular expression: {error}") from error
    found = map(pattern.search, names)
    keys = ["/".join(map(str, each.groups() or (each[0],))) if each else "" for each in found]
    if not any(keys):
        raise UserError(f"group_by: {group_by} finds nothing in any name, as in {names[0]}")
    return [*map(sys.intern, keys)]


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


def split_folders(root: Path, *, only: bool = True) -> dict[str, Path]:
    """The folders in `root` that are datasets, by their names; none beside others, if `only`."""
    folders = {path.name: path for path in _folders(root)}
    if only and not folders.keys() <= SPLITS.keys():
        return {}
    found = {split: folders[name] for name, split in SPLITS.items() if name in folders}
    if only and len(found) < len(folders):
        names = " and ".join(sorted(folders))
        raise UserError(f"dataset_dir: {root} contains {names}: two of them are one dataset")
    return found


def _folders(root: Path) -> list[Path]:
    if isinstance(root, Packed):
        return root.folders()
    paths = root.iterdir() if root.is_dir() else ()
    return [path for path in paths if path.is_dir() and not is_junk(path.name)]


def _class_folders(root: Path, rejected: dict[str, str]) -> set[str]:
    """The classes: the folders in `root`, but for links that lead out of it."""
    names = {path.name for path in _folders(root)} - rejected.keys()
    if not names:
        instead = "--follow_links" if LINK_OUT in rejected.values() else "their parent folder"
        raise UserError(
            f"dataset_dir: {root} contains no class folders; give {instead}, or --labels with a "
            "CSV file, or --unlabeled"
        )
    if foreign := [name for name in names if name.encode(errors="replace").decode() != name]:
        raise UserError(f"dataset_dir: the name of {ascii(str(root / foreign[0]))} is not in UTF-8")
    return names


def _read_csv(
    table: Path, group_by: str | None
) -> tuple[str, dict[str, Given], dict[str, str] | None]:
    """The kind of label in a CSV file, the label of each file, and its group where those are a
    column."""
    found, keys = dict[str, Given](), dict[str, str]()
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
                if more := [cell for cell in row.get(None) or () if cell.strip()]:
                    raise UserError(
                        f"{place}: a cell more than columns: {more[0]} (quote a cell that has a "
                        "comma; classes are separated by ;)"
                    )
                for column in ("file", kind):
                    if not (row[column] or "").strip() and column != "labels":
                        raise UserError(f"{place}: {column} is empty")
                label = _parse(kind, row[kind] or "", place)
                name = PurePosixPath(name.replace(os.sep, "/")).as_posix()
                if found.setdefault(name, label) != label:
                    raise UserError(f"labels: {table} gives {name} two labels")
                if group_by in columns:
                    keys[name] = row[group_by] or ""
    except OSError as error:
        raise UserError(f"labels: {table}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"labels: {table} is not a CSV file in UTF-8: {error}") from error
    return "class" if kind == "label" else kind, found, keys if group_by in columns else None


def _parse(kind: str, text: str, place: str) -> Given:
    if kind == "label":
        return (text.strip(),)
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
    if isinstance(root, Packed):
        return root.reason(name)
    inside = is_inside(os.path.realpath(root / name), os.path.realpath(root))
    return "" if follow_links or inside else LINK_OUT


def _target(
    kind: str, classes: set[str], known: Target | None, option: str, optional: bool
) -> Target:
    """The classes in the order of their labels: the known ones, or those there are, by value."""
    names = sorted(classes, key=lambda name: (float(name) if name.isdecimal() else math.inf, name))
    other = known is None or known.label != kind or not classes <= {*known.classes}
    if known is None or kind == "none" or (optional and other):
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
