"""The gradients of a batch: accumulated over splits, and clipped."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from library.distribute import average_over_replicas, num_replicas, split_of_batch

Outputs = TypeVar("Outputs")


def accumulate_gradients(
    compute: Callable[..., Outputs], batch: Sequence[Any], *, num_splits: int
) -> Outputs:
    """The averages of what `compute` gives for equal splits of a batch, one after the other.

    Args:
        compute: from a split of the batch to a structure of tensors, each an average over its
            examples; it makes its variables by `get_variable`.
        batch: structures of tensors [examples, ...], the arguments of `compute`.
        num_splits: has to divide the number of examples.
    """
    sums: Any = None
    ready: list[Any] = []
    updates = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.UPDATE_OPS)
    scope = tf.compat.v1.get_variable_scope()
    for split in range(num_splits):
        with (
            split_of_batch(split, num_splits),
            tf.control_dependencies(ready),
            tf.compat.v1.variable_scope(scope, reuse=tf.compat.v1.AUTO_REUSE),
        ):
            rows = tf.nest.map_structure(lambda x, at=split: tf.split(x, num_splits)[at], batch)
            found = tf.nest.map_structure(tf.convert_to_tensor, compute(*rows))
            sums = found if sums is None else tf.nest.map_structure(tf.add, sums, found)
            ready = [*tf.nest.flatten(sums), *updates]
    return tf.nest.map_structure(lambda total: total / num_splits, sums)


def clip_gradients(gradients: Sequence[tf.Tensor], norm: float) -> list[tf.Tensor]:
    """Gradients scaled down to a global norm: that of the whole batch, on all replicas."""
    count = num_replicas()
    whole = [count * each for each in average_over_replicas(gradients)]
    return [each / count for each in tf.clip_by_global_norm(whole, norm)[0]]
