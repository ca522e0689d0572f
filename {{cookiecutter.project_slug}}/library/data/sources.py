"""Where examples come from: files, TFRecords, HDF5, a generator.

Each source is a dataset of (key, content). The key names an example, int64 or string, and goes
with it as far as the predictions; the content is what the first map of a pipeline takes. Those that
can be read in any order are made of ids, so that a run starts anywhere in a shuffle of all:

    shuffle_and_repeat(source.num_examples, seed, start).apply(read_by_id(source, -1))

Paths can be those of any file system that TensorFlow reads, but where Python reads, by id and from
HDF5.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
import tensorflow as tf

from library.data.card import Card
from library.data.order import shuffle_and_repeat
from library.util import UserError

IDS_PER_CALL = 64
"""One call of Python for so many examples: one for each costs a fifth of the speed."""
STRINGS_AT_A_TIME = 32

SHARDS_IN_TURNS = 4
"""Files that a stream reads from at the same time: neighbours in a file do not stay neighbours."""


class Source(Protocol):
    """Examples that can be read in any order, as `library.tfrecord.Reader`."""

    dtype: np.dtype
    shape: Sequence[int]
    """Of the content of one; object stands for bytes."""

    @property
    def num_examples(self) -> int: ...

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The contents of these numbers, int64 [n]; from several threads."""
        ...


def read_by_id(source: Source, num_parallel_calls: int) -> Callable:
    """A transformation of a dataset of ids into one of examples, in the same order.

    Args:
        source: a `library.tfrecord.Reader`, `Hdf5Rows`, or another one.
        num_parallel_calls: how many batches of ids are read at the same time; -1: as many as pays.

    Returns:
        A function from a dataset of int64 scalars to a dataset of (id, content).
    """

    def read(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        contents = tf.numpy_function(source.read, [ids], tf.as_dtype(source.dtype), stateful=False)
        return ids, tf.ensure_shape(contents, [None, *source.shape])

    def transformation(ids: tf.data.Dataset) -> tf.data.Dataset:
        return ids.batch(IDS_PER_CALL).map(read, num_parallel_calls=num_parallel_calls).unbatch()

    return transformation


# ---- files as they are -------------------------------------------------------------------------


def list_files(pattern: str) -> list[str]:
    """The files of a pattern, as "photos/*/*.jpg", sorted by name.

    Raises:
        UserError: there is none.
    """
    files = sorted(tf.io.gfile.glob(pattern))
    if not files:
        raise UserError(f"{pattern}: there is no such file")
    return files


def read_files(files: Sequence[str], num_parallel_calls: int) -> Callable:
    """A transformation of a dataset of ids into one of (name, bytes of the file), both strings."""
    names = tf.constant(files)

    def read(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return names[number], tf.io.read_file(names[number])

    return lambda ids: ids.map(read, num_parallel_calls=num_parallel_calls)


# ---- TFRecords as streams ----------------------------------------------------------------------


def read_in_order(path: str | Path) -> tf.data.Dataset:
    """All records of a data set once, the first one first.

    Args:
        path: of the data set, as "data/train".

    Returns:
        A dataset of (number, int64; record, string).

    Raises:
        UserError: there is no card, or a shard is not the one that it describes.
    """
    return tf.data.Dataset.from_tensor_slices(_shards(path)).flat_map(_records)


def _shards(path: str | Path) -> tuple[list[str], np.ndarray]:
    """The files of a data set, and the number of the first record of each."""
    card = Card.load(f"{path}.json")
    ends = np.cumsum([shard.examples for shard in card.shards], dtype=np.int64)
    return card.files(path), np.append(np.int64(0), ends[:-1])


def _records(file: tf.Tensor, first: tf.Tensor) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(file).enumerate(first)


def read_stream(
    path: str | Path, seed: int, start: int = 0, *, buffer_mb: float
) -> tf.data.Dataset:
    """All records without end, roughly shuffled, from storage where random reads are slow.

    Every epoch reads the shards in an order of its own, some of them in turns, through a buffer of
    serialized records. That is exact while it runs: every epoch has every record once, and the
    order follows from the seed alone. It is not exact where it starts in the middle: shards that
    the order has before `start` are left out unread, and then as many records as are missing. So
    of this one epoch, which has the right number of records, some that were in the buffer or in
    shards half read come again, and others do not.

    Args:
        path: of the data set, as "data/train".
        seed: fixes the order.
        start: number of records that the run has used up already.
        buffer_mb: size of the buffer in megabytes; a larger one shuffles better.

    Returns:
        A dataset of (number, int64; record, string).

    Raises:
        UserError: there is no card, or a shard is not the one that it describes.
    """
    card = Card.load(f"{path}.json")
    files, firsts = map(tf.constant, _shards(path))
    examples = tf.constant([shard.examples for shard in card.shards], tf.int64)
    num_shards, size = len(card.shards), sum(shard.bytes for shard in card.shards)
    buffer_size = max(1, int(buffer_mb * 2**20 * card.num_examples / size))
    first_epoch, skipped = divmod(start, card.num_examples)

    def read_epoch(epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        skip = tf.where(tf.equal(epoch, first_epoch), tf.constant(skipped, tf.int64), 0)
        ends = tf.cumsum(tf.gather(examples, order))
        unread = tf.boolean_mask(order, ends > skip)
        skip -= tf.reduce_max(tf.where(ends <= skip, ends, 0))
        shards = tf.gather(files, unread), tf.gather(firsts, unread)
        return (
            tf.data.Dataset.from_tensor_slices(shards)
            .interleave(_records, cycle_length=SHARDS_IN_TURNS, block_length=16)
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
    epochs: int | None = None,
) -> tf.data.Dataset:
    """What Python makes one by one: the way for what nothing else reads, and the slowest one.

    Args:
        examples: the number of an epoch -> its (key, content) one by one, shuffled already.
        signature: of key and content.
        start: number of examples that the run has used up already: they are made again, and left
            out.
        epochs: how many; None: without end.

    Returns:
        A dataset of (key, content).
    """

    def run() -> Iterable[tuple[Any, Any]]:
        for epoch in itertools.count() if epochs is None else range(epochs):
            yield from examples(epoch)

    return tf.data.Dataset.from_generator(run, output_signature=signature).skip(start)


def read_strings(pairs: Iterable[tuple[bytes, bytes]]) -> tf.data.Dataset:
    """Pairs of (key, content) that Python makes, handed over some at a time: each takes its time.

    Returns:
        A dataset of (string, string), in the same order.
    """

    def chunks() -> Iterator[tuple[Any, ...]]:
        rest = iter(pairs)
        while some := list(itertools.islice(rest, STRINGS_AT_A_TIME)):
            yield tuple(zip(*some, strict=True))

    strings = tf.TensorSpec([None], tf.string)
    return tf.data.Dataset.from_generator(chunks, output_signature=(strings, strings)).unbatch()


# ---- HDF5 --------------------------------------------------------------------------------------


class Hdf5Rows:
    """The rows of a dataset in an HDF5 file, by their number: for `read_by_id`."""

    def __init__(self, file: str | Path, name: str):
        """Open the dataset `name`, whose first axis counts the examples.

        Raises:
            UserError: there is no such file or dataset, or it is not HDF5.
        """
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
