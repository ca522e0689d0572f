"""The networks: each a function from spectrograms to features, by its name in NETWORKS."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from library.audio import log_mel
from library.config import Settings
from library.heads import Head
from library.nn import batch_norm, conv, output_layer, resnet_features
from project.settings import Hyperparameters

Network = Callable[..., tf.Tensor]


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
            one clip also `clip`, its number in the batch, int64 [windows], rising.
        head: what is learned; it says how to average, too.
        training: for dropout and batch norm.
        dtype: of the computation, as float32.
        params: name the network, and describe the spectrogram.
        seed: of initial weights and dropout.

    Returns:
        float32 [clips, head.logits_dimension].
    """
    spectrogram = tf.cast(spectrogram_of(features["windows"], params)[..., tf.newaxis], dtype)
    x = NETWORKS[params.network](spectrogram, training=training, params=params, seed=seed)
    rate, units = params.dropout_rate, head.logits_dimension
    outputs = output_layer(x, units, rate=rate, training=training, seed=seed)
    outputs = tf.cast(outputs, tf.float32)
    return head.average(outputs, features["clip"]) if "clip" in features else outputs


def spectrogram_of(windows: tf.Tensor, params: Hyperparameters) -> tf.Tensor:
    """float32 [windows, samples] -> what a network sees, float32 [windows, frames, mel_bands]."""
    names = ("sample_rate", "frame_secs", "hop_secs", "mel_bands", "min_hz", "max_hz")
    spectrogram = log_mel(windows, **{name: getattr(params, name) for name in names})
    # Mean 0 and variance 1 in each window, so that loudness makes no difference.
    mean, variance = tf.nn.moments(spectrogram, axes=[1, 2], keepdims=True)
    return (spectrogram - mean) * tf.math.rsqrt(variance + 1e-3)


def cnn(x: tf.Tensor, *, training: bool, params: Hyperparameters, seed: int) -> tf.Tensor:
    """Four blocks of convolution, batch norm, ReLU and pooling."""
    for block, filters in enumerate((16, 32, 64, 128)):
        with tf.compat.v1.variable_scope(f"block{block}"):
            x = batch_norm(conv(x, filters, seed=seed), training=training)
            x = tf.nn.max_pool2d(tf.nn.relu(x), ksize=2, strides=2, padding="SAME")
    return tf.reduce_mean(x, axis=[1, 2])


def resnet(x: tf.Tensor, *, training: bool, params: Hyperparameters, seed: int) -> tf.Tensor:
    """A residual network of `resnet_layers`."""
    return resnet_features(x, params.resnet_layers, training=training, seed=seed)


NETWORKS: dict[str, Network] = {"cnn": cnn, "resnet": resnet}


def drawn(features: Mapping[str, tf.Tensor], params: Hyperparameters) -> tf.Tensor:
    """What is shown of examples: the spectrogram of the first window, low tones at the bottom.

    Returns:
        uint8 [clips, mel_bands, frames, 3], gray.
    """
    windows = features["windows"]
    if "clip" in features:
        numbers = tf.range(tf.shape(windows)[0])
        windows = tf.gather(windows, tf.math.segment_min(numbers, features["clip"]))
    pixels = tf.saturate_cast(128 + 64 * spectrogram_of(windows, params), tf.uint8)
    upright = tf.reverse(tf.transpose(pixels, [0, 2, 1]), axis=[1])
    return tf.repeat(upright[..., tf.newaxis], 3, axis=-1)


def resolve_hyperparameters(params: Hyperparameters, settings: Settings) -> Hyperparameters:
    """The place for what a network of yours has to fetch first."""
    return params
