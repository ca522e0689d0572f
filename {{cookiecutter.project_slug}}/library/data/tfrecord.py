"""Data sets in TFRecord shards: their card, their index, and their records by number.

A data set of the name `train` in the folder `data` is called `data/train`, and consists of

    data/train-00000-of-00002.tfrecord    the records, as TensorFlow reads and writes them
    data/train.index                      where every record stands (a NumPy file of INDEX rows)
    data/train.json                       the card; it is written last: no card, no data set
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from library.config import URL
from library.util import UserError, replacing

FORMAT_VERSION = 1
INDEX = np.dtype([("shard", "<u4"), ("length", "<u4"), ("offset", "<u8")])
HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
RECORDS_AT_ONCE = 64
NOT_FOUND = 5
"""TensorFlow's code of an error; source: tensorflow/core/protobuf/error_codes.proto."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A finished file of records."""

    file: str
    examples: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Card:
    """What a data set holds; the names of its classes travel on in the card of the model."""

    classes: list[str]  # in the order of the labels
    examples_per_class: dict[str, int]
    shards: list[Shard]
    options: dict[str, Any]  # with which the data set was made
    format_version: int = FORMAT_VERSION

    @property
    def num_examples(self) -> int:
        return sum(shard.examples for shard in self.shards)

    @classmethod
    def load(cls, path: str | Path) -> "Card":
        """Read a card, also from another file system that TensorFlow knows.

        Raises:
            UserError: there is none, or it is not one that this version can read.
        """
        text = _read_text(str(path))
        try:
            content = json.loads(text)
            if content["format_version"] != FORMAT_VERSION:
                raise UserError(
                    f"{path}: format_version {content['format_version']}, but this program reads "
                    f"{FORMAT_VERSION}: convert the data set again"
                )
            content["shards"] = [Shard(**shard) for shard in content["shards"]]
            return cls(**content)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not the card of a data set") from error

    def save(self, path: str | Path) -> None:
        with replacing(path) as temporary:
            text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
            temporary.write_text(text + "\n", encoding="utf-8")

    def files(self, path: str | Path) -> list[str]:
        """The shards of the data set `path`, as "data/train".

        Raises:
            UserError: one is missing, or of another size.
        """
        folder = os.path.dirname(path)
        files = [os.path.join(folder, shard.file) for shard in self.shards]
        sizes = [shard.bytes for shard in self.shards]
        expect_sizes(dict(zip(files, sizes, strict=True)), f"{path}.json")
        return files


def expect_sizes(sizes: dict[str, int], card: str) -> None:
    """Compare files with the card that names them.

    Args:
        sizes: bytes, by path.
        card: path of the file that says so.

    Raises:
        UserError: a file is missing, or of another size.
    """
    for file, expected in sizes.items():
        try:
            size = _size_of(file)
        except UserError as error:
            raise UserError(f"{error}, but {card} names it") from error
        if size != expected:
            raise UserError(f"{file}: {size} bytes, but {card} says {expected}")


def _read_text(path: str) -> str:
    if URL.match(path):
        import tensorflow as tf  # only here: what converts does without it

        with _in_a_line(path), tf.io.gfile.GFile(path) as file:
            return file.read()
    with _in_a_line(path):
        return Path(path).read_text(encoding="utf-8")


def _size_of(path: str) -> int:
    if URL.match(path):
        import tensorflow as tf

        with _in_a_line(path):
            return tf.io.gfile.stat(path).length
    with _in_a_line(path):
        return os.path.getsize(path)


@contextlib.contextmanager
def _in_a_line(path: str) -> Iterator[None]:
    """Why a file cannot be read, as every file system tells it, becomes a line."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text in UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except Exception as error:  # TensorFlow's own
        if not hasattr(error, "error_code"):
            raise
        missing = error.error_code == NOT_FOUND
        reason = "there is no such file" if missing else getattr(error, "message", error)
        raise UserError(f"{path}: {reason}") from error


# ---- writing -----------------------------------------------------------------------------------


def masked_crc(data: bytes) -> int:
    """The checksum that TFRecord files hold: crc32c, rotated, plus a constant.

    Source: tensorflow/core/lib/hash/crc32c.h.
    """
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes) -> tuple[bytes, bytes, bytes]:
    """A record as it stands in a TFRecord file: its header, itself, its footer."""
    length = struct.pack("<Q", len(record))
    header = HEADER.pack(len(record), masked_crc(length))
    return header, record, FOOTER.pack(masked_crc(record))


def write_shard(path: Path, records: Iterable[bytes]) -> tuple[Shard, np.ndarray]:
    """Write one file of records.

    Returns:
        Its entry for the card, and its rows for the index (INDEX, the field `shard` still 0).
    """
    rows: list[tuple[int, int, int]] = []
    checksum, offset = hashlib.sha256(), 0
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for record in records:
            framed = b"".join(frame(record))
            file.write(framed)
            checksum.update(framed)
            rows.append((0, len(record), offset))
            offset += len(framed)
    shard = Shard(path.name, len(rows), offset, checksum.hexdigest())
    return shard, np.array(rows, INDEX)


def write_index(path: Path, rows_by_shard: Iterable[np.ndarray]) -> None:
    """Write where every record stands, the rows of each shard in the order of the shards."""
    rows_by_shard = list(rows_by_shard)
    for number, rows in enumerate(rows_by_shard):
        rows["shard"] = number
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.save(file, np.concatenate(rows_by_shard))


# ---- reading -----------------------------------------------------------------------------------


_SEEKING = threading.Lock()


class DamagedRecordError(UserError):
    """A record that is not what was written."""


def index_of(shards: Sequence[str | Path]) -> np.ndarray:
    """Find all records of any TFRecord files by their headers, without reading their data.

    Returns:
        Rows of INDEX, in the order of the files.

    Raises:
        DamagedRecordError: a header is damaged, or a file ends within a record; the message names
            the file and the number of the record in it, counted from 0.
    """
    rows: list[tuple[int, int, int]] = []
    for number, shard in enumerate(shards):
        size, offset, count = os.path.getsize(shard), 0, 0
        with open(shard, "rb", buffering=0) as file:
            while offset < size:
                header = read_at(file, HEADER.size, offset)
                length = length_in(header)
                end = offset + HEADER.size + (length or 0) + FOOTER.size
                if length is None or end > size:
                    what = "has a damaged header" if length is None else "is cut off"
                    raise DamagedRecordError(f"{shard}: record {count} {what}")
                rows.append((number, length, offset))
                offset, count = end, count + 1
    return np.array(rows, INDEX)


def read_at(file: FileIO, size: int, offset: int) -> bytes:
    """So many bytes from a place of an open file, or what is left of it; from several threads."""
    if hasattr(os, "pread"):
        return os.pread(file.fileno(), size, offset)
    with _SEEKING:  # on Windows, where a file has one place for all
        file.seek(offset)
        return file.read(size)


def length_in(header: bytes) -> int | None:
    """The length of a record by its header; None where that is damaged."""
    if len(header) != HEADER.size:
        return None
    length, crc = HEADER.unpack(header)
    return length if crc == masked_crc(header[:8]) else None


class Records:
    """The records of TFRecord files by their number, in any order, from several threads.

    Nothing is held but one open file for each shard and the index.
    """

    dtype = np.dtype(object)
    shape: Sequence[int] = ()
    """Of a record, which is bytes."""

    def __init__(
        self, name: str | Path, shards: Sequence[str], index: np.ndarray, *, fewer_shards: str
    ):
        """Open the files.

        Args:
            name: of the data set, for an error.
            shards: its files.
            index: where every record stands, rows of INDEX.
            fewer_shards: what to do where there are too many files, for an error.

        Raises:
            UserError: there are more files than the process may open.
        """
        self.shards, self.index = shards, index
        try:  # open as long as the reader is there
            self.files = [open(file, "rb", buffering=0) for file in shards]  # noqa: SIM115
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise UserError(
                f"{name}: {len(shards)} shards are more files than this process may open: "
                f"raise the limit (ulimit -n), or {fewer_shards}"
            ) from error

    @property
    def num_examples(self) -> int:
        return len(self.index)

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each record."""
        return self.index["length"]

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The records of these numbers: int64 [n] -> bytes objects [n].

        Raises:
            DamagedRecordError: a record is not what was written; the message names its shard and
                its number there, counted from 0.
        """
        records = np.empty(len(ids), object)
        for position, (shard, length, offset) in enumerate(self.index[ids]):
            size = int(length) + HEADER.size + FOOTER.size
            data = read_at(self.files[shard], size, int(offset))
            record = data[HEADER.size : -FOOTER.size]
            if (
                len(data) != size
                or length_in(data[: HEADER.size]) != length
                or FOOTER.unpack(data[-FOOTER.size :])[0] != masked_crc(record)
            ):
                number = ids[position] - np.searchsorted(self.index["shard"], shard)
                raise DamagedRecordError(f"{self.shards[shard]}: record {number} is damaged")
            records[position] = record
        return records


class Reader(Records):
    """The records of a data set by their number; memory does not grow with the data set."""

    def __init__(self, path: str | Path):
        """Open the data set `path`, as "data/train".

        An index that is missing, or does not fit the shards, is written anew.

        Raises:
            UserError: a file is missing, or is not the one that the card describes, or is not on
                this machine.
        """
        if URL.match(str(path)):
            raise UserError(
                f"{path}: records are read by their number from files of this machine only: set "
                "shuffle: stream, or cache: file or memory"
            )
        self.card = Card.load(f"{path}.json")
        self.shards = self.card.files(path)
        self.path = Path(f"{path}.index")
        if not self._open_index():
            self.index = rows = index_of(self.shards)  # Windows replaces no file that is open
            write_index(self.path, self._split(rows))
            if not self._open_index():
                raise UserError(f"{path}.json: its shards hold another number of records")
            print(f"{self.path}: written anew, since it was missing or did not fit the shards")
        fewer_shards = "convert with a smaller --num_shards"
        super().__init__(path, self.shards, self.index, fewer_shards=fewer_shards)

    def _open_index(self) -> bool:
        """Whether the index leads from the start to the end of each shard, record by record."""
        try:
            self.index = np.load(self.path, mmap_mode="r")
        except (FileNotFoundError, EOFError, ValueError):
            return False
        if self.index.dtype != INDEX or len(self.index) != self.card.num_examples:
            return False
        parts = zip(self.card.shards, self._split(self.index), strict=True)
        for number, (shard, rows) in enumerate(parts):
            ends = np.cumsum(rows["length"] + np.uint64(HEADER.size + FOOTER.size))
            begins = np.append(np.uint64(0), ends)
            if (
                np.any(rows["shard"] != number)
                or np.any(rows["offset"] != begins[:-1])
                or begins[-1] != shard.bytes
            ):
                return False
        return True

    def _split(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows of each shard."""
        return np.split(rows, np.cumsum([shard.examples for shard in self.card.shards])[:-1])


def verify(path: str | Path) -> None:
    """Read every record of a data set.

    Raises:
        UserError: a file or a record is not what was written; the message names it.
    """
    reader = Reader(path)
    for begin in range(0, len(reader.index), RECORDS_AT_ONCE):
        reader.read(np.arange(begin, min(begin + RECORDS_AT_ONCE, len(reader.index))))
