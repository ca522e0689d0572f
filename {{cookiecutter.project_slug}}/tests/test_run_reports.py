"""What a run leaves in TensorBoard and in the report of its evaluation."""

import csv
import io
import json
import os
import platform
import re
import shutil
from pathlib import Path

import pytest
from conftest import events_of, make_run, quick_network, summaries
from PIL import Image

from library.report import read_curves
from library.train import BestCheckpointExporter, Plan, list_runs, run_evaluation, start_training
from library.util import UserError, locked

DAMAGE = ["{", "[]", "3", "\udcff", "[" * 10**4]


@pytest.fixture(scope="module")
def evaluation(trained) -> Path:
    """The folder of the evaluation on the test set, the only one."""
    shutil.rmtree(trained.dir / "evaluation", ignore_errors=True)  # of other tests
    run_evaluation(trained)
    return trained.dir / "evaluation" / "test"


def test_the_report_has_the_metrics_and_curves_of_the_run(evaluation):
    metrics = json.loads((evaluation / "metrics.json").read_text())
    report = (evaluation / "report.html").read_text()
    assert f"{100 * metrics['accuracy']:.4g}%" in report
    assert "accuracy over the steps" in report
    assert '<img class="heat" src="data:image/png' in report
    with open(evaluation / "per_class.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    correct, examples = (sum(int(row[name]) for row in rows) for name in ("correct", "examples"))
    assert correct / examples == pytest.approx(metrics["accuracy"])
    for name in ("confusion_matrix", "reliability", "mistakes"):
        with Image.open(evaluation / f"{name}.png") as image:
            assert image.width > 100


def test_a_report_of_other_data_keeps_the_last_one(evaluation, trained, capsys):
    folder = trained.dir / "evaluation"
    metrics = json.loads((evaluation / "metrics.json").read_text())
    run_evaluation(trained)
    assert {path.name for path in folder.iterdir()} == {"test"}
    run_evaluation(trained.replace(test_data=trained.settings.validation_data))
    printed = capsys.readouterr().out
    assert f"or another checkpoint, is in {folder}/test-1\n" in printed
    assert "not as in the training" not in printed
    assert json.loads((folder / "test-1/metrics.json").read_text()) == metrics
    assert json.loads((folder / "test/metrics.json").read_text())["data"] != metrics["data"]
    shutil.rmtree(folder / "test")
    (folder / "test-1").rename(folder / "test")


def test_an_evaluation_says_what_is_not_as_in_the_training(evaluation, trained, capsys):
    changes = {"xentropy_label_smoothing": 0.3, "learning_rate": 0.5, "split": "validation"}
    run_evaluation(trained.replace(**changes, validation_data=trained.settings.train_data))
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "training: " in each]
    assert re.fullmatch(
        r"not as in the training: xentropy_label_smoothing 0.3 \(was 0.1\), "
        r"validation_data .*/train \(was .*/validation\)",
        line,
    )
    card = (trained.settings.best_model_dir / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "This is not the set that selected the checkpoint" in card
    shutil.rmtree(trained.dir / "evaluation" / "validation")


@pytest.mark.slow
def test_a_training_on_the_validation_data_is_told(data, tmp_path, monkeypatch, capsys):
    quick_network(monkeypatch)
    options = {"train_epochs": 1, "train_batch_size": 8}
    start_training(make_run(data, tmp_path, **options, validation_data=str(data / "train")))
    printed = capsys.readouterr().out
    assert "warning: validation_data is among the training data: it tells nothing" in printed


def test_the_datasets_that_are_there_are_named(data, tmp_path):
    run = make_run(data, tmp_path, train_data=str(data / "signs"))
    with pytest.raises(UserError, match=r"signs \(there: .*test, train, validation\): "):
        run.card("train_data")


def test_a_damaged_report_is_kept_like_one_of_something_else(evaluation, trained, capsys):
    (evaluation / "metrics.json").write_text("{")
    run_evaluation(trained)
    kept = evaluation.with_name("test-1")
    assert f"or another checkpoint, is in {kept}\n" in capsys.readouterr().out
    assert (kept / "metrics.json").read_text() == "{"
    assert json.loads((evaluation / "metrics.json").read_text())["split"] == "test"
    shutil.rmtree(kept)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("checkpoints/run.yaml", "runs"),
        ("best/best.json", "runs"),
        ("evaluation/test/metrics.json", "runs"),
        ("checkpoints/run.yaml", "train"),
        ("checkpoints/model.json", "train"),
        ("best/best.json", "train"),
        ("best/patience.json", "train"),
        ("best/best.json", "predict"),
        ("best/model.json", "predict"),
        ("data/train.json", "train"),
    ],
)
def test_a_damaged_file_of_a_run_is_one_line(evaluation, trained, tmp_path, file, command, damage):
    """Each file in JSON or YAML that is read again."""
    shutil.copytree(trained.dir, tmp_path / "one", copy_function=os.link)
    shutil.copytree(Path(trained.settings.train_data).parent, tmp_path / "one/data")
    (tmp_path / "one" / file).unlink()
    (tmp_path / "one" / file).write_text(damage, errors="surrogateescape")
    folders = {"model_dir": "checkpoints", "best_model_dir": "best", "train_data": "data/train"}
    changed: dict = {name: tmp_path / "one" / folder for name, folder in folders.items()}
    run = trained.replace(**changed | {"train_data": str(changed["train_data"])})

    def start() -> None:
        BestCheckpointExporter(run.settings.best_model_dir)
        Plan.of(run.for_training(), 72)

    act = {"runs": lambda: list_runs(tmp_path), "train": start, "predict": run.trained}
    with pytest.raises(UserError) as error:
        act[command]()
    (line,) = error.value.lines
    assert str(tmp_path / "one" / file) in line


def test_the_curves_of_a_training_are_means_of_all_steps(trained):
    (steps, means), *_ = read_curves(trained.settings.model_dir)["loss"].values()
    batches = values_of(trained.settings.model_dir)["loss"]
    assert steps == [*range(1, steps[-1] + 1)]  # of fewer than 50 steps, all
    assert min(means) <= batches[0].simple_value <= max(means)


def test_the_report_has_the_settings_of_the_training(evaluation):
    page = (evaluation / "report.html").read_text()
    assert '<th scope="row">train_epochs</th><td>2</td>' in page
    assert '<th scope="row">max_minutes</th><td>null</td>' in page


def values_of(folder: Path) -> dict[str, list]:
    """What TensorBoard shows, by tag."""
    tags: dict[str, list] = {}
    for _, value in summaries(folder):
        tags.setdefault(value.tag, []).append(value)
    return tags


def test_tensorboard_has_numbers_images_and_settings(trained):
    train = values_of(trained.settings.model_dir)
    validation = values_of(trained.settings.model_dir / "eval")
    assert {"loss", "accuracy"} <= train.keys() & validation.keys()
    numbers = {"learning_rate", "gradient_norm", "examples_per_sec", "input_wait_share"}
    assert numbers | {"inputs", "kernels", "settings", "hyperparameters"} <= train.keys()
    assert {"confusion_matrix", "mistakes"} <= validation.keys()
    assert all(value.simple_value > 0 for value in train["gradient_norm"])
    for value in (*train["inputs"], *train["kernels"], *validation["confusion_matrix"]):
        with Image.open(io.BytesIO(value.image.encoded_image_string)) as image:
            assert image.size == (value.image.width, value.image.height)
    (text,) = train["settings"][0].tensor.string_val
    assert b"| train_batch_size | 8 |" in text
    assert train["settings"][0].metadata.plugin_data.plugin_name == "text"


def test_tensorboard_has_the_graph(trained):
    files = events_of(trained.settings.model_dir)
    assert files
    assert all(len(events) > 1 for events in files), "an empty file of events"
    assert any(b"batch_loss" in event.graph_def for events in files for event in events)


def test_runs_are_listed_with_their_metrics_and_what_is_their_own(evaluation, trained, capsys):
    folder = trained.dir.parent / "listed"
    for name in ("first", "second"):
        shutil.copytree(trained.dir, folder / name)
    record = folder / "second/checkpoints/run.yaml"
    record.write_text(record.read_text().replace("dropout_rate: 0.3", "dropout_rate: 0.5"))
    capsys.readouterr()
    list_runs(folder)
    lines = capsys.readouterr().out.splitlines()
    best = json.loads((trained.settings.best_model_dir / "best.json").read_text())
    metrics = json.loads((evaluation / "metrics.json").read_text())
    assert [line.partition(":")[0] for line in lines if line[0] != " "] == ["first", "second"]
    assert lines[0].endswith(f"trained on {trained.settings.train_data}")
    assert lines[1] == (
        f"  best checkpoint: validation loss {best['value']:.4f}, step {best['step']}"
    )
    assert lines[2].startswith(f"  test: accuracy {metrics['accuracy']:.4f}, loss ")
    assert (lines[3], lines[7]) == ("  dropout_rate 0.3", "  dropout_rate 0.5")
    with pytest.raises(UserError, match="runs: there are none in "):
        list_runs(folder / "first")


def test_the_model_is_printed_layer_by_layer(trained, tmp_path, capsys):
    start_training(trained.replace(print_model=True, model_dir=tmp_path / "none"))
    head, *layers, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["layer", "output", "parameters", "MFLOPs"]
    *_, before, logits = layers
    depth, classes = re.findall(r" (\d+) +[\d,]+ +[\d.]+$", f"{before}\n{logits}", re.MULTILINE)
    assert logits.split()[2] == f"{(int(depth) + 1) * int(classes):,}"  # a kernel and a bias
    assert all(float(line.split()[-1]) > 0 for line in layers[:-1])
    total = sum(int(line.split()[-2].replace(",", "")) for line in layers)
    assert last.split()[:2] == ["all", f"{total:,}"]
    assert not (tmp_path / "none").exists()


def test_a_broken_record_of_the_best_is_found_before_training(trained, tmp_path):
    (tmp_path / "best.json").write_text("{")
    with pytest.raises(UserError, match="best.json: not a file that was written here"):
        start_training(trained.replace(train_epochs=3, best_model_dir=tmp_path))
    assert len(list(tmp_path.iterdir())) == 1


def test_two_processes_do_not_train_the_same_run(trained, tmp_path):
    """Both would write its checkpoints, and go on from each other's.

    The lock comes first: where the run stands is not read before nobody else can change it.
    """
    copy = tmp_path / "checkpoints"
    shutil.copytree(trained.settings.model_dir, copy)
    (copy / "model.json").write_text("{")
    run = trained.replace(train_epochs=3, model_dir=copy)
    record = (run.settings.model_dir / "run.yaml").read_bytes()
    for option in ("model_dir", "best_model_dir"):
        owner = f"process {os.getpid()} on {platform.node()}, since"
        held = f"^{option}: .* is in use by {owner} .*--run NAME$"
        folder = getattr(run.settings, option)
        with locked(option, folder), pytest.raises(UserError, match=held):
            start_training(run)
    assert (run.settings.model_dir / "run.yaml").read_bytes() == record
