"""Data sets as people have them: which files there are, and the class of each."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from library.data import UNLABELED
from library.util import LINK_OUT, UserError, did_you_mean, files_below, is_inside, is_junk


class Found(NamedTuple):
    """A file, and its class."""

    name: str  # from the folder of the data set on, with /
    label: int


class Layout(NamedTuple):
    """What a data set is made of."""

    classes: list[str]  # in the order of their labels
    files: list[Found]
    rejected: list[tuple[str, str]]  # name and reason


def numbers_by_value(name: str) -> tuple[float, str]:
    """The order of class names: numbers first, by their value."""
    return float(name) if name.isdecimal() else float("inf"), name


def folder_per_class(
    root: Path, *, classes: Sequence[str] | None = None, follow_links: bool = False
) -> Layout:
    """The files of `root`/<class>/..., at any depth.

    Args:
        root: the folder of the data set.
        classes: the known ones, in the order of their labels; None: those that there are.
        follow_links: also out of the data set.

    Raises:
        UserError: there are no folders or no files, or a class is not a known one.
    """
    inside = os.path.realpath(root)
    rejected: list[tuple[str, str]] = []
    folders = []
    for path in sorted(root.iterdir()):
        if is_junk(path.name):
            continue
        if not follow_links and not is_inside(os.path.realpath(path), inside):
            rejected.append((path.name, LINK_OUT))
        elif path.is_dir():
            folders.append(path)
        else:
            rejected.append((path.name, "not in the folder of a class"))
    if not folders:
        raise UserError(
            f"dataset_dir: {root} has no folders: one for each class is needed, or --labels with "
            "a CSV file, or --unlabeled"
        )
    for folder in folders:
        if folder.name.encode(errors="replace").decode() != folder.name:
            raise UserError(f"dataset_dir: the name of {ascii(str(folder))} is not in UTF-8")
    names = sorted((folder.name for folder in folders), key=numbers_by_value)
    labels = _labels(names, classes, "dataset_dir")
    files: list[Found] = []
    for name in names:
        for path, reason in files_below(root / name, root=root, follow_links=follow_links):
            relative = path.relative_to(root).as_posix()
            if reason:
                rejected.append((relative, reason))
            else:
                files.append(Found(relative, labels[name]))
    return Layout(list(classes or names), files, rejected)


def files_with_csv(
    root: Path, table: Path, *, classes: Sequence[str] | None = None, follow_links: bool = False
) -> Layout:
    """The files that a CSV table lists, with a header `file,label`.

    Raises:
        UserError: the table cannot be read, or a class is not a known one.
    """
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not {"file", "label"} <= set(reader.fieldnames or ()):
                raise UserError(
                    f"labels: {table} has no header with file and label, and a comma between"
                )
            rows = [(row["file"] or "", row["label"] or "") for row in reader]
    except OSError as error:
        raise UserError(f"labels: {table}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"labels: {table} is not a CSV file in UTF-8: {error}") from error
    for line, (name, label) in enumerate(rows, start=2):
        if not name or not label:
            raise UserError(f"labels: {table}, line {line}: file or label is empty")
    names = sorted({label for _, label in rows}, key=numbers_by_value)
    labels = _labels(names, classes, "labels")
    inside = os.path.realpath(root)
    files: dict[str, Found] = {}
    rejected: list[tuple[str, str]] = []
    for name, label in rows:
        path = root / name
        name = PurePosixPath(name.replace(os.sep, "/")).as_posix()
        if name in files:
            if files[name].label != labels[label]:
                raise UserError(f"labels: {table} gives {name} two labels")
        elif ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            rejected.append((name, "a name that leads out of the data set"))
        elif not path.is_file():
            rejected.append((name, "no such file"))
        elif not follow_links and not is_inside(os.path.realpath(path), inside):
            rejected.append((name, LINK_OUT))
        else:
            files[name] = Found(name, labels[label])
    return Layout(list(classes or names), list(files.values()), rejected)


def files_without_labels(root: Path, *, follow_links: bool = False) -> Layout:
    """All files of a folder."""
    found = [
        (path.relative_to(root).as_posix(), reason)
        for path, reason in files_below(root, follow_links=follow_links)
    ]
    files = [Found(name, UNLABELED) for name, reason in found if not reason]
    return Layout([], files, [(name, reason) for name, reason in found if reason])


def _labels(names: Sequence[str], classes: Sequence[str] | None, field: str) -> dict[str, int]:
    """The label of each class that there is."""
    known = list(names if classes is None else classes)
    lines = [
        f"{field}: the class {name} is not in classes_from{did_you_mean(name, known)}"
        for name in names
        if name not in known
    ]
    if lines:
        raise UserError(*lines)
    return {name: label for label, name in enumerate(known)}
