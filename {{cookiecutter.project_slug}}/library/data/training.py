"""The examples of a training run, in its order."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from library.data.cache import Convert, cached
from library.data.card import Card
from library.data.order import shuffle_and_repeat
from library.data.sources import ReadShard, Source, read_by_id, read_stream, read_tfrecords
from library.data.stages import Transformation
from library.data.tfrecord import Reader

if TYPE_CHECKING:
    from library.config import Settings


def train_records(
    settings: "Settings",
    start: int = 0,
    *,
    num_workers: int = 1,
    worker: int = 0,
    to_cache: Convert | None = None,
    open_data: Callable[[str], Source] = Reader,
    read_shard: ReadShard = read_tfrecords,
    read: Callable[[Source, int], Transformation] = read_by_id,
) -> tf.data.Dataset:
    """The training examples of a run, shuffled, without end.

    Args:
        settings: the data, its order, its cache, and how many of the examples are used.
        start: number of examples that the run has behind it.
        num_workers, worker: processes that train together, and the number of this one: each reads
            its share of the samples.
        to_cache: a dataset of contents -> what a cache keeps of each, in the same order; None: the
            contents themselves.
        open_data: opens the dataset where examples are read by id.
        read_shard: reads a shard where they are a stream, or go to a cache.
        read: what makes samples, (number, id), into the result; called with the source and
            `num_parallel_calls`.

    Returns:
        A dataset of (number of the sample in the run, int64; id of the example, int64; content).
    """
    path, seed = settings.train_data, settings.random_seed
    options = tf.data.Options()
    options.deterministic = settings.deterministic
    numbers = tf.data.Dataset.range(start + worker, tf.int64.max, num_workers)
    if settings.shuffle == "stream":
        buffer_mb = settings.shuffle_buffer_mb
        stream = read_stream(path, seed, start, buffer_mb=buffer_mb, read_shard=read_shard)
        pairs = tf.data.Dataset.zip((numbers, stream.shard(num_workers, worker)))
        return pairs.map(lambda number, example: (number, *example)).with_options(options)
    # Ids are shuffled, never examples: a global shuffle that takes no memory.
    source: Source
    if settings.cache == "none":
        source = open_data(path)
    else:
        convert = to_cache or tf.data.Dataset.as_numpy_iterator
        source = cached(path, settings.cache, convert, settings.cache_dir, read_shard)
    num_examples = min(source.num_examples, settings.limit_train_examples or source.num_examples)
    ids = shuffle_and_repeat(num_examples, seed, start).shard(num_workers, worker)
    samples = tf.data.Dataset.zip((numbers, ids))
    return samples.apply(read(source, settings.num_parallel_calls)).with_options(options)


def num_train_examples(settings: "Settings", card: Card) -> int:
    """The examples of an epoch: all, or `limit_train_examples`."""
    return min(card.num_examples, settings.limit_train_examples or card.num_examples)
