"""Where examples come from: TFRecords, files, HDF5, a generator.

A source is a dataset of (key, content). The key names an example, int64 or string; the content is
what the first function of the chain takes. What can be read in any order is read by ids, so that a
run starts anywhere in a global shuffle:

    shuffle_and_repeat(source.num_examples, seed, start).apply(read_by_id(source, -1))

Paths can be on any file system that TensorFlow reads, except for reading by id and HDF5.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from library.data.card import Card
from library.data.modality import Source
from library.data.order import shuffle_and_repeat
from library.data.stages import Transformation
from library.util import UserError

IDS_PER_CALL = 64
"""Examples that one call of Python reads: a call for each costs a fifth of the speed."""
STRINGS_PER_CALL = 32
SHARDS_IN_TURNS = 4
"""Shards that a stream reads from at the same time, so that neighbours do not stay neighbours."""
BLOCK_LENGTH = 16
"""Examples that it takes from each in turn."""

ReadShard = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.data.Dataset]
"""File of a shard, string; id of its first example, int64; number of its examples, int64 -> a
dataset of (id, content), in order."""


def read_by_id(source: Source, num_parallel_calls: int) -> Transformation:
    """Read the examples that a dataset of ids names, in the same order.

    Returns:
        From a dataset of int64 scalars to one of (id, content); from a dataset of (..., id) to one
        of (..., id, content). -1 parallel calls, each for a batch of ids: autotune.
    """

    def read(*keys: tf.Tensor) -> tuple[tf.Tensor, ...]:
        dtype = tf.as_dtype(source.dtype)
        contents = tf.numpy_function(source.read, [keys[-1]], dtype, stateful=False)
        return *keys, tf.ensure_shape(contents, [None, *source.shape])

    def transformation(ids: tf.data.Dataset) -> tf.data.Dataset:
        return ids.batch(IDS_PER_CALL).map(read, num_parallel_calls=num_parallel_calls).unbatch()

    return transformation


# ---- files as they are -------------------------------------------------------------------------


def list_files(pattern: str) -> list[str]:
    """The files that match a pattern, as "photos/*/*.jpg", sorted; UserError if there is none."""
    files = sorted(tf.io.gfile.glob(pattern))
    if not files:
        raise UserError(f"{pattern}: there is no such file")
    return files


def read_files(files: Sequence[str], num_parallel_calls: int) -> Transformation:
    """From a dataset of ids to one of (name, bytes of the file), both strings."""
    names = tf.constant(files)
    return lambda ids: ids.map(
        lambda number: (names[number], tf.io.read_file(names[number])), num_parallel_calls
    )


# ---- shards as streams -------------------------------------------------------------------------


def read_tfrecords(file: tf.Tensor, first: tf.Tensor, examples: tf.Tensor) -> tf.data.Dataset:
    """The records of one file: a `ReadShard`."""
    return tf.data.TFRecordDataset(file).enumerate(first)


def read_in_order(path: str | Path, read_shard: ReadShard = read_tfrecords) -> tf.data.Dataset:
    """All examples of the dataset `path`, as "data/train", once and in order: (id, content)."""
    return tf.data.Dataset.from_tensor_slices(_shards(path)).flat_map(read_shard)


def _shards(path: str | Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The arguments of `ReadShard` for all shards of a dataset."""
    card = Card.load(f"{path}.json")
    examples = np.array([shard.examples for shard in card.shards], np.int64)
    return card.files(path), np.cumsum(examples) - examples, examples


def read_stream(
    path: str | Path,
    seed: int,
    start: int = 0,
    *,
    buffer_mb: float,
    read_shard: ReadShard = read_tfrecords,
) -> tf.data.Dataset:
    """All examples without end, roughly shuffled, from storage where random reads are slow.

    Every epoch reads the shards in an order of its own, some of them in turns, through a buffer of
    serialized examples, `buffer_mb` megabytes large. It has every example once, in an order that
    follows from the seed alone. A `start` in the middle is approximate: shards that come before it
    are left out unread, then as many examples as are missing. So this one epoch has the right
    number of examples, but some that were in the buffer or in half-read shards come again, others
    never. The result is a dataset of (id, int64; content).
    """
    card = Card.load(f"{path}.json")
    shards = [tf.constant(each) for each in _shards(path)]
    num_shards, total_bytes = len(card.shards), sum(shard.bytes for shard in card.shards)
    buffer_size = max(1, int(buffer_mb * 2**20 * card.num_examples / total_bytes))
    first_epoch, skipped = divmod(start, card.num_examples)

    def read_epoch(epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        skip = tf.where(tf.equal(epoch, first_epoch), tf.constant(skipped, tf.int64), 0)
        ends = tf.cumsum(tf.gather(shards[-1], order))
        unread = tf.boolean_mask(order, ends > skip)
        skip -= tf.reduce_max(tf.where(ends <= skip, ends, 0))
        return (
            tf.data.Dataset.from_tensor_slices(tuple(tf.gather(each, unread) for each in shards))
            .interleave(read_shard, cycle_length=SHARDS_IN_TURNS, block_length=BLOCK_LENGTH)
            .skip(skip)
            .shuffle(buffer_size, seed=tf.cast(seed + epoch, tf.int64))
        )

    orders = shuffle_and_repeat(num_shards, seed, first_epoch * num_shards).batch(num_shards)
    return orders.enumerate(first_epoch).flat_map(read_epoch)


# ---- a Python generator ------------------------------------------------------------------------


def read_generator(
    examples: Callable[[int], Iterable[tuple[Any, Any]]],
    signature: tuple[tf.TensorSpec, tf.TensorSpec],
    start: int = 0,
) -> tf.data.Dataset:
    """What Python makes one by one, without end: for what nothing else reads, and the slowest way.

    `examples` takes the number of an epoch and gives its (key, content) one by one, shuffled
    already; those before `start` are made again and dropped.
    """

    def run() -> Iterator[tuple[Any, Any]]:
        return itertools.chain.from_iterable(map(examples, itertools.count()))

    return tf.data.Dataset.from_generator(run, output_signature=signature).skip(start)


def read_strings(pairs: Iterable[tuple[bytes, bytes]]) -> tf.data.Dataset:
    """Pairs of bytes that Python makes, in order -> (string, string)."""

    def chunks() -> Iterator[tuple[Any, ...]]:
        rest = iter(pairs)
        while some := list(itertools.islice(rest, STRINGS_PER_CALL)):
            yield tuple(zip(*some, strict=True))

    strings = tf.TensorSpec([None], tf.string)
    return tf.data.Dataset.from_generator(chunks, output_signature=(strings, strings)).unbatch()


# ---- HDF5 --------------------------------------------------------------------------------------


class Hdf5Rows(Source):
    """The rows of a dataset in an HDF5 file."""

    def __init__(self, file: str | Path, name: str):
        """Open the dataset `name`, whose first axis counts the examples."""
        try:
            self.rows = h5py.File(file)[name]
        except FileNotFoundError as error:
            raise UserError(f"{file}: there is no such file") from error
        except OSError as error:
            raise UserError(f"{file}: not an HDF5 file that can be read: {error}") from error
        except KeyError as error:
            raise UserError(f"{file}: there is no dataset {name}") from error
        self.dtype, self.shape = self.rows.dtype, self.rows.shape[1:]
        self.lock = threading.Lock()

    @property
    def num_examples(self) -> int:
        return len(self.rows)

    def read(self, ids: np.ndarray) -> np.ndarray:
        # HDF5 takes numbers in rising order only, and each once.
        numbers, places = np.unique(ids, return_inverse=True)
        with self.lock:
            return self.rows[numbers][places]
