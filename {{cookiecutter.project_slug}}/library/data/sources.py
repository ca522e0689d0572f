"""Where examples come from: TFRecords, files, HDF5, a generator.

A source is a dataset of (key, content). The key names an example, int64 or string; the content is
what the first function of the chain takes. What can be read in any order is read by ids, so that a
run starts anywhere in a global shuffle:

    shuffle_and_repeat(source.num_examples, seed, start).apply(read_by_id(source, -1))

Datasets of TFRecords can be at a URL, which a BlockCache makes faster.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from library.config import URL
from library.data.card import Card
from library.data.modality import Source
from library.data.order import shuffle_and_repeat
from library.data.remote import NO_CACHE, BlockCache
from library.data.stages import Transformation, without_autotuner
from library.data.tfrecord import Reader
from library.util import UserError

IDS_PER_CALL = 64
"""Examples that one call of Python reads: a call for each costs a fifth of the speed."""
STRINGS_PER_CALL = 32
AHEAD = 4
"""Such calls at the same time for a dataset that is read from elsewhere in order."""
SHARDS_IN_TURNS = 4
"""Shards that a stream reads from at the same time, so that neighbours do not stay neighbours."""
BLOCK_LENGTH = 16
"""Examples that it takes from each in turn."""

ReadShard = Callable[..., tf.data.Dataset]
"""File of a shard, string; id of its first example; number of its examples; how many of them to
skip, 0 by default; all int64 -> a dataset of (id, content), in order."""


def read_by_id(source: Source, num_parallel_calls: int) -> Transformation:
    """Read the examples that a dataset of ids names, in the same order.

    Returns:
        From a dataset of int64 scalars to one of (id, content); from a dataset of (..., id) to one
        of (..., id, content). -1 parallel calls, each for a batch of ids: one for each core.
    """

    def read(*keys: tf.Tensor) -> tuple[tf.Tensor, ...]:
        dtype = tf.as_dtype(source.dtype)
        contents = tf.numpy_function(source.read, [keys[-1]], dtype, stateful=False)
        return *keys, tf.ensure_shape(contents, [None, *source.shape])

    def transformation(ids: tf.data.Dataset) -> tf.data.Dataset:
        batches = without_autotuner(ids).batch(IDS_PER_CALL)
        return batches.map(read, num_parallel_calls=num_parallel_calls).unbatch()

    return transformation


class Joined(Source):
    """Several sources of bytes as one: the ids of each follow on those of the one before."""

    def __init__(self, sources: Sequence[Source]):
        self.sources, self.ends = sources, np.cumsum([each.num_examples for each in sources])

    @property
    def num_examples(self) -> int:
        return int(self.ends[-1])

    def read(self, ids: np.ndarray) -> np.ndarray:
        contents, numbers = np.empty(len(ids), object), np.searchsorted(self.ends, ids, "right")
        for number in np.unique(numbers):
            mine, source = numbers == number, self.sources[number]
            contents[mine] = source.read(ids[mine] - self.ends[number] + source.num_examples)
        return contents


def join(sources: Sequence[Source]) -> Source:
    """One or more sources as one."""
    return sources[0] if len(sources) == 1 else Joined(sources)


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
    return lambda ids: without_autotuner(ids).map(
        lambda number: (names[number], tf.io.read_file(names[number])), num_parallel_calls
    )


# ---- shards as streams -------------------------------------------------------------------------


def read_tfrecords(
    file: tf.Tensor, first: tf.Tensor, examples: tf.Tensor, skipped: int | tf.Tensor = 0
) -> tf.data.Dataset:
    """The records of one file: a `ReadShard`."""
    return tf.data.TFRecordDataset(file).skip(skipped).enumerate(first + skipped)


def read_in_order(
    path: str | Path, read_shard: ReadShard = read_tfrecords, *, blocks: BlockCache = NO_CACHE
) -> tf.data.Dataset:
    """All examples of the dataset `path`, as "data/train", once and in order: (id, content)."""
    if URL.match(str(path)) and read_shard is read_tfrecords:
        reader = Reader(path, blocks)
        return tf.data.Dataset.range(reader.num_examples).apply(read_by_id(reader, AHEAD))
    shards = tf.data.Dataset.from_tensor_slices(_shards(path))
    return without_autotuner(shards).flat_map(read_shard)


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
    blocks: BlockCache = NO_CACHE,
) -> tf.data.Dataset:
    """All examples without end, roughly shuffled, from storage where random reads are slow.

    Every epoch reads the shards in an order of its own, some of them in turns, and cuts what it
    reads into windows, each of which is shuffled: half of `buffer_mb` megabytes of serialized
    examples, as one window is read while the one before is used. Every epoch has every example
    once. All of the order follows from seed and position, so a `start` in the middle is exact: it
    reads its window again, of the shards that are not behind it. The result is a dataset of
    (id, int64; content).
    """
    card, (files, firsts, examples) = Card.load(f"{path}.json"), _shards(path)
    if URL.match(str(path)) and read_shard is read_tfrecords:
        by_id = read_by_id(Reader(path, blocks), 1)

        def read_shard(
            _: tf.Tensor, first: tf.Tensor, count: tf.Tensor, skipped: tf.Tensor
        ) -> tf.data.Dataset:
            return tf.data.Dataset.range(first + skipped, first + count).apply(by_id)

    total, num_shards = card.num_examples, len(files)
    in_half = buffer_mb / 2 * 2**20 * total / sum(shard.bytes for shard in card.shards)
    num_windows = -(-total // max(1, int(in_half)))
    # Of nearly equal sizes: a small one at the end of an epoch would hardly be shuffled.
    window = -(-total // num_windows)
    turns = -(-num_shards // -(-num_shards // SHARDS_IN_TURNS))
    first_epoch, position = divmod(start, total)
    first_window, skipped = divmod(position, window)

    @tf.autograph.experimental.do_not_convert
    def read_epoch(epoch: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        """Windows: pairs of datasets, of ids and of contents."""
        done = tf.where(
            tf.equal(epoch, first_epoch), tf.constant(first_window * window, tf.int64), 0
        )
        shards = [tf.gather(each, order) for each in (files, firsts, examples)]
        groups = tf.data.Dataset.from_tensor_slices((*shards, tf.cumsum(shards[-1]))).batch(turns)
        unread = groups.filter(lambda *group: group[-1][-1] > done)
        return unread.flat_map(lambda *group: read_group(*group, done)).window(window)

    @tf.autograph.experimental.do_not_convert
    def read_group(
        files: tf.Tensor, firsts: tf.Tensor, examples: tf.Tensor, ends: tf.Tensor, done: tf.Tensor
    ) -> tf.data.Dataset:
        """Some shards in turns, without those of their examples that come before `done`."""
        skip = tf.maximum(done - ends[-1] + tf.reduce_sum(examples), 0)
        # In each round that no shard is too short for, each gives a block.
        a_round = BLOCK_LENGTH * tf.size(files, tf.int64)
        rounds = tf.minimum(skip // a_round, tf.reduce_min(examples) // BLOCK_LENGTH)
        return (
            tf.data.Dataset.from_tensor_slices((files, firsts, examples))
            .interleave(
                lambda *shard: read_shard(*shard, rounds * BLOCK_LENGTH),
                cycle_length=turns,
                block_length=BLOCK_LENGTH,
            )
            .skip(skip - rounds * a_round)
        )

    @tf.autograph.experimental.do_not_convert
    def shuffled(number: tf.Tensor, examples: tuple[tf.data.Dataset, ...]) -> tf.data.Dataset:
        # In this function, in place of the seed of the graph around it; 0 means none there.
        tf.compat.v1.set_random_seed(seed or -1)
        return tf.data.Dataset.zip(examples).shuffle(window, number, reshuffle_each_iteration=False)

    orders = shuffle_and_repeat(num_shards, seed, first_epoch * num_shards).batch(num_shards)
    windows = orders.enumerate(first_epoch).flat_map(read_epoch).prefetch(1)
    numbered = without_autotuner(windows).enumerate(first_epoch * num_windows + first_window)
    return numbered.flat_map(shuffled).skip(skipped)


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

    made = tf.data.Dataset.from_generator(run, output_signature=signature)
    return without_autotuner(made).skip(start)


def read_strings(pairs: Iterable[tuple[bytes, bytes]]) -> tf.data.Dataset:
    """Pairs of bytes that Python makes, in order -> (string, string)."""

    def chunks() -> Iterator[tuple[Any, ...]]:
        rest = iter(pairs)
        while some := list(itertools.islice(rest, STRINGS_PER_CALL)):
            yield tuple(zip(*some, strict=True))

    strings = tf.TensorSpec([None], tf.string)
    made = tf.data.Dataset.from_generator(chunks, output_signature=(strings, strings))
    return without_autotuner(made).unbatch()


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
        if not isinstance(self.rows, h5py.Dataset) or not self.rows.shape:
            raise UserError(f"{file}: {name} has no rows: it is a group or a single value")
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
