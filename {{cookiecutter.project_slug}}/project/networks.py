"""The networks: each a function from images to features; add yours to NETWORKS and settings.py."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import tensorflow as tf

from library.config import Settings
from library.heads import Head
from library.images import normalize, views_of
from library.nn import (
    batch_norm,
    conv,
    global_pool,
    hub_features,
    hub_input,
    lite0_features,
    output_layer,
    resnet_features,
)
from library.util import UserError
from project.settings import Hyperparameters


def outputs_of(
    features: Mapping[str, tf.Tensor],
    head: Head,
    *,
    training: bool,
    dtype: str,
    params: Hyperparameters,
    seed: int,
) -> tf.Tensor:
    """The outputs of the network that the hyperparameter `network` names.

    Args:
        features: `image`, [batch, image_size, image_size, 3] in [0, 255], float32 or uint8; or
            `features`, float32 [batch, features], as the network computed them once.
        head: says how many outputs its labels need.
        training: whether dropout is on, and batch norm takes its statistics from the batch.
        dtype: to compute in: float32, bfloat16 or float16.
        seed: of initial weights and dropout.

    Returns:
        float32 [batch, head.logits_dimension].
    """
    network = functools.partial(
        NETWORKS[params.network], training=training, dtype=dtype, params=params, seed=seed
    )

    def outputs(x: tf.Tensor) -> tf.Tensor:
        rate, units = params.dropout_rate, head.logits_dimension
        x = output_layer(x, units, rate=rate, training=training, seed=seed)
        return tf.cast(x, tf.float32)

    if "features" in features:  # recorded; the checkpoint has the whole network all the same
        network(tf.zeros([1, params.input_size, params.input_size, 3]))
        return outputs(features["features"])
    if training or params.test_augmentation == "none":
        return outputs(network(features["image"]))
    total = tf.zeros([])
    for number, view in enumerate(views := views_of(features["image"], params.test_augmentation)):
        scope = tf.compat.v1.get_variable_scope()
        # One after the other, so that only one of them is in memory.
        with (
            tf.compat.v1.variable_scope(scope, reuse=number > 0 or None),
            tf.control_dependencies([total]),
        ):
            total += outputs(network(tf.identity(view)))
    return total / len(views)


def cnn(
    images: tf.Tensor, *, training: bool, dtype: str, params: Hyperparameters, seed: int
) -> tf.Tensor:
    """A small residual network: a strided stem, and stages at 1/4, 1/8 and 1/16 of the size."""

    def conv_block(name: str, x: tf.Tensor, filters: int, stride: int = 1) -> tf.Tensor:
        with tf.compat.v1.variable_scope(name):
            x = conv(x, filters, stride=stride, seed=seed)
            return tf.nn.relu(batch_norm(x, training=training))

    x = conv_block("stem", tf.cast(normalize(images), dtype), 24, stride=2)
    for stage, filters in enumerate((48, 96, 192)):
        x = tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")
        x = conv_block(f"stage{stage}/widen", x, filters)
        x += conv_block(f"stage{stage}/residual", x, filters)
    return global_pool(x)


def resnet(
    images: tf.Tensor, *, training: bool, dtype: str, params: Hyperparameters, seed: int
) -> tf.Tensor:
    """A residual network of `resnet_layers`, from scratch."""
    x = tf.cast(normalize(images), dtype)
    return resnet_features(x, params.resnet_layers, training=training, seed=seed)


def efficientnet_lite0(
    images: tf.Tensor, *, training: bool, dtype: str, params: Hyperparameters, seed: int
) -> tf.Tensor:
    """EfficientNet-Lite0, trained on ImageNet; with `fine_tuning`, its last blocks are trained."""
    return lite0_features(
        images,
        training=training,
        trained_blocks=params.fine_tuned_blocks if params.fine_tuning else 0,
        rate_factor=params.fine_tuning_rate_factor,
        dtype=dtype,
    )


def hub(
    images: tf.Tensor, *, training: bool, dtype: str, params: Hyperparameters, seed: int
) -> tf.Tensor:
    """A pretrained network; it is trained, too, with `fine_tuning`."""
    assert params.hub_module is not None, "settings.py asks for it"
    return hub_features(
        images,
        params.hub_module,
        input_range=params.hub_input_range,
        training=training and params.fine_tuning,
        rate_factor=params.fine_tuning_rate_factor if params.fine_tuning else None,
    )


NETWORKS: dict[str, Callable[..., tf.Tensor]] = {
    "cnn": cnn,
    "resnet": resnet,
    "efficientnet_lite0": efficientnet_lite0,
    "hub": hub,
}


def drawn(features: Mapping[str, tf.Tensor], params: Hyperparameters) -> tf.Tensor:
    """What is shown of examples: images as the network sees them, uint8 [batch, h, w, 3]."""
    return tf.saturate_cast(tf.round(features["image"]), tf.uint8)


def on_drawn(features: Mapping[str, tf.Tensor], maps: tf.Tensor) -> tf.Tensor:
    """Heat maps as they lie on what is drawn: float32 [batch, height, width], of any size."""
    return maps


def resolve_hyperparameters(params: Hyperparameters, settings: Settings) -> Hyperparameters:
    """Fetch what the network needs, and take its `image_size` from there where it is null.

    Raises:
        UserError: it cannot be had, or does not fit.
    """
    if params.record_features and (settings.cache_decoded or settings.shuffle == "stream"):
        raise UserError("record_features: needs shuffle: global, and no cache_decoded")
    if params.network != "hub" or params.hub_module is None:
        return params
    if settings.mixed_precision:
        raise UserError("mixed_precision: a module computes in the type that it was saved in")
    module, taken = params.hub_module, hub_input(params.hub_module)
    if params.fine_tuning and not taken.takes_training:
        raise UserError(f"fine_tuning: {module} cannot learn: it takes no argument `training`")
    height, width = taken.size
    size = params.image_size or height
    if size is None:
        raise UserError(f"image_size: null: {module} takes any size: choose one")
    if (height or size, width or size) != (size, size):
        raise UserError(f"image_size: {size}, but {module} takes {height} x {width}")
    return dataclasses.replace(params, image_size=size)
