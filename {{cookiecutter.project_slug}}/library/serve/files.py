"""Input files of a prediction: found one by one, and read a little ahead of the model."""

import collections
import concurrent.futures
import glob
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from library.util import BadFileError, Budget, UserError, files_below

STDIO = "-"
"""Standard input, or output."""

FILES_PER_TASK, TASKS_AHEAD = 2, 16
"""What threads read ahead of the model."""
MAX_MB = 100
"""Megabytes of a file: one that is larger is no image or clip, but a video or an archive."""
BYTES_READ = MAX_MB * 10**6
"""Of the files that threads hold at the same time."""

Row = dict[str, Any]
"""A prediction by the names of its columns; an error row has `file` and `error`."""


def find_files(inputs: Sequence[str]) -> Iterator[Path]:
    """The files named, all in the folders named, and those that patterns match, in this order.

    `-` stands for the names in standard input, one per line. Nothing is kept: there may be millions
    of files.

    Raises:
        UserError: an input does not exist or matches nothing, or there is no file in any of them.
    """
    missing = [name for name in inputs if name != STDIO and not _paths(name)]
    if missing:
        raise UserError(*(f"--input: there is no {name}" for name in missing))
    files = itertools.chain.from_iterable(map(_files_of, inputs))
    for first in files:
        return itertools.chain([first], files)
    raise UserError(f"--input: no files in {', '.join(inputs)}")


def _paths(name: str) -> list[str]:
    return [name] if os.path.exists(name) else sorted(glob.iglob(name, recursive=True))


def _files_of(name: str) -> Iterator[Path]:
    if name == STDIO:
        for name in (os.fsdecode(line.rstrip(b"\r\n")) for line in sys.stdin.buffer):
            if "\0" in name:
                raise UserError("--input: -: names are one per line, without NUL (find -print)")
            if name:
                yield Path(name)
        return
    for path in map(Path, _paths(name)):
        below = files_below(path, follow_links=True) if path.is_dir() else [(path, "")]
        yield from (file for file, reason in below if not reason)


class InputFiles:
    """Number and content of files, read a little ahead of the model; each file gets a row.

    A file that cannot be used is left out. TensorFlow may drop others, which it cannot decode.
    """

    def __init__(self, files: Iterable[Path], canonicalize: Callable[[bytes], bytes]):
        """`canonicalize` makes the bytes that the model takes, or raises BadFileError."""
        self.files, self.canonicalize = iter(files), canonicalize
        self.count = self.failed = 0
        self._budget = Budget(BYTES_READ)
        self._fault: Exception | None = None  # a bug of ours, which a dataset may hide
        self._open: collections.deque[tuple[int, Path, str]] = collections.deque()  # without a row

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        try:
            for file, content, error in self._read_ahead():
                number, self.count = self.count, self.count + 1
                self._open.append((number, file, error))
                if not error:
                    yield str(number).encode(), content
        except Exception as error:
            self._fault = error
            raise

    def _read_ahead(self) -> Iterator[tuple[Path, bytes, str]]:
        def submit(files: list[Path]) -> concurrent.futures.Future:
            return pool.submit(lambda: list(map(self._read, files)))

        tasks = iter(lambda: list(itertools.islice(self.files, FILES_PER_TASK)), [])
        with concurrent.futures.ThreadPoolExecutor(TASKS_AHEAD) as pool:
            ahead = collections.deque(map(submit, itertools.islice(tasks, TASKS_AHEAD)))
            while ahead:
                yield from ahead.popleft().result()
                ahead.extend(map(submit, itertools.islice(tasks, 1)))

    def _read(self, file: Path) -> tuple[Path, bytes, str]:
        try:
            size = os.path.getsize(file) if file.is_file() else MAX_MB * 10**6  # of a pipe
            if size > MAX_MB * 10**6:
                raise BadFileError(f"too large: {size / 1e6:,.0f} MB, more than {MAX_MB}")
            with self._budget.taken(size), open(file, "rb") as opened:
                return file, self.canonicalize(opened.read(MAX_MB * 10**6)), ""
        except (BadFileError, OSError) as error:
            return file, b"", getattr(error, "strerror", None) or str(error)

    def rows(
        self, batches: Iterable[Mapping[str, np.ndarray]], row_of: Callable[[dict[str, Any]], Row]
    ) -> Iterator[Row]:
        """A row for each file, in their order.

        Args:
            batches: predictions, with the numbers of the files as `key`.
            row_of: the columns of the prediction of one example.
        """
        for batch in batches:
            names = batch.keys() - {"key"}
            for i, key in enumerate(batch["key"].tolist()):
                yield from self._error_rows(int(key))
                row = row_of({name: batch[name][i] for name in names})
                yield {"file": str(self._open.popleft()[1]), **row}
        if self._fault:
            raise self._fault
        yield from self._error_rows(math.inf)

    def _error_rows(self, number: float) -> Iterator[Row]:
        """Rows for the files with a lower number that have none yet."""
        while self._open and self._open[0][0] < number:
            _, file, error = self._open.popleft()
            self.failed += 1
            yield {"file": str(file), "error": error or "it cannot be decoded"}
