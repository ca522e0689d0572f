"""Sound: folders of recordings -> signals -> windows -> features, in a tf.data pipeline."""

import functools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
import tensorflow as tf

from library.audio.archives import Archive
from library.audio.files import read_sound
from library.convert import list_files
from library.util import BadFileError, UserError

WINDOWS_PER_CALL = 64
"""One call of Python for so many windows."""
MIN_ENERGY = 1e-6
"""Added to energies before their logarithm: silence is -60 dB."""


# ---- folders of files --------------------------------------------------------------------------


def dataset_from_dir(path: str | Path, infinite: bool = False) -> tf.data.Dataset:
    """The recordings in a folder for each class, in the order of their names.

    Args:
        path: the folder of the data set: `path`/<class>/....
        infinite: begin again after the last one, without end.

    Returns:
        A dataset of dicts: `signal`, int32 [samples], or [samples, channels] where a file has
        more than one channel (whole numbers of fewer bits fill the upper ones); `sample_rate`, per
        second; `class`, its name; `target`, its label; `num_classes`; `filepath`; `index`, the
        number of the file. Numbers are int64, texts are strings.

    Raises:
        UserError: there are no folders or no files, or a file cannot be used.
    """
    if not Path(path).is_dir():
        raise UserError(f"{path}: there is no such folder")
    layout = list_files(Path(path))
    files = [os.fsencode((Path(path) / found.name).absolute()) for found in layout.files]
    channels, broken = 1, []
    for file in files:
        try:
            channels = max(channels, soundfile.info(file).channels)
        except soundfile.LibsndfileError as error:
            broken.append(f"{_shown(file)}: {error.error_string}")
    if broken:
        raise UserError(*broken)

    def read(file: bytes) -> tuple[np.ndarray, np.int64]:
        try:
            signal, rate = read_sound(Path(os.fsdecode(file)).read_bytes(), "int32")
        except BadFileError as error:
            raise ValueError(f"{_shown(file)}: {error}") from error
        if channels == 1:
            signal = signal[:, 0]
        return signal, np.int64(rate)

    names = tf.constant(files)
    labels = tf.constant([found.label for found in layout.files], tf.int64)
    classes = tf.constant(layout.target.classes)

    def element(index: tf.Tensor) -> dict[str, tf.Tensor]:
        signal, rate = tf.numpy_function(read, [names[index]], (tf.int32, tf.int64))
        return {
            "signal": tf.ensure_shape(signal, [None] if channels == 1 else [None, None]),
            "sample_rate": tf.ensure_shape(rate, []),
            "class": classes[labels[index]],
            "target": labels[index],
            "num_classes": tf.constant(len(layout.target.classes), tf.int64),
            "filepath": names[index],
            "index": index,
        }

    numbers = tf.data.Dataset.range(len(files))
    if infinite:
        numbers = numbers.repeat()
    return numbers.map(element, num_parallel_calls=tf.data.AUTOTUNE)


def _shown(file: bytes) -> str:
    """The name of a file, which need not be text, for an error."""
    return file.decode(errors="replace")


def dataset_signal_slice_windows(
    dataset: tf.data.Dataset,
    win_len: int,
    *,
    stride: int | None = None,
    pad: bool = False,
    windows_per_signal: int | None = None,
    seed: int | None = None,
    data_key: str = "signal",
) -> tf.data.Dataset:
    """Cut every signal of a dataset into windows, each an element with all that was beside it.

    Args:
        dataset: of dicts, as `dataset_from_dir` gives them; not batched.
        win_len: samples in a window.
        stride: samples from the start of a window to that of the next; None: `win_len`.
        pad: fill the last window of a signal with zeros; it is dropped otherwise, and so is a
            signal that is shorter than a window.
        windows_per_signal: at most so many; None: all.
        seed: draw the starts by lot, `windows_per_signal` (or 1) of them, all positions as likely;
            they follow from (seed, number of the signal in the dataset). None: in order.
        data_key: of the signal, [samples, ...] of any type.

    Returns:
        The dataset with `data_key` cut to [win_len, ...], and `win_start_idx`, int32.

    Raises:
        UserError: there is no such signal, or a length is below 1.
    """
    spec = dataset.element_spec
    if not isinstance(spec, dict) or data_key not in spec:
        raise UserError(f"data_key: the dataset has no {data_key}: it has to be one of dicts")
    shape = spec[data_key].shape
    if shape.rank is None or shape.rank < 1:
        raise UserError(f"data_key: {data_key} has the shape {shape}, not [samples, ...]")
    if any(name in spec and spec[name].shape.rank for name in ("index", "target")):
        raise UserError("dataset: it is batched: cut the signals before they are batched")
    stride, limit = win_len if stride is None else stride, windows_per_signal
    numbers = {"win_len": win_len, "stride": stride, "windows_per_signal": limit}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise UserError(f"{name}: {value} is not at least 1")

    def starts_of(number: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """int32 [windows], the starts of all that lie within a padded signal."""
        last = length - win_len
        if seed is None:
            end = length if pad else tf.maximum(last + 1, 0)
            starts = tf.range(0, end, stride)
            if pad:  # no window of zeros alone, nor one within the one before
                starts = starts[: 1 + tf.maximum(0, -(-last // stride))]
            return starts[:limit]
        several = tf.where(length >= (1 if pad else win_len), limit or 1, 0)
        return tf.random.stateless_uniform(
            [several], [seed, number], minval=0, maxval=tf.maximum(last, 0) + 1, dtype=tf.int32
        )

    def windows_of(number: tf.Tensor, element: dict[str, tf.Tensor]) -> tf.data.Dataset:
        signal = element[data_key]
        length = tf.shape(signal)[0]

        def window(start: tf.Tensor) -> dict[str, tf.Tensor]:
            part = signal[start : start + win_len]
            if pad:
                behind = [[0, win_len - tf.shape(part)[0]], *[[0, 0]] * (shape.rank - 1)]
                part = tf.pad(part, behind)
            part = tf.ensure_shape(part, [win_len, *shape[1:]])
            return {**element, data_key: part, "win_start_idx": start}

        return tf.data.Dataset.from_tensor_slices(starts_of(number, length)).map(window)

    return dataset.enumerate().flat_map(windows_of)


# ---- HDF5 archives -----------------------------------------------------------------------------


def random_windows(
    archive: Archive, win_len: int, seed: int, num_parallel_calls: int = -1
) -> Callable:
    """A transformation of a dataset of (number of the sample, id) into one of windows by lot.

    Every start from the first to the last window of a recording is as likely as any other; it
    follows from (seed, number of the sample), so that a run that goes on draws what it would have
    drawn. In a recording that is shorter than a window, the place in the window is drawn, and
    the rest is zeros.

    Args:
        archive: the recordings.
        win_len: samples in a window.
        seed: fixes the windows.
        num_parallel_calls: how many groups of windows are read at the same time; -1: as many as
            pays.

    Returns:
        A function from a dataset of two int64 scalars to a dataset of (number, id, int16
        [win_len]).
    """
    lengths = tf.constant(archive.index["length"])

    def draw(number: tf.Tensor, example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        last = lengths[example] - win_len
        start = tf.random.stateless_uniform(
            [],
            seed=tf.stack([tf.constant(seed, tf.int64), number]),
            minval=tf.minimum(last, 0),
            maxval=tf.maximum(last, 0) + 1,
            dtype=tf.int64,
        )
        return number, example, start

    def read(numbers: tf.Tensor, ids: tf.Tensor, starts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return numbers, ids, read_windows(archive, ids, starts, win_len)

    def transformation(samples: tf.data.Dataset) -> tf.data.Dataset:
        drawn = samples.map(draw, num_parallel_calls=num_parallel_calls).batch(WINDOWS_PER_CALL)
        return drawn.map(read, num_parallel_calls=num_parallel_calls).unbatch()

    return transformation


def read_windows(archive: Archive, ids: tf.Tensor, starts: tf.Tensor, win_len: int) -> tf.Tensor:
    """`Archive.read_windows` in a graph: int64 [n], int64 [n] -> int16 [n, win_len]."""
    read = functools.partial(archive.read_windows, win_len=win_len)
    windows = tf.numpy_function(read, [ids, starts], tf.int16, stateful=False)
    return tf.ensure_shape(windows, [None, win_len])


def covering_windows(waveform: tf.Tensor, win_len: int) -> tf.Tensor:
    """Windows that cover a whole recording, as few and as even as can be.

    The first one begins with the recording, and the last one ends with it. One that is shorter
    than a window is in the middle of it, with zeros on both sides.

    Args:
        waveform: [samples].
        win_len: samples in a window.

    Returns:
        [windows, win_len], at least one.
    """
    length = tf.size(waveform, tf.int64)
    last = tf.maximum(length - win_len, 0)
    count = 1 - (-last // win_len)
    starts = tf.range(count) * last // tf.maximum(count - 1, 1)
    missing = tf.maximum(win_len - length, 0)
    padded = tf.pad(waveform, [[missing // 2, missing - missing // 2]])
    return tf.gather(padded, starts[:, tf.newaxis] + tf.range(win_len, dtype=tf.int64))


def to_float(waveform: tf.Tensor) -> tf.Tensor:
    """Whole numbers, int16 or int32 -> float32 in [-1, 1]."""
    return tf.cast(waveform, tf.float32) / -float(waveform.dtype.min)


# ---- features ----------------------------------------------------------------------------------


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
    # TFLite brings what a constant on the right is multiplied by to 8 bits, and energies are lost.
    mel = tf.matmul(bands, energies, transpose_a=True, transpose_b=True)
    return tf.math.log(tf.transpose(mel, [0, 2, 1]) + MIN_ENERGY)
