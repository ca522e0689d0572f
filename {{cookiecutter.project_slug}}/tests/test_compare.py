"""The comparison of runs: it calls a winner where there is one, and says what differs."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest

from library.compare import compare_runs
from library.report import MultiLabelStats, RegressionStats, mean_intervals, read_column
from library.train import evaluation_of, run_evaluation
from library.util import UserError


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory) -> Path:
    """A folder with the runs `one`, `same` and `best`, whose predictions are all correct."""
    folder = tmp_path_factory.mktemp("compared") / "runs"
    shutil.copytree(trained.dir, folder / "one", ignore=shutil.ignore_patterns("evaluation"))
    run_evaluation(run_in(folder, trained, run="one", split="validation"))
    for name in ("same", "best"):
        shutil.copytree(folder / "one", folder / name)
    file = folder / "best/evaluation/validation/per_example.csv"
    with file.open(newline="", encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    with file.open("w", newline="", encoding="utf-8") as target:
        table = csv.DictWriter(target, rows[0].keys())
        table.writeheader()
        table.writerows({**row, "error": 0} for row in rows)
    record = folder / "best/checkpoints/run.yaml"
    record.write_text(record.read_text().replace("dropout_rate: 0.3", "dropout_rate: 0.5"))
    return folder


def run_in(folder: Path, trained, *, run: str, **options):
    places = {"model_dir": folder / run / "checkpoints", "best_model_dir": folder / run / "best"}
    return trained.replace(**places, **options)


def test_a_winner_is_called_where_there_is_one(runs, trained, capsys):
    compare_runs(run_in(runs, trained, run="none", runs=("one", "same", str(runs / "best"))))
    lines = capsys.readouterr().out.splitlines()
    one, same, best, tie, win, *differ, wrote = lines  # copies were not evaluated again
    assert one.startswith("one: accuracy ")
    assert same == one.replace("one", "same")
    assert best.startswith(f"{runs / 'best'}: accuracy 100.0%, 95% interval ")
    assert tie.startswith(
        "same and one cannot be told apart: +0.0 points of accuracy, 95% interval"
    )
    assert win.startswith(f"{runs / 'best'} beats one: +")
    assert differ == ["dropout_rate: 0.3, 0.3, 0.5"]
    assert wrote == f"wrote {runs}/compare.html"
    page = (runs / "compare.html").read_text()
    assert all(line in page.replace("&#43;", "+") for line in (tie, win))
    assert '<th scope="row">dropout_rate</th>' in page
    assert 'alt="validation accuracy over the steps"' in page


def test_without_names_all_runs_are_compared(runs, trained, capsys):
    compare_runs(run_in(runs, trained, run="none"))
    names = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()[:3]]
    assert sorted(names) == ["best", "one", "same"]


def test_what_cannot_be_compared_is_one_line(runs, trained, tmp_path):
    words = {"there is no run won in .*did you mean one": ("won",), "takes two runs": ("one",)}
    for message, names in words.items():
        with pytest.raises(UserError, match=message):
            compare_runs(run_in(runs, trained, run="none", runs=names))
    shutil.copytree(runs / "one", tmp_path / "other")
    card = tmp_path / "other/best/model.json"
    card.write_text(card.read_text().replace('"bar"', '"pub"').replace('"falling"', '"pub"'))
    with pytest.raises(UserError, match="validation_data: .* but the model has the classes .*pub"):
        compare_runs(run_in(runs, trained, run="none", runs=("one", str(tmp_path / "other"))))


def test_an_evaluation_of_something_else_is_made_again(runs, trained, capsys):
    shutil.copytree(runs / "one", runs.parent / "again/one")
    run = run_in(runs.parent / "again", trained, run="one", split="validation")
    assert evaluation_of(run) == runs.parent / "again/one/evaluation/validation"
    assert capsys.readouterr().out == ""
    evaluation_of(run.replace(l2_regularization=0.5))  # on which the loss depends
    assert "accuracy: " in capsys.readouterr().out


def test_each_example_has_a_row(runs, trained):
    folder = evaluation_of(run_in(runs, trained, run="one", split="validation"))
    with (folder / "per_example.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == trained.card("validation_data").num_examples
    for row in rows:
        assert Path(row["file"]).parent.name == row["label"]
        assert int(row["error"]) == (row["label"] != row["predicted"])
        assert 0 < float(row["confidence"]) <= 1
    assert read_column(folder, "error").tolist() == [float(row["error"]) for row in rows]


def test_the_error_of_several_labels_is_a_share_and_of_a_value_its_distance():
    stats = MultiLabelStats(["a", "b"], thresholds=[0.5, 0.9])
    columns = stats.columns(np.array([[1, 1], [0, 1]]), np.array([[600, 550], [400, 900]]))
    assert columns["label"] == ["a, b", "b"]
    assert columns["predicted"] == ["a", "b"]
    assert list(columns["error"]) == [0.5, 0]
    columns = RegressionStats().columns(np.array([2.0, 3.0]), np.array([1.5, 5.0]))
    assert list(columns["error"]) == [0.5, 2]


@pytest.mark.parametrize(("examples", "rate"), [(60, 0.05), (400, 0.01), (400, 0.2)])
def test_equal_models_seldom_beat_each_other(examples, rate):
    """Of 100 pairs of models that are wrong as often, on the same examples or not."""
    random = np.random.default_rng(0)
    hard = random.random((examples, 1)) < rate  # for both
    first, second = (hard ^ (random.random((examples, 100)) < rate) for _ in range(2))
    low, high = mean_intervals(first * 1.0 - second, level=0.95, paired=True)
    assert np.mean((low > 0) | (high < 0)) < 0.075


def test_intervals_are_those_of_the_mean():
    errors = np.random.default_rng(0).exponential(2.0, (400, 200))
    low, high = mean_intervals(errors, level=0.95)
    assert 0.91 < np.mean((low < 2) & (high > 2)) < 0.98
    low, high = mean_intervals(np.zeros((50, 1)), level=0.95)
    assert low == 0
    assert 0.04 < high < 0.1  # Wilson's interval: 0.071
    (low, high), (wide_low, wide_high) = (
        mean_intervals(errors[:, :1], level=level) for level in (0.95, 0.99)
    )
    assert wide_low < low < high < wide_high
