"""Audio clips of a dataset as tensors: windows in the order of a training, or whole clips."""

import dataclasses
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from library.audio.archives import Archive
from library.audio.files import wav_bytes
from library.audio.ops import random_window, random_windows
from library.config import Settings
from library.data import BlockCache, Source, read_by_id, train_records, without_autotuner
from library.util import UserError

PLAYED = 45_000
"""Samples of a clip that a report plays: 2.8 s at 16 kHz, and at most 100 kB."""


def train_windows(
    settings: Settings,
    archive: Archive,
    win_len: int,
    start: int = 0,
    *,
    num_workers: int = 1,
    worker: int = 0,
) -> tf.data.Dataset:
    """A random window of each training example: as `library.data.train_records`, for windows.

    Where clips are read at random, that is all that is read of them. A cache and a stream have
    whole clips, of which the same windows are cut.

    Returns:
        A dataset of (number of the sample in the run, id of the clip, int16 [win_len]).
    """
    if settings.cache_decoded:
        raise UserError("cache_decoded: audio clips are stored decoded: leave it out")
    seed, calls = settings.random_seed, settings.num_parallel_calls
    whole = settings.cache != "none" or settings.shuffle == "stream"

    def first_of(file: bytes) -> np.int64:
        return np.int64(archive.first[archive.shards.index(os.fsdecode(file))])

    def read_shard(
        file: tf.Tensor, first: tf.Tensor, examples: tf.Tensor, skipped: int | tf.Tensor = 0
    ) -> tf.data.Dataset:
        # Of the whole archive, where `first` is of the dataset of the shard.
        begin = tf.ensure_shape(tf.numpy_function(first_of, [file], tf.int64, stateful=False), [])
        numbers = tf.data.Dataset.range(begin + skipped, begin + examples)
        return numbers.apply(read_by_id(archive, 1))

    def cut(number: tf.Tensor, example: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor, ...]:
        waveform = tf.io.decode_raw(record, tf.int16)
        return number, example, random_window(waveform, number, win_len, seed)

    def read_windows(source: Source, calls: int) -> Callable:
        return random_windows(archive, win_len, seed, calls)

    records = train_records(
        settings,
        start,
        num_workers=num_workers,
        worker=worker,
        open_data=lambda *paths: archive,
        read_shard=read_shard,
        read=read_by_id if whole else read_windows,
        classes_of=lambda source: archive.index["label"],
    )
    return records.map(cut, num_parallel_calls=calls) if whole else records


def labels_of(archive: Archive, ids: tf.Tensor) -> tf.Tensor:
    """The labels of clips, int64 [n]: see `Archive.labels`."""
    none = archive.labels(np.empty(0, np.int64))
    labels = tf.numpy_function(archive.labels, [ids], none.dtype, stateful=False)
    return tf.ensure_shape(labels, [None, *none.shape[1:]])


def read_clips(archive: Archive, num_parallel_calls: int) -> Callable:
    """Read whole clips, one by one: from a dataset of ids to one of (id, key, int16 [samples])."""

    def read_clip(number: np.int64) -> tuple[bytes, np.ndarray]:
        return archive.name(number).encode(), archive.waveform(number)

    def read(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        types = (tf.string, tf.int16)
        key, waveform = tf.numpy_function(read_clip, [number], types, stateful=False)
        return number, tf.ensure_shape(key, []), tf.ensure_shape(waveform, [None])

    return lambda ids: without_autotuner(ids).map(read, num_parallel_calls=num_parallel_calls)


def train_keys(settings: Settings, start: int, count: int) -> list[str]:
    """The names of the files of `count` training examples, from the sample `start` of a run."""
    uncached = dataclasses.replace(settings, cache="none")
    cache = BlockCache.of(settings)
    archive = Archive.of(settings.train_data, *settings.extra_data, cache=cache)
    windows = train_windows(uncached, archive, 1, start).take(count)
    return [archive.name(number) for _, number, _ in windows.as_numpy_iterator()]


def encoded_examples(path: str | Path, ids: Sequence[int]) -> list[bytes]:
    """The clips of these ids in the dataset `path` as WAV files."""
    archive = Archive(path)
    rate = archive.card.options["sample_rate"]
    return [wav_bytes(archive.waveform(number), sample_rate=rate) for number in ids]


def playable(path: str | Path, names: Collection[str]) -> dict[str, bytes]:
    """The clips of these names in the dataset `path`, the beginning of each, as FLAC files."""
    archive = Archive(path)
    rate = archive.card.options["sample_rate"]
    return {
        name: wav_bytes(archive.waveform(number, 0, PLAYED), sample_rate=rate, kind="FLAC")
        for number in range(archive.num_examples if names else 0)
        if (name := archive.name(number)) in names
    }
