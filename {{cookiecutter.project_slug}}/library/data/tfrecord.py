"""Data sets in TFRecord shards: their card, their index, and their records by number.

A data set of the name `train` in the folder `data` is called `data/train`, and consists of

    data/train-00000-of-00002.tfrecord    the records, as TensorFlow reads and writes them
    data/train.index                      where every record stands (a NumPy file of INDEX rows)
    data/train.json                       the card; it is written last: no card, no data set
"""

import errno
import hashlib
import os
import struct
import threading
from collections.abc import Iterable, Sequence
from io import FileIO
from pathlib import Path

import google_crc32c
import numpy as np

from library.config import URL
from library.data.card import Card, Shard
from library.util import UserError, replacing

INDEX = np.dtype([("shard", "<u4"), ("length", "<u4"), ("offset", "<u8")])
HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
RECORDS_AT_ONCE = 64


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
