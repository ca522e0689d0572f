"""The input: for training, evaluation, prediction and serving. Change the augmentation here.

A training example is a random window of an audio clip; everywhere else, windows cover the whole
clip, and the model averages over them. Features are made of them in the network.
"""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from library import audio
from library.data import BlockCache, one_call, prefetch_to_device, read_strings, stage
from library.estimator import export as estimator_export
from library.train import Run
from project.settings import Hyperparameters

Features = dict[str, tf.Tensor]
RANDOM_SPEED = 0.25
"""The default of random_speed: voices of other speakers, as docs/new_speakers.md measures."""


def train_input(run: Run) -> tf.data.Dataset:
    """Random windows of all training clips, in a new order each epoch, without end.

    The order, every window and its augmentation follow from (random_seed, number of the sample in
    the run): a training that continues after `run.start` examples sees what it would have seen.

    Returns:
        Batches of ({"windows": float32 [batch, samples], "masks": float32 [batch, 2, 2] in [0, 1),
        from which the network draws those of its spectrogram}, labels [batch, ...]).
    """
    settings, params = run.settings, run.hyperparameters
    archive = open_archive(run, settings.train_data, *settings.extra_data)
    speed = params.random_speed
    if speed is None:  # a value may be one of pitch or tempo
        speed = 0.0 if run.model.target.label == "value" else RANDOM_SPEED

    def decode(number: tf.Tensor, example: tf.Tensor, window: tf.Tensor) -> tuple[tf.Tensor, ...]:
        seed = tf.stack([tf.constant(run.seed, tf.int64), number])
        of_waveform, of_masks = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        changed = audio.change(
            audio.to_float(window),
            of_waveform,
            speed=speed,
            gain_db=params.random_gain_db,
            noise=params.random_noise,
        )
        masks = tf.random.stateless_uniform([2, 2], of_masks)
        return changed, masks, example

    def with_labels(
        windows: tf.Tensor, masks: tf.Tensor, examples: tf.Tensor
    ) -> tuple[Features, tf.Tensor]:
        return {"windows": windows, "masks": masks}, audio.labels_of(archive, examples)

    return (
        # Ids are shuffled, never clips; of each clip, no more than a window is read.
        audio.train_windows(
            settings,
            archive,
            params.win_len,
            run.start,
            num_workers=run.cluster.num_workers,
            worker=run.cluster.worker,
        )
        .apply(stage("read"))
        # Decoded already: an example is converted in a call, by several threads.
        .apply(one_call(decode, num_parallel_calls=settings.num_parallel_calls))
        # All batches are full: a smaller one would be another learning rate.
        .batch(run.batch_size, drop_remainder=True)
        # A call of Python for the labels of a batch, and not for each.
        .map(with_labels)
        # Made ahead, while the network works.
        .prefetch(settings.prefetch_size)
        .apply(stage("batch"))
        # At the end, so that the copy overlaps with the step.
        .apply(prefetch_to_device(settings.prefetch_to_device))
    )


def open_archive(run: Run, *paths: str) -> audio.Archive:
    """The clips of one or more datasets, which have to be of the model's sample rate."""
    cache = BlockCache.of(run.settings)
    return audio.Archive.of(*paths, cache=cache, sample_rate=run.hyperparameters.rate)


# ---- whole clips -------------------------------------------------------------------------------


def whole_clips(run: Run, path: str, ids: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Batches of the clips that `ids` names: see `evaluation_input`."""
    archive, calls = open_archive(run, path), run.settings.num_parallel_calls
    win_len = run.hyperparameters.win_len

    def windows_of(
        example: tf.Tensor, key: tf.Tensor, waveform: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        return example, key, audio.covering_windows(audio.to_float(waveform), win_len)

    def batched(
        examples: tf.Tensor, keys: tf.Tensor, windows: tf.RaggedTensor
    ) -> tuple[Features, tf.Tensor]:
        return {**features_of(windows), "key": keys}, audio.labels_of(archive, examples)

    return (
        ids.apply(audio.read_clips(archive, calls))
        .map(windows_of, num_parallel_calls=calls)
        .ragged_batch(batch_size)
        .map(batched)
    )


def features_of(windows: tf.RaggedTensor) -> Features:
    """The windows of several clips, [clips, (windows), samples], one after another."""
    return {"windows": windows.values, "clip": windows.value_rowids()}


def overfit_input(run: Run) -> tf.data.Dataset:
    """The first `overfit` clips of a run, whole, the same batches again and again.

    Returns:
        Batches as those of `evaluation_input`, without end.
    """
    settings = run.replace(cache="none", cache_decoded=False, sampling="natural").settings
    windows = audio.train_windows(settings, open_archive(run, settings.train_data), 1)
    ids = windows.take(settings.overfit).map(lambda number, example, window: example)
    return whole_clips(run, settings.train_data, ids, settings.train_batch_size).cache().repeat()


def evaluation_input(run: Run, path: str) -> tf.data.Dataset:
    """All clips of a dataset, whole, once and in order.

    Returns:
        Batches of ({"windows": float32 [windows, samples], "clip": int64 [windows], the number of
        the clip in the batch, "key": string [batch], the names of the files}, labels [batch, ...]),
        the last one smaller where the number of clips asks for it.
    """
    ids = tf.data.Dataset.range(open_archive(run, path).num_examples)
    batches = whole_clips(run, path, ids, run.settings.eval_batch_size)
    return batches.prefetch(run.settings.prefetch_size)


# ---- files -------------------------------------------------------------------------------------


def prediction_input(run: Run, pairs: Iterable[tuple[bytes, bytes]]) -> tf.data.Dataset:
    """Clips as WAV files, whole and in order.

    Args:
        run: with the model.
        pairs: key and WAV file, one by one; the keys come out beside the predictions.

    Returns:
        Batches of {"key": string [batch], "windows", "clip"}.
    """
    settings, params = run.settings, run.hyperparameters
    return (
        read_strings(pairs)
        .map(
            lambda key, wav: (key, windows_of_wav(wav, params)),
            num_parallel_calls=settings.num_parallel_calls,
        )
        .ragged_batch(settings.eval_batch_size)
        .map(lambda keys, windows: {"key": keys, **features_of(windows)})
        .prefetch(settings.prefetch_size)
    )


def windows_of_wav(wav: tf.Tensor, params: Hyperparameters) -> tf.Tensor:
    """A WAV file of 16 bit, at the model's sample rate -> float32 [windows, samples]."""
    waveform, rate = tf.audio.decode_wav(wav)
    message = f"the model takes audio clips of {params.rate} samples per second"
    with tf.control_dependencies([tf.debugging.assert_equal(rate, params.rate, message)]):
        mono = tf.reduce_mean(waveform, axis=1)
    return audio.covering_windows(mono, params.win_len)


def serving_input(run: Run) -> estimator_export.ServingInputReceiver:
    """What the exported model takes, by the name of the signature.

    Returns:
        `serving_default`: `audio_bytes`, string [batch], WAV files of 16 bit; `single`:
        `audio_bytes`, a string, one of them; `tensors`: `windows`, float32 [windows, samples] in
        [-1, 1), and `clip`, int64 [windows], the number in the batch that each one is of.
    """
    params = run.hyperparameters
    one = tf.compat.v1.placeholder(tf.string, [], name="one_audio_bytes")
    default = tf.compat.v1.placeholder_with_default
    wavs = default(one[tf.newaxis], [None], name="audio_bytes")
    windows = tf.RaggedTensorSpec([None, params.win_len], tf.float32, ragged_rank=0)
    cut = tf.map_fn(lambda wav: windows_of_wav(wav, params), wavs, fn_output_signature=windows)
    features = {name: default(each, each.shape, name) for name, each in features_of(cut).items()}
    others = {"single": {"audio_bytes": one}, "tensors": features}
    return estimator_export.ServingInputReceiver(features, {"audio_bytes": wavs}, others)


def device_input(run: Run) -> estimator_export.ServingInputReceiver:
    """What a LiteRT model takes: `windows`, float32 [1, samples] in [-1, 1)."""
    shape = [1, run.hyperparameters.win_len]
    window = tf.compat.v1.placeholder(tf.float32, shape, name="windows")
    return estimator_export.ServingInputReceiver({"windows": window}, {"windows": window})


def canonicalize(content: bytes, params: Hyperparameters) -> bytes:
    """The content of a file as `prediction_input` and the exported model take it.

    Raises:
        BadFileError: it cannot be used.
    """
    rate = params.rate
    return audio.wav_bytes(audio.canonical_waveform(content, sample_rate=rate), sample_rate=rate)


def blank(params: Hyperparameters) -> bytes:
    """A file that stands for one that is missing, where a request has to have one."""
    return audio.wav_bytes(np.zeros([1], np.int16), sample_rate=params.rate)
