"""Layers: a few lines each on `tf.nn` and `get_variable`.

They give the same numbers on every TensorFlow, every weight has a seed of its own, and dropout
depends on nothing but (seed, step).
"""

import math
import zlib

import tensorflow as tf

BATCH_NORM_MOMENTUM = 0.95
"""Of the moving averages: short enough for data sets of a few hundred steps."""


def conv(x: tf.Tensor, filters: int, *, seed: int, size: int = 3) -> tf.Tensor:
    """A convolution without bias, for batch norm to follow: [b, h, w, c] -> [b, h, w, filters]."""
    return tf.nn.conv2d(x, _kernel([size, size, x.shape[-1], filters], seed, gain=2), 1, "SAME")


def dense(x: tf.Tensor, units: int, *, seed: int) -> tf.Tensor:
    """An affine map: [b, c] -> [b, units]."""
    bias = tf.compat.v1.get_variable("bias", [units], initializer=tf.zeros_initializer())
    return x @ _kernel([x.shape[-1], units], seed, gain=1) + bias


def batch_norm(x: tf.Tensor, *, training: bool, epsilon: float = 1e-3) -> tf.Tensor:
    """Batch normalization, Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.

    In training, the moving averages are brought up to date by ops in the collection UPDATE_OPS.
    """
    shape, ones, zeros = [x.shape[-1]], tf.ones_initializer(), tf.zeros_initializer()
    scale = tf.compat.v1.get_variable("scale", shape, initializer=ones)
    offset = tf.compat.v1.get_variable("offset", shape, initializer=zeros)
    mean = tf.compat.v1.get_variable("mean", shape, initializer=zeros, trainable=False)
    variance = tf.compat.v1.get_variable("variance", shape, initializer=ones, trainable=False)
    if not training:
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon)
    x, batch_mean, batch_variance = tf.compat.v1.nn.fused_batch_norm(
        x, scale, offset, epsilon=epsilon
    )
    for average, value in ((mean, batch_mean), (variance, batch_variance)):
        update = average.assign_sub((1 - BATCH_NORM_MOMENTUM) * (average - value))
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, update)
    return x


def dropout(x: tf.Tensor, rate: float, *, seed: int) -> tf.Tensor:
    """Dropout drawn from (seed, step), so that a run that goes on draws as it would have."""
    step = tf.cast(tf.compat.v1.train.get_or_create_global_step(), tf.int64)
    return tf.nn.experimental.stateless_dropout(
        x, rate, seed=tf.stack([tf.constant(seed, tf.int64), step]), rng_alg="philox"
    )


def _kernel(shape: list[int], seed: int, *, gain: float) -> tf.Variable:
    """Weights of variance gain / fan-in, drawn from (seed, name).

    A gain of 2 is for a ReLU to follow (He et al. 2015, https://arxiv.org/abs/1502.01852).
    """
    scope = tf.compat.v1.get_variable_scope().name
    fan_in = math.prod(shape[:-1])

    def initializer(shape: list[int], dtype: tf.DType, partition_info: None = None) -> tf.Tensor:
        # A normal distribution cut at two standard deviations has 0.8796 of its deviation left.
        deviation = math.sqrt(gain / fan_in) / 0.8796
        return tf.random.stateless_truncated_normal(
            shape, [seed, zlib.crc32(scope.encode())], stddev=deviation, dtype=dtype, alg="philox"
        )

    return tf.compat.v1.get_variable("kernel", shape, initializer=initializer)
