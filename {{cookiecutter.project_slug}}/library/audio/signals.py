"""Folders of audio files as signals in a tf.data pipeline, and the windows of any signals."""

import os
from pathlib import Path

import numpy as np
import soundfile
import tensorflow as tf

from library.audio.files import read_audio
from library.data import without_autotuner
from library.util import BadFileError, UserError, files_below, is_junk


def dataset_from_dir(path: str | Path, infinite: bool = False) -> tf.data.Dataset:
    """The audio files in `path`/<class>/..., in the order of their names, once or infinitely.

    Returns:
        A dataset of dicts: `signal`, int32 [samples], or [samples, channels] where a file has
        more than one channel (integers of fewer bits fill the upper ones); `sample_rate`, per
        second; `class`, its name; `target`, its label; `num_classes`; `filepath`; `index`, the
        number of the file. Numbers are int64, texts are strings.

    Raises:
        UserError: there are no folders or no files, or a file cannot be used.
    """
    classes, paths, numbers = _labeled_files(Path(path))
    files = [os.fsencode(file.absolute()) for file in paths]
    channels, broken = 1, []
    for file in files:
        try:
            channels = max(channels, soundfile.info(file).channels)
        except soundfile.LibsndfileError as error:
            broken.append(f"{file.decode(errors='replace')}: {error.error_string}")
        except TypeError:  # of a file called .raw, which soundfile wants to be told about
            broken.append(f"{file.decode(errors='replace')}: not an audio file")
    if broken:
        raise UserError(*broken)

    def read(file: bytes) -> tuple[np.ndarray, np.int64]:
        try:
            signal, rate = read_audio(Path(os.fsdecode(file)).read_bytes(), "int32")
        except BadFileError as error:
            raise ValueError(f"{file.decode(errors='replace')}: {error}") from error
        return signal[:, 0] if channels == 1 else signal, np.int64(rate)

    names, class_names, labels = map(tf.constant, (files, classes, numbers))

    def element(index: tf.Tensor) -> dict[str, tf.Tensor]:
        signal, rate = tf.numpy_function(read, [names[index]], (tf.int32, tf.int64))
        return {
            "signal": tf.ensure_shape(signal, [None] if channels == 1 else [None, None]),
            "sample_rate": tf.ensure_shape(rate, []),
            "class": class_names[labels[index]],
            "target": labels[index],
            "num_classes": tf.constant(len(classes), tf.int64),
            "filepath": names[index],
            "index": index,
        }

    indices = tf.data.Dataset.range(len(files))
    indices = indices.repeat() if infinite else indices
    return without_autotuner(indices).map(element, num_parallel_calls=tf.data.AUTOTUNE)


def _labeled_files(root: Path) -> tuple[list[str], list[Path], np.ndarray]:
    """The classes, numbers first and by their value; the files, and their labels, int64."""
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder")
    names = [path.name for path in root.iterdir() if path.is_dir() and not is_junk(path.name)]
    if not names:
        raise UserError(f"{root} contains no class folders; give their parent folder")
    classes = sorted(names, key=lambda name: (float(name) if name.isdecimal() else np.inf, name))
    files, labels = [], []
    for label, name in enumerate(classes):
        for file, reason in files_below(root / name, root=root):
            if not reason:
                files.append(file)
                labels.append(label)
    if not files:
        raise UserError(f"{root}: there are no files in its folders")
    return classes, files, np.array(labels, np.int64)


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
        windows_per_signal: at most so many of a signal: the first ones, or, with a seed, ones
            that begin anywhere; None: all, or one with a seed.
        seed: cut windows at random: the same ones for the same seed, in each pass.
        data_key: the name of the signal, [samples, ...], in the dicts.

    Returns:
        A dataset of dicts like those before, `data_key` cut to [win_len, ...], and `win_start_idx`,
        int32.

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
