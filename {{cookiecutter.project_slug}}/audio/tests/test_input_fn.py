"""The input: every recording once an epoch, the same windows after a restart and everywhere."""

import collections
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from conftest import convert

from library.audio import Archive, to_float, wav_bytes
from library.util import UserError
from project.input_fn import (
    evaluation_input,
    keys_of_batch,
    overfit_input,
    prediction_input,
    serving_input,
    standard,
    train_input,
    train_pipeline,
    windows_of_wav,
)
from project.settings import Hyperparameters, Settings

SMALL = Hyperparameters(window_secs=0.4, mel_bands=16)
WIN_LEN = 6400


@pytest.fixture
def settings(data) -> Settings:
    return Settings(
        train_data=str(data / "train"),
        validation_data=str(data / "validation"),
        train_batch_size=8,
        eval_batch_size=10,
    )


@pytest.fixture(scope="module")
def lengths(tmp_path_factory) -> Path:
    """Files and their data set: shorter than a window, as long, a bit longer, and much longer."""
    folder = tmp_path_factory.mktemp("lengths")
    (folder / "in" / "noise").mkdir(parents=True)
    random = np.random.default_rng(0)
    for number, length in enumerate([1, 4001, WIN_LEN, WIN_LEN + 1, 3 * WIN_LEN, 40000]):
        file = folder / "in" / "noise" / f"{number}.wav"
        soundfile.write(file, random.uniform(-1, 1, length), 16000)
    convert(folder / "in", folder / "data", "noise")
    return folder


def take(dataset: tf.data.Dataset, batches: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(f["windows"], labels) for f, labels in dataset.take(batches).as_numpy_iterator()]


def take_in_a_graph(make, batches: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same, as the Estimator does it: in a graph, `==` between tensors is another thing."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(make())
        features, labels = iterator.get_next()
        session.run(iterator.initializer)
        return [session.run((features["windows"], labels)) for _ in range(batches)]


@pytest.mark.parametrize("step", [1, 7, 20])
def test_training_goes_on_where_it_stopped(settings, step):
    whole = take(train_input(settings, SMALL, 0), 30)
    rest = take(train_input(settings, SMALL, 8 * step), 30 - step)
    in_a_graph = take_in_a_graph(lambda: train_input(settings, SMALL, 8 * step), 30 - step)
    for (windows, labels), *others in zip(whole[step:], rest, in_a_graph, strict=True):
        assert (windows.dtype, windows.shape) == (np.float32, (8, WIN_LEN))
        for windows_again, labels_again in others:
            assert (windows == windows_again).all()
            assert (labels == labels_again).all()


Sample = tuple[int, int, bytes]
"""Its number in the run, the id of the recording, and the window."""


def samples_of(settings: Settings, start: int, *, count: int, **share: int) -> list[Sample]:
    """The first samples of a run, or of a worker's share of it."""
    records = train_pipeline(settings, SMALL, start, **share).records.take(count)
    return [(int(n), int(i), w.tobytes()) for n, i, w in records.as_numpy_iterator()]


def test_an_epoch_has_every_recording_once(settings):
    n = Archive(settings.train_data).num_examples
    seen = [example for _, example, _ in samples_of(settings, 0, count=3 * n)]
    epochs = [seen[:n], seen[n : 2 * n], seen[2 * n :]]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_every_sample_is_seen_once_whatever_interrupts(settings, num_workers):
    """Starts at random steps, by so many workers: over two epochs, the windows of one run."""
    size, random = settings.train_batch_size, np.random.default_rng(num_workers)
    n = Archive(settings.train_data).num_examples
    whole = samples_of(settings, 0, count=2 * n)
    seen: dict[int, Sample] = {}
    step, last = 0, 2 * n // size
    while step < last:
        end = min(step + int(random.integers(1, 7)), last)
        for worker in range(num_workers):
            count = len(range(step * size + worker, end * size, num_workers))
            share = {"num_workers": num_workers, "worker": worker}
            for sample in samples_of(settings, step * size, count=count, **share):
                assert sample[0] not in seen
                seen[sample[0]] = sample
        step = end
    assert [seen[number] for number in sorted(seen)] == whole[: last * size]
    assert set(collections.Counter(example for _, example, _ in whole).values()) == {2}


def test_the_keys_of_a_batch_are_the_files_of_its_windows(settings, samples):
    size = settings.train_batch_size
    batches = take(train_input(settings, SMALL, 0), 6)
    for number in (0, 5):
        keys = keys_of_batch(settings, 0, number)
        assert len(keys) == size
        for window, file in zip(batches[number][0], keys, strict=True):
            waveform, _ = soundfile.read(samples / "train" / file, dtype="int16")
            parts = np.lib.stride_tricks.sliding_window_view(np.pad(waveform, WIN_LEN), WIN_LEN)
            starts = np.flatnonzero(parts[:, 3000] == window[3000] * 32768)
            assert any((parts[start] == window * 32768).all() for start in starts), file
    assert keys_of_batch(settings, 3 * size, 2) == keys_of_batch(settings, 0, 5)


def test_without_an_order_there_are_the_same_windows(settings):
    """Groups of them overtake each other: they are all there, some later."""
    either = dataclasses.replace(settings, deterministic=False)
    known, found = (
        [
            window.tobytes()
            for windows, _ in take(train_input(each, SMALL, 0), count)
            for window in windows
        ]
        for each, count in ((settings, 200), (either, 20))
    )
    assert set(found) <= set(known)
    assert len(set(found)) == len(found) == 160


def test_windows_differ_from_epoch_to_epoch(settings):
    n = Archive(settings.train_data).num_examples
    seen = samples_of(settings, 0, count=2 * n)
    first, second = (
        {example: window for _, example, window in half} for half in (seen[:n], seen[n:])
    )
    assert all(first[example] != second[example] for example in range(n))


def test_parallel_calls_change_nothing_but_the_speed(settings):
    one = dataclasses.replace(settings, num_parallel_calls=1, prefetch_size=1)
    for a, b in zip(
        take(train_input(settings, SMALL, 0), 5), take(train_input(one, SMALL, 0), 5), strict=True
    ):
        assert (a[0] == b[0]).all()


def test_another_seed_gives_other_windows(settings):
    ((before, _),) = take(train_input(settings, SMALL, 0), 1)
    ((after, _),) = take(train_input(dataclasses.replace(settings, random_seed=1), SMALL, 0), 1)
    assert (before != after).any()


def test_the_stages_of_the_pipeline_lead_to_its_batches(settings):
    pipeline = train_pipeline(settings, SMALL, 0)
    number, example, window = next(pipeline.up_to("read").as_numpy_iterator())
    assert (number, window.dtype, window.shape) == (0, np.int16, (WIN_LEN,))
    features, label = next(pipeline.up_to("decode").as_numpy_iterator())
    ((windows, labels),) = take(pipeline.dataset(), 1)
    assert (features["windows"] == windows[0]).all()
    assert (windows[0] == window / 32768).all()
    assert label == labels[0] == Archive(settings.train_data).index["label"][example]


def test_a_quick_look_has_the_same_few_recordings_in_every_epoch(settings):
    few = dataclasses.replace(settings, limit_train_examples=10)
    seen = samples_of(few, 0, count=30)
    ids = [example for _, example, _ in seen]
    assert sorted(ids[:10]) == sorted(ids[10:20]) == sorted(ids[20:])
    assert len(set(ids)) == 10
    assert samples_of(few, 7, count=5) == seen[7:12]


# ---- whole recordings --------------------------------------------------------------------------


def batches_of(path: Path | str, settings: Settings) -> list[tuple[dict, np.ndarray]]:
    return list(evaluation_input(str(path), settings, SMALL).as_numpy_iterator())


def test_evaluation_has_every_recording_in_order_with_the_last_partial_batch(settings):
    archive = Archive(settings.validation_data)
    batches = batches_of(settings.validation_data, settings)
    assert [len(labels) for _, labels in batches[:-1]] == [10] * (len(batches) - 1)
    assert np.concatenate([labels for _, labels in batches]).tolist() == list(
        archive.index["label"]
    )
    number = 0
    for features, labels in batches:
        counts = np.bincount(features["recording"])
        assert len(counts) == len(labels)
        assert (np.diff(features["recording"]) >= 0).all()
        for count in counts:
            waveform = archive.read_one(np.int64(number))
            assert count == -(-len(waveform) // WIN_LEN)
            number += 1
    assert number == archive.num_examples


def test_evaluation_prediction_and_serving_see_the_same_windows(settings, lengths):
    """Of recordings of all lengths, by their archive, by their files, and in the exported graph."""
    archive = Archive(lengths / "data" / "noise")
    files = [lengths / "in" / name for name in archive.names(np.arange(6))]
    encoded = [(str(file).encode(), file.read_bytes()) for file in files]
    four = dataclasses.replace(settings, eval_batch_size=4)
    evaluated = [features for features, _ in batches_of(lengths / "data" / "noise", four)]
    predicted = list(prediction_input(encoded, four, SMALL).as_numpy_iterator())
    assert [key for batch in predicted for key in batch["key"]] == [key for key, _ in encoded]
    for ours, theirs in zip(evaluated, predicted, strict=True):
        for name in ("windows", "recording"):
            assert ours[name].dtype == theirs[name].dtype
            np.testing.assert_array_equal(ours[name], theirs[name])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        receiver = serving_input(SMALL)
        placeholder = receiver.receiver_tensors["audio_bytes"]
        served = session.run(receiver.features, {placeholder: [wav for _, wav in encoded[:4]]})
    np.testing.assert_array_equal(served["windows"], evaluated[0]["windows"])
    np.testing.assert_array_equal(served["recording"], evaluated[0]["recording"])


def test_a_recording_as_long_as_a_window_is_the_same_in_training(settings, tmp_path):
    for number in range(3):
        waveform = np.random.default_rng(number).uniform(-1, 1, WIN_LEN)
        (tmp_path / "in" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / "in" / "ab"[number % 2] / f"{number}.wav", waveform, 16000)
    convert(tmp_path / "in", tmp_path / "data", "train")
    path = str(tmp_path / "data" / "train")
    ((features, labels),) = batches_of(path, settings)
    test = dataclasses.replace(settings, train_data=path, train_batch_size=3)
    ((windows, train_labels),) = take(train_input(test, SMALL, 0), 1)
    order, train_order = (
        np.lexsort(np.transpose(each)[:3]) for each in (features["windows"], windows)
    )
    np.testing.assert_array_equal(features["windows"][order], windows[train_order])
    np.testing.assert_array_equal(labels[order], train_labels[train_order])


def test_what_is_learnt_by_heart_stays_the_same(settings):
    few = dataclasses.replace(settings, overfit=12)
    first, second, *again = take(overfit_input(few, SMALL), 4)
    assert (len(first[1]), len(second[1])) == (8, 4)
    for (windows, labels), (windows_again, labels_again) in zip(
        (first, second), again, strict=True
    ):
        assert (windows == windows_again).all()
        assert (labels == labels_again).all()


def test_a_file_for_the_model_is_a_wav_of_its_rate(lengths):
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(44100) / 44100)
    soundfile.write(lengths / "tone.flac", np.stack([tone, tone], axis=1), 44100)
    wav = standard((lengths / "tone.flac").read_bytes(), SMALL)
    windows = windows_of_wav(tf.constant(wav), SMALL)
    assert windows.shape == [3, WIN_LEN]
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(windows[0][500:], expected[500:WIN_LEN], atol=1e-3)
    untouched = (lengths / "in" / "noise" / "2.wav").read_bytes()
    assert standard(untouched, SMALL) == untouched


def test_another_sample_rate_is_refused(settings, lengths):
    telephone = dataclasses.replace(SMALL, sample_rate=8000, max_hz=3800)
    for make in (
        lambda: train_input(settings, telephone, 0),
        lambda: evaluation_input(settings.validation_data, settings, telephone),
    ):
        with pytest.raises(UserError, match="sample_rate: 8000, but .* has 16000: set it, or"):
            make()
    wav = tf.io.read_file(str(lengths / "in" / "noise" / "2.wav"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="recordings of 8000 samples per sec"):
        windows_of_wav(wav, telephone)


def test_floats_are_those_of_the_decoder():
    """What is read from an archive is what TensorFlow decodes, to the last bit."""
    waveform = np.arange(-(2**15), 2**15, dtype=np.int16)
    decoded, _ = tf.audio.decode_wav(wav_bytes(waveform, sample_rate=16000))
    np.testing.assert_array_equal(to_float(tf.constant(waveform)), decoded[:, 0])
