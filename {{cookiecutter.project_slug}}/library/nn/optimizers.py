"""Optimizers, each of which heeds `set_rate_factor`: Adam, AdamW, SGD."""

import re
from collections.abc import Iterable

import tensorflow as tf

RATE_FACTORS = ("rate_factors",)
"""The collection of what `set_rate_factor` was told; a tuple, so that no checkpoint lists it."""

KERNEL = re.compile(r"kernel(/replica_\d+)?$")
"""The variables that weight decay shrinks: neither biases nor batch norm."""


def set_rate_factor(variables: Iterable[tf.Variable], factor: float) -> None:
    """Let variables of this graph learn at `factor` times the learning rate of the others."""
    for variable in variables:
        tf.compat.v1.add_to_collection(RATE_FACTORS, (variable, factor))


class _RateFactors(tf.compat.v1.train.Optimizer):
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
    """Adam with decoupled weight decay, Loshchilov and Hutter 2017.

    Each step also subtracts rate x weight_decay x value, from kernels only.
    https://arxiv.org/abs/1711.05101
    """

    def __init__(
        self,
        learning_rate: tf.Tensor | float,
        *,
        weight_decay: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon)
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        if not KERNEL.search(var.op.name):
            return super()._resource_apply_dense(grad, var)
        with tf.control_dependencies([grad]):  # which is taken of the value before the decay
            decay = var.assign_sub(self._weight_decay * self._rate_of(var) * var)
        with tf.control_dependencies([decay]):
            return super()._resource_apply_dense(grad, var)


class SGD(_RateFactors, tf.compat.v1.train.MomentumOptimizer):
    """Stochastic gradient descent with Nesterov momentum, Sutskever et al. 2013.

    http://proceedings.mlr.press/v28/sutskever13.html
    """

    _rate_name = "_learning_rate_tensor"

    def __init__(self, learning_rate: tf.Tensor | float, *, momentum: float = 0.9):
        super().__init__(learning_rate, momentum, use_nesterov=True)
