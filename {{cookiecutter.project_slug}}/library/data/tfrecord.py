"""Datasets in TFRecord shards: their index, and their records by number.

A dataset named `train` in the folder `data` is called `data/train`, and consists of

    data/train-00000-of-00002.tfrecord    the records, as TensorFlow reads and writes them
    data/train.index                      where every record stands (a NumPy file of INDEX rows)
    data/train.json                       the card; it is written last: no card, no dataset
"""

import functools
import hashlib
import io
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
from library.data.remote import NO_CACHE, BlockCache, RemoteFiles, Span, read_file
from library.util import RunError, UserError, replacing

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
    return _record_in(_read_at(file, length + FRAME, offset), length)


def _record_in(frame: bytes, length: int) -> bytes | None:
    """The record of this length in its frame; None if one of them is damaged."""
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


class _LocalFiles:
    """Bytes of files on this machine, of which OPEN_FILES stay open; for several threads."""

    def __init__(self, files: Sequence[str]):
        self._file = functools.lru_cache(OPEN_FILES)(lambda number: _open(files[number]))

    def read(self, spans: Iterable[Span], *, again: bool = False) -> Iterator[bytes]:
        """The bytes of each span, or fewer where its file ends; `again` makes no difference."""
        for number, begin, size in spans:
            yield _read_at(self._file(number), size, begin)


class Records(Examples):
    """The records of TFRecord files by number."""

    def __init__(self, shards: Sequence[str], index: np.ndarray, files: RemoteFiles | None = None):
        self.shards, self.index = shards, index
        self.files = files or _LocalFiles(shards)

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
        spans = [(int(n), int(begin), int(size) + FRAME) for n, size, begin in self.index[ids]]
        for position, (span, frame) in enumerate(zip(spans, self.files.read(spans), strict=True)):
            record = _record_in(frame, span[-1] - FRAME)
            if record is None:  # what a cache has of it may be damaged
                (frame,) = self.files.read([span], again=True)
                record = _record_in(frame, span[-1] - FRAME)
            if record is None:
                number = ids[position] - np.searchsorted(self.index["shard"], span[0])
                raise DamagedRecordError(f"{self.shards[span[0]]}: record {number} is damaged")
            records[position] = record
        return records

    def beginnings(self, size: int) -> Iterator[bytes]:
        """The first bytes of each record, in order, on this machine unchecked."""
        if isinstance(self.files, RemoteFiles):
            for begin in range(0, self.num_examples, RECORDS_AT_ONCE):
                ids = np.arange(begin, min(begin + RECORDS_AT_ONCE, self.num_examples))
                yield from (record[:size] for record in self.read(ids))
        else:
            rows = ((int(n), int(offset), int(length)) for n, length, offset in self.index)
            yield from self.files.read((n, o + HEADER.size, min(s, size)) for n, o, s in rows)


class Reader(Records):
    """The records of a dataset by their number; memory does not grow with the dataset."""

    def __init__(self, path: str | Path, cache: BlockCache = NO_CACHE):
        """Open the dataset `path`, as "data/train", whose index is rewritten if it does not fit.

        A dataset at a URL is read through the cache, and its index has to fit.

        Raises:
            UserError: a file is missing, or not the one of the card.
        """
        self.card = Card.load(f"{path}.json")
        shards, file = self.card.files(path), f"{path}.index"
        index = self._read_index(file)
        if URL.match(str(path)):
            if index is None:
                raise UserError(f"{file}: does not fit the shards: copy the dataset there again")
            super().__init__(shards, index, RemoteFiles(shards, self.card.shards, cache))
            return
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
            if URL.match(file):
                index = np.load(io.BytesIO(read_file(file)))
            else:
                index = np.load(file, mmap_mode="r")
        except (PermissionError, UserError, RunError):
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
