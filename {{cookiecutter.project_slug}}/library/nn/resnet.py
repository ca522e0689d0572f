"""Residual networks, He et al. 2015, https://arxiv.org/abs/1512.03385.

As they are trained today: the stride of a bottleneck is in its 3x3 convolution, and the last batch
norm of each block begins at 0, so that a block begins as the identity (Goyal et al. 2017,
https://arxiv.org/abs/1706.02677).
"""

import tensorflow as tf

from library.nn.grad_cam import global_pool
from library.nn.layers import batch_norm, conv

BLOCKS = {"18": (2, 2, 2, 2), "34": (3, 4, 6, 3), "50": (3, 4, 6, 3)}
"""Residual blocks of each of the four stages, by the number of layers."""

BOTTLENECKS = {"50"}
"""Those whose blocks are 1x1, 3x3 and 1x1 convolutions, and not two of 3x3."""


def resnet_features(x: tf.Tensor, layers: str, *, training: bool, seed: int) -> tf.Tensor:
    """All layers but the last one: [batch, height, width, channels] -> [batch, 512 or 2048].

    `layers` is a key of BLOCKS; the features have the type of `x`, a float.
    """

    def conv_norm(
        name: str, x: tf.Tensor, filters: int, size: int, stride: int = 1, scale: float = 1.0
    ) -> tf.Tensor:
        with tf.compat.v1.variable_scope(name):
            x = conv(x, filters, size=size, stride=stride, seed=seed)
            return batch_norm(x, training=training, initial_scale=scale)

    def block(x: tf.Tensor, filters: int, stride: int) -> tf.Tensor:
        outputs = 4 * filters if layers in BOTTLENECKS else filters
        shortcut = x
        if stride > 1 or x.shape[-1] != outputs:
            shortcut = conv_norm("shortcut", x, outputs, 1, stride)
        if layers in BOTTLENECKS:
            x = tf.nn.relu(conv_norm("reduce", x, filters, 1))
            x = tf.nn.relu(conv_norm("middle", x, filters, 3, stride))
            x = conv_norm("expand", x, outputs, 1, scale=0.0)
        else:
            x = tf.nn.relu(conv_norm("first", x, filters, 3, stride))
            x = conv_norm("second", x, filters, 3, scale=0.0)
        return tf.nn.relu(shortcut + x)

    x = tf.nn.relu(conv_norm("stem", x, 64, 7, 2))
    x = tf.nn.max_pool2d(x, ksize=3, strides=2, padding="SAME")
    for stage, blocks in enumerate(BLOCKS[layers]):
        for number in range(blocks):
            with tf.compat.v1.variable_scope(f"stage{stage}/block{number}"):
                x = block(x, 64 * 2**stage, 2 if stage and not number else 1)
    return global_pool(x)
