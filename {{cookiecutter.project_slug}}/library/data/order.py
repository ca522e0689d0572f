"""The order of examples as a pure function of (seed, epoch, position)."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from library.data.stages import Transformation

POSITIONS_PER_CALL = 4096
"""A vector of positions costs one op; a larger one gains no more and takes memory."""
DRAWS_PER_BLOCK = 10_000
"""In so many draws, each part of a mixture has its share to 1 / 10,000."""


def shuffle_and_repeat(
    num_examples: int, seed: int, start: int = 0, epochs: int | None = None
) -> tf.data.Dataset:
    """The ids of all examples, int64 scalars, in a new order each epoch, in constant memory.

    The order of the whole run follows from the seed, any integer of 64 bits, so a run continues
    where it stopped, at no cost; epochs are counted from its beginning, and have no end if None:

        shuffle_and_repeat(50_000, seed=1, start=step * batch_size)

    The permutation is TensorFlow's RandomIndexShuffle, a block cipher on the position. Neighbouring
    epochs are independent because the epoch is hashed into the key, and the cipher runs 8 rounds:
    with 4, and the epoch as it is, 2 to 6 % of the ids keep their position.

    Raises:
        ValueError: no examples, or a start below zero.
    """
    if num_examples < 1 or start < 0:
        raise ValueError(
            f"num_examples must be at least 1 and start at least 0 (got {num_examples}, {start})"
        )
    first_epoch, first_position = divmod(start, num_examples)

    @tf.autograph.experimental.do_not_convert
    def permutation(epoch: tf.Tensor) -> tf.data.Dataset:
        key = tf.random.stateless_uniform(
            [3], seed=tf.stack([seed, epoch]), minval=None, maxval=None, dtype=tf.uint32
        )
        # Not epoch == first_epoch: in a graph, that asks whether they are one object.
        begin = tf.where(tf.equal(epoch, first_epoch), tf.constant(first_position, tf.int64), 0)

        def shuffled(first: tf.Tensor) -> tf.Tensor:
            return tf.raw_ops.RandomIndexShuffle(
                index=tf.range(first, tf.minimum(first + POSITIONS_PER_CALL, num_examples)),
                seed=key,
                max_index=tf.constant(num_examples - 1, tf.int64),
                rounds=8,
            )

        positions = tf.data.Dataset.range(begin, num_examples, POSITIONS_PER_CALL)
        return positions.map(shuffled, num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    end = tf.int64.max if epochs is None else epochs
    return tf.data.Dataset.range(first_epoch, end).flat_map(permutation)


def mix_and_repeat(
    parts: Sequence[np.ndarray], weights: Sequence[float], seed: int, start: int = 0
) -> tf.data.Dataset:
    """Ids drawn from parts, int64 [n] each, in the proportion of their weights, without end.

    A part has every id once before one comes again, then in a new order. As in
    `shuffle_and_repeat`, all follows from seed and position, and a start costs the same anywhere.
    """
    even = -(-DRAWS_PER_BLOCK // len(parts)) * len(parts)  # divides equal weights without a rest
    ends = np.round(np.cumsum(weights) / np.sum(weights) * even)
    shares = np.maximum(1, np.diff(ends, prepend=0)).astype(np.int64)  # of each part in a block

    # Of RandomState, whose numbers are the same in any NumPy.
    def permutation(size: int, *key: int | np.integer) -> np.ndarray:
        return np.random.RandomState(np.array([seed, *key])).permutation(size)

    def block(number: np.int64) -> np.ndarray:
        drawn = []
        for part, (ids, share) in enumerate(zip(parts, shares, strict=True)):
            first, skipped = divmod(number * share, len(ids))
            epochs = range(first, first + 1 + (skipped + share - 1) // len(ids))
            orders = [ids[permutation(len(ids), part, epoch)] for epoch in epochs]
            drawn.append(np.concatenate(orders)[skipped : skipped + share])
        # Which part comes when; each gives its ids in their order.
        turns = np.repeat(np.arange(len(parts)), shares)[permutation(shares.sum(), number)]
        result = np.empty(len(turns), np.int64)
        result[np.argsort(turns, kind="stable")] = np.concatenate(drawn)
        return result

    def ids_of(number: tf.Tensor) -> tf.Tensor:
        ids = tf.numpy_function(block, [number], tf.int64, stateful=False)
        return tf.ensure_shape(ids, [shares.sum()])

    first, skipped = divmod(start, int(shares.sum()))
    blocks = tf.data.Dataset.range(first, tf.int64.max).map(ids_of).prefetch(1)
    return blocks.unbatch().skip(skipped)


def random_shard(shard_size: int, dataset_size: int, *, seed: int) -> Transformation:
    """Blocks of neighbours in a random order, new at each pass: for what cannot be read by id.

        dataset.apply(random_shard(1000, 50_000, seed=1)).shuffle(2000, seed=1)

    The elements of a block keep their order; the last block may be smaller. Every block skips what
    comes before it: use it on what is cheap to skip, such as file names, never behind a decoder.
    """

    def transformation(dataset: tf.data.Dataset) -> tf.data.Dataset:
        begins = tf.data.Dataset.range(0, dataset_size, shard_size)
        return begins.shuffle(-(-dataset_size // shard_size), seed=seed).flat_map(
            lambda begin: dataset.skip(begin).take(shard_size)
        )

    return transformation
