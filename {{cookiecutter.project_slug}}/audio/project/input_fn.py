"""The input: for training, evaluation, prediction and serving.

A training example is a window of a recording by lot; everywhere else, windows cover the whole
recording, and the model averages what it says of them. Features are made of them in the network.
"""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from library.audio import (
    Archive,
    covering_windows,
    random_windows,
    standard_waveform,
    to_float,
    wav_bytes,
)
from library.data import Card, Pipeline, read_strings, shuffle_and_repeat
from library.estimator import export as estimator_export
from library.util import UserError
from project.settings import Hyperparameters, Settings


def blank(hyperparameters: Hyperparameters) -> bytes:
    """Stands for a file that cannot be used, where a prediction has to be made of something."""
    return wav_bytes(np.zeros([1], np.int16), sample_rate=hyperparameters.sample_rate)


def standard(content: bytes, hyperparameters: Hyperparameters) -> bytes:
    """The content of a file as `prediction_input` and the exported model take it.

    Raises:
        BadFileError: it cannot be used.
    """
    rate = hyperparameters.sample_rate
    return wav_bytes(standard_waveform(content, sample_rate=rate), sample_rate=rate)


def train_input(
    settings: Settings,
    hyperparameters: Hyperparameters,
    start: int,
    *,
    num_workers: int = 1,
    worker: int = 0,
    batch_parts: int = 1,
) -> tf.data.Dataset:
    """Random windows of all training recordings, in a new order each epoch, without end.

    The order and every window follow from (random_seed, number of the sample in the run), so that
    training that stopped after `start` examples sees what it would have seen.

    Args:
        settings: the data, the batch size, and how the data is read.
        hyperparameters: the length of the windows.
        start: number of examples that the run has behind it.
        num_workers: the processes that train together: each reads its share of the samples.
        worker: the number of this process among them.
        batch_parts: into which a batch is cut for devices or workers: one of them is made.

    Returns:
        Batches of ({"windows": float32 [batch, samples] in [-1, 1)}, int64 [batch]).
    """
    return train_pipeline(
        settings,
        hyperparameters,
        start,
        num_workers=num_workers,
        worker=worker,
        batch_parts=batch_parts,
    ).dataset()


def train_pipeline(
    settings: Settings,
    hyperparameters: Hyperparameters,
    start: int,
    *,
    num_workers: int = 1,
    worker: int = 0,
    batch_parts: int = 1,
) -> Pipeline:
    """The stages of `train_input`."""
    archive = open_archive(settings.train_data, hyperparameters)
    labels = tf.constant(archive.index["label"], tf.int64)

    def decode(
        number: tf.Tensor, example: tf.Tensor, window: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        return {"windows": to_float(window)}, labels[example]

    samples = train_samples(settings, archive.num_examples, start).shard(num_workers, worker)
    windows = random_windows(
        archive, win_len_of(hyperparameters), settings.random_seed, settings.num_parallel_calls
    )
    return Pipeline(
        records=samples.apply(windows),
        maps={"decode": decode},
        batch_size=settings.train_batch_size // batch_parts,
        num_parallel_calls=settings.num_parallel_calls,
        prefetch_size=settings.prefetch_size,
        deterministic=settings.deterministic,
        device=settings.prefetch_to_device,
    )


def open_archive(path: str, hyperparameters: Hyperparameters) -> Archive:
    """The recordings of a data set, which have to be of the model's sample rate.

    Raises:
        UserError: they are not.
    """
    archive = Archive(path)
    rate = archive.card.options.get("sample_rate")
    if rate != hyperparameters.sample_rate:
        raise UserError(
            f"sample_rate: {hyperparameters.sample_rate}, but {path} has {rate}: set it, or "
            "convert the data again with --sample_rate"
        )
    return archive


def win_len_of(hyperparameters: Hyperparameters) -> int:
    """Samples in a window."""
    return round(hyperparameters.window_secs * hyperparameters.sample_rate)


def train_samples(settings: Settings, num_examples: int, start: int) -> tf.data.Dataset:
    """(number of the sample in the run, id of the recording), shuffled, without end."""
    num_examples = min(num_examples, settings.limit_train_examples or num_examples)
    ids = shuffle_and_repeat(num_examples, settings.random_seed, start)
    return tf.data.Dataset.zip((tf.data.Dataset.range(start, tf.int64.max), ids))


def num_train_examples(settings: Settings, card: Card) -> int:
    """The examples of an epoch: all, or as many as `limit_train_examples` leaves."""
    return min(card.num_examples, settings.limit_train_examples or card.num_examples)


def keys_of_batch(settings: Settings, start: int, batch: int) -> list[str]:
    """The file names of the recordings of a batch, counted from 0, of a run begun at `start`."""
    archive, size = Archive(settings.train_data), settings.train_batch_size
    samples = train_samples(settings, archive.num_examples, start).skip(batch * size).take(size)
    return archive.names(np.array([example for _, example in samples.as_numpy_iterator()]))


# ---- whole recordings --------------------------------------------------------------------------


def recordings(
    path: str, ids: tf.data.Dataset, settings: Settings, hyperparameters: Hyperparameters
) -> tf.data.Dataset:
    """Windows, float32 [windows, samples], and label of each recording that `ids` names."""
    archive = open_archive(path, hyperparameters)
    labels = tf.constant(archive.index["label"], tf.int64)

    def whole(example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        read = tf.numpy_function(archive.read_one, [example], tf.int16, stateful=False)
        waveform = to_float(tf.ensure_shape(read, [None]))
        return covering_windows(waveform, win_len_of(hyperparameters)), labels[example]

    return ids.map(whole, num_parallel_calls=settings.num_parallel_calls)


def features_of(windows: tf.RaggedTensor) -> dict[str, tf.Tensor]:
    """The windows of several recordings, [recordings, (windows), samples], one after another."""
    return {"windows": windows.values, "recording": windows.value_rowids()}


def overfit_input(settings: Settings, hyperparameters: Hyperparameters) -> tf.data.Dataset:
    """The first `overfit` recordings of a run, whole, the same batches again and again.

    Returns:
        Batches of features and labels, as those of `evaluation_input`, without end.
    """
    num_examples = Archive(settings.train_data).num_examples
    ids = train_samples(settings, num_examples, 0).take(settings.overfit).map(lambda _, each: each)
    return (
        recordings(settings.train_data, ids, settings, hyperparameters)
        .ragged_batch(settings.train_batch_size)
        .map(lambda windows, labels: (features_of(windows), labels))
        .cache()
        .repeat()
    )


def evaluation_input(
    path: str, settings: Settings, hyperparameters: Hyperparameters
) -> tf.data.Dataset:
    """All recordings of a data set, whole, once and in order.

    Returns:
        Batches of ({"windows": float32 [windows, samples], "recording": int64 [windows], the number
        in the batch, "key": string [batch], the names of the files}, int64 [batch]), the last one
        smaller where the number of recordings asks for it.
    """
    archive = Archive(path)

    def name_of(example: np.ndarray) -> bytes:
        return archive.names(np.array([example]))[0].encode()

    ids = tf.data.Dataset.range(archive.num_examples)
    keys = ids.map(
        lambda example: tf.ensure_shape(tf.numpy_function(name_of, [example], tf.string), [])
    )
    examples = recordings(path, ids, settings, hyperparameters)
    return (
        tf.data.Dataset.zip((keys, examples))
        .map(lambda key, example: (key, *example))
        .ragged_batch(settings.eval_batch_size)
        .map(lambda keys, windows, labels: ({**features_of(windows), "key": keys}, labels))
        .prefetch(settings.prefetch_size)
    )


def prediction_input(
    sounds: Iterable[tuple[bytes, bytes]], settings: Settings, hyperparameters: Hyperparameters
) -> tf.data.Dataset:
    """Encoded recordings, whole and in order.

    Args:
        sounds: key and WAV file, one by one; the keys come out beside the predictions.
        settings, hyperparameters: as for evaluation.

    Returns:
        Batches of {"key": string [batch], "windows", "recording"}.
    """
    return (
        read_strings(sounds)
        .map(
            lambda key, wav: (key, windows_of_wav(wav, hyperparameters)),
            num_parallel_calls=settings.num_parallel_calls,
        )
        .ragged_batch(settings.eval_batch_size)
        .map(lambda keys, windows: {"key": keys, **features_of(windows)})
        .prefetch(settings.prefetch_size)
    )


def windows_of_wav(wav: tf.Tensor, hyperparameters: Hyperparameters) -> tf.Tensor:
    """A WAV file of 16 bit, at the model's sample rate -> float32 [windows, samples]."""
    waveform, rate = tf.audio.decode_wav(wav)
    expected = hyperparameters.sample_rate
    message = f"the model takes recordings of {expected} samples per second"
    with tf.control_dependencies([tf.debugging.assert_equal(rate, expected, message)]):
        mono = tf.reduce_mean(waveform, axis=1)
    return covering_windows(mono, win_len_of(hyperparameters))


def serving_input(hyperparameters: Hyperparameters) -> estimator_export.ServingInputReceiver:
    """What the exported model takes, by the name of the signature.

    Returns:
        `serving_default`: `audio_bytes`, string [batch], WAV files of 16 bit; `single`:
        `audio_bytes`, a string, one of them; `tensors`: `windows`, float32 [windows, samples] in
        [-1, 1), and `recording`, int64 [windows], the number in the batch that each one is of.
    """
    one = tf.compat.v1.placeholder(tf.string, [], name="one_audio_bytes")
    default = tf.compat.v1.placeholder_with_default
    wavs = default(one[tf.newaxis], [None], name="audio_bytes")
    cut = tf.map_fn(
        lambda wav: windows_of_wav(wav, hyperparameters),
        wavs,
        fn_output_signature=tf.RaggedTensorSpec(
            [None, win_len_of(hyperparameters)], tf.float32, ragged_rank=0
        ),
    )
    features = {name: default(each, each.shape, name) for name, each in features_of(cut).items()}
    others = {"single": {"audio_bytes": one}, "tensors": features}
    return estimator_export.ServingInputReceiver(features, {"audio_bytes": wavs}, others)


def device_input(hyperparameters: Hyperparameters) -> estimator_export.ServingInputReceiver:
    """What a model for TFLite takes: `windows`, float32 [1, samples] in [-1, 1)."""
    window = tf.compat.v1.placeholder(tf.float32, [1, win_len_of(hyperparameters)], name="windows")
    return estimator_export.ServingInputReceiver({"windows": window}, {"windows": window})


def encoded_examples(path: str, count: int, hyperparameters: Hyperparameters) -> list[bytes]:
    """At most so many recordings, spread over a data set, as `prediction_input` takes them."""
    archive = open_archive(path, hyperparameters)
    numbers = range(0, archive.num_examples, max(1, archive.num_examples // count))[:count]
    rate = hyperparameters.sample_rate
    return [wav_bytes(archive.read_one(np.int64(each)), sample_rate=rate) for each in numbers]
