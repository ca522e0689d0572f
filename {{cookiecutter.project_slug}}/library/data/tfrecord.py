"""Datasets in TFRecord shards: their index, and their records by number.

A dataset named `train` in the folder `data` is called `data/train`, and consists of

    data/train-00000-of-00002.tfrecord    the records, as TensorFlow reads and writes them
    data/train.index                      where every record stands (a NumPy file of INDEX rows)
    data/train.json                       the card; it is written last: no card, no dataset
"""

import functools
import hashlib
import os
import struct
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path

import google_crc32c
import numpy as np

from library.config import URL
from library.data.card import Card, Shard
from library.data.modality import Examples
from library.util import UserError, replacing

INDEX = np.dtype([("shard", "<u4"), ("length", "<u4"), ("offset", "<u8")])
HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
"""Around a record: its length and the checksum of that; the checksum of the record."""
FRAME = HEADER.size + FOOTER.size
RECORDS_AT_ONCE = 64
OPEN_FILES = 100
"""Of a dataset at the same time: some systems let a process open 256."""


class DamagedRecordError(UserError):
    """A record is not what was written."""


# ---- writing -----------------------------------------------------------------------------------


def _masked_crc(data: bytes) -> int:
    """crc32c, rotated, plus a constant; source: tensorflow/core/lib/hash/crc32c.h."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes) -> tuple[bytes, bytes, bytes]:
    """A record as it stands in a TFRecord file: its header, itself, its footer."""
    length = struct.pack("<Q", len(record))
    header = HEADER.pack(len(record), _masked_crc(length))
    return header, record, FOOTER.pack(_masked_crc(record))


def write_shard(path: Path, records: Iterable[bytes]) -> tuple[Shard, np.ndarray]:
    """Write one file: its entry for the card; its rows for the index, the field `shard` still 0."""
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


def write_index(path: str | Path, rows_by_shard: Iterable[np.ndarray]) -> None:
    """Write the index of the dataset `path`: the rows of each shard, in the order of the shards."""
    parts = list(rows_by_shard)
    for number, rows in enumerate(parts):
        rows["shard"] = number
    with replacing(f"{path}.index") as temporary, open(temporary, "wb") as file:
        np.save(file, np.concatenate(parts))


# ---- reading -----------------------------------------------------------------------------------


_SEEKING = threading.Lock()


def _read_at(file: FileIO, size: int, offset: int) -> bytes:
    """So many bytes from a place of an open file, or what is left of it; from several threads."""
    if hasattr(os, "pread"):
        return os.pread(file.fileno(), size, offset)
    with _SEEKING:  # on Windows, where a file has one position for all
        file.seek(offset)
        return file.read(size)


def _length_in(header: bytes) -> int | None:
    """The length of a record by its header; None where that is damaged."""
    if len(header) != HEADER.size:
        return None
    length, crc = HEADER.unpack(header)
    return length if crc == _masked_crc(header[:8]) else None


def read_record(file: FileIO, length: int, offset: int) -> bytes | None:
    """The record of this length at this place of an open file; None if it is damaged."""
    frame = _read_at(file, length + FRAME, offset)
    record, footer = frame[HEADER.size : -FOOTER.size], frame[-FOOTER.size :]
    whole = len(frame) == length + FRAME and _length_in(frame[: HEADER.size]) == length
    return record if whole and FOOTER.unpack(footer)[0] == _masked_crc(record) else None


def find_records(file: FileIO) -> Iterator[tuple[int, int]]:
    """Length and offset of each record of an open file by its header, without reading its data.

    DamagedRecordError names the file and the number, from 0, of a record whose header is damaged,
    or in which the file ends.
    """
    size, offset, count = os.fstat(file.fileno()).st_size, 0, 0
    while offset < size:
        length = _length_in(_read_at(file, HEADER.size, offset))
        end = offset + (length or 0) + FRAME
        if length is None or end > size:
            what = "has a damaged header" if length is None else "is cut off"
            raise DamagedRecordError(f"{file.name}: record {count} {what}")
        yield length, offset
        offset, count = end, count + 1


def index_of(shards: Sequence[str | Path]) -> np.ndarray:
    """All records of any TFRecord files: rows of INDEX; DamagedRecordError as `find_records`."""
    rows: list[tuple[int, int, int]] = []
    for number, shard in enumerate(shards):
        with open(shard, "rb", buffering=0) as file:
            rows += [(number, length, offset) for length, offset in find_records(file)]
    return np.array(rows, INDEX)


def _open(shard: str) -> FileIO:
    """An open file, closed when the last thread that reads it lets go of it."""
    descriptor = os.open(shard, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    file = FileIO(descriptor, closefd=False)
    weakref.finalize(file, os.close, descriptor)
    return file


class Records(Examples):
    """The records of TFRecord files by number: of the shards, OPEN_FILES stay open."""

    def __init__(self, shards: Sequence[str], index: np.ndarray):
        self.shards, self.index = shards, index
        self._file = functools.lru_cache(OPEN_FILES)(lambda shard: _open(shards[shard]))

    @property
    def num_examples(self) -> int:
        return len(self.index)

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each record."""
        return self.index["length"]

    def read(self, ids: np.ndarray) -> np.ndarray:
        """int64 [n] -> bytes objects [n]; DamagedRecordError has the shard and the number there."""
        records = np.empty(len(ids), object)
        for position, (shard, length, offset) in enumerate(self.index[ids]):
            record = read_record(self._file(int(shard)), int(length), int(offset))
            if record is None:
                number = ids[position] - np.searchsorted(self.index["shard"], shard)
                raise DamagedRecordError(f"{self.shards[shard]}: record {number} is damaged")
            records[position] = record
        return records

    def beginnings(self, size: int) -> Iterator[bytes]:
        """The first bytes of each record, in order, unchecked."""
        for shard, length, offset in self.index:
            begin = int(offset) + HEADER.size
            yield _read_at(self._file(int(shard)), min(int(length), size), begin)


class Reader(Records):
    """The records of a dataset by their number; memory does not grow with the dataset."""

    def __init__(self, path: str | Path):
        """Open the dataset `path`, as "data/train", whose index is rewritten if it does not fit.

        Raises:
            UserError: a file is missing, not the one of the card, or not on this machine.
        """
        if URL.match(str(path)):
            raise UserError(
                f"{path}: records are read by their number from files of this machine only: set "
                "shuffle: stream, or cache: file or memory"
            )
        self.card = Card.load(f"{path}.json")
        shards, file = self.card.files(path), f"{path}.index"
        index = self._read_index(file)
        if index is None:
            write_index(path, self._split(index_of(shards)))
            index = self._read_index(file)
            if index is None:
                raise UserError(f"{path}.json: its shards hold another number of records")
            print(f"{file}: rewritten, since it was missing or did not fit the shards")
        super().__init__(shards, index)

    def _read_index(self, file: str) -> np.ndarray | None:
        """The index, if it leads from the start to the end of each shard, record by record."""
        try:
            index = np.load(file, mmap_mode="r")
        except PermissionError:
            raise
        except Exception:  # of NumPy, which has many names for what is no array
            return None
        if index.dtype != INDEX or index.shape != (self.card.num_examples,):
            return None
        parts = zip(self.card.shards, self._split(index), strict=True)
        for number, (shard, rows) in enumerate(parts):
            begins = np.cumsum(np.append(np.uint64(0), rows["length"] + np.uint64(FRAME)))
            fits = (rows["shard"] == number).all() and (rows["offset"] == begins[:-1]).all()
            if not fits or begins[-1] != shard.bytes:
                return None
        return index

    def _split(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows of each shard."""
        return np.split(rows, np.cumsum([shard.examples for shard in self.card.shards])[:-1])


def verify(path: str | Path) -> None:
    """Read every record of the dataset `path`; UserError names a file or record that is damaged."""
    reader = Reader(path)
    for begin in range(0, reader.num_examples, RECORDS_AT_ONCE):
        reader.read(np.arange(begin, min(begin + RECORDS_AT_ONCE, reader.num_examples)))
