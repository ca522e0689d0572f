"""Layers: a few lines each on `tf.nn` and `get_variable`.

Keras 3 layers lose their updates in an Estimator, and Keras 2 is on its way out. These layers give
the same numbers on every TensorFlow, and every weight has a seed of its own. They compute in the
type of their input, with float32 variables. How a batch is divided among devices makes no
difference: statistics of batch norm and samples of dropout are those of the whole batch.
"""

import math
import zlib

import tensorflow as tf

from library.distribute import average_over_replicas, num_replicas, position_in_batch

FEATURES = "features"
"""The collection of a graph for what the last layer takes: [batch, features]."""
BATCH_NORM_MOMENTUM = 0.95
"""Decay of the moving averages: short enough for runs of a few hundred steps."""


def conv(x: tf.Tensor, filters: int, *, seed: int, size: int = 3, stride: int = 1) -> tf.Tensor:
    """A convolution without bias, for batch norm to follow: [b, h, w, c] -> [b, h', w', filters].

    h' is h / stride, rounded up; w' likewise.
    """
    kernel = _kernel([size, size, x.shape[-1], filters], seed, gain=2)
    return tf.nn.conv2d(x, tf.cast(kernel, x.dtype), stride, "SAME")


def depthwise_conv(x: tf.Tensor, *, seed: int, size: int = 3, stride: int = 1) -> tf.Tensor:
    """A convolution of each channel by itself, without bias: [b, h, w, c] -> [b, h', w', c]."""
    kernel = tf.cast(_kernel([size, size, x.shape[-1], 1], seed, gain=2), x.dtype)
    return tf.nn.depthwise_conv2d(x, kernel, [1, stride, stride, 1], "SAME")


def dense(x: tf.Tensor, units: int, *, seed: int) -> tf.Tensor:
    """An affine map: [b, c] -> [b, units]."""
    bias = tf.compat.v1.get_variable("bias", [units], initializer=tf.zeros_initializer())
    kernel = _kernel([x.shape[-1], units], seed, gain=1)
    return x @ tf.cast(kernel, x.dtype) + tf.cast(bias, x.dtype)


def output_layer(x: tf.Tensor, units: int, *, rate: float, seed: int, training: bool) -> tf.Tensor:
    """The last layer, a dense one called `logits`, after dropout: [b, c] -> [b, units].

    What it takes is left in the graph's collection FEATURES.
    """
    tf.compat.v1.add_to_collection(FEATURES, x)
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
    average: dict[str, object] = {"trainable": False, "aggregation": tf.VariableAggregation.MEAN}
    # In this collection, they are averaged like the weights: see `averages`.
    keys = tf.compat.v1.GraphKeys
    average["collections"] = [keys.GLOBAL_VARIABLES, keys.MOVING_AVERAGE_VARIABLES]
    mean, variance = variable("mean", 0.0, **average), variable("variance", 1.0, **average)
    x32 = tf.cast(x, tf.float32)
    if not training:
        y = tf.nn.batch_normalization(x32, mean, variance, offset, scale, epsilon)
        return tf.cast(y, x.dtype)
    if num_replicas() == 1:
        norm = tf.compat.v1.nn.fused_batch_norm(x, scale, offset, epsilon=epsilon)
        y, batch_mean, batch_variance = norm
    else:
        batch_mean, square = average_over_replicas(
            [tf.reduce_mean(x32, [0, 1, 2]), tf.reduce_mean(tf.square(x32), [0, 1, 2])]
        )
        biased = tf.maximum(square - tf.square(batch_mean), 0.0)
        y = tf.nn.batch_normalization(x32, batch_mean, biased, offset, scale, epsilon)
        count = tf.cast(tf.size(x) // tf.shape(x)[-1] * num_replicas(), tf.float32)
        y, batch_variance = tf.cast(y, x.dtype), biased * count / (count - 1)
    for moving, value in ((mean, batch_mean), (variance, batch_variance)):
        update = moving.assign_sub((1 - BATCH_NORM_MOMENTUM) * (moving - value))
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, update)
    return y


def dropout(x: tf.Tensor, rate: float, *, seed: int) -> tf.Tensor:
    """Dropout sampled from (seed, step), so that a resumed run samples as it would have."""
    step = tf.cast(tf.compat.v1.train.get_or_create_global_step(), tf.int64)
    split, num_splits = position_in_batch()
    rows = tf.shape(x)[0]
    shape = tf.concat([[rows * num_splits], tf.shape(x)[1:]], axis=0)
    key = tf.stack([tf.constant(seed, tf.int64), step])
    with tf.xla.experimental.jit_scope(compile_ops=False):  # XLA would sample other numbers
        sampled = tf.random.stateless_uniform(shape, key)
    kept = sampled[split * rows : (split + 1) * rows] >= rate
    return tf.where(kept, x / (1 - rate), tf.zeros([], x.dtype))


def _kernel(shape: list[int], seed: int, *, gain: float) -> tf.Variable:
    """Weights of variance gain / fan-in, sampled from (seed, name).

    A gain of 2 is for a ReLU to follow (He et al. 2015, https://arxiv.org/abs/1502.01852).
    """
    key = [seed, zlib.crc32(tf.compat.v1.get_variable_scope().name.encode())]
    # A normal distribution cut at two standard deviations has 0.8796 of its deviation left.
    deviation = math.sqrt(gain / math.prod(shape[:-1])) / 0.8796

    def initializer(shape: list[int], dtype: tf.DType, partition_info: None = None) -> tf.Tensor:
        sample = tf.random.stateless_truncated_normal
        with tf.xla.experimental.jit_scope(compile_ops=False):  # XLA would sample other numbers
            return sample(shape, key, stddev=deviation, dtype=dtype)

    return tf.compat.v1.get_variable("kernel", shape, initializer=initializer)
