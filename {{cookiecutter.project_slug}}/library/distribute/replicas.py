"""The part of a batch that a network sees at once: a replica's share, or one split of it.

A replica is a copy of the network on a device of its own, under a distribution strategy of
TensorFlow; without one there is one. What a layer does with the examples of a batch does not depend
on how the batch is divided.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import tensorflow as tf

_split = contextvars.ContextVar("split", default=(0, 1))


def num_replicas() -> int:
    return tf.distribute.get_strategy().num_replicas_in_sync


def average_over_replicas(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The mean of each tensor over all replicas, with a gradient. Called by every replica.

    `ReplicaContext.all_reduce` would do, but its gradient is not for the graphs of an Estimator.
    """
    tensors = list(tensors)
    if num_replicas() == 1:
        return tensors
    means = _mean(tensors)
    with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": "ReplicaMean"}):
        return tf.identity_n([*tensors, *means])[len(tensors) :]


def _mean(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    def reduce(strategy: tf.distribute.Strategy, values: list) -> list:
        pairs = [(value, value) for value in values]  # what, and where to
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, pairs)

    return tf.distribute.get_replica_context().merge_call(reduce, args=(tensors,))


@tf.RegisterGradient("ReplicaMean")
def _gradient_of_mean(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """The losses of all replicas depend on the mean, and each depends on the share of all."""
    half = len(gradients) // 2
    return [*_mean(list(gradients[half:])), *[None] * half]


@contextlib.contextmanager
def split_of_batch(split: int, num_splits: int) -> Iterator[None]:
    """Within the block, the network sees this one of `num_splits` of a replica's share."""
    token = _split.set((split, num_splits))
    try:
        yield
    finally:
        _split.reset(token)


def position_in_batch() -> tuple[tf.Tensor | int, int]:
    """The number of the present split in the batch, and that of all splits on all replicas."""
    split, num_splits = _split.get()
    if num_replicas() == 1:
        return split, num_splits
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return replica * num_splits + split, num_replicas() * num_splits
