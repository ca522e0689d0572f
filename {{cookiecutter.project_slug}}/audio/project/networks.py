"""The networks: each a function from features to logits; add yours to NETWORKS and to settings."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from library.audio import log_mel
from library.nn import batch_norm, conv, output_layer, resnet_features
from project.settings import Hyperparameters, Settings


def prepared(settings: Settings, hyperparameters: Hyperparameters) -> Hyperparameters:
    """Before anything is written: the place for what a network of yours needs to have fetched."""
    return hyperparameters


def logits_of(
    features: Mapping[str, tf.Tensor],
    *,
    num_classes: int,
    training: bool,
    params: Mapping[str, Any],
) -> tf.Tensor:
    """What the network says that the hyperparameter `network` names.

    Args:
        features: `windows`, float32 [windows, samples] in [-1, 1); where several of them are of
            one recording also `recording`, its number in the batch, int64 [windows], rising.
        num_classes: length of the last axis of the result.
        training: whether the network is trained.
        params: those of the model.

    Returns:
        float32 [recordings, num_classes]: logits, or the logarithm of the average of the
        probabilities of a recording's windows.
    """
    spectrogram = spectrogram_of(features["windows"], params)
    network = NETWORKS[params["network"]]
    logits = network(spectrogram, num_classes=num_classes, training=training, params=params)
    logits = tf.cast(logits, tf.float32)
    if "recording" not in features:
        return logits
    return tf.math.log(tf.math.segment_mean(tf.nn.softmax(logits), features["recording"]) + 1e-12)


def pictures_of(features: Mapping[str, tf.Tensor], params: Mapping[str, Any]) -> tf.Tensor:
    """What is shown of examples: the spectrogram of the first window, low tones at the bottom.

    Args:
        features: those of `logits_of`.
        params: those of the model.

    Returns:
        uint8 [recordings, mel_bands, frames, 3], gray.
    """
    windows = features["windows"]
    if "recording" in features:
        numbers = tf.range(tf.shape(windows)[0])
        windows = tf.gather(windows, tf.math.segment_min(numbers, features["recording"]))
    pixels = tf.saturate_cast(128 + 64 * spectrogram_of(windows, params), tf.uint8)
    upright = tf.reverse(tf.transpose(pixels, [0, 2, 1]), axis=[1])
    return tf.repeat(upright[..., tf.newaxis], 3, axis=-1)


def spectrogram_of(windows: tf.Tensor, params: Mapping[str, Any]) -> tf.Tensor:
    """float32 [windows, samples] -> what a network sees, float32 [windows, frames, mel_bands]."""
    names = ("sample_rate", "frame_secs", "hop_secs", "mel_bands", "min_hz", "max_hz")
    return normalize(log_mel(windows, **{name: params[name] for name in names}))


def normalize(spectrogram: tf.Tensor) -> tf.Tensor:
    """Mean 0 and variance 1 in each window, so that loudness makes no difference."""
    mean, variance = tf.nn.moments(spectrogram, axes=[1, 2], keepdims=True)
    return (spectrogram - mean) * tf.math.rsqrt(variance + 1e-3)


def cnn(
    spectrogram: tf.Tensor, *, num_classes: int, training: bool, params: Mapping[str, Any]
) -> tf.Tensor:
    """A small convolutional network: four blocks of convolution, batch norm, ReLU and pooling.

    Args:
        spectrogram: float32 [batch, frames, bands].
        num_classes: length of the last axis of the result.
        training: whether dropout is on, and batch norm takes its statistics from the batch.
        params: those of the model.

    Returns:
        [batch, num_classes], logits.
    """
    seed = params["random_seed"]
    x = tf.cast(spectrogram[..., tf.newaxis], params["compute_dtype"])
    for block, filters in enumerate((16, 32, 64, 128)):
        with tf.compat.v1.variable_scope(f"block{block}"):
            x = conv(x, filters, seed=seed)
            x = batch_norm(x, training=training)
            x = tf.nn.relu(x)
            x = tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")
    x = tf.reduce_mean(x, axis=[1, 2])
    return classify(x, num_classes=num_classes, training=training, params=params)


def resnet(
    spectrogram: tf.Tensor, *, num_classes: int, training: bool, params: Mapping[str, Any]
) -> tf.Tensor:
    """A residual network of `resnet_layers`; arguments and result as those of `cnn`."""
    x = tf.cast(spectrogram[..., tf.newaxis], params["compute_dtype"])
    seed, layers = params["random_seed"], params["resnet_layers"]
    x = resnet_features(x, layers, training=training, seed=seed)
    return classify(x, num_classes=num_classes, training=training, params=params)


def classify(
    x: tf.Tensor, *, num_classes: int, training: bool, params: Mapping[str, Any]
) -> tf.Tensor:
    """The last layer, behind dropout: [batch, features] -> [batch, num_classes], logits."""
    rate, seed = params["dropout_rate"], params["random_seed"]
    return output_layer(x, num_classes, rate=rate, seed=seed, training=training)


NETWORKS: dict[str, Callable[..., tf.Tensor]] = {"cnn": cnn, "resnet": resnet}
