"""Suspicious labels: folds, confident learning, the command, and corrections by a conversion."""

import csv
import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, convert, make_run, quick_network, run_program, small_model

from library.audit import audit_labels, cross_validate, label_issues
from library.config import FOLDS, Settings
from library.data import Card, train_records
from library.util import UserError
from project.settings import modality


def table_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, *rows: tuple[str, ...]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def labels_of(path: Path) -> dict[str, str]:
    """The class of each example of a dataset, by the name of its file."""
    from project import input_fn

    both = dict.fromkeys(("train_data", "validation_data"), str(path))
    run = make_run(path.parent, path.parent / "none", **both).for_training()
    classes, found = Card.load(f"{path}.json").classes, {}
    for features, labels in input_fn.evaluation_input(run, str(path)):
        keys = map(bytes.decode, features["key"].numpy())
        found |= zip(keys, (classes[label] for label in labels.numpy()), strict=True)
    return found


# ---- folds ---------------------------------------------------------------------------------------


class Ids:
    """A source whose contents are the ids."""

    dtype, shape, num_examples = np.dtype(np.int64), (), 23

    def read(self, ids: np.ndarray) -> np.ndarray:
        return ids


def ids_of(count: int, start: int = 0, **options) -> list[int]:
    records = train_records(Settings(**options), start, open_data=lambda path: Ids()).take(count)
    return [int(content) for *_, content in records.as_numpy_iterator()]


@pytest.mark.parametrize("limit", [None, 11])
def test_each_fold_leaves_out_its_own_examples(limit):
    everything = {*range(limit or Ids.num_examples)}
    for fold in range(FOLDS):
        kept = sorted(everything - {*range(fold, 23, FOLDS)})
        options = {"fold": fold, "limit_train_examples": limit}
        found = ids_of(2 * len(kept), **options)
        epoch, later = found[: len(kept)], found[len(kept) :]
        assert sorted(epoch) == sorted(later) == kept
        assert epoch != later
        assert ids_of(4, 3, **options) == epoch[3:7]


def test_sampling_by_class_leaves_out_the_fold_too():
    records = train_records(
        Settings(fold=2, sampling="balanced"),
        open_data=lambda path: Ids(),
        classes_of=lambda source: np.arange(23) % 2,
    ).take(80)
    ids = {int(content) for *_, content in records.as_numpy_iterator()}
    assert ids == {*range(23)} - {*range(2, 23, FOLDS)}


# ---- confident learning --------------------------------------------------------------------------


def test_suspicious_labels_are_as_many_as_cleanlab_estimates():
    """24 is what cleanlab 2.9 says: see benchmarks/audit.py."""
    random = np.random.RandomState(0)
    true = random.randint(4, size=200)
    labels = np.where(random.uniform(size=200) < 0.1, random.randint(4, size=200), true)
    shares = np.exp(random.normal(size=[200, 4]) + 2 * np.eye(4)[true])
    probabilities = shares / shares.sum(1, keepdims=True)
    issues = label_issues(labels, probabilities)
    assert issues.suspicious.sum() == 24
    assert (issues.suggested != labels)[issues.suspicious].all()
    np.testing.assert_array_equal(issues.scores, probabilities[np.arange(200), labels])
    assert issues.scores[issues.suspicious].max() < issues.scores[~issues.suspicious].min()


def test_a_class_without_examples_is_no_suggestion_and_no_error():
    issues = label_issues(np.array([0, 0, 1]), np.array([[0.5, 0, 0.5], [0.4, 0, 0.6], [0, 1, 0]]))
    assert not issues.suspicious.any()
    assert np.isfinite(issues.scores).all()


def test_a_linear_layer_learns_from_the_other_folds_only():
    random = np.random.default_rng(0)
    labels = random.integers(3, size=300)
    features = random.normal(size=[300, 8]) + 3 * np.eye(3, 8)[labels]
    x = features.astype(np.float32)
    probabilities = cross_validate(x, labels, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert (probabilities.argmax(1) == labels).mean() > 0.9
    wrong = labels.copy()
    wrong[7] = (labels[7] + 1) % 3  # its own fold does not learn from it
    same = np.arange(300) % FOLDS == 7 % FOLDS
    np.testing.assert_allclose(cross_validate(x, wrong, 3)[same], probabilities[same], atol=1e-6)


# ---- corrections ---------------------------------------------------------------------------------


def test_a_conversion_leaves_out_files_and_changes_labels(samples, tmp_path):
    convert(samples / "test", tmp_path, "all")
    labels = labels_of(tmp_path / "all")
    (one, old), (other, _), *_ = labels.items()
    new = next(name for name in labels.values() if name != old)
    relabel = write_csv(tmp_path / "r.csv", ("file", "label", "suggested"), (one, old, new))
    leave_out = write_csv(tmp_path / "l.csv", ("file", "label"), (other, old))
    words = ["--relabel", relabel, "--leave_out", leave_out]
    printed = convert(samples / "test", tmp_path, "some", *words).stdout
    assert "relabel: 1 files of 24 get" in printed.replace("1 file ", "1 files ")
    assert "leave_out: 1 file" in printed
    del labels[other]
    assert labels_of(tmp_path / "some") == labels | {one: new}


@pytest.mark.parametrize(
    ("option", "rows", "message"),
    [
        ("leave_out", [("name",), ("x",)], "has no columns file in its first line"),
        ("relabel", [("file",), ("x",)], "has no columns file and suggested or label"),
        ("leave_out", [("file",), ("x/y",)], "line 2: the dataset has no file x/y"),
        ("relabel", [("file", "label"), ("FILE", "nine")], "line 2: nine is no class"),
        ("leave_out", [], "has no columns file"),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(samples, tmp_path, option, rows, message):
    file = next((samples / "test").glob("*/*")).relative_to(samples / "test").as_posix()
    cells = [tuple(cell.replace("FILE", file) for cell in row) for row in rows]
    table = write_csv(tmp_path / "t.csv", *cells)
    errors = convert(samples / "test", tmp_path, "x", f"--{option}", table, status=2).stderr
    (line,) = errors.splitlines()
    assert line.startswith(f"error: {option}: {table}")
    assert message in line


def test_a_table_that_is_not_there_or_has_all_files_is_one_line(samples, tmp_path):
    words = ["--leave_out", tmp_path / "none.csv"]
    errors = convert(samples / "test", tmp_path, "x", *words, status=2).stderr
    assert errors == f"error: leave_out: {tmp_path}/none.csv: No such file or directory\n"
    files = [path.relative_to(samples / "test") for path in (samples / "test").glob("*/*")]
    write_csv(tmp_path / "none.csv", ("file",), *((file.as_posix(),) for file in files))
    errors = convert(samples / "test", tmp_path, "x", *words, status=2).stderr
    assert errors == f"error: leave_out: {tmp_path}/none.csv lists all files\n"


# ---- the command ---------------------------------------------------------------------------------


def test_an_audit_needs_classes(data, tmp_path):
    files = [path.name for path in data.iterdir() if path.name.startswith("train")]
    for name in files:
        shutil.copy(data / name, tmp_path)
    card = Card.load(tmp_path / "train.json")
    dataclasses.replace(card, label="value", classes=[]).save(tmp_path / "train.json")
    paths = {"train_data": str(tmp_path / "train"), "validation_data": str(tmp_path / "train")}
    with pytest.raises(UserError, match="looks for wrong classes, but .* has values"):
        audit_labels(make_run(data, tmp_path / "run", **paths))


@pytest.mark.slow
def test_an_audit_writes_tables_and_a_page_and_resumes(samples, tmp_path, capsys, monkeypatch):
    root, data = samples / "train", tmp_path / "data"
    files = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*"))
    classes = sorted({file.split("/")[0] for file in files})
    planted = {}
    for number, file in enumerate(files[::20]):
        old = file.split("/")[0]
        planted[file] = [name for name in classes if name != old][number % (len(classes) - 1)]
    rows = [(file, file.split("/")[0], label) for file, label in planted.items()]
    table = write_csv(tmp_path / "planted.csv", ("file", "label", "suggested"), *rows)
    convert(root, data, "train", "--validation_fraction", 0, "--relabel", table)
    convert(samples / "test", data, "validation")
    options = {"train_epochs": 3, "epochs_between_evals": 3, "train_batch_size": 8}
    run = make_run(data, tmp_path / "run", **options, learning_rate=1e-2, optimizer="adamw")
    folder = tmp_path / "run" / "audit"

    quick_network(monkeypatch)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("library.audit.audit._write_page", stop)
        with pytest.raises(KeyboardInterrupt):
            audit_labels(run)
    capsys.readouterr()
    audit_labels(run)
    assert "training from" not in capsys.readouterr().out  # all folds are kept
    scores, suspects = table_of(folder / "scores.csv"), table_of(folder / "suspects.csv")
    assert {row["file"] for row in scores} == {*files}
    assert suspects == [row for row in scores if row in suspects]  # in the same order
    page = (folder / "audit.html").read_text()
    assert suspects[0]["file"] in page
    correct = sum(row["label"] == row["suggested"] for row in scores) / len(scores)
    assert f"<dt>predicted as labeled</dt><dd>{correct:.1%}</dd>" in page
    assert len(re.findall("<img", page)) >= 6 * min(24, len(suspects))
    assert ("<audio" in page) == (modality.UNIT == "audio clips")
    convert(samples / "test", data, "validation", "--overwrite", "--random_seed", 7)
    with monkeypatch.context() as patch:
        patch.setattr("library.audit.audit.start_training", stop)
        with pytest.raises(KeyboardInterrupt):  # what is kept is of other data
            audit_labels(run)
    convert(root, data, "cleaned", "--leave_out", folder / "suspects.csv", "--relabel", table)
    assert len(labels_of(data / "cleaned")) == len(files) - len(suspects)


AUDIT = f"""
import pytest, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from conftest import quick_network
quick_network(pytest.MonkeyPatch())
import runpy
runpy.run_path({str(ROOT / "run.py")!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_an_audit_on_two_devices_of_this_cpu(data, tmp_path):
    (tmp_path / "run.py").write_text(AUDIT)
    places = [f"--{name}_data={data / name}" for name in ("train", "validation")]
    places += [f"--{name}_dir={tmp_path / name}" for name in ("model", "best_model")]
    words = [
        "--devices=2",
        "--train_batch_size=8",
        "--train_epochs=1",
        "--epochs_between_evals=1",
        *small_model(),
    ]
    run_program("run.py", "audit", *places, *words, cwd=tmp_path)
    assert len(table_of(tmp_path / "model/audit/scores.csv")) == len(labels_of(data / "train"))
