"""run.py, run as a process: the whole way on a small data set, and the wrong turns."""

import csv
import dataclasses
import json
import math
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from conftest import ROOT, convert, copy_project, run_program, small_model

from library.audio import covering_windows, standard_waveform
from library.data import Card, tfrecord
from library.train import global_step_of
from project import profile
from project.settings import Hyperparameters, Settings

SMALL = small_model()
WIN_LEN = 6400
SHORT = ["--train_epochs", 4, "--epochs_between_evals", 2, "--train_batch_size", 16, *SMALL]
CLASSES = ["falling", "pulses", "rising", "siren", "steps", "tone"]


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with data and a model that was trained for some steps."""
    folder = tmp_path_factory.mktemp("trained")
    copy_project(folder)
    shutil.copytree(data, folder / "data")
    process = run_program("run.py", *SHORT, cwd=folder)
    assert "training from step 0" in process.stdout
    return folder


@pytest.fixture
def fresh(trained: Path, tmp_path: Path) -> Path:
    """The same without the model."""
    shutil.copytree(trained, tmp_path / "fresh", ignore=shutil.ignore_patterns("out"))
    return tmp_path / "fresh"


def latest_step(folder: Path) -> int:
    return global_step_of(tf.train.latest_checkpoint(folder / "out/current"))


def best(folder: Path) -> dict:
    return json.loads((folder / "out/best/best.json").read_text())


def predict(folder: Path, *inputs: Path) -> tuple[list[dict[str, str]], np.ndarray]:
    """The rows that are written, and the probabilities [files, classes] of those without error."""
    run_program("run.py", "predict", *SMALL, "--input", *inputs, cwd=folder)
    with open(folder / "predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    good = [row for row in rows if not row["error"]]
    return rows, np.array(
        [[float(row[f"probability of {name}"]) for name in CLASSES] for row in good]
    )


def long_sound(folder: Path, secs: float = 2.1, rate: int = 16000) -> Path:
    """A recording of several windows, that changes from a tone to pulses that rise."""
    time = np.arange(int(rate * secs)) / rate
    pitch = 300 + 400 * np.maximum(0, time - 1)
    loudness = np.where(time < 1, 0.6, 0.3 + 0.3 * np.sign(np.sin(2 * np.pi * 8 * time)))
    sound = loudness * np.sin(2 * np.pi * np.cumsum(pitch) / rate)
    soundfile.write(folder / "long.wav", sound, rate)
    return folder / "long.wav"


def test_training_evaluates_on_schedule_and_keeps_the_best(trained):
    card = Card.load(trained / "data/train.json")
    every, last = math.ceil(2 * card.num_examples / 16), int(4 * card.num_examples / 16)
    steps = {
        event.step
        for file in (trained / "out/current/eval").glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        if event.HasField("summary")
    }
    assert steps == {every, last}
    assert latest_step(trained) == last
    assert best(trained)["step"] in steps
    assert (trained / f"out/best/model.ckpt-{best(trained)['step']}.index").exists()
    model = json.loads((trained / "out/best/model.json").read_text())
    assert model["target"]["classes"] == card.classes == CLASSES
    assert model["hyperparameters"]["sample_rate"] == 16000
    process = run_program("run.py", *SHORT, cwd=trained)
    assert process.stdout.startswith(
        f"already trained to step {last} of {last}; a larger train_epochs goes on\n"
    )


def test_evaluation_counts_what_prediction_predicts(trained, samples):
    free = ["--l2_regularization", 0, "--xentropy_label_smoothing", 0, "--eval_batch_size", 5]
    process = run_program("run.py", "evaluate", *SMALL, *free, "--split", "test", cwd=trained)
    metrics = json.loads((trained / "out/current/evaluation/metrics.json").read_text())
    assert metrics["split"] == "test"
    assert f"accuracy: {metrics['accuracy']:.6g}\n" in process.stdout
    rows, probabilities = predict(trained, samples / "test")
    labels = np.array([CLASSES.index(Path(row["file"]).parent.name) for row in rows])
    assert len(labels) == 24
    assert metrics["accuracy"] == pytest.approx((probabilities.argmax(axis=1) == labels).mean())
    losses = -np.log(probabilities[np.arange(24), labels])
    assert metrics["loss"] == pytest.approx(losses.mean(), rel=1e-4)


def test_predictions_are_in_the_order_of_the_files_and_name_what_is_broken(trained, samples):
    (trained / "more").mkdir(exist_ok=True)
    (trained / "more" / "broken.wav").write_bytes(b"no sound")
    folders = [samples / "test" / "tone", trained / "more", samples / "test" / "pulses"]
    rows, probabilities = predict(trained, *folders)
    names = [Path(row["file"]).parent.name for row in rows]
    assert names == ["tone"] * 4 + ["more"] + ["pulses"] * 4
    assert (rows[4]["class"], rows[4]["error"]) == ("", "not a recording")
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    good = [row for row in rows if not row["error"]]
    assert [row["class"] for row in good] == [CLASSES[at] for at in probabilities.argmax(axis=1)]
    words = ["--input", trained / "more", "--output", "bad.csv"]
    process = run_program("run.py", "predict", *SMALL, *words, cwd=trained, status=2)
    assert "--input: none of 1 files could be used: see bad.csv" in process.stderr
    assert "not a recording" in (trained / "bad.csv").read_text()


def test_another_rate_and_format_give_nearly_the_same_prediction(trained, tmp_path):
    """Stereo FLAC of 44,100 samples per second, and WAV at the rate of the model."""
    for name, rate in (("a.wav", 16000), ("b.flac", 44100)):
        (tmp_path / name[0]).mkdir()
        waveform, _ = soundfile.read(long_sound(tmp_path, rate=rate))
        channels = np.stack([waveform * 1.2, waveform * 0.8], axis=1) if rate > 16000 else waveform
        soundfile.write(tmp_path / name[0] / name, channels, rate)
    _, probabilities = predict(trained, tmp_path / "a", tmp_path / "b")
    assert np.abs(probabilities[0] - probabilities[1]).max() < 0.05


def test_a_long_recording_is_the_average_of_its_windows(trained, tmp_path):
    file = long_sound(tmp_path)
    waveform = standard_waveform(file.read_bytes(), sample_rate=16000)
    (tmp_path / "windows").mkdir()
    windows = covering_windows(tf.constant(waveform), WIN_LEN).numpy()
    assert len(windows) == 6
    for number, window in enumerate(windows):
        soundfile.write(tmp_path / "windows" / f"{number}.wav", window, 16000)
    _, (whole, *parts) = predict(trained, file, tmp_path / "windows")
    assert np.ptp(parts, axis=0).max() > 0.01, "windows that differ"
    np.testing.assert_allclose(whole, np.mean(parts, axis=0), atol=1e-6)

    (tmp_path / "in" / "siren").mkdir(parents=True)
    shutil.copy(file, tmp_path / "in" / "siren")
    from_train = ["--classes_from", trained / "data" / "train.json"]
    convert(tmp_path / "in", tmp_path / "data", "long", *from_train)
    free = ["--l2_regularization", 0, "--xentropy_label_smoothing", 0]
    words = ["--test_data", tmp_path / "data" / "long", *SMALL, *free]
    run_program("run.py", "evaluate", *words, cwd=trained)
    metrics = json.loads((trained / "out/current/evaluation/metrics.json").read_text())
    expected = -np.log(np.mean(parts, axis=0)[CLASSES.index("siren")])
    assert metrics["loss"] == pytest.approx(expected, rel=1e-4)


def test_the_export_gives_what_prediction_gives(trained, samples, tmp_path):
    """In a process that has only TensorFlow: short and long recordings in one call."""
    short = tmp_path / "short.wav"
    soundfile.write(short, np.random.default_rng(0).uniform(-1, 1, 500), 16000)
    other = tmp_path / "other.wav"
    soundfile.write(other, np.zeros(8000), 8000)
    files = [*sorted((samples / "test" / "steps").iterdir()), long_sound(tmp_path), short]
    rows, predicted = predict(trained, *files)
    run_program("run.py", "export", *SMALL, "--export_dir", "export", cwd=trained)
    (export,) = (trained / "export").iterdir()
    code = (
        "import json, sys, tensorflow as tf\n"
        f"signature = tf.saved_model.load({str(export)!r}).signatures['serving_default']\n"
        "(name,) = signature.structured_input_signature[1]\n"
        "def serve(*files):\n"
        "    wavs = tf.constant([open(file, 'rb').read() for file in files])\n"
        "    return {k: v.numpy().tolist() for k, v in signature(**{name: wavs}).items()}\n"
        f"out = serve(*{[str(file) for file in files]})\n"
        "out['class'] = [name.decode() for name in out['class']]\n"
        "try:\n"
        f"    serve({str(other)!r})\n"
        "except tf.errors.InvalidArgumentError as error:\n"
        "    out['refused'] = error.message\n"
        "assert not {'library', 'tensorflow_estimator'} & set(sys.modules)\n"
        "print(json.dumps(out))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=export, capture_output=True, text=True, check=True
    )
    served = json.loads(printed.stdout)
    assert served["class"] == [row["class"] for row in rows]
    np.testing.assert_allclose(served["probabilities"], predicted, atol=1e-5)
    np.testing.assert_allclose(served["probability"], predicted.max(axis=1), atol=1e-5)
    assert "the model takes recordings of 16000 samples per second" in served["refused"]


def test_the_profile_names_what_holds_the_training_up(trained, capsys):
    """In this process, and in a blink: it measures for seconds."""
    settings = Settings(
        train_data=str(trained / "data/train"),
        validation_data=str(trained / "data/validation"),
        train_batch_size=16,
    )
    hyperparameters = Hyperparameters(window_secs=0.4, mel_bands=16)
    found = profile.profile(settings, hyperparameters, seconds=0.1)
    printed = capsys.readouterr().out
    assert found["bottleneck"] in ("model", "preprocessing", "disk", "balanced")
    names = ["large files, by number", "a small file each", "input up to read"]
    names += ["input up to decode", "training step alone", "both"]
    assert all(f"\n{name} " in f"\n{printed}" for name in names)
    assert "bottleneck: " in printed
    assert "not tried" not in printed


def test_a_model_that_can_learn_learns_a_few_recordings_by_heart(fresh):
    process = run_program("run.py", "--overfit", 6, *SMALL, cwd=fresh)
    assert re.search(r"the model can learn: loss 0.00\d+ after \d+ steps", process.stdout)
    process = run_program("run.py", "--overfit", 1000000, *SMALL, cwd=fresh, status=2)
    assert "1000000 is more than" in process.stderr
    assert not (fresh / "out").exists()


@pytest.mark.slow
def test_telephone_recordings_have_a_set_of_their_own(fresh, samples):
    more = ["--sample_rate", 8000, "--validation_fraction", 0.3, "--overwrite"]
    shutil.rmtree(fresh / "data")
    convert(samples / "test", fresh / "data", "train", *more)
    words = ["--hyperparameter_set", "telephone", "--train_epochs", 2, "--train_batch_size", 4]
    process = run_program("run.py", *words, cwd=fresh)
    assert "best model: loss" in process.stdout


# ---- stopping ----------------------------------------------------------------------------------


def start(*words: object, cwd: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "run.py", *map(str, words)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_run_that_is_stopped_goes_on_to_the_same_end(trained, fresh, number):
    process = start(*SHORT, "--log_steps", 1, cwd=fresh)
    for line in process.stdout:
        if line.startswith("step 3 "):
            process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    step = latest_step(fresh)
    assert 3 <= step < 9
    assert f"interrupted: saved at step {step}; run the same command to resume" in errors
    again = run_program("run.py", *SHORT, cwd=fresh)
    assert f"training from step {step} to {latest_step(trained)} " in again.stdout
    assert {key: best(fresh)[key] for key in ("step", "value")} == {
        key: best(trained)[key] for key in ("step", "value")
    }
    for name, _ in tf.train.list_variables(str(trained / "out/current")):
        ours, theirs = (
            tf.train.load_variable(str(folder / "out/current"), name) for folder in (fresh, trained)
        )
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_divergence_is_one_line_that_names_the_recordings(fresh, samples):
    words = [*SHORT, "--learning_rate", 1e30]
    process = run_program("run.py", *words, cwd=fresh, status=1)
    (line,) = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: diverged after step 1, loss ")
    assert "Traceback" not in process.stderr
    found = json.loads((fresh / "out/current/divergence.json").read_text())
    assert len(found["keys"]) == 16
    assert all((samples / "train" / key).exists() for key in found["keys"])


# ---- damage ------------------------------------------------------------------------------------


def shard(folder: Path, name: str = "train", number: int = 1) -> Path:
    return sorted((folder / "data").glob(f"{name}-*.h5"))[number]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda file: file.write_bytes(file.read_bytes()[:-1]),
            "train-00001-of-00003.h5: [0-9]+ bytes, but .*train.json says [0-9]+$",
        ),
        (Path.unlink, "train-00001-of-00003.h5: there is no such file, but .*train.json names it"),
    ],
)
def test_damage_that_can_be_known_is_told_before_training(fresh, change, message):
    change(shard(fresh))
    process = run_program("run.py", *SHORT, cwd=fresh, status=2)
    assert re.search(message, process.stderr)
    assert process.stdout == ""
    assert not (fresh / "out").exists()


def test_a_recording_that_cannot_be_read_is_told_by_its_archive(fresh):
    archive = shard(fresh)
    archive.write_bytes(archive.read_bytes().replace(b"waveform", b"wavef0rm"))
    process = run_program("run.py", *SHORT, cwd=fresh, status=2)
    assert process.stderr.splitlines()[-1].startswith(f"error: {archive}: recording 0000")


# ---- wrong turns -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "command: trian is not one of train, evaluate, predict, export, profile"),
        (["--mel_band", "9"], "unknown argument --mel_band=9 (did you mean --mel_bands?)"),
        (["--image_size", "32"], "unknown argument --image_size=32"),
        (["--sample_rate", "many"], "sample_rate: many is not a whole number at least 1000"),
        (
            ["--sample_rate", "8000", "--max_hz", "3800"],
            "sample_rate: 8000, but HERE/data/train has 16000: set it, or convert the data again",
        ),
        (
            ["--max_hz", "8001"],
            "max_hz: 8001 is not above min_hz, 60, and at most half of sample_rate, 8000",
        ),
        (["--min_hz", "7600"], "max_hz: 7600 is not above min_hz, 7600"),
        (["--frame_secs", "1.5"], "frame_secs: 1.5 is above window_secs, 1"),
        (["--hop_secs", "0.00001"], "hop_secs: frame_secs and hop_secs have to be at least a samp"),
        (["--num_parallel_calls", "0"], "num_parallel_calls: 0 is not -1 or at least 1"),
        (["--validation_data", "none"], "with --validation_fraction 0.1; the best model is chosen"),
        (["evaluate"], "model: there is no best model in HERE/out/best: train first"),
        (["predict"], "predict: --input is missing"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(fresh, words, message):
    before = sorted(fresh.rglob("*"))
    process = run_program("run.py", *words, cwd=fresh, status=2)
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line.replace(str(fresh), "HERE")
    assert process.stdout == ""
    assert sorted(fresh.rglob("*")) == before


def test_data_that_is_not_for_this_model_is_one_line(trained, fresh, samples):
    """Pictures in TFRecords, recordings of no class, and another model's hyperparameters."""
    convert(samples / "test", fresh / "data", "plain", "--unlabeled")
    name = "pictures-00000-of-00001.tfrecord"
    written, rows = tfrecord.write_shard(fresh / "data" / name, [b"a picture"] * 9)
    tfrecord.write_index(fresh / "data" / "pictures.index", [rows])
    card = Card.load(fresh / "data" / "train.json")
    card = dataclasses.replace(card, shards=[written], options={"max_edge": 384})
    card.save(fresh / "data" / "pictures.json")
    for data, message in (
        ("pictures", f"data/{name}: not an HDF5 file that can be read"),
        ("plain", "data/plain has no classes to learn"),
    ):
        both = ["--train_data", f"data/{data}", "--validation_data", f"data/{data}"]
        process = run_program("run.py", *SHORT, *both, cwd=fresh, status=2)
        assert len(process.stderr.splitlines()) == 1
        assert message in process.stderr
        assert not (fresh / "out").exists()
    process = run_program("run.py", "evaluate", cwd=trained, status=2)
    assert f"mel_bands: 64, but the model in {trained}/out/best has 16: use" in process.stderr
    assert f"window_secs: 1.0, but the model in {trained}/out/best has 0.4: use" in process.stderr


def test_help_names_the_options_of_sound(tmp_path):
    code = (
        "import runpy, sys; sys.argv = ['run.py', '--help']\n"
        f"try: runpy.run_path({str(ROOT / 'run.py')!r}, run_name='__main__')\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        "assert 'tensorflow' not in sys.modules"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "--window_secs" in process.stdout
    assert max(map(len, process.stdout.splitlines())) <= 80
