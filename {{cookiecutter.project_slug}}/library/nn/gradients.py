"""The gradients of a batch: accumulated over splits, clipped, scaled, shared by workers."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import tensorflow as tf

from library.distribute import average_over_replicas, num_replicas, split_of_batch

Optimizer: TypeAlias = tf.compat.v1.train.Optimizer
Outputs = TypeVar("Outputs")


def accumulate_gradients(
    compute: Callable[..., Outputs], batch: Sequence[Any], *, num_splits: int
) -> Outputs:
    """The averages of outputs and gradients over equal splits of a batch.

    The splits come one after the other, so that only one of them is in memory.

    Args:
        compute: from a split of the batch to a structure of tensors, each an average over its
            examples; it makes the variables that it needs by `get_variable`.
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


def with_loss_scale(optimizer: Optimizer) -> tuple[Optimizer, tf.Tensor]:
    """An optimizer for float16, and whether its loss scale can still be halved: bool scalar.

    A step whose gradients overflow changes nothing but the scale, which is halved; after 2,000
    good steps it is doubled (Micikevicius et al. 2017, https://arxiv.org/abs/1710.03740).
    """
    scale = tf.compat.v1.mixed_precision.DynamicLossScale()
    wrapped = tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, scale)
    return wrapped, scale() > 1.0


def sync_replicas(optimizer: Optimizer, num_workers: int) -> Optimizer:
    """An optimizer for workers that share each batch, with variables on parameter servers.

    It averages the gradients of all workers, and none begins the next step before that
    (Chen et al. 2016, https://arxiv.org/abs/1604.00981, without backup workers).
    """
    return tf.compat.v1.train.SyncReplicasOptimizer(optimizer, num_workers, num_workers)


class SyncReplicasShutdownHook(tf.compat.v1.train.SessionRunHook):
    """Ends the thread of `sync_replicas` that waits for more gradients.

    TensorFlow would give it two minutes, and then print its traceback.
    """

    def after_create_session(self, session: Any, coord: tf.train.Coordinator) -> None:
        def join(*threads: Any, stop_grace_period_secs: float = 0, **more: Any) -> None:
            threading.excepthook = lambda args: None
            coord_join(*threads, stop_grace_period_secs=min(2, stop_grace_period_secs), **more)

        coord_join, coord.join = coord.join, join
