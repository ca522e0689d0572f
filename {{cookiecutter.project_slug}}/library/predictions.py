"""Files to predict for, and the table of what was predicted."""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from library.errors import BadFileError, UserError
from library.files import replacing
from library.layouts import files_below


def find_files(inputs: Sequence[str]) -> list[Path]:
    """The files named, and all files in the folders named, in this order.

    Raises:
        UserError: one of them does not exist, or there is no file in all of them.
    """
    missing = [name for name in inputs if not Path(name).exists()]
    if missing:
        raise UserError(*(f"--input: there is no {name}" for name in missing))
    files: list[Path] = []
    for path in map(Path, inputs):
        below = files_below(path, follow_links=True) if path.is_dir() else [(path, "")]
        files += [file for file, reason in below if not reason]
    if not files:
        raise UserError(f"--input: no files in {', '.join(inputs)}")
    return files


class Inputs:
    """Names and contents of files, in order, read as they are asked for.

    Something blank stands for a file that cannot be used, so that the order holds; `errors` then
    has the reason.
    """

    def __init__(self, files: Sequence[Path], standard: Callable[[bytes], bytes], blank: bytes):
        """`standard` makes the bytes that the model takes of a file's, or raises BadFileError."""
        self.files, self.standard, self.blank = files, standard, blank
        self.errors: dict[bytes, str] = {}

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for file in self.files:
            name = os.fsencode(file)
            try:
                yield name, self.standard(file.read_bytes())
            except (BadFileError, OSError) as error:
                self.errors[name] = str(error)
                yield name, self.blank


def write_csv(
    path: str | Path,
    predictions: Iterable[dict[str, Any]],
    class_names: Sequence[str],
    errors: Mapping[bytes, str],
) -> None:
    """Write a row for each file: its name, the class, its probability, and those of all classes.

    Args:
        path: the CSV file; it appears when it is whole.
        predictions: for each file, `key` (its name, bytes), `class` (bytes), `probability` and
            `probabilities` (floats).
        class_names: in the order of the probabilities.
        errors: by key, of the files that could not be used.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as temporary,
        open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        table = csv.writer(file)
        names = [f"probability of {name}" for name in class_names]
        table.writerow(["file", "class", "probability", "error", *names])
        for prediction in predictions:
            key = prediction["key"]
            name = os.fsdecode(key)
            if key in errors:
                table.writerow([name, "", "", errors[key], *[""] * len(names)])
            else:
                numbers = [f"{value:.9g}" for value in prediction["probabilities"]]
                row = [prediction["class"].decode(), f"{prediction['probability']:.9g}", ""]
                table.writerow([name, *row, *numbers])
