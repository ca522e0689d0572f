"""The search for settings: what it needs, what it writes, and that a stop changes nothing."""

import os
import signal
import sys
from pathlib import Path

import pytest
import yaml
from conftest import make_run, quick_network

from library.config import load
from library.tune import tune
from library.util import RunError, UserError


class Stopped(BaseException):
    """Stands for a kill: nothing catches it."""


def searched(data: Path, folder: Path, stops: int = 0, trials: int = 3) -> dict:
    """The set that a search of so many trials writes, after so many stops."""
    options = {"train_epochs": 3, "train_batch_size": 8, "tune_trials": trials}
    options |= {"budget_minutes": 600}
    options |= {"test_data": "no/such/data", "hyperparameter_file": folder / "sets.yaml"}
    options |= {"learning_rate_schedule": "constant", "run": "small", "epochs_between_evals": 3}
    run = make_run(data, folder, **options)
    run = run.replace(given=frozenset({"dropout_rate"}))
    replace = os.replace
    for stop in range(stops):
        left = [2 + 3 * stop]

        def stopping(*paths, left=left, **more):
            replace(*paths, **more)
            left[0] -= 1
            if not left[0]:
                raise Stopped

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", stopping)
            with pytest.raises(Stopped):
                tune(run)
        with open(folder / "tune/journal.log", "ab") as journal:
            journal.write(b'{"op_code": 5, "wor')  # the rest found no room on the disk
        (folder / "tune/trial-0-0-of another search").mkdir(exist_ok=True)
    tune(run)
    assert not [*(folder / "tune").glob("trial-*")]
    return load(folder / "tuned.yaml", "small")


def test_a_search_without_optuna_is_one_line(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match="^tune: .*: pip install optuna$"):
        tune(make_run(data, tmp_path))


@pytest.mark.slow
def test_trainings_that_are_too_short_to_tell_are_left_out(data, tmp_path, capsys, monkeypatch):
    quick_network(monkeypatch)
    (tmp_path / "tuned.yaml").write_text("[1")
    with pytest.raises(UserError, match="tuned.yaml: "):
        searched(data, tmp_path, trials=1)
    (tmp_path / "tuned.yaml").unlink()
    searched(data, tmp_path, trials=1)  # of 27 steps in all
    printed = capsys.readouterr().out.splitlines()
    (line,) = [line for line in printed if line.startswith("trial 0, ")]
    assert line.startswith("trial 0, 3 epochs: error ")


@pytest.mark.slow
def test_a_search_in_which_all_diverges_is_no_success(data, tmp_path, monkeypatch):
    quick_network(monkeypatch)
    monkeypatch.setattr("library.tune.search.FEWEST_STEPS", 0)
    (tmp_path / "checkpoints").mkdir()
    options = {"train_epochs": 3, "train_batch_size": 8, "tune_trials": 1, "optimizer": "sgd"}
    options |= {"learning_rate": 1e30, "hyperparameter_file": tmp_path / "sets.yaml"}
    run = make_run(data, tmp_path, **options, learning_rate_schedule="constant")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RunError, match="^tune: no training came to the end of its epochs in "):
        tune(run)
    assert not (tmp_path / "tuned.yaml").exists()
    assert signal.getsignal(signal.SIGINT) == before, "as after a training that ends"


@pytest.mark.slow
def test_a_search_that_is_stopped_five_times_ends_with_the_same_choice(
    data, tmp_path, capsys, monkeypatch
):
    quick_network(monkeypatch)
    monkeypatch.setattr("library.tune.search.FEWEST_STEPS", 0)
    monkeypatch.setattr("library.tune.search.RUNGS", 2)
    found = searched(data, tmp_path / "one")
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("trial 2, ")]
    assert "--hyperparameter_set small --new" in printed
    assert found["dropout_rate"] == 0.3  # given on the command line
    page = (tmp_path / "one/tune/tune.html").read_text()
    assert page.count("<tr>") == 4
    assert not [*(tmp_path / "one/tune").glob("trial-*")]
    assert searched(data, tmp_path / "two", stops=5) == found
    errors = [
        [line for line in (folder / "tune/tune.html").read_text().splitlines() if "<td>" in line]
        for folder in (tmp_path / "one", tmp_path / "two")
    ]
    assert errors[0] == errors[1]
    assert yaml.safe_load((tmp_path / "one/tuned.yaml").read_text()).keys() == {"small"}
