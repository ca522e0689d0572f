"""The networks: each a function from pictures to logits; add yours to NETWORKS and to settings."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from library.images import normalize
from library.nn import batch_norm, conv, hub_features, hub_input, output_layer, resnet_features
from library.util import UserError
from project.settings import Hyperparameters, Settings


def prepared(settings: Settings, hyperparameters: Hyperparameters) -> Hyperparameters:
    """Fetch what the network needs, and take its `image_size` from there where it is null.

    Raises:
        UserError: it cannot be had, or does not fit.
    """
    if hyperparameters.network != "hub":
        return hyperparameters
    if settings.mixed_precision:
        raise UserError("mixed_precision: a module computes in the type that it was saved in")
    module = hyperparameters.hub_module
    taken = hub_input(module)
    if hyperparameters.fine_tuning and not taken.takes_training:
        raise UserError(f"fine_tuning: {module} cannot learn: it takes no argument `training`")
    height, width = taken.size
    size = hyperparameters.image_size or height
    if size is None:
        raise UserError(f"image_size: null: {module} takes any size: choose one")
    if (height or size, width or size) != (size, size):
        raise UserError(f"image_size: {size}, but {module} takes {height} x {width}")
    return dataclasses.replace(hyperparameters, image_size=size)


def pictures_of(features: Mapping[str, tf.Tensor], params: Mapping[str, Any]) -> tf.Tensor:
    """What is shown of examples: the pictures as the network sees them.

    Args:
        features: those of `logits_of`.
        params: those of the model.

    Returns:
        uint8 [batch, height, width, 3].
    """
    return tf.saturate_cast(tf.round(features["image"]), tf.uint8)


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
        training: whether the network is trained: dropout is on, and batch norm takes its
            statistics from the batch.
        params: those of the model.

    Returns:
        float32 [batch, num_classes], logits.
    """
    network = NETWORKS[params["network"]]
    logits = network(features["image"], num_classes=num_classes, training=training, params=params)
    return tf.cast(logits, tf.float32)


def cnn(
    images: tf.Tensor, *, num_classes: int, training: bool, params: Mapping[str, Any]
) -> tf.Tensor:
    """A small convolutional network: four blocks of convolution, batch norm, ReLU and pooling."""
    seed = params["random_seed"]
    x = tf.cast(normalize(images), params["compute_dtype"])
    for block, filters in enumerate((32, 64, 128, 256)):
        with tf.compat.v1.variable_scope(f"block{block}"):
            x = conv(x, filters, seed=seed)
            x = batch_norm(x, training=training)
            x = tf.nn.relu(x)
            x = tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")
    x = tf.reduce_mean(x, axis=[1, 2])
    return classify(x, num_classes=num_classes, training=training, params=params)


def resnet(
    images: tf.Tensor, *, num_classes: int, training: bool, params: Mapping[str, Any]
) -> tf.Tensor:
    """A residual network of `resnet_layers`, from scratch."""
    seed, layers = params["random_seed"], params["resnet_layers"]
    x = tf.cast(normalize(images), params["compute_dtype"])
    x = resnet_features(x, layers, training=training, seed=seed)
    return classify(x, num_classes=num_classes, training=training, params=params)


def hub(
    images: tf.Tensor, *, num_classes: int, training: bool, params: Mapping[str, Any]
) -> tf.Tensor:
    """A pretrained network and a new last layer; the pretrained part learns with `fine_tuning`."""
    x = hub_features(
        images,
        params["hub_module"],
        input_range=params["hub_input_range"],
        training=training and params["fine_tuning"],
        rate_factor=params["fine_tuning_rate_factor"],
    )
    return classify(x, num_classes=num_classes, training=training, params=params)


def classify(
    x: tf.Tensor, *, num_classes: int, training: bool, params: Mapping[str, Any]
) -> tf.Tensor:
    """The last layer, behind dropout: [batch, features] -> [batch, num_classes], logits."""
    rate, seed = params["dropout_rate"], params["random_seed"]
    return output_layer(x, num_classes, rate=rate, seed=seed, training=training)


NETWORKS: dict[str, Callable[..., tf.Tensor]] = {"cnn": cnn, "resnet": resnet, "hub": hub}
