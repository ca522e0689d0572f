"""The networks: each a function from pictures to logits; add yours to NETWORKS and to settings."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from library import images
from library.layers import batch_norm, conv, dense, dropout


def logits_of(
    features: Mapping[str, tf.Tensor],
    *,
    num_classes: int,
    training: bool,
    params: Mapping[str, Any],
) -> tf.Tensor:
    """What the network says that the hyperparameter `network` names.

    Args:
        features: `image`, [batch, image_size, image_size, 3] in [0, 255], float32 or uint8.
        num_classes: length of the last axis of the result.
        training: whether the network is trained.
        params: those of the model.

    Returns:
        float32 [batch, num_classes], logits.
    """
    return NETWORKS[params["network"]](
        images.normalize(features["image"]),
        num_classes=num_classes,
        training=training,
        dropout_rate=params["dropout_rate"],
        seed=params["random_seed"],
    )


def cnn(
    images: tf.Tensor, *, num_classes: int, training: bool, dropout_rate: float, seed: int
) -> tf.Tensor:
    """A small convolutional network: four blocks of convolution, batch norm, ReLU and pooling.

    Args:
        images: float32 [batch, height, width, 3] in [-1, 1].
        num_classes: length of the last axis of the result.
        training: whether dropout is on, and batch norm takes its statistics from the batch.
        dropout_rate: share of the features that are dropped before the last layer.
        seed: fixes initial weights and dropout.

    Returns:
        float32 [batch, num_classes], logits.
    """
    x = images
    for block, filters in enumerate((32, 64, 128, 256)):
        with tf.compat.v1.variable_scope(f"block{block}"):
            x = conv(x, filters, seed=seed)
            x = batch_norm(x, training=training)
            x = tf.nn.relu(x)
            x = tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")
    x = tf.reduce_mean(x, axis=[1, 2])
    if training:
        x = dropout(x, dropout_rate, seed=seed)
    with tf.compat.v1.variable_scope("logits"):
        return dense(x, num_classes, seed=seed)


NETWORKS: dict[str, Callable[..., tf.Tensor]] = {"cnn": cnn}
