"""Files to predict for, and what was predicted: a row for each, in their order."""

import collections
import concurrent.futures
import contextlib
import csv
import glob
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from library.util import BadFileError, UserError, files_below, replacing

STANDARD = "-"
"""Standard input, or output."""

FILES_A_TASK, TASKS_AHEAD = 8, 16
"""What threads read ahead of the model."""


def find_files(inputs: Sequence[str]) -> Iterator[Path]:
    """The files named, all in the folders named, and those that patterns match, in this order.

    `-` stands for the names in standard input, one a line. Nothing is kept: there may be millions.

    Raises:
        UserError: one of them does not exist or matches nothing, or there is no file in all of
            them.
    """
    lines = []
    for name in inputs:
        if name != STANDARD and not os.path.exists(name):
            if not glob.has_magic(name):
                lines.append(f"--input: there is no {name}")
            elif next(glob.iglob(name, recursive=True), None) is None:
                lines.append(f"--input: nothing is named as {name}")
    if lines:
        raise UserError(*lines)
    files = itertools.chain.from_iterable(map(_files_of, inputs))
    first = next(files, None)
    if first is None:
        raise UserError(f"--input: no files in {', '.join(inputs)}")
    return itertools.chain([first], files)


def _files_of(name: str) -> Iterator[Path]:
    if name == STANDARD:
        names = (os.fsdecode(line.rstrip(b"\r\n")) for line in sys.stdin.buffer)
        yield from (Path(each) for each in names if each)
        return
    paths = [name] if os.path.exists(name) else sorted(glob.iglob(name, recursive=True))
    for path in map(Path, paths):
        if path.is_dir():
            yield from (file for file, reason in files_below(path, follow_links=True) if not reason)
        else:
            yield path


Row = dict[str, Any]
"""By the names of the columns; of a file that could not be used, `file` and `error`."""


class Inputs:
    """Contents of files, read a little ahead of the model; what becomes of each is a row.

        inputs = Inputs(find_files(["mine/new"]), standard)
        for number, content in inputs: ...

    A file that cannot be read, or is not what it should be, is left out; so may be one that turns
    out later not to be. `failed_before` has the rows of those.
    """

    def __init__(self, files: Iterable[Path], standard: Callable[[bytes], bytes]):
        """`standard` makes the bytes that the model takes of a file's, or raises BadFileError."""
        self.files, self.standard = files, standard
        self.count = self.failed = 0
        self.fault: Exception | None = None  # of ours, which a dataset may hide
        self.open: collections.deque[tuple[int, Path, str]] = collections.deque()  # not yet rows

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from self._contents()
        except Exception as error:
            self.fault = error
            raise

    def _contents(self) -> Iterator[tuple[bytes, bytes]]:
        files = iter(self.files)
        waiting: collections.deque[concurrent.futures.Future] = collections.deque()

        def oldest() -> Iterator[tuple[bytes, bytes]]:
            for file, content, error in waiting.popleft().result():
                number = self.count
                self.count += 1
                self.open.append((number, file, error))
                if not error:
                    yield str(number).encode(), content

        with concurrent.futures.ThreadPoolExecutor(TASKS_AHEAD) as pool:
            while some := list(itertools.islice(files, FILES_A_TASK)):
                waiting.append(pool.submit(self._read, some))
                if len(waiting) == TASKS_AHEAD:
                    yield from oldest()
            while waiting:
                yield from oldest()

    def _read(self, files: Sequence[Path]) -> list[tuple[Path, bytes, str]]:
        found = []
        for file in files:
            try:
                found.append((file, self.standard(file.read_bytes()), ""))
            except (BadFileError, OSError) as error:
                found.append((file, b"", str(error)))
        return found

    def failed_before(self, number: float) -> Iterator[Row]:
        """Rows for the files with a lower number that have none yet: they could not be used."""
        while self.open and self.open[0][0] < number:
            _, file, error = self.open.popleft()
            self.failed += 1
            yield {"file": str(file), "error": error or "it cannot be decoded"}


def columns_of(class_names: Sequence[str], top_k: int | None) -> list[str]:
    """The columns of a table of classes.

    Args:
        class_names: in the order of the labels.
        top_k: `class 2`, `probability 2`, and so on, for so many of the most probable classes;
            None: `probability of NAME` for all.
    """
    columns = ["file", "class", "probability", "error"]
    if top_k is None:
        return columns + [f"probability of {name}" for name in class_names]
    ranks = range(2, min(top_k, len(class_names)) + 1)
    return columns + [f"{word} {rank}" for rank in ranks for word in ("class", "probability")]


def rows_of(
    predictions: Iterable[dict[str, np.ndarray]],
    inputs: Inputs,
    class_names: Sequence[str],
    *,
    top_k: int | None,
) -> Iterator[Row]:
    """A row for each file that was predicted for.

    Args:
        predictions: batches of `key`, the numbers of the files, and of what was predicted; each
            array of one axis is a column. Of `probabilities`, float [batch, classes], come those
            of `columns_of`.
        inputs: which the predictions are made of.
        class_names: in the order of the probabilities.
        top_k: see `columns_of`.
    """
    for batch in predictions:
        columns = {name: values.tolist() for name, values in batch.items() if values.ndim == 1}
        for i, key in enumerate(columns.pop("key")):
            yield from inputs.failed_before(int(key))
            row: Row = {"file": str(inputs.open.popleft()[1])}
            for column, values in columns.items():
                value = values[i]
                row[column] = value.decode() if isinstance(value, bytes) else value
            if "probabilities" in batch:
                row |= _probabilities(batch["probabilities"][i], class_names, top_k)
            yield row
    if inputs.fault:
        raise inputs.fault
    yield from inputs.failed_before(math.inf)


def _probabilities(probabilities: np.ndarray, class_names: Sequence[str], top_k: int | None) -> Row:
    values = probabilities.tolist()
    if top_k is None:
        return {f"probability of {name}": p for name, p in zip(class_names, values, strict=True)}
    row: Row = {}
    for rank, best in enumerate(np.argsort(-probabilities)[1:top_k], start=2):
        row |= {f"class {rank}": class_names[best], f"probability {rank}": values[best]}
    return row


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[str]]:
    """A file that appears when it is whole, or standard output."""
    if path == STANDARD:
        yield sys.stdout
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as temporary,
        open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        yield file


def write_csv(path: str, rows: Iterable[Row], columns: Sequence[str]) -> None:
    """Write rows to a CSV file; `-` is standard output."""
    with _opened(path) as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        for row in rows:
            cells = (row.get(name, "") for name in columns)
            table.writerow([f"{x:.9g}" if isinstance(x, float) else x for x in cells])


def write_json_lines(path: str, rows: Iterable[Row], columns: Sequence[str]) -> None:
    """Write rows as JSON, one a line, with the columns that each has; `-` is standard output."""
    with _opened(path) as file:
        for row in rows:
            file.write(json.dumps({name: row[name] for name in columns if name in row}) + "\n")


WRITERS = {".csv": write_csv, ".jsonl": write_json_lines}
"""By the ending of the output's name; standard output is CSV."""


def writer_of(output: str) -> Callable[..., None]:
    """What writes a file of this name.

    Raises:
        UserError: it is neither a table nor JSON lines, or a folder.
    """
    ending = ".csv" if output == STANDARD else Path(output).suffix
    if os.path.isdir(output):
        raise UserError(f"--output: {output} is a folder, not a file")
    if ending not in WRITERS:
        raise UserError(f"--output: {output} does not end in {' or '.join(WRITERS)}")
    return WRITERS[ending]


class WorstMistakes:
    """The mistakes of which the model was most certain, of rows that pass by.

    The class of a file is known where it lies in a folder of that name.
    """

    def __init__(self, class_names: Sequence[str], count: int):
        self.class_names, self.count = class_names, count
        self.known = 0  # files of a known class
        self.rows: list[Row] = []  # the worst one first, with `label`, the true class

    def of(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows."""
        for row in rows:
            label = Path(row["file"]).parent.name
            if label in self.class_names and "class" in row:
                self.known += 1
                if label != row["class"]:
                    ranked = [*self.rows, {**row, "label": label}]
                    self.rows = sorted(ranked, key=lambda one: -one["probability"])[: self.count]
            yield row
