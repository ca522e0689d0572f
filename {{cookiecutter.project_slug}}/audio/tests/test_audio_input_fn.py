"""The input: every clip once an epoch, the same windows after a restart and everywhere."""

import collections
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from conftest import convert, make_run

from library.audio import Archive, to_float, train_keys, train_windows, wav_bytes
from library.data import Card, stages_of
from library.train import Plan, Run
from library.util import UserError
from project.input_fn import (
    canonicalize,
    evaluation_input,
    overfit_input,
    prediction_input,
    serving_input,
    train_input,
    windows_of_wav,
)
from project.networks import outputs_of

WIN_LEN = 6400


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Run:
    options = {"train_batch_size": 8, "eval_batch_size": 10, "random_speed": 0.0}
    return make_run(data, tmp_path, **options).for_training()


@pytest.fixture(scope="module")
def lengths(tmp_path_factory) -> Path:
    """Files and their dataset: shorter than a window, as long, a bit longer, and much longer."""
    folder = tmp_path_factory.mktemp("lengths")
    (folder / "in" / "noise").mkdir(parents=True)
    random = np.random.default_rng(0)
    for number, length in enumerate([1, 4001, WIN_LEN, WIN_LEN + 1, 3 * WIN_LEN, 40000]):
        file = folder / "in" / "noise" / f"{number}.wav"
        soundfile.write(file, random.uniform(-1, 1, length), 16000)
    convert(folder / "in", folder / "data", "noise")
    return folder


def at(run: Run, start: int) -> Run:
    """The run after so many examples."""
    return run.replace(plan=Plan(None, 0, start, 72, 8, steps=100, steps_between_evals=100))


def take(dataset: tf.data.Dataset, batches: int) -> list[tuple[np.ndarray, np.ndarray]]:
    found = dataset.take(batches).as_numpy_iterator()
    return [(features["windows"], labels) for features, labels in found]


def take_in_a_graph(run: Run, batches: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same, as the Estimator does it: in a graph, `==` between tensors is another thing."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(train_input(run))
        features, labels = iterator.get_next()
        session.run(iterator.initializer)
        return [session.run((features["windows"], labels)) for _ in range(batches)]


AUGMENTED = {"random_speed": 0.2, "random_gain_db": 6.0, "random_noise": 0.1, "time_mask": 0.2}


@pytest.mark.parametrize("more", [{"num_parallel_calls": 1}, {"cache": "memory"}], ids=str)
def test_training_goes_on_where_it_stopped(run, more):
    run = run.replace(**AUGMENTED)
    whole, run = take(train_input(run), 20), run.replace(**more)
    for step in (0, 7):
        rest = take(train_input(at(run, 8 * step)), 20 - step)
        in_a_graph = take_in_a_graph(at(run, 8 * step), 20 - step)
        for (windows, labels), *others in zip(whole[step:], rest, in_a_graph, strict=True):
            assert (windows.dtype, windows.shape) == (np.float32, (8, WIN_LEN))
            assert labels.dtype == np.int64
            for windows_again, labels_again in others:
                assert (windows == windows_again).all()
                assert (labels == labels_again).all()


def test_augmentation_is_that_of_the_sample_and_the_seed(run):
    augmented = run.replace(**AUGMENTED)
    (plain, _), ((found, _)) = (
        next(train_input(each).as_numpy_iterator()) for each in (run, augmented)
    )
    again, _ = next(train_input(at(augmented, 8)).as_numpy_iterator())
    other, _ = next(train_input(augmented.replace(random_seed=1)).as_numpy_iterator())
    second, _ = list(train_input(augmented).take(2).as_numpy_iterator())[1]
    for name in ("windows", "masks"):
        np.testing.assert_array_equal(again[name], second[name])
        assert np.abs(other[name] - found[name]).max() > 0.1
    assert np.abs(plain["windows"] - found["windows"]).max(axis=1).min() > 0.01
    assert (found["masks"].shape, found["masks"].min() >= 0) == ((8, 2, 2), True)


def test_a_network_sees_masks_in_training_only(run):
    """Of a time mask of 1, less is left than of one of 0; evaluation has none."""
    features, _ = next(train_input(run).as_numpy_iterator())
    evaluated, _ = next(evaluation_input(run, run.settings.train_data).as_numpy_iterator())
    assert "masks" not in evaluated
    masked = {**features, "masks": np.full([8, 2, 2], 0.999, np.float32)}
    unmasked = {name: features[name] for name in features if name != "masks"}

    def outputs(features: dict, **options: float) -> np.ndarray:
        params = dataclasses.replace(run.hyperparameters, **options)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            more = {"training": False, "dtype": "float32", "params": params, "seed": 0}
            found = outputs_of(features, run.head, **more)
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run(found)

    np.testing.assert_array_equal(outputs(masked), outputs(unmasked))
    assert np.abs(outputs(masked, time_mask=0.9) - outputs(masked)).max() > 1e-4
    np.testing.assert_array_equal(outputs(unmasked, time_mask=0.9), outputs(unmasked))


Sample = tuple[int, int, bytes]
"""Its number in the run, the id of the clip, and the window."""


def samples_of(run: Run, start: int = 0, *, count: int, **share: int) -> list[Sample]:
    """The first samples of a run, or of a worker's share of it."""
    settings = run.settings
    windows = train_windows(settings, Archive(settings.train_data), WIN_LEN, start, **share)
    return [(int(n), int(i), w.tobytes()) for n, i, w in windows.take(count).as_numpy_iterator()]


@pytest.mark.parametrize("num_workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_sample_is_seen_once_whatever_interrupts(run, num_workers):
    """Starts at random steps, by so many workers: over two epochs, the windows of one run."""
    size, random = run.batch_size, np.random.default_rng(num_workers)
    n = Archive(run.settings.train_data).num_examples
    whole = samples_of(run, count=2 * n)
    seen: dict[int, Sample] = {}
    step, last = 0, 2 * n // size
    while step < last:
        end = min(step + int(random.integers(2, 12)), last)
        for worker in range(num_workers):
            count = len(range(step * size + worker, end * size, num_workers))
            share = {"num_workers": num_workers, "worker": worker}
            for sample in samples_of(run, step * size, count=count, **share):
                assert sample[0] not in seen
                seen[sample[0]] = sample
        step = end
    assert [seen[number] for number in sorted(seen)] == whole[: last * size]
    assert set(collections.Counter(example for _, example, _ in whole).values()) == {2}


def test_windows_differ_from_epoch_to_epoch_and_by_the_seed(run):
    n = Archive(run.settings.train_data).num_examples
    seen = samples_of(run, count=2 * n)
    ids = [example for _, example, _ in seen]
    assert sorted(ids[:n]) == sorted(ids[n:]) == list(range(n))
    first, second = ({i: window for _, i, window in half} for half in (seen[:n], seen[n:]))
    assert ids[:n] != ids[n:]
    assert all(first[example] != second[example] for example in range(n))
    assert samples_of(run.replace(random_seed=1), count=n) != seen[:n]


def test_the_keys_of_a_batch_are_the_files_of_its_windows(run, samples):
    batches = take(train_input(run), 6)
    for number in (0, 5):
        keys = train_keys(run.settings, 8 * number, 8)
        for window, file in zip(batches[number][0], keys, strict=True):
            waveform, _ = soundfile.read(samples / "train" / file, dtype="int16")
            parts = np.lib.stride_tricks.sliding_window_view(np.pad(waveform, WIN_LEN), WIN_LEN)
            starts = np.flatnonzero(parts[:, 3000] == window[3000] * 32768)
            assert any((parts[start] == window * 32768).all() for start in starts), file


def test_without_an_order_there_are_the_same_windows(run):
    """Groups of them overtake each other: they are all there, some later."""
    known, found = (
        [w.tobytes() for windows, _ in take(train_input(each), count) for w in windows]
        for each, count in ((run, 200), (run.replace(deterministic=False), 20))
    )
    assert set(found) <= set(known)
    assert len(set(found)) == len(found) == 160


def test_the_stages_of_the_chain_lead_to_its_batches(run):
    def first(stage: str) -> tuple:
        return next(stages_of(lambda: train_input(run))[stage].as_numpy_iterator())

    assert [*stages_of(lambda: train_input(run))] == ["read", "decode", "batch"]
    number, example, window = first("read")
    assert (number, window.dtype, window.shape) == (0, np.int16, (WIN_LEN,))
    ((windows, labels),) = take(train_input(run), 1)
    assert (first("decode")[0] == windows[0]).all()
    assert (first("batch")[0]["windows"] == windows).all()
    assert (windows[0] == window / 32768).all()
    assert labels[0] == Archive(run.settings.train_data).index["label"][example]


# ---- whole clips -------------------------------------------------------------------------------


def batches_of(run: Run, path: Path | str) -> list[tuple[dict, np.ndarray]]:
    return list(evaluation_input(run, str(path)).as_numpy_iterator())


def test_evaluation_has_every_clip_in_order_with_the_last_partial_batch(run):
    archive = Archive(run.settings.validation_data)
    batches = batches_of(run, run.settings.validation_data)
    assert [len(labels) for _, labels in batches[:-1]] == [10] * (len(batches) - 1)
    labels = np.concatenate([labels for _, labels in batches])
    assert labels.tolist() == list(archive.index["label"])
    keys = [key.decode() for features, _ in batches for key in features["key"]]
    assert keys == [archive.name(number) for number in range(archive.num_examples)]
    counts = np.concatenate([np.bincount(features["clip"]) for features, _ in batches])
    assert counts.tolist() == [-(-length // WIN_LEN) for length in archive.index["length"]]
    assert all((np.diff(features["clip"]) >= 0).all() for features, _ in batches)


def test_evaluation_prediction_and_serving_see_the_same_windows(run, lengths):
    """Of clips of all lengths, by their archive, by their files, and in the exported graph."""
    archive, run = Archive(lengths / "data" / "noise"), run.replace(eval_batch_size=4)
    files = [lengths / "in" / archive.name(number) for number in range(6)]
    encoded = [(str(file).encode(), file.read_bytes()) for file in files]
    evaluated = [features for features, _ in batches_of(run, lengths / "data" / "noise")]
    predicted = list(prediction_input(run, encoded).as_numpy_iterator())
    assert [key for batch in predicted for key in batch["key"]] == [key for key, _ in encoded]
    for ours, theirs in zip(evaluated, predicted, strict=True):
        for name in ("windows", "clip"):
            assert ours[name].dtype == theirs[name].dtype
            np.testing.assert_array_equal(ours[name], theirs[name])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        receiver = serving_input(run)
        placeholder = receiver.receiver_tensors["audio_bytes"]
        served = session.run(receiver.features, {placeholder: [wav for _, wav in encoded[:4]]})
    for name in ("windows", "clip"):
        np.testing.assert_array_equal(served[name], evaluated[0][name])


def test_a_clip_as_long_as_a_window_is_the_same_in_training(run, tmp_path):
    for number in range(3):
        waveform = np.random.default_rng(number).uniform(-1, 1, WIN_LEN)
        (tmp_path / "in" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / "in" / "ab"[number % 2] / f"{number}.wav", waveform, 16000)
    convert(tmp_path / "in", tmp_path / "data", "train", "--validation_fraction", 0)
    path = str(tmp_path / "data" / "train")
    ((features, labels),) = batches_of(run, path)
    ((windows, train_labels),) = take(
        train_input(run.replace(train_data=path, train_batch_size=3)), 1
    )
    order, train_order = (
        np.lexsort(np.transpose(each)[:3]) for each in (features["windows"], windows)
    )
    np.testing.assert_array_equal(features["windows"][order], windows[train_order])
    np.testing.assert_array_equal(labels[order], train_labels[train_order])


def test_the_batches_to_overfit_stay_the_same(run):
    first, second, *again = take(overfit_input(run.replace(overfit=12)), 4)
    assert (len(first[1]), len(second[1])) == (8, 4)
    for (windows, labels), (windows_again, labels_again) in zip(
        (first, second), again, strict=True
    ):
        assert (windows == windows_again).all()
        assert (labels == labels_again).all()


@pytest.mark.parametrize("task", ["labels", "value"])
def test_labels_of_other_kinds_reach_the_batches(task, tmp_path):
    from library.audio import sample_data

    folder = tmp_path / "in"
    sample_data.make(folder, per_class={"train": 3, "validation": 1}, task=task)
    for split in ("train", "validation"):
        more = ["--labels", folder / f"{split}.csv", "--validation_fraction", 0]
        more = more[:2] if split == "validation" else more
        convert(folder / split, tmp_path / "data", split, *more)
    run = make_run(tmp_path / "data", tmp_path, train_batch_size=4).for_training()
    archive = Archive(run.settings.train_data)
    _, labels = next(train_input(run).as_numpy_iterator())
    ids = [example for _, example, _ in samples_of(run, count=4)]
    np.testing.assert_array_equal(labels, archive.labels(np.array(ids)))
    card = Card.load(f"{run.settings.train_data}.json")
    assert (labels.dtype, card.label) == (np.float32, task)
    assert labels.shape == ((4, len(card.classes)) if task == "labels" else (4,))
    ((_, evaluated),) = batches_of(run, run.settings.train_data)
    np.testing.assert_array_equal(evaluated, archive.labels(np.arange(18)))


# ---- files -------------------------------------------------------------------------------------


def test_a_file_for_the_model_is_a_wav_of_its_rate(run, lengths):
    params = run.hyperparameters
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(44100) / 44100)
    soundfile.write(lengths / "tone.flac", np.stack([tone, tone], axis=1), 44100)
    wav = canonicalize((lengths / "tone.flac").read_bytes(), params)
    windows = windows_of_wav(tf.constant(wav), params)
    assert windows.shape == [3, WIN_LEN]
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(windows[0][500:], expected[500:WIN_LEN], atol=1e-3)
    untouched = (lengths / "in" / "noise" / "2.wav").read_bytes()
    assert canonicalize(untouched, params) == untouched


def test_another_sample_rate_is_refused(run, lengths):
    telephone = run.replace(sample_rate=8000, max_hz=3800)
    for make in (train_input, lambda run: evaluation_input(run, run.settings.validation_data)):
        with pytest.raises(UserError, match="sample_rate: 8000, but .* has 16000: set it, or"):
            make(telephone)
    wav = tf.io.read_file(str(lengths / "in" / "noise" / "2.wav"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="audio clips of 8000 samples per sec"):
        windows_of_wav(wav, telephone.hyperparameters)


def test_floats_are_those_of_the_decoder():
    """What is read from an archive is what TensorFlow decodes, to the last bit."""
    waveform = np.arange(-(2**15), 2**15, dtype=np.int16)
    decoded, _ = tf.audio.decode_wav(wav_bytes(waveform, sample_rate=16000))
    np.testing.assert_array_equal(to_float(tf.constant(waveform)), decoded[:, 0])
