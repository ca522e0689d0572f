"""Windows of audio clips at random or from end to end, and their features, in a graph."""

import functools
from collections.abc import Callable

import tensorflow as tf

from library.audio.archives import Archive
from library.data import without_autotuner

WINDOWS_PER_CALL = 64
"""Windows that one call of Python reads."""
MIN_ENERGY = 1e-6
"""Added to energies before their logarithm: silence is -60 dB."""
FLOAT_OPS = (
    "ADD BATCH_MATMUL FULLY_CONNECTED GATHER LOG MAXIMUM MEAN MUL PAD REDUCE_MAX RESHAPE RSQRT "
    "SQUARE SQUARED_DIFFERENCE STRIDED_SLICE SUB TRANSPOSE"
)
"""TFLite's names of the operations of a spectrogram, for which 8 bits are too few."""


def random_windows(
    archive: Archive, win_len: int, seed: int, num_parallel_calls: int = -1
) -> Callable:
    """A transformation of a dataset of (number of the sample, id) into one of random windows.

    Every start from the first to the last window of a clip is as likely as any other; it follows
    from (seed, number of the sample), so that a run that goes on draws what it would have drawn.
    In a clip that is shorter than a window, the place in the window is drawn, and the rest is
    zeros.

    Returns:
        A function from a dataset of two int64 scalars to a dataset of (number, id, int16
        [win_len]).
    """
    lengths = tf.constant(archive.index["length"])

    def draw(number: tf.Tensor, example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return number, example, _random_start(number, lengths[example], win_len, seed)

    def read(numbers: tf.Tensor, ids: tf.Tensor, starts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        read_windows = functools.partial(archive.read_windows, win_len=win_len)
        windows = tf.numpy_function(read_windows, [ids, starts], tf.int16, stateful=False)
        return numbers, ids, tf.ensure_shape(windows, [None, win_len])

    def transformation(samples: tf.data.Dataset) -> tf.data.Dataset:
        drawn = without_autotuner(samples).map(draw, num_parallel_calls=num_parallel_calls)
        batches = drawn.batch(WINDOWS_PER_CALL)
        return batches.map(read, num_parallel_calls=num_parallel_calls).unbatch()

    return transformation


def _random_start(number: tf.Tensor, length: tf.Tensor, win_len: int, seed: int) -> tf.Tensor:
    last = length - win_len
    return tf.random.stateless_uniform(
        [],
        seed=tf.stack([tf.constant(seed, tf.int64), number]),
        minval=tf.minimum(last, 0),
        maxval=tf.maximum(last, 0) + 1,
        dtype=tf.int64,
    )


def random_window(waveform: tf.Tensor, number: tf.Tensor, win_len: int, seed: int) -> tf.Tensor:
    """The window that `random_windows` draws for a sample, from the whole waveform: [win_len]."""
    start = _random_start(number, tf.size(waveform, tf.int64), win_len, seed)
    part = waveform[tf.maximum(start, 0) : tf.maximum(start + win_len, 0)]
    before = tf.maximum(-start, 0)
    padded = tf.pad(part, [[before, win_len - before - tf.size(part, tf.int64)]])
    return tf.ensure_shape(padded, [win_len])


def covering_windows(waveform: tf.Tensor, win_len: int) -> tf.Tensor:
    """Windows that cover a whole clip, as few and as even as can be.

    The first one begins with the clip, and the last one ends with it. A clip that is shorter than
    a window is in the middle of it, with zeros on both sides.

    [samples] -> [windows, win_len], at least one.
    """
    length = tf.size(waveform, tf.int64)
    last = tf.maximum(length - win_len, 0)
    count = 1 - (-last // win_len)
    starts = tf.range(count) * last // tf.maximum(count - 1, 1)
    missing = tf.maximum(win_len - length, 0)
    padded = tf.pad(waveform, [[missing // 2, missing - missing // 2]])
    return tf.gather(padded, starts[:, tf.newaxis] + tf.range(win_len, dtype=tf.int64))


def to_float(waveform: tf.Tensor) -> tf.Tensor:
    """Integers, int16 or int32 -> float32 in [-1, 1]."""
    return tf.cast(waveform, tf.float32) / -float(waveform.dtype.min)


def log_mel(
    waveforms: tf.Tensor,
    *,
    sample_rate: int,
    frame_secs: float,
    hop_secs: float,
    mel_bands: int,
    min_hz: float,
    max_hz: float,
) -> tf.Tensor:
    """The logarithm of the energy in bands of the mel scale, from frame to frame.

    The bands are those of `tf.signal.linear_to_mel_weight_matrix`, which are HTK's.

    Args:
        waveforms: float32 [batch, samples] in [-1, 1].
        sample_rate: samples per second.
        frame_secs, hop_secs: length of a frame, and from frame to frame, in seconds.
        mel_bands: number of bands.
        min_hz, max_hz: the lower edge of the first and the upper edge of the last one.

    Returns:
        float32 [batch, frames, mel_bands].
    """
    frame, hop = round(frame_secs * sample_rate), round(hop_secs * sample_rate)
    spectrum = tf.signal.stft(waveforms, frame_length=frame, frame_step=hop)
    energies = tf.square(tf.abs(spectrum))
    bands = tf.signal.linear_to_mel_weight_matrix(
        num_mel_bins=mel_bands,
        num_spectrogram_bins=spectrum.shape[-1],
        sample_rate=sample_rate,
        lower_edge_hertz=min_hz,
        upper_edge_hertz=max_hz,
    )
    # LiteRT quantizes a constant on the right of a product to 8 bits, and energies are lost.
    mel = tf.matmul(bands, energies, transpose_a=True, transpose_b=True)
    return tf.math.log(tf.transpose(mel, [0, 2, 1]) + MIN_ENERGY)
