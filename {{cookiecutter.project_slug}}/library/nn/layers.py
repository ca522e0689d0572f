"""Layers: a few lines each on `tf.nn` and `get_variable`.

Keras 3 layers lose their updates in an Estimator, and Keras 2 is on its way out. These layers give
the same numbers on every TensorFlow, and every weight has a seed of its own. They compute in the
type of their input, with variables in float32 (mixed precision). The result does not depend on how
a batch is divided among devices: batch norm takes its statistics of the whole batch, and dropout
is sampled for the whole batch from (seed, step).
"""

import math
import zlib

import tensorflow as tf

from library.distribute import average_over_replicas, num_replicas, position_in_batch

BATCH_NORM_MOMENTUM = 0.95
"""Decay of the moving averages: short enough for runs of a few hundred steps."""


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


def output_layer(x: tf.Tensor, units: int, *, rate: float, seed: int, training: bool) -> tf.Tensor:
    """The last layer, a dense one called `logits`, after dropout: [b, c] -> [b, units]."""
    if training:
        x = dropout(x, rate, seed=seed)
    with tf.compat.v1.variable_scope("logits"):
        return dense(x, units, seed=seed)


def batch_norm(
    x: tf.Tensor, *, training: bool, epsilon: float = 1e-3, initial_scale: float = 1.0
) -> tf.Tensor:
    """Batch normalization, Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.

    In training, ops in the collection UPDATE_OPS update the moving averages.
    """

    def variable(name: str, initial: float, **options: object) -> tf.Variable:
        initializer = tf.constant_initializer(initial)
        return tf.compat.v1.get_variable(name, [x.shape[-1]], initializer=initializer, **options)

    scale, offset = variable("scale", initial_scale), variable("offset", 0.0)
    # The replicas update their averages with the same statistics.
    average = {"trainable": False, "aggregation": tf.VariableAggregation.MEAN}
    mean, variance = variable("mean", 0.0, **average), variable("variance", 1.0, **average)
    if not training:
        x32 = tf.cast(x, tf.float32)
        y = tf.nn.batch_normalization(x32, mean, variance, offset, scale, epsilon)
        return tf.cast(y, x.dtype)
    normalize = _fused_batch_norm if num_replicas() == 1 else _batch_norm_of_replicas
    y, batch_mean, batch_variance = normalize(x, scale, offset, epsilon)
    for moving, value in ((mean, batch_mean), (variance, batch_variance)):
        update = moving.assign_sub((1 - BATCH_NORM_MOMENTUM) * (moving - value))
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, update)
    return y


def _fused_batch_norm(
    x: tf.Tensor, scale: tf.Variable, offset: tf.Variable, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    return tf.compat.v1.nn.fused_batch_norm(x, scale, offset, epsilon=epsilon)


def _batch_norm_of_replicas(
    x: tf.Tensor, scale: tf.Variable, offset: tf.Variable, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """As `_fused_batch_norm`, with the statistics of all replicas."""
    x32 = tf.cast(x, tf.float32)
    axes = [0, 1, 2]
    moments = [tf.reduce_mean(x32, axes), tf.reduce_mean(tf.square(x32), axes)]
    mean, square = average_over_replicas(moments)
    variance = tf.maximum(square - tf.square(mean), 0.0)
    y = tf.nn.batch_normalization(x32, mean, variance, offset, scale, epsilon)
    count = tf.cast(tf.size(x) // tf.shape(x)[-1] * num_replicas(), tf.float32)
    return tf.cast(y, x.dtype), mean, variance * count / (count - 1)


def dropout(x: tf.Tensor, rate: float, *, seed: int) -> tf.Tensor:
    """Dropout sampled from (seed, step), so that a resumed run samples as it would have."""
    step = tf.cast(tf.compat.v1.train.get_or_create_global_step(), tf.int64)
    split, num_splits = position_in_batch()
    rows = tf.shape(x)[0]
    shape = tf.concat([[rows * num_splits], tf.shape(x)[1:]], axis=0)
    key = tf.stack([tf.constant(seed, tf.int64), step])
    with tf.xla.experimental.jit_scope(compile_ops=False):  # XLA would sample other numbers
        sampled = tf.random.stateless_uniform(shape, key, alg="philox")
    kept = sampled[split * rows : (split + 1) * rows] >= rate
    return tf.where(kept, x / (1 - rate), tf.zeros([], x.dtype))


def _kernel(shape: list[int], seed: int, *, gain: float) -> tf.Variable:
    """Weights of variance gain / fan-in, sampled from (seed, name).

    A gain of 2 is for a ReLU to follow (He et al. 2015, https://arxiv.org/abs/1502.01852).
    """
    scope = tf.compat.v1.get_variable_scope().name
    fan_in = math.prod(shape[:-1])

    def initializer(shape: list[int], dtype: tf.DType, partition_info: None = None) -> tf.Tensor:
        # A normal distribution cut at two standard deviations has 0.8796 of its deviation left.
        deviation = math.sqrt(gain / fan_in) / 0.8796
        key = [seed, zlib.crc32(scope.encode())]
        with tf.xla.experimental.jit_scope(compile_ops=False):  # XLA would sample other numbers
            return tf.random.stateless_truncated_normal(
                shape, key, stddev=deviation, dtype=dtype, alg="philox"
            )

    return tf.compat.v1.get_variable("kernel", shape, initializer=initializer)
