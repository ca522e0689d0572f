"""Commands on audio clips: predictions of clips of all kinds, the export, damage, wrong turns."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from conftest import convert, make_run, small_options

from library import data as datasets
from library.audio import canonical_waveform, covering_windows, sample_data
from library.data import Card
from library.serve import export_model, predict_files
from library.train import Run, run_evaluation, start_training
from library.util import RunError, UserError
from project.settings import Hyperparameters

WIN_LEN = 6400
CLASSES = ["falling", "pulses", "rising", "siren", "steps", "tone"]
FREE = {"l2_regularization": 0.0, "xentropy_label_smoothing": 0.0}
"""Hyperparameters with which the loss is the cross entropy."""


def predict(run: Run, *inputs: Path) -> tuple[list[dict[str, str]], np.ndarray]:
    """The rows that are written, and the probabilities [files, classes] of those without error."""
    predict_files(run.replace(input=tuple(map(str, inputs))))
    with open(run.dir / "predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    good = [row for row in rows if not row["error"]]
    names = [f"probability of {name}" for name in CLASSES if f"probability of {name}" in rows[0]]
    return rows, np.array([[float(row[name]) for name in names] for row in good])


def evaluate(run: Run, split: str = "test") -> dict[str, float]:
    run_evaluation(run.replace(split=split))
    return json.loads((run.dir / "evaluation" / split / "metrics.json").read_text())


def long_clip(folder: Path, secs: float = 2.1, rate: int = 16000) -> Path:
    """A clip of several windows, that changes from a tone to pulses that rise."""
    time = np.arange(int(rate * secs)) / rate
    pitch = 300 + 400 * np.maximum(0, time - 1)
    loudness = np.where(time < 1, 0.6, 0.3 + 0.3 * np.sign(np.sin(2 * np.pi * 8 * time)))
    signal = loudness * np.sin(2 * np.pi * np.cumsum(pitch) / rate)
    soundfile.write(folder / "long.wav", signal, rate)
    return folder / "long.wav"


def test_evaluation_counts_what_prediction_predicts(trained, samples):
    metrics = evaluate(trained.replace(eval_batch_size=5, **FREE))
    rows, probabilities = predict(trained, samples / "test")
    labels = np.array([CLASSES.index(Path(row["file"]).parent.name) for row in rows])
    assert len(labels) == 24
    assert metrics["accuracy"] == pytest.approx((probabilities.argmax(axis=1) == labels).mean())
    losses = -np.log(probabilities[np.arange(24), labels])
    assert metrics["loss"] == pytest.approx(losses.mean(), rel=1e-4)
    report = (trained.dir / "evaluation/test/report.html").read_text(encoding="utf-8")
    assert report.count("<audio ") == (probabilities.argmax(axis=1) != labels).sum()


def test_predictions_are_in_the_order_of_the_files_and_name_what_is_broken(
    trained, samples, tmp_path
):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "broken.wav").write_bytes(b"no audio")
    folders = [samples / "test" / "tone", tmp_path / "more", samples / "test" / "pulses"]
    rows, probabilities = predict(trained, *folders)
    names = [Path(row["file"]).parent.name for row in rows]
    assert names == ["tone"] * 4 + ["more"] + ["pulses"] * 4
    assert (rows[4]["class"], rows[4]["error"]) == ("", "not an audio file")
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    good = [row for row in rows if not row["error"]]
    assert [row["class"] for row in good] == [CLASSES[at] for at in probabilities.argmax(axis=1)]


def test_another_rate_and_format_give_nearly_the_same_prediction(trained, tmp_path):
    """Stereo FLAC of 44,100 samples per second, and WAV at the rate of the model."""
    for name, rate in (("a.wav", 16000), ("b.flac", 44100)):
        (tmp_path / name[0]).mkdir()
        waveform, _ = soundfile.read(long_clip(tmp_path, rate=rate))
        channels = np.stack([waveform * 1.2, waveform * 0.8], axis=1) if rate > 16000 else waveform
        soundfile.write(tmp_path / name[0] / name, channels, rate)
    _, probabilities = predict(trained, tmp_path / "a", tmp_path / "b")
    assert np.abs(probabilities[0] - probabilities[1]).max() < 3e-5, "other windows differ by 1e-4"


def test_a_long_clip_is_the_average_of_its_windows(trained, tmp_path):
    file = long_clip(tmp_path)
    waveform = canonical_waveform(file.read_bytes(), sample_rate=16000)
    (tmp_path / "windows").mkdir()
    windows = covering_windows(tf.constant(waveform), WIN_LEN).numpy()
    assert len(windows) == 6
    for number, window in enumerate(windows):
        soundfile.write(tmp_path / "windows" / f"{number}.wav", window, 16000)
    _, (whole, *parts) = predict(trained, file, tmp_path / "windows")
    assert np.ptp(parts, axis=0).max() > 1e-4, "windows that differ"
    np.testing.assert_allclose(whole, np.mean(parts, axis=0), atol=1e-6)

    (tmp_path / "in" / "siren").mkdir(parents=True)
    shutil.copy(file, tmp_path / "in" / "siren")
    from_train = ["--classes_from", f"{trained.settings.train_data}.json"]
    convert(tmp_path / "in", tmp_path / "data", "long", *from_train)
    metrics = evaluate(trained.replace(test_data=str(tmp_path / "data" / "long"), **FREE))
    expected = -np.log(np.mean(parts, axis=0)[CLASSES.index("siren")])
    assert metrics["loss"] == pytest.approx(expected, rel=1e-4)


def test_the_export_gives_what_prediction_gives(trained, samples, tmp_path):
    """Short and long clips in one call; another rate is refused."""
    short, other = tmp_path / "short.wav", tmp_path / "other.wav"
    soundfile.write(short, np.random.default_rng(0).uniform(-1, 1, 500), 16000)
    soundfile.write(other, np.zeros(8000), 8000)
    files = [*sorted((samples / "test" / "steps").iterdir()), long_clip(tmp_path), short]
    rows, predicted = predict(trained, *files)
    export_model(trained.replace(export_dir=tmp_path / "export"))
    (export,) = (tmp_path / "export").iterdir()
    serve = tf.saved_model.load(str(export)).signatures["serving_default"]
    served = serve(tf.constant([file.read_bytes() for file in files]))
    assert [name.decode() for name in served["class"].numpy()] == [row["class"] for row in rows]
    np.testing.assert_allclose(served["probabilities"], predicted, atol=1e-5)
    np.testing.assert_allclose(served["probability"], predicted.max(axis=1), atol=1e-5)
    message = "the model takes audio clips of 16000 samples per second"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        serve(tf.constant([other.read_bytes()]))


@pytest.mark.slow
@pytest.mark.usefixtures("small_network")
@pytest.mark.parametrize("task", ["labels", "value"])
def test_the_labels_alone_choose_the_head(task, tmp_path, capsys):
    """Trained from a cache, evaluated and predicted, windows of a clip averaged."""
    folder, cells = tmp_path / "in", {"labels": "f1_micro", "value": "mean_absolute_error"}
    sample_data.make(folder, per_class={"train": 4, "validation": 1}, task=task)
    for split in ("train", "validation"):
        table = ["--labels", folder / f"{split}.csv"]
        none = ["--validation_fraction", 0] if split == "train" else []
        convert(folder / split, tmp_path / "data", split, *table, *none)
    run = make_run(tmp_path / "data", tmp_path, train_epochs=1, train_batch_size=8, cache="memory")
    start_training(run)
    metrics = evaluate(run, "validation")
    assert np.isfinite([metrics["loss"], metrics[cells[task]]]).all()
    rows, _ = predict(run, folder / "validation", long_clip(tmp_path))
    assert list(rows[0])[:3] == ["file", task, "error"]
    assert len(rows) == 7
    if task == "labels":
        with open(folder / "train.csv", newline="", encoding="utf-8") as file:
            known = {name for row in csv.DictReader(file) for name in row["labels"].split(";")}
        assert {name for row in rows for name in row["labels"].split(";")} <= known | {""}
    else:
        assert all(np.isfinite(float(row["value"])) for row in rows)


@pytest.mark.slow
def test_a_stream_trains_and_keeps_its_place(data, small_network, tmp_path):
    run = make_run(data, tmp_path, shuffle="stream", train_epochs=1, train_batch_size=16)
    start_training(run)
    assert tf.train.latest_checkpoint(run.settings.model_dir)


@pytest.mark.slow
def test_a_model_that_can_learn_overfits_a_few_clips(data, tmp_path, capsys):
    start_training(make_run(data, tmp_path, overfit=6))
    assert re.search(r"the model can learn: loss 0.00\d+ after \d+ steps", capsys.readouterr().out)
    with pytest.raises(UserError, match="1000000 is more than"):
        start_training(make_run(data, tmp_path, overfit=1_000_000))
    assert not (tmp_path / "checkpoints").exists()


def test_divergence_names_the_clips(data, samples, small_network, tmp_path):
    run = make_run(data, tmp_path, train_epochs=4, train_batch_size=16, learning_rate=1e30)
    with pytest.raises(RunError, match="diverged after step 1, loss "):
        start_training(run)
    found = json.loads((run.settings.model_dir / "divergence.json").read_text())
    assert len(found["keys"]) == 16
    assert all((samples / "train" / key).exists() for key in found["keys"])


# ---- damage ------------------------------------------------------------------------------------


@pytest.fixture
def fresh(data, tmp_path) -> Path:
    """A copy of the data."""
    return shutil.copytree(data, tmp_path / "data")


def shard(folder: Path) -> Path:
    return folder / "train-00001-of-00003.h5"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda file: file.write_bytes(file.read_bytes()[:-1]),
            "train-00001-of-00003.h5: [0-9]+ bytes, but .*train.json says [0-9]+$",
        ),
        (Path.unlink, "train-00001-of-00003.h5: there is no such file, but .*train.json names it"),
        (
            lambda file: file.write_bytes(file.read_bytes().replace(b"waveform", b"wavef0rm")),
            "^/.*/train-00001-of-00003.h5: clip 0000",
        ),
    ],
    ids=["cut", "missing", "inside"],
)
def test_damage_is_reported_by_its_archive(fresh, tmp_path, change, message):
    change(shard(fresh))
    with pytest.raises(UserError, match=message):
        start_training(make_run(fresh, tmp_path, train_epochs=1))


def test_data_that_is_not_for_this_model_is_one_line(fresh, samples, tmp_path):
    """Records of TensorFlow, clips of no class, another sample rate."""
    convert(samples / "test", fresh, "plain", "--unlabeled")
    name = "images-00000-of-00001.tfrecord"
    written, rows = datasets.write_shard(fresh / name, [b"an image"] * 9)
    datasets.write_index(fresh / "images", [rows])
    options = {"sample_rate": 16000}
    Card(CLASSES, {}, [written], options).save(fresh / "images.json")
    for data, message in (
        ("images", f"data/{name}: not a readable HDF5 file"),
        ("plain", "data/plain has no labels to learn"),
    ):
        paths = dict.fromkeys(("train_data", "validation_data"), str(fresh / data))
        with pytest.raises(UserError, match=message):
            start_training(make_run(fresh, tmp_path, **paths))
    with pytest.raises(UserError, match="sample_rate: 8000, but .*data/train has 16000: set it"):
        start_training(make_run(fresh, tmp_path, sample_rate=8000, max_hz=3800))


@pytest.mark.parametrize("rate", [None, "null", 3, 10**9])
def test_a_card_without_a_sample_rate_is_one_line(fresh, tmp_path, rate):
    card = Card.load(fresh / "train.json")
    card.options["sample_rate"] = rate
    card.save(fresh / "train.json")
    with pytest.raises(UserError, match="^train_data: .*data/train is no dataset of audio clips$"):
        make_run(fresh, tmp_path).for_training()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sample_rate": 16000, "max_hz": 8001},
            "max_hz: 8001 is not above min_hz, 60, and at most half of sample_rate",
        ),
        (
            {"sample_rate": 16000, "min_hz": 7600, "max_hz": 7600},
            "max_hz: 7600 is not above min_hz, 7600",
        ),
        ({"frame_secs": 1.5}, "frame_secs: 1.5 is above window_secs, 0.4"),
        (
            {"sample_rate": 16000, "hop_secs": 1e-5},
            "hop_secs: frame_secs and hop_secs have to be at least a samp",
        ),
    ],
)
def test_hyperparameters_that_contradict_each_other_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        Hyperparameters(**{**small_options(), **options})


@pytest.mark.slow
@pytest.mark.usefixtures("small_network")
def test_the_model_has_the_rate_of_its_data_unless_it_is_given(fresh, samples, tmp_path):
    """The archive's rate, 0.475 of it as the highest frequency; checkpoint and export keep them."""
    data = tmp_path / "telephone"
    convert(samples / "test", data, "train", "--sample_rate", 8000)
    run = make_run(
        data, tmp_path, test_data=str(data / "validation"), train_epochs=1, train_batch_size=8
    )
    found = run.for_training().hyperparameters
    assert (found.sample_rate, found.max_hz, found.win_len) == (8000, 3800.0, 3200)
    start_training(run)
    trained, _ = run.replace(train_data="elsewhere").trained()
    assert (trained.hyperparameters.sample_rate, trained.hyperparameters.max_hz) == (8000, 3800.0)
    given = make_run(fresh, tmp_path / "given", sample_rate=16000, max_hz=4000.0).for_training()
    assert (given.hyperparameters.sample_rate, given.hyperparameters.max_hz) == (16000, 4000.0)
    with pytest.raises(UserError, match="max_hz: 4001 is not above .* at most half of sample_rate"):
        make_run(data, tmp_path / "high", max_hz=4001.0).for_training()
