"""The networks: each a function from spectrograms to features, by its name in NETWORKS."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import tensorflow as tf

from library.audio import log_mel, mask, rate_of
from library.config import Settings
from library.data import Card
from library.heads import Head
from library.nn import batch_norm, conv, global_pool, output_layer, resnet_features
from library.util import UserError
from project.settings import Hyperparameters

Network = Callable[..., tf.Tensor]
MAX_HZ = 0.475
"""The default of max_hz as a share of the sample rate: half of it is what a clip can have."""


def outputs_of(
    features: Mapping[str, tf.Tensor],
    head: Head,
    *,
    training: bool,
    dtype: str,
    params: Hyperparameters,
    seed: int,
) -> tf.Tensor:
    """The outputs for each clip: those of its window, or the average over its windows.

    Args:
        features: `windows`, float32 [windows, samples] in [-1, 1); where several of them are of
            one clip also `clip`, its number in the batch, int64 [windows], rising; in training
            `masks`, see `library.audio.mask`.
        head: what is learned; it says how to average, too.
        training: for dropout and batch norm.
        dtype: of the computation, as float32.
        params: name the network, and describe the spectrogram.
        seed: of initial weights and dropout.

    Returns:
        float32 [clips, head.logits_dimension].
    """
    spectrogram = spectrogram_of(features["windows"], params)
    if "masks" in features:
        shares = params.time_mask, params.frequency_mask
        spectrogram = mask(spectrogram, features["masks"], shares=shares)
    x = tf.cast(spectrogram[..., tf.newaxis], dtype)
    x = NETWORKS[params.network](x, training=training, params=params, seed=seed)
    rate, units = params.dropout_rate, head.logits_dimension
    outputs = output_layer(x, units, rate=rate, training=training, seed=seed)
    outputs = tf.cast(outputs, tf.float32)
    return head.average(outputs, features["clip"]) if "clip" in features else outputs


def spectrogram_of(windows: tf.Tensor, params: Hyperparameters) -> tf.Tensor:
    """float32 [windows, samples] -> what a network sees, float32 [windows, frames, mel_bands]."""
    names = ("sample_rate", "frame_secs", "hop_secs", "mel_bands", "min_hz", "max_hz")
    spectrogram = log_mel(windows, **{name: getattr(params, name) for name in names})
    # Below is the noise of the room and the microphone, which would tell speakers apart.
    loudest = tf.reduce_max(spectrogram, axis=[1, 2], keepdims=True)
    spectrogram = tf.maximum(spectrogram, loudest - params.range_db * math.log(10) / 10)
    # Mean 0 and variance 1 in each window, so that loudness makes no difference.
    mean, variance = tf.nn.moments(spectrogram, axes=[1, 2], keepdims=True)
    return (spectrogram - mean) * tf.math.rsqrt(variance + 1e-3)


def cnn(x: tf.Tensor, *, training: bool, params: Hyperparameters, seed: int) -> tf.Tensor:
    """Four blocks of convolution, batch norm, ReLU and pooling."""
    for block, filters in enumerate((16, 32, 64, 128)):
        with tf.compat.v1.variable_scope(f"block{block}"):
            x = batch_norm(conv(x, filters, seed=seed), training=training)
            x = tf.nn.max_pool2d(tf.nn.relu(x), ksize=2, strides=2, padding="SAME")
    return global_pool(x)


def resnet(x: tf.Tensor, *, training: bool, params: Hyperparameters, seed: int) -> tf.Tensor:
    """A residual network of `resnet_layers`."""
    return resnet_features(x, params.resnet_layers, training=training, seed=seed)


NETWORKS: dict[str, Network] = {"cnn": cnn, "resnet": resnet}


def drawn(features: Mapping[str, tf.Tensor], params: Hyperparameters) -> tf.Tensor:
    """What is shown of examples: the spectrogram of the first window, low tones at the bottom.

    Returns:
        uint8 [clips, mel_bands, frames, 3], gray.
    """
    pixels = tf.saturate_cast(128 + 64 * spectrogram_of(features["windows"], params), tf.uint8)
    return tf.repeat(on_drawn(features, pixels)[..., tf.newaxis], 3, axis=-1)


def on_drawn(features: Mapping[str, tf.Tensor], maps: tf.Tensor) -> tf.Tensor:
    """Maps of all windows as they are drawn, [windows, time, tones] -> [clips, tones, time]."""
    if "clip" in features:
        numbers = tf.range(tf.shape(maps)[0])
        maps = tf.gather(maps, tf.math.segment_min(numbers, features["clip"]))
    return tf.reverse(tf.transpose(maps, [0, 2, 1]), axis=[1])


def resolve_hyperparameters(params: Hyperparameters, settings: Settings) -> Hyperparameters:
    """The hyperparameters with what is left to the training data: the sample rate, and max_hz."""
    rate = params.sample_rate
    if rate is None:
        rate = rate_of(Card.load(f"{settings.train_data}.json").options)
        if rate is None:
            raise UserError(f"train_data: {settings.train_data} is no dataset of audio clips")
    max_hz = params.max_hz or MAX_HZ * rate
    return dataclasses.replace(params, sample_rate=rate, max_hz=max_hz)
