"""A training step: the gradients of a batch, in parts, and an optimizer for them."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from library.distribute import replicas

Optimizer: TypeAlias = tf.compat.v1.train.Optimizer

RATE_FACTORS = ("rate_factors",)
"""The collection of what `set_rate_factor` was told; a tuple, so that no checkpoint lists it."""


def set_rate_factor(variables: Iterable[tf.Variable], factor: float) -> None:
    """Let variables of this graph learn at `factor` times the rate of the others."""
    for variable in variables:
        tf.compat.v1.add_to_collection(RATE_FACTORS, (variable, factor))


class Adam(tf.compat.v1.train.AdamOptimizer):
    """Adam, Kingma and Ba 2014, https://arxiv.org/abs/1412.6980, minding `set_rate_factor`."""

    _lr_t: tf.Tensor

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        rate = self._lr_t
        for variable, factor in tf.compat.v1.get_collection(RATE_FACTORS):
            # Under a strategy, a variable has a copy on each device.
            if any(copy is var for copy in getattr(variable, "values", (variable,))):
                self._lr_t = rate * factor
        try:
            return super()._resource_apply_dense(grad, var)
        finally:
            self._lr_t = rate


def with_loss_scale(optimizer: Optimizer) -> tuple[Optimizer, tf.Tensor]:
    """An optimizer for float16, whose smallest number above 0 is 6e-8.

    The loss is multiplied by a scale, and the gradients are divided by it. A step whose gradients
    overflow changes nothing but the scale, which is halved; after 2,000 good steps it is doubled
    (Micikevicius et al. 2017, https://arxiv.org/abs/1710.03740).

    Returns:
        The optimizer, and whether the scale can still be halved: bool scalar.
    """
    scale = tf.compat.v1.mixed_precision.DynamicLossScale()
    wrapped = tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, scale)
    return wrapped, scale() > 1.0


def in_step(optimizer: Optimizer, workers: int) -> tf.compat.v1.train.SyncReplicasOptimizer:
    """An optimizer for workers that share each batch, their variables on parameter servers.

    It averages the gradients of all workers, and none begins the next step before that
    (Chen et al. 2016, https://arxiv.org/abs/1604.00981, without backup workers).
    """
    return tf.compat.v1.train.SyncReplicasOptimizer(
        optimizer, replicas_to_aggregate=workers, total_num_replicas=workers
    )


class EndHook(tf.compat.v1.train.SessionRunHook):
    """Lets a run `in_step` end: its thread that waits for more gradients waits for ever.

    TensorFlow would give it two minutes, and then print its traceback.
    """

    def after_create_session(self, session: Any, coord: tf.train.Coordinator) -> None:
        def join(*threads: Any, stop_grace_period_secs: float = 0, **more: Any) -> None:
            threading.excepthook = lambda what: None
            coordinated(*threads, stop_grace_period_secs=min(2, stop_grace_period_secs), **more)

        coordinated, coord.join = coord.join, join


def clip(gradients: Sequence[tf.Tensor], norm: float) -> list[tf.Tensor]:
    """Gradients scaled down to a global norm: that of the whole batch, on all replicas."""
    count = replicas.num_replicas()
    whole = [count * each for each in replicas.average(gradients)]
    return [each / count for each in tf.clip_by_global_norm(whole, norm)[0]]


def in_parts(
    outputs_of: Callable[..., Sequence[tf.Tensor]],
    gradients_of: Callable[[tf.Tensor], Sequence[tf.Tensor]],
    batch: Any,
    *,
    parts: int,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The average of a network's outputs, and of their gradients, over equal parts of a batch.

    The parts come one after the other, so that only one of them is in memory.

    Args:
        outputs_of: from a part of the batch to scalars that are averages over its examples, the
            loss first; it makes the variables that it needs by `get_variable`.
        gradients_of: from the loss to its gradients.
        batch: a structure of tensors [examples, ...].
        parts: into which the batch is cut.

    Returns:
        The outputs, and the gradients.

    Raises:
        ValueError: the batch cannot be cut into so many.
    """
    ready: list[Any] = []
    sums: list[tf.Tensor] = []
    updates = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.UPDATE_OPS)
    for part in range(parts):
        with (
            replicas.part_of_batch(part, parts),
            tf.control_dependencies(ready),
            tf.compat.v1.variable_scope(
                tf.compat.v1.get_variable_scope(), reuse=tf.compat.v1.AUTO_REUSE
            ),
        ):
            rows = tf.nest.map_structure(lambda x, part=part: tf.split(x, parts)[part], batch)
            outputs = list(outputs_of(*rows))
            found = [*outputs, *map(tf.convert_to_tensor, gradients_of(outputs[0]))]
            sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
            ready = [*sums, *updates]
    means = [each / parts for each in sums]
    return means[: len(outputs)], means[len(outputs) :]
