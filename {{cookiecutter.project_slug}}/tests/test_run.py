"""run.py, run as a process: the whole way on a small data set, and the wrong turns."""

import csv
import hashlib
import json
import math
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import numpy as np
import pytest
import tensorflow as tf
import yaml
from conftest import LIMIT_SECS, convert, copy_project, run_program, run_signaled, summaries
from PIL import Image

from library.train import global_step_of

pytestmark = pytest.mark.slow  # programs are run as processes

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
    shutil.copytree(trained, tmp_path / "fresh", ignore=shutil.ignore_patterns("runs"))
    return tmp_path / "fresh"


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """The same with the model."""
    return shutil.copytree(trained, tmp_path / "copied")


def latest_step(folder: Path) -> int:
    return global_step_of(tf.train.latest_checkpoint(folder / "runs/default/checkpoints"))


def evaluated_steps(folder: Path) -> list[int]:
    return sorted({step for step, _ in summaries(folder / "runs/default/checkpoints/eval")})


def test_training_evaluates_on_schedule_and_keeps_the_best(trained):
    card = json.loads((trained / "data/train.json").read_text())
    examples = sum(shard["examples"] for shard in card["shards"])
    every, last = math.ceil(2 * examples / 16), int(4 * examples / 16)
    assert evaluated_steps(trained) == sorted({every, last})
    assert latest_step(trained) == last
    best = json.loads((trained / "runs/default/best/best.json").read_text())
    assert best["step"] in (every, last)
    assert (trained / f"runs/default/best/model.ckpt-{best['step']}.index").exists()
    names = json.loads((trained / "runs/default/best/model.json").read_text())["target"]["classes"]
    assert names == card["classes"]


def test_a_trained_model_says_so(trained):
    last = latest_step(trained)
    process = run_program("run.py", *SHORT, cwd=trained)
    assert process.stdout.startswith(
        f"training is complete (step {last}); raise --train_epochs to continue\n"
    )


def test_evaluation_is_printed_and_written(trained):
    process = run_program("run.py", "evaluate", *SHORT, "--split", "test", cwd=trained)
    metrics = json.loads((trained / "runs/default/evaluation/test/metrics.json").read_text())
    assert metrics["split"] == "test"
    assert set(metrics) >= {"loss", "accuracy", "mean_per_class_accuracy", "top_5_accuracy"}
    assert f"accuracy: {metrics['accuracy']:.6g}\n" in process.stdout


def test_prediction_and_export_agree(trained, samples, tmp_path):
    """The SavedModel, in a process that has only TensorFlow, gives what predict gives."""
    (trained / "more").mkdir(exist_ok=True)
    (trained / "more" / "broken.png").write_bytes(b"no picture")
    folders = [samples / "test" / "star", trained / "more", samples / "test" / "bar"]
    process = run_program("run.py", "predict", *SHORT, "--input", *folders, cwd=trained)
    assert "wrote 8 predictions to" in process.stdout
    assert "1 of 9 files could not be used: see the `error` column" in process.stdout
    words = ["--input", trained / "more", "--output", "bad.csv"]
    process = run_program("run.py", "predict", *SHORT, *words, cwd=trained, status=2)
    assert (
        "--input: 1 file, none of which could be used: see the `error` column of bad.csv"
        in process.stderr
    )
    assert "not an image" in (trained / "bad.csv").read_text()
    with open(trained / "runs/default/predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["file"]).parent.name for row in rows] == ["star"] * 4 + ["more"] + ["bar"] * 4
    assert (rows[4]["class"], rows[4]["error"]) == ("", "not an image")

    run_program("run.py", "export", cwd=trained)
    (export,) = (trained / "runs/default/export").iterdir()
    files = [row["file"] for row in rows if not row["error"]]
    (tmp_path / "serve.py").write_text(
        "import json, sys, tensorflow as tf\n"
        f"signature = tf.saved_model.load({str(export)!r}).signatures['serving_default']\n"
        "(name,) = signature.structured_input_signature[1]\n"
        f"pictures = tf.constant([open(file, 'rb').read() for file in {files}])\n"
        "out = {k: v.numpy().tolist() for k, v in signature(**{name: pictures}).items()}\n"
        "out['class'] = [name.decode() for name in out['class']]\n"
        "assert not {'library', 'tensorflow_estimator'} & set(sys.modules)\n"
        "print(json.dumps(out))"
    )
    served = json.loads(run_program("serve.py", cwd=tmp_path).stdout)
    good = [row for row in rows if not row["error"]]
    assert served["class"] == [row["class"] for row in good]
    names = json.loads((trained / "runs/default/best/model.json").read_text())["target"]["classes"]
    predicted = [[float(row[f"probability of {name}"]) for name in names] for row in good]
    np.testing.assert_allclose(served["probabilities"], predicted, atol=1e-5)
    np.testing.assert_allclose(served["probability"], np.max(predicted, 1), atol=1e-5)


# ---- stopping ----------------------------------------------------------------------------------


LONG = [*SHORT, "--train_epochs", 1000, "--log_steps", 1]


def test_a_run_that_is_stopped_saves_and_goes_on(fresh):
    begin = 0
    for number, at in ((signal.SIGINT, 5), (signal.SIGTERM, 12)):
        at_line = f"step {at} "
        process = run_signaled("run.py", *LONG, cwd=fresh, signals=[number], at_line=at_line)
        assert "Traceback" not in process.stderr
        assert f"training from step {begin} to" in process.stdout
        begin = latest_step(fresh)
        line = f"interrupted: saved at step {begin}; run the same command to resume"
        assert line in process.stderr
        assert begin in (at, at + 1)
    again = run_program("run.py", *SHORT, cwd=fresh)
    assert f"training from step {begin} to" in again.stdout


def test_a_stop_within_an_evaluation_is_quick_and_the_evaluation_made_up_for(fresh):
    words = map(str, ["run.py", *LONG, "--eval_batch_size", 1])
    log = fresh / "log"
    process = forked.start([*words], fresh, {}, [log, log])
    while not (
        fresh / "runs/default/checkpoints/model.ckpt-9.index"
    ).exists():  # its evaluation begins
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_SECS) == 130
    assert "interrupted: saved at step" in log.read_text()
    if not (fresh / "runs/default/best/best.json").exists():
        run_program("run.py", *SHORT, "--train_epochs", 2, cwd=fresh)
        patience = json.loads((fresh / "runs/default/best/patience.json").read_text())
        assert patience["evaluated_step"] == latest_step(fresh)
        assert (fresh / "runs/default/best/best.json").exists()


def test_a_second_signal_ends_the_process_at_once(fresh):
    both = [signal.SIGINT, signal.SIGTERM]
    run_signaled("run.py", *LONG, cwd=fresh, signals=both, at_line="step 12 ")
    assert latest_step(fresh) == 9
    again = run_program("run.py", *SHORT, cwd=fresh)
    assert "best model: loss" in again.stdout


def test_the_time_that_a_run_may_take_is_kept(fresh):
    process = run_program("run.py", *LONG, "--max_minutes", 0.03, cwd=fresh, status=130)
    step = latest_step(fresh)
    assert process.stderr.endswith(
        f"interrupted: saved at step {step}; run the same command to resume\n"
    )


def test_every_start_makes_progress_however_short_its_time(fresh):
    """Each start needs longer than it may take to read, compile and make up for an evaluation."""
    words = [*LONG, "--epochs_between_evals", 0.2, "--max_minutes", 1e-6]
    for step in (1, 2):
        run_program("run.py", *words, cwd=fresh, status=130)
        assert latest_step(fresh) == step
    assert evaluated_steps(fresh)[0] == 1


def test_training_that_gets_no_better_ends_and_stays_ended(fresh):
    words = [*SHORT, "--train_epochs", 40, "--epochs_between_evals", 0.5]
    words += ["--learning_rate", 0.1, "--early_stopping_evals", 2]
    process = run_program("run.py", *words, cwd=fresh)
    assert "stopped early: 2 evaluations without a better loss\nbest model: " in process.stdout
    best = json.loads((fresh / "runs/default/best/best.json").read_text())["step"]
    every = math.ceil(0.5 * 72 / 16)
    step = latest_step(fresh)
    assert best + 2 * every - every < step <= best + 2 * every + every
    assert step < 40 * 72 / 16 - every
    process = run_program("run.py", *words, cwd=fresh)
    assert process.stdout.startswith(
        f"stopped early at step {step}; raise --early_stopping_evals to continue\n"
    )
    words[-1] = 3
    process = run_program("run.py", *words, cwd=fresh)
    assert f"training from step {step} to" in process.stdout


def test_divergence_is_one_line_and_the_last_checkpoint_is_good(fresh):
    words = [*SHORT, "--train_epochs", 2]
    process = run_program("run.py", *words, "--learning_rate", 1e30, cwd=fresh, status=1)
    (line,) = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: diverged after step 1, loss ")
    assert "Traceback" not in process.stderr
    found = json.loads((fresh / "runs/default/checkpoints/divergence.json").read_text())
    assert found["step"] == 1
    assert len(found["keys"]) == 16
    assert all(Path(key).parent.name and Path(key).suffix for key in found["keys"])
    assert latest_step(fresh) == 0
    assert "best model: loss" in run_program("run.py", *words, cwd=fresh).stdout


def test_a_stop_changes_neither_the_evaluations_nor_the_best(trained, fresh):
    words = [*SHORT, "--log_steps", 1]
    run_signaled("run.py", *words, cwd=fresh, signals=[signal.SIGTERM], at_line="step 3 ")
    assert latest_step(fresh) in (3, 4)
    run_program("run.py", *SHORT, cwd=fresh)
    assert evaluated_steps(fresh) == evaluated_steps(trained)
    left_alone, stopped = (
        json.loads((folder / "runs/default/best/best.json").read_text())
        for folder in (trained, fresh)
    )
    assert stopped["value"] == left_alone["value"]
    assert stopped["step"] == left_alone["step"]


def test_epochs_are_counted_in_examples_whatever_the_batches(copied):
    n = json.loads((copied / "data/train.json").read_text())["examples_per_class"]
    n = sum(n.values())
    first = 4 * n // 16
    words = [*SHORT, "--train_batch_size", 8]
    process = run_program("run.py", *words, "--train_epochs", 5, cwd=copied)
    last = first + (5 * n - 16 * first) // 8
    assert "changed since the last start: train_batch_size: 16 -> 8\n" in process.stdout
    assert f"training from step {first} to {last} on" in process.stdout
    epoch = (16 * first + 8 * (last - first)) / n
    assert f"step {last} of {last}  epoch {epoch:.1f}  " in process.stdout
    words += ["--train_batch_size", 40]
    process = run_program("run.py", *words, "--train_epochs", 5, cwd=copied)
    assert process.stdout.startswith(f"training is complete (step {last});")
    process = run_program("run.py", *words, "--train_epochs", 6, cwd=copied)
    seen = 16 * first + 8 * (last - first)
    assert f"training from step {last} to {last + (6 * n - seen) // 40} on" in process.stdout


def test_a_model_that_can_learn_overfits_a_few_examples(fresh):
    small, limit = ["--image_size", 16], "OVERFIT_STEPS = 1e-3, 1000"
    process = run_program("run.py", "--overfit", 6, *small, cwd=fresh)
    assert re.search(r"the model can learn: loss 0.00\d+ after \d+ steps", process.stdout)
    module = fresh / "library/train/overfit.py"
    assert limit in (text := module.read_text())
    module.write_text(text.replace(limit, limit.replace("1000", "100")))
    stuck = ["--overfit", 6, "--learning_rate", "1e-9", *small]
    process = run_program("run.py", *stuck, cwd=fresh, status=1)
    assert "cannot learn these examples" in process.stderr
    process = run_program("run.py", "--overfit", 1000000, *small, cwd=fresh, status=2)
    assert "1000000 is more than" in process.stderr
    assert not (fresh / "runs").exists()


def test_other_data_is_reported(copied, samples):
    more = ["--validation_fraction", 0.2, "--overwrite"]
    convert(samples / "train", copied / "data", "train", *more)
    process = run_program("run.py", *SHORT, "--train_epochs", 5, cwd=copied)
    assert re.search("last start: train_data: [0-9a-f]{64} -> [0-9a-f]{64}\n", process.stdout)
    assert re.search("last start: validation_data: [0-9a-f]{64} -> ", process.stdout)


# ---- damage ------------------------------------------------------------------------------------


def shard(folder: Path, name: str = "train", number: int = 1) -> Path:
    return sorted((folder / "data").glob(f"{name}-*.tfrecord"))[number]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def test_images_of_no_class_cannot_be_trained_on(fresh, samples):
    convert(samples / "test", fresh / "data", "plain", "--unlabeled")
    both = ["--train_data", "data/plain", "--validation_data", "data/plain"]
    process = run_program("run.py", *SHORT, *both, cwd=fresh, status=2)
    assert "data/plain has no labels to learn" in process.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut, "train-00001-of-00003.tfrecord: [0-9]+ bytes, but .*train.json says [0-9]+$"),
        (Path.unlink, "train-00001-of-00003.tfrecord: there is no such file, but .*train.json na"),
    ],
)
def test_damage_that_can_be_known_is_reported_before_training(fresh, change, message):
    change(shard(fresh))
    process = run_program("run.py", *SHORT, cwd=fresh, status=2)
    assert re.search(message, process.stderr)
    assert process.stdout == ""
    assert not (fresh / "runs").exists()


@pytest.mark.parametrize("words", [[], ["--shuffle", "stream"]])
def test_a_bit_that_has_changed_is_reported_by_shard_and_record(fresh, words):
    file = shard(fresh)
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    process = run_program("run.py", *SHORT, *words, cwd=fresh, status=2)
    assert process.stderr.splitlines()[-1] == f"error: {file}: record 0 is damaged"


def test_a_damaged_record_of_an_evaluation_is_reported_too(trained, fresh):
    shutil.copytree(trained / "runs", fresh / "runs")
    file = shard(fresh, "test", 0)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    process = run_program("run.py", "evaluate", *SHORT, cwd=fresh, status=2)
    assert re.fullmatch(f"error: {file}: record [0-9]+ is damaged", process.stderr.splitlines()[-1])


@pytest.mark.parametrize("place", ["model_dir", "best_model_dir"])
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(fresh, small_disk, place):
    words = [*SHORT, "--epochs_between_evals", 1]
    words += [f"--{place}", small_disk / "x"]
    networks = fresh / "project/networks.py"  # whose checkpoints are 12 MB
    networks.write_text(networks.read_text().replace("(24,)", "(48, 96, 192)"))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes((32 if place == "model_dir" else 44) * 2**20))
    process = run_program("run.py", *words, cwd=fresh, status=1)
    (line,) = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: no space left for ")
    assert "Traceback" not in process.stderr
    ballast.unlink()
    if place == "model_dir":
        words += ["--keep_checkpoint_max", 2]
    process = run_program("run.py", *words, cwd=fresh)
    assert "training from step" in process.stdout
    assert "best model: loss" in process.stdout


# ---- wrong turns -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate"], "model: there is no best model in HERE/runs/default/best: train first"),
        (
            ["predict", "--input", "data", "--model", "latest"],
            "there is no checkpoint in HERE/runs/default/che",
        ),
        (["export", "--model", "x/y"], "model: there is no checkpoint HERE/x/y (allowed: latest,"),
        (["--train_data", "none"], "train_data: there is no dataset HERE/none: make one by"),
        (["--validation_data", "none"], "or --validation_fraction 0.1 with the training data"),
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


def test_run_yaml_keeps_what_every_start_used(copied):
    subprocess.run(["git", "init", "--quiet"], cwd=copied, check=True)
    subprocess.run(["git", "add", "run.py", "library", "project"], cwd=copied, check=True)
    author = ["-c", "user.name=me", "-c", "user.email=me@here"]
    subprocess.run(["git", *author, "commit", "--quiet", "-m", "all"], cwd=copied, check=True)
    words = [*SHORT, "--train_epochs", 5, "--learning_rate", "1e-4"]
    process = run_program("run.py", *words, cwd=copied)
    assert "changed since the last start: train_epochs: 4.0 -> 5.0\n" in process.stdout
    assert re.search(r"since the last start: learning_rate: 0\.0\d+ -> 0\.0001\n", process.stdout)
    assert process.stdout.count("changed since the last start") == 2

    path = copied / "runs/default/checkpoints/run.yaml"
    first, second = yaml.safe_load_all(path.read_text())
    assert first["git"] is None
    assert len(second["git"]["commit"]) == 40
    assert second["git"]["dirty"] is True  # the YAML files are not in the repository
    assert second["command"] == [str(copied / "run.py"), *map(str, words)]
    found = second["versions"]["tensorflow"]  # of a release candidate, without its hyphen
    assert found == tf.__version__.replace("-rc", "rc")
    assert second["versions"]["python"] == platform.python_version()
    assert "/physical_device:CPU:0" in second["devices"]
    card = copied / "data/train.json"
    assert second["data"]["train_data"] == hashlib.sha256(card.read_bytes()).hexdigest()
    assert second["settings"]["train_batch_size"] == 16
    assert second["start"] == {"step": 17, "examples": 272}
    assert second["settings"]["model_dir"] == "runs/default/checkpoints"
    assert second["hyperparameters"]["learning_rate"] == 1e-4
    assert first["time"] <= second["time"]

    before = path.read_bytes()  # what does not train records nothing, and destroys nothing
    run_program("run.py", "evaluate", *words, cwd=copied)
    run_program("run.py", "--image_size", 32, cwd=copied, status=2)
    assert path.read_bytes() == before


def test_the_architecture_of_a_trained_model_is_that_of_the_run(trained):
    process = run_program("run.py", "evaluate", cwd=trained)
    assert "accuracy: " in process.stdout
    process = run_program("run.py", "evaluate", "--image_size", 64, cwd=trained, status=2)
    assert f"image_size: 64, but the model in {trained}/runs/default/best has 16" in process.stderr
    process = run_program("run.py", "--train_epochs", 9, cwd=trained, status=2)
    place = f"{trained}/runs/default/checkpoints"
    assert (
        f"image_size: 64, but the model in {place} has 16: pass --image_size 16" in process.stderr
    )
    process = run_program("run.py", "predict", "--input", "no", cwd=trained, status=2)
    assert process.stderr == "error: --input: there is no no\n"


def test_runs_of_different_names_stand_beside_each_other(trained):
    words = [*SHORT, "--image_size", 20, "--train_epochs", 2]
    process = run_program("run.py", "--run", "small", *words, cwd=trained)
    assert "best model: loss" in process.stdout
    assert "evaluate --split test --run small" in process.stdout
    run_program("run.py", "evaluate", "--run", "small", cwd=trained)
    assert (trained / "runs/small/evaluation/test/report.html").exists()
    process = run_program("run.py", "--run", "../x", cwd=trained, status=2)
    assert "run: ../x is not a name of letters, digits, '.', '-' and '_'" in process.stderr


def test_the_best_of_another_run_is_not_mixed_up_with_this_one(trained):
    words = [*SHORT, "--model_dir", "out/other"]
    process = run_program(
        "run.py", *words, "--best_model_dir", "runs/default/best", cwd=trained, status=2
    )
    place = f"best_model_dir: {trained}/runs/default/best"
    assert f"{place} holds the best model of another run" in process.stderr
    assert not (trained / "out/other").exists()
    alone = ["--train_epochs", 2, "--best_model_dir", "out/other-best"]
    run_program("run.py", *words, *alone, cwd=trained)
    words += ["--best_model_dir", "runs/default/best"]
    process = run_program("run.py", *words, "--train_epochs", 9, cwd=trained, status=2)
    assert "since that of" in process.stderr
    assert "is ../other-best: start a run of its own with --run NAME" in process.stderr


def test_a_project_can_be_moved(copied):
    process = run_program("run.py", *SHORT, "--train_epochs", 5, cwd=copied)
    assert "best model: loss" in process.stdout
    changes = re.findall("changed since the last start: (.*)", process.stdout)
    assert changes == ["train_epochs: 4.0 -> 5.0"], "its paths are those of the project"
    assert "evaluated again" not in process.stdout


def test_a_folder_that_cannot_be_made_is_one_line(fresh):
    for flag in ("--model_dir", "--best_model_dir"):
        process = run_program("run.py", flag, "project.yaml/x", cwd=fresh, status=2)
        line = f"error: {flag[2:]}: {fresh}/project.yaml is a file, not a folder\n"
        assert process.stderr == line
    process = run_program("run.py", "--model_dir", "runs/default/best", cwd=fresh, status=2)
    assert process.stderr == (
        f"error: command line: best_model_dir: {fresh}/runs/default/best is model_dir, too\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "--export_dir", "run.py"], "--export_dir: HERE/run.py is a file, not a folder"),
        (
            ["predict", "--input", "x", "--output", "run.py/x.csv"],
            "HERE/run.py is a file, not a folder",
        ),
        (["predict", "--input", "x", "--output", "data"], "--output: data is a folder, not a file"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_reported_before_the_work(trained, words, message):
    process = run_program("run.py", *words, *SHORT, cwd=trained, status=2)
    assert message in process.stderr.replace(str(trained), "HERE")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("runs/default/best/best.json", "best.json: not a file that was written here"),
        ("runs/default/checkpoints/run.yaml", "run.yaml: not a file that was written here"),
    ],
)
def test_a_file_of_the_run_that_is_damaged_is_one_line(copied, file, line):
    (copied / file).write_text("{")
    process = run_program("run.py", *SHORT, "--train_epochs", 9, cwd=copied, status=2)
    assert line in process.stderr
    assert (copied / file).read_text() == "{"


def test_a_set_for_a_gpu_works_without_one(fresh):
    words = [*SHORT, "--config_set", "gtx1080ti", "--train_batch_size", 16]
    assert "best model: loss" in run_program("run.py", *words, cwd=fresh).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="sizes of processes as Linux has them")
def test_predictions_stay_in_memory_whatever_is_fed(trained, tmp_path):
    """Small files that are large images, and large files that are no images."""
    image = Image.new("P", (7_000, 7_000))
    image.save(tmp_path / "0.gif")
    for i in range(1, 16):
        (tmp_path / f"{i}.gif").symlink_to("0.gif")
    Image.new("RGBA", image.size).save(tmp_path / "a.png")
    Image.new("RGBA", (5_000, 5_000)).save(tmp_path / "b.webp")
    image.convert("RGB").save(tmp_path / "c.jpg", progressive=True, subsampling=0)
    image.convert("RGB").save(tmp_path / "d.tif", compression="tiff_lzw", tiffinfo={278: 7_000})
    Image.new("RGB", (10_000, 10_000)).save(tmp_path / "e.jpg")
    Image.new("P", (10_000, 10_000)).save(tmp_path / "large.gif")
    with open(tmp_path / "video.mp4", "wb") as file:
        file.truncate(3_000_000_000)
    program = "import atexit, resource\n"
    program += "usage = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    program += "atexit.register(lambda: print('peak', usage()))\n"
    (tmp_path / "sitecustomize.py").write_text(program)
    words = ["predict", "--output", "bombs.csv", tmp_path, "/dev/zero"]
    process = run_program("run.py", *words, cwd=trained, PYTHONPATH=str(tmp_path))
    assert "wrote 21 predictions to bombs.csv\n4 of 25 files could not be" in process.stdout
    peak = int(re.search(r"peak (\d+)", process.stdout)[1])
    assert peak < 2_000_000, f"{peak} kB"
