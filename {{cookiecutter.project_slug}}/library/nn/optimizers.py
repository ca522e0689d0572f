"""Optimizers that heed `set_rate_factor`, and for float16; a hook for SyncReplicasOptimizer."""

import re
import threading
from collections.abc import Iterable
from typing import Any, TypeAlias

import tensorflow as tf

Optimizer: TypeAlias = tf.compat.v1.train.Optimizer

RATE_FACTORS = ("rate_factors",)
"""The collection of what `set_rate_factor` was told; a tuple, so that no checkpoint lists it."""

KERNEL = re.compile(r"kernel(/replica_\d+)?$")
"""The variables that weight decay shrinks: neither biases nor batch norm."""


def set_rate_factor(variables: Iterable[tf.Variable], factor: float) -> None:
    """Let variables of this graph learn at `factor` times the learning rate of the others."""
    for variable in variables:
        tf.compat.v1.add_to_collection(RATE_FACTORS, (variable, factor))


class _RateFactors(Optimizer):
    """Changes the rate of an optimizer of TensorFlow while it applies one variable's gradient."""

    _rate_name = "_lr_t"

    def _rate_of(self, var: tf.Variable) -> tf.Tensor:
        rate = getattr(self, self._rate_name)
        for variable, factor in tf.compat.v1.get_collection(RATE_FACTORS):
            # Under a strategy, a variable has a copy on each device.
            if any(copy is var for copy in getattr(variable, "values", (variable,))):
                return rate * factor
        return rate

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        rate = getattr(self, self._rate_name)
        setattr(self, self._rate_name, self._rate_of(var))
        try:
            return super()._resource_apply_dense(grad, var)
        finally:
            setattr(self, self._rate_name, rate)


class Adam(_RateFactors, tf.compat.v1.train.AdamOptimizer):
    """Adam, Kingma and Ba 2014, https://arxiv.org/abs/1412.6980."""


class AdamW(Adam):
    """Adam with decoupled weight decay of kernels, https://arxiv.org/abs/1711.05101.

    Each step also subtracts rate x weight_decay x value.
    """

    def __init__(self, learning_rate: Any, *, weight_decay: float, **options: float):
        super().__init__(learning_rate, **options)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        if not KERNEL.search(var.op.name):
            return super()._resource_apply_dense(grad, var)
        with tf.control_dependencies([grad]):  # which is taken of the value before the decay
            decay = var.assign_sub(self._weight_decay * self._rate_of(var) * var)
        with tf.control_dependencies([decay]):
            return super()._resource_apply_dense(grad, var)


class SGD(_RateFactors, tf.compat.v1.train.MomentumOptimizer):
    """Gradient descent with Nesterov momentum, http://proceedings.mlr.press/v28/sutskever13."""

    _rate_name = "_learning_rate_tensor"

    def __init__(self, learning_rate: Any, *, momentum: float = 0.9):
        super().__init__(learning_rate, momentum, use_nesterov=True)


def with_loss_scale(optimizer: Optimizer) -> tuple[Optimizer, tf.Tensor]:
    """An optimizer for float16, and whether its loss scale can still be halved: bool scalar.

    A step whose gradients overflow changes nothing but the scale, which is halved; after 2,000
    good steps it is doubled (Micikevicius et al. 2017, https://arxiv.org/abs/1710.03740).
    """
    mixed_precision = tf.compat.v1.mixed_precision
    scale = mixed_precision.DynamicLossScale()
    return mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, scale), scale() > 1.0


class SyncReplicasShutdownHook(tf.compat.v1.train.SessionRunHook):
    """Ends the thread of SyncReplicasOptimizer that waits for more gradients.

    TensorFlow would give it two minutes, and then print its traceback.
    """

    def after_create_session(self, session: Any, coord: tf.train.Coordinator) -> None:
        def join(*threads: Any, stop_grace_period_secs: float = 0, **more: Any) -> None:
            threading.excepthook = lambda args: None
            coord_join(*threads, stop_grace_period_secs=min(2, stop_grace_period_secs), **more)

        coord_join, coord.join = coord.join, join
