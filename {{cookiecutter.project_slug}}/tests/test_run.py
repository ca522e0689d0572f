"""run.py, run as a process: the whole way on a small data set, and the wrong turns."""

import csv
import hashlib
import json
import math
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml
from conftest import ROOT, copy_project, run_program

from library.exporter import global_step_of

SHORT = ["--train_epochs", 4, "--epochs_between_evals", 2, "--train_batch_size", 16]
SHORT += ["--image_size", 16]


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


def test_training_evaluates_on_schedule_and_keeps_the_best(trained):
    events = sorted((trained / "out/current/eval").glob("events*"))
    steps = [
        event.step
        for file in events
        for event in tf.compat.v1.train.summary_iterator(str(file))
        if event.HasField("summary")
    ]
    card = json.loads((trained / "data/train.json").read_text())
    examples = sum(shard["examples"] for shard in card["shards"])
    every, last = math.ceil(2 * examples / 16), int(4 * examples / 16)
    assert sorted(set(steps)) == sorted({every, last})
    assert latest_step(trained) == last
    best = json.loads((trained / "out/best/best.json").read_text())
    assert best["step"] in (every, last)
    assert (trained / f"out/best/model.ckpt-{best['step']}.index").exists()
    names = json.loads((trained / "out/best/model.json").read_text())["class_names"]
    assert names == card["classes"]


def test_a_trained_model_says_so(trained):
    last = latest_step(trained)
    process = run_program("run.py", *SHORT, cwd=trained)
    assert process.stdout == (
        f"already trained to step {last} of {last}; a larger train_epochs goes on\n"
    )


def test_evaluation_is_printed_and_written(trained):
    process = run_program("run.py", "evaluate", *SHORT, "--split", "test", cwd=trained)
    metrics = json.loads((trained / "out/current/evaluation/metrics.json").read_text())
    assert metrics["split"] == "test"
    assert set(metrics) >= {"loss", "accuracy", "mean_per_class_accuracy", "top_5_accuracy"}
    assert f"accuracy: {metrics['accuracy']:.6g}\n" in process.stdout


def test_prediction_and_export_agree(trained, pictures):
    """The SavedModel, in a process that has only TensorFlow, gives what predict gives."""
    (trained / "more").mkdir(exist_ok=True)
    (trained / "more" / "broken.png").write_bytes(b"no picture")
    folders = [pictures / "test" / "star", trained / "more", pictures / "test" / "bar"]
    process = run_program("run.py", "predict", *SHORT, "--input", *folders, cwd=trained)
    assert "9 predictions written to predictions.csv\n1 files could not be" in process.stdout
    with open(trained / "predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["file"]).parent.name for row in rows] == ["star"] * 4 + ["more"] + ["bar"] * 4
    assert (rows[4]["class"], rows[4]["error"]) == ("", "not a picture")

    run_program("run.py", "export", *SHORT, "--export_dir", "export", cwd=trained)
    (export,) = (trained / "export").iterdir()
    files = [row["file"] for row in rows if not row["error"]]
    code = (
        "import json, sys, tensorflow as tf\n"
        f"signature = tf.saved_model.load({str(export)!r}).signatures['serving_default']\n"
        "(name,) = signature.structured_input_signature[1]\n"
        f"pictures = tf.constant([open(file, 'rb').read() for file in {files}])\n"
        "out = {k: v.numpy().tolist() for k, v in signature(**{name: pictures}).items()}\n"
        "out['class'] = [name.decode() for name in out['class']]\n"
        "assert not {'library', 'tensorflow_estimator'} & set(sys.modules)\n"
        "print(json.dumps(out))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=export, capture_output=True, text=True, check=True
    )
    served = json.loads(printed.stdout)
    good = [row for row in rows if not row["error"]]
    assert served["class"] == [row["class"] for row in good]
    names = json.loads((trained / "out/best/model.json").read_text())["class_names"]
    predicted = [[float(row[f"probability of {name}"]) for name in names] for row in good]
    np.testing.assert_allclose(served["probabilities"], predicted, atol=1e-5)
    np.testing.assert_allclose(served["probability"], np.max(predicted, 1), atol=1e-5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_saves_and_goes_on(fresh, number):
    words = ["run.py", *SHORT, "--train_epochs", 1000, "--log_steps", 1]
    process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=fresh,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if line.startswith("step 5 "):
            process.send_signal(number)
            break
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    step = latest_step(fresh)
    assert f"interrupted: saved at step {step}; the same command goes on from there" in errors
    assert 5 <= step < 100
    again = run_program("run.py", *SHORT, "--train_epochs", 8, cwd=fresh)
    assert f"training from step {step} to" in again.stdout


def test_a_killed_run_goes_on_from_its_last_checkpoint(fresh):
    words = ["run.py", *SHORT, "--train_epochs", 1000]
    process = subprocess.Popen(
        [sys.executable, *map(str, words)], cwd=fresh, stdout=subprocess.DEVNULL
    )
    while not (fresh / "out/best/best.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    process = run_program("run.py", *SHORT, "--train_epochs", 20, cwd=fresh)
    assert "training from step" in process.stdout
    assert "training from step 0 " not in process.stdout
    assert "best model: loss" in process.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "command: trian is not one of train, evaluate, predict, export (did you mean"),
        (
            ["--learning_rat", "1"],
            "unknown argument --learning_rat=1 (did you mean --learning_rate?)",
        ),
        (["--learning_rate", "fast"], "learning_rate: fast is not a number above 0"),
        (["--network", "cmm"], "network: cmm is not one of cnn"),
        (["--config_set", "gtx"], "project.yaml: there is no set gtx; it has default, gtx1080ti"),
        (["--hyperparameter_set", "x"], "hyperparameters.yaml: there is no set x; it has default"),
        (["--project_file", "no.yaml"], "no.yaml: No such file or directory"),
        (["--hyperparameter_file", "no.yaml"], "no.yaml: No such file or directory"),
        (["--split", "test"], "--split belongs to evaluate, not to train"),
        (["evaluate", "--split", "tset"], "--split: tset is not one of train, validation, test"),
        (["evaluate"], "model: there is no best model in HERE/out/best yet: train first"),
        (
            ["predict", "--input", "data", "--model", "latest"],
            "there is no checkpoint in HERE/out/cur",
        ),
        (["export", "--model", "x/y"], "model: there is no checkpoint HERE/x/y (allowed: latest,"),
        (["predict"], "predict: --input is missing"),
        (["--train_data", "none"], "train_data: there is no data set HERE/none: convert_"),
        (["--validation_data", "none"], "with --validation_fraction 0.1; the best model is chosen"),
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


def test_run_yaml_keeps_what_every_start_used(fresh):
    words = [*SHORT, "--train_epochs", 1, "--epochs_between_evals", 1]
    run_program("run.py", *words, cwd=fresh)
    subprocess.run(["git", "init", "--quiet"], cwd=fresh, check=True)
    subprocess.run(["git", "add", "run.py", "library", "project"], cwd=fresh, check=True)
    author = ["-c", "user.name=me", "-c", "user.email=me@here"]
    subprocess.run(["git", *author, "commit", "--quiet", "-m", "all"], cwd=fresh, check=True)
    words += ["--train_epochs", 2, "--learning_rate", "1e-4"]
    process = run_program("run.py", *words, cwd=fresh)
    assert "changed since the last start: train_epochs: 1.0 -> 2.0\n" in process.stdout
    assert "changed since the last start: learning_rate: 0.003 -> 0.0001\n" in process.stdout
    assert process.stdout.count("changed") == 2

    path = fresh / "out/current/run.yaml"
    first, second = yaml.safe_load_all(path.read_text())
    assert first["git"] is None
    assert len(second["git"]["commit"]) == 40
    assert second["git"]["dirty"] is True  # the YAML files are not in the repository
    assert second["command"] == [str(fresh / "run.py"), *map(str, words)]
    assert second["versions"]["tensorflow"] == tf.__version__
    assert second["versions"]["python"] == platform.python_version()
    assert "/physical_device:CPU:0" in second["devices"]
    card = fresh / "data/train.json"
    assert second["data"][str(card)] == hashlib.sha256(card.read_bytes()).hexdigest()
    assert second["settings"]["train_batch_size"] == 16
    assert second["settings"]["model_dir"] == f"{fresh}/out/current"
    assert second["hyperparameters"]["learning_rate"] == 1e-4
    assert first["time"] <= second["time"]

    before = path.read_bytes()  # what does not train records nothing, and destroys nothing
    run_program("run.py", "evaluate", *words, cwd=fresh)
    run_program("run.py", "--image_size", 32, cwd=fresh, status=2)
    assert path.read_bytes() == before


def test_a_model_that_does_not_fit_is_refused(trained, tmp_path, pictures):
    process = run_program("run.py", "evaluate", cwd=trained, status=2)
    assert f"image_size: 64, but the model in {trained}/out/best has 16: use" in process.stderr
    process = run_program("run.py", "--train_epochs", 9, cwd=trained, status=2)
    assert f"image_size: 64, but the model in {trained}/out/current has 16" in process.stderr
    process = run_program("run.py", "predict", *SHORT, "--input", "no", cwd=trained, status=2)
    assert process.stderr == "error: --input: there is no no\n"


def test_the_best_of_another_run_is_not_mixed_up_with_this_one(trained):
    words = [*SHORT, "--model_dir", "out/other"]
    process = run_program("run.py", *words, cwd=trained, status=2)
    assert (
        f"best_model_dir: {trained}/out/best holds the best model of another run" in process.stderr
    )
    assert not (trained / "out/other").exists()


def test_a_folder_that_cannot_be_made_is_one_line(fresh):
    process = run_program("run.py", "--model_dir", "project.yaml/x", cwd=fresh, status=2)
    assert process.stderr == f"error: {fresh}/project.yaml/x: Not a directory\n"


def test_a_set_for_a_gpu_works_without_one(fresh):
    words = [*SHORT, "--config_set", "gtx1080ti", "--train_batch_size", 16]
    assert "best model: loss" in run_program("run.py", *words, cwd=fresh).stdout


def test_print_config_tells_where_each_value_came_from(fresh):
    words = ["--config_set", "gtx1080ti", "--learning_rate", "1e-4", "--print_config"]
    lines = run_program("run.py", *words, cwd=fresh).stdout.splitlines()
    assert "  learning_rate: 0.0001  # command line" in lines
    assert f"  model_dir: {fresh}/out/current  # project.yaml:12, set default" in lines
    assert any(line.startswith("  train_batch_size: 64  # project.yaml:") for line in lines)
    assert any(line.endswith(", set gtx1080ti") for line in lines)
    assert any(line.endswith(", set default") for line in lines)
    assert "  xla: false  # default" in lines
    assert not (fresh / "out").exists()


def test_help_does_not_import_tensorflow(tmp_path):
    code = (
        "import runpy, sys; sys.argv = ['run.py', '--help']\n"
        f"try: runpy.run_path({str(ROOT / 'run.py')!r}, run_name='__main__')\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        "assert 'tensorflow' not in sys.modules"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "--xentropy_label_smoothing" in process.stdout
    assert max(map(len, process.stdout.splitlines())) <= 80
