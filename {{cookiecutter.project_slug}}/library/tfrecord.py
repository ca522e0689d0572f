"""Data sets in TFRecord shards: their card, their index, and reading by id.

A data set of the name `train` in the folder `data` is called `data/train`, and consists of

    data/train-00000-of-00002.tfrecord    the records, as TensorFlow reads and writes them
    data/train.index                      where every record stands (a NumPy file of INDEX rows)
    data/train.json                       the card; it is written last: no card, no data set
"""

import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import tensorflow as tf

from library.errors import UserError
from library.files import replacing

FORMAT_VERSION = 1
INDEX = np.dtype([("shard", "<u4"), ("length", "<u4"), ("offset", "<u8")])
HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
IDS_PER_CALL = 64
"""One call of Python for so many records: one for each record costs a fifth of the speed."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A finished file of records."""

    file: str
    examples: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Card:
    """What a data set holds; it travels to the model, the export and the predictions."""

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
        """Read a card.

        Raises:
            UserError: there is none, or it is not one that this version can read.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format_version"] != FORMAT_VERSION:
                raise UserError(
                    f"{path}: format_version {content['format_version']}, but this program reads "
                    f"{FORMAT_VERSION}: convert the data set again"
                )
            content["shards"] = [Shard(**shard) for shard in content["shards"]]
            return cls(**content)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not the card of a data set") from error

    def save(self, path: str | Path) -> None:
        with replacing(path) as temporary:
            text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
            temporary.write_text(text + "\n", encoding="utf-8")


# ---- writing -----------------------------------------------------------------------------------


def masked_crc(data: bytes) -> int:
    """The checksum that TFRecord files hold: crc32c, rotated, plus a constant.

    Source: tensorflow/core/lib/hash/crc32c.h.
    """
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def write_shard(path: Path, records: Iterable[bytes]) -> tuple[Shard, np.ndarray]:
    """Write one file of records.

    Returns:
        Its entry for the card, and its rows for the index (INDEX, the field `shard` still 0).
    """
    rows: list[tuple[int, int, int]] = []
    checksum, offset = hashlib.sha256(), 0
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            framed = b"".join(
                (
                    HEADER.pack(len(record), masked_crc(length)),
                    record,
                    FOOTER.pack(masked_crc(record)),
                )
            )
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


class Reader:
    """The records of a data set by their number, in any order, from several threads.

    Nothing is held but one open file for each shard and a view of the index: memory does not
    grow with the data set.
    """

    def __init__(self, path: str):
        """Open the data set `path`, as "data/train".

        Raises:
            UserError: a file is missing, or is not the one that the card describes.
        """
        self.card = Card.load(f"{path}.json")
        folder = Path(path).parent
        try:
            self.index = np.load(f"{path}.index", mmap_mode="r")
        except (OSError, ValueError) as error:
            raise UserError(f"{path}.index: not the index of a data set") from error
        if self.index.dtype != INDEX or len(self.index) != self.card.num_examples:
            raise UserError(f"{path}.index: does not belong to {path}.json")
        self.files = []
        for shard in self.card.shards:
            file = folder / shard.file
            size = file.stat().st_size if file.exists() else 0
            if size != shard.bytes:
                raise UserError(f"{file}: {size} bytes, but its card says {shard.bytes}")
            self.files.append(open(file, "rb", buffering=0))  # noqa: SIM115  as long as the reader

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The records of these numbers: int64 [n] -> bytes objects [n].

        Raises:
            ValueError: a record is damaged; the message names its shard and its number there.
        """
        records = np.empty(len(ids), object)
        for position, (shard, length, offset) in enumerate(self.index[ids]):
            file = self.files[shard]
            size = int(length) + HEADER.size + FOOTER.size
            data = os.pread(file.fileno(), size, int(offset))
            record = data[HEADER.size : -FOOTER.size]
            if len(data) != size or FOOTER.unpack(data[-FOOTER.size :])[0] != masked_crc(record):
                first = np.searchsorted(self.index["shard"], shard)
                raise ValueError(f"{file.name}: record {ids[position] - first} is damaged")
            records[position] = record
        return records


def read_by_id(reader: Reader, num_parallel_calls: int) -> Callable:
    """A transformation of a dataset of ids into one of records, in the same order.

        shuffle_and_repeat(reader.card.num_examples, seed).apply(read_by_id(reader, 2))

    Args:
        reader: the open data set.
        num_parallel_calls: how many batches of ids are read at the same time.

    Returns:
        A function from a dataset of int64 scalars to a dataset of string scalars.
    """

    def transformation(ids: tf.data.Dataset) -> tf.data.Dataset:
        def read(batch: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tf.numpy_function(reader.read, [batch], tf.string), [None])

        return ids.batch(IDS_PER_CALL).map(read, num_parallel_calls=num_parallel_calls).unbatch()

    return transformation
