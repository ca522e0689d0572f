"""Random changes of training windows: each follows from the seed that it is given."""

import math

import tensorflow as tf


def change(
    window: tf.Tensor, seed: tf.Tensor, *, speed: float, gain_db: float, noise: float
) -> tf.Tensor:
    """A window played faster or slower, louder or softer, with white noise.

    Args:
        window: float32 [samples].
        seed: int64 [2]; the same seed makes the same changes.
        speed: 0.2 is from 1 / 1.2 to 1.2 times as fast.
        gain_db: the largest change of loudness, in decibels.
        noise: the largest standard deviation of the noise, as a share of the peak.

    Returns:
        float32 [samples].
    """
    drawn = tf.unstack(tf.random.stateless_uniform([3], seed, -1, 1))
    if speed:
        window = _at_speed(window, tf.exp(math.log1p(speed) * drawn[0]))
    if gain_db:
        window *= 10.0 ** (gain_db / 20 * drawn[1])
    if noise:
        deviation = noise * tf.abs(drawn[2]) * tf.reduce_max(tf.abs(window))
        window += deviation * tf.random.stateless_normal(tf.shape(window), seed)
    return window


def _at_speed(window: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """A window so many times as fast around its middle, by linear interpolation.

    Pitch, formants and tempo change, as from speaker to speaker: Ko et al. 2015,
    https://www.isca-archive.org/interspeech_2015/ko15_interspeech.html.
    """
    size = window.shape[0]
    middle = (size - 1) / 2
    places = (tf.range(size, dtype=tf.float32) - middle) * factor + middle
    places = tf.clip_by_value(places, -1.0, float(size))  # outside, there is silence
    before = tf.floor(places)
    at, padded = tf.cast(before, tf.int32) + 1, tf.pad(window, [[1, 2]])
    first, second = tf.gather(padded, at), tf.gather(padded, at + 1)
    return first + (places - before) * (second - first)


def mask(spectrogram: tf.Tensor, drawn: tf.Tensor, *, shares: tuple[float, float]) -> tf.Tensor:
    """Set a stretch of the time and of the bands to 0: SpecAugment, https://arxiv.org/abs/1904.08779.

    Args:
        spectrogram: float32 [batch, frames, bands].
        drawn: float32 [batch, 2, 2], in [0, 1): place and length in the time and in the bands.
        shares: the longest stretch of the time, and of the bands.

    Returns:
        float32 [batch, frames, bands].
    """
    for axis, share in enumerate(shares):
        size = spectrogram.shape[axis + 1]
        length = drawn[:, axis, 1:] * share
        start = drawn[:, axis, :1] * (1 - length)
        places = (tf.range(size, dtype=tf.float32) + 0.5) / size
        hidden = (places >= start) & (places < start + length)
        spectrogram = tf.where(tf.expand_dims(hidden, 2 - axis), 0.0, spectrogram)
    return spectrogram
