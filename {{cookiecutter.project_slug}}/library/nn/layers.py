"""Layers: a few lines each on `tf.nn` and `get_variable`.

Those of Keras 3 lose their updates in an Estimator, and those of Keras 2 are on their way out.
These give the same numbers on every TensorFlow, and every weight has a seed of its own. They
compute in the type of what they are given, with variables in float32 (mixed precision), and what
they do with a batch does not depend on how it is divided among devices: batch norm takes its
statistics of the whole batch, dropout is drawn for the whole batch from (seed, step).
"""

import math
import zlib

import tensorflow as tf

from library.distribute import replicas

BATCH_NORM_MOMENTUM = 0.95
"""Of the moving averages: short enough for data sets of a few hundred steps."""


def conv(x: tf.Tensor, filters: int, *, seed: int, size: int = 3, stride: int = 1) -> tf.Tensor:
    """A convolution without bias, for batch norm to follow: [b, h, w, c] -> [b, h', w', filters].

    h' is h / stride, rounded up; w' likewise.
    """
    kernel = _kernel([size, size, x.shape[-1], filters], seed, gain=2)
    return tf.nn.conv2d(x, tf.cast(kernel, x.dtype), stride, "SAME")


def dense(x: tf.Tensor, units: int, *, seed: int) -> tf.Tensor:
    """An affine map: [b, c] -> [b, units]."""
    bias = tf.compat.v1.get_variable("bias", [units], initializer=tf.zeros_initializer())
    kernel = _kernel([x.shape[-1], units], seed, gain=1)
    return x @ tf.cast(kernel, x.dtype) + tf.cast(bias, x.dtype)


def batch_norm(
    x: tf.Tensor, *, training: bool, epsilon: float = 1e-3, initial_scale: float = 1.0
) -> tf.Tensor:
    """Batch normalization, Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.

    In training, the moving averages are brought up to date by ops in the collection UPDATE_OPS.
    """
    shape, ones, zeros = [x.shape[-1]], tf.ones_initializer(), tf.zeros_initializer()
    first = tf.constant_initializer(initial_scale)
    scale = tf.compat.v1.get_variable("scale", shape, initializer=first)
    offset = tf.compat.v1.get_variable("offset", shape, initializer=zeros)
    mean, variance = (
        tf.compat.v1.get_variable(
            name,
            shape,
            initializer=initializer,
            trainable=False,
            aggregation=tf.VariableAggregation.MEAN,  # of the replicas, which have the same
        )
        for name, initializer in (("mean", zeros), ("variance", ones))
    )
    if not training:
        x32 = tf.cast(x, tf.float32)
        y = tf.nn.batch_normalization(x32, mean, variance, offset, scale, epsilon)
        return tf.cast(y, x.dtype)
    if replicas.num_replicas() == 1:
        y, batch_mean, batch_variance = tf.compat.v1.nn.fused_batch_norm(
            x, scale, offset, epsilon=epsilon
        )
    else:
        y, batch_mean, batch_variance = _batch_norm_of_all(x, scale, offset, epsilon)
    for average, value in ((mean, batch_mean), (variance, batch_variance)):
        update = average.assign_sub((1 - BATCH_NORM_MOMENTUM) * (average - value))
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, update)
    return y


def _batch_norm_of_all(
    x: tf.Tensor, scale: tf.Variable, offset: tf.Variable, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """As `fused_batch_norm`, with the statistics of all replicas."""
    x32 = tf.cast(x, tf.float32)
    axes = [0, 1, 2]
    mean, square = replicas.average(
        [tf.reduce_mean(x32, axes), tf.reduce_mean(tf.square(x32), axes)]
    )
    variance = tf.maximum(square - tf.square(mean), 0.0)
    y = tf.nn.batch_normalization(x32, mean, variance, offset, scale, epsilon)
    count = tf.cast(tf.size(x) // tf.shape(x)[-1] * replicas.num_replicas(), tf.float32)
    return tf.cast(y, x.dtype), mean, variance * count / (count - 1)


def dropout(x: tf.Tensor, rate: float, *, seed: int) -> tf.Tensor:
    """Dropout drawn from (seed, step), so that a run that goes on draws as it would have."""
    step = tf.cast(tf.compat.v1.train.get_or_create_global_step(), tf.int64)
    part, parts = replicas.position_in_batch()
    rows = tf.shape(x)[0]
    shape = tf.concat([[rows * parts], tf.shape(x)[1:]], axis=0)
    key = tf.stack([tf.constant(seed, tf.int64), step])
    with tf.xla.experimental.jit_scope(compile_ops=False):  # XLA would draw other numbers
        drawn = tf.random.stateless_uniform(shape, key, alg="philox")
    kept = drawn[part * rows : (part + 1) * rows] >= rate
    return tf.where(kept, x / (1 - rate), tf.zeros([], x.dtype))


def _kernel(shape: list[int], seed: int, *, gain: float) -> tf.Variable:
    """Weights of variance gain / fan-in, drawn from (seed, name).

    A gain of 2 is for a ReLU to follow (He et al. 2015, https://arxiv.org/abs/1502.01852).
    """
    scope = tf.compat.v1.get_variable_scope().name
    fan_in = math.prod(shape[:-1])

    def initializer(shape: list[int], dtype: tf.DType, partition_info: None = None) -> tf.Tensor:
        # A normal distribution cut at two standard deviations has 0.8796 of its deviation left.
        deviation = math.sqrt(gain / fan_in) / 0.8796
        key = [seed, zlib.crc32(scope.encode())]
        with tf.xla.experimental.jit_scope(compile_ops=False):  # XLA would draw other numbers
            return tf.random.stateless_truncated_normal(
                shape, key, stddev=deviation, dtype=dtype, alg="philox"
            )

    return tf.compat.v1.get_variable("kernel", shape, initializer=initializer)
