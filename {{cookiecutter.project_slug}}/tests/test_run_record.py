"""run.yaml: a record for each start, its version, and what has changed since the last one."""

import dataclasses
import ntpath
from pathlib import Path

import pytest
import yaml
from conftest import make_run

from library import config
from library.train import Plan, run_record
from library.train.plan import best_place
from library.util import UserError


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options of a test."""

    train_data: str
    validation_data: str
    train_batch_size: int = 32
    extra_data: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """Others."""

    learning_rate: float = 1e-3


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("train", "validation"):
        (tmp_path / f"{name}.json").write_text("{}")
    return Settings(str(tmp_path / "train"), str(tmp_path / "validation"))


def start(folder: Path, settings: Settings, step: int = 0, **changes) -> list[str]:
    record = run_record.describe(
        settings, Hyperparameters(**changes), step=step, examples=32 * step
    )
    return run_record.append(folder, record)


def test_what_has_changed_is_told(settings, tmp_path):
    folder = tmp_path / "run"
    assert start(folder, settings) == []
    assert start(folder, settings) == []
    (tmp_path / "train.json").write_text("{ }")
    larger = dataclasses.replace(settings, train_batch_size=64)
    size, rate, data = start(folder, larger, 10, learning_rate=1.0)
    assert (size, rate) == ("train_batch_size: 32 -> 64", "learning_rate: 0.001 -> 1.0")
    assert data.startswith("train_data: ")
    assert run_record.last_options(folder)["train_batch_size"] == 64
    counts = [run_record.examples_before(folder, step, 8) for step in (5, 10, 12)]
    assert counts == [160, 320, 448]


def test_the_flags_of_other_commands_are_left_out():
    names = run_record.options_used(config.Settings()).keys()
    assert {"train_batch_size", "run", "model_dir"} <= names
    assert not names & {"split", "input", "top_k", "export_dir", "trace", "workers"}


def test_without_a_record_all_batches_are_taken_to_be_alike(tmp_path):
    assert run_record.load(tmp_path) == []
    assert run_record.last_options(tmp_path) == {}
    assert run_record.examples_before(tmp_path, 5, 8) == 40


def test_a_record_of_an_older_version_is_read(settings, tmp_path):
    start(tmp_path, settings)
    (record,) = run_record.load(tmp_path)
    assert record.pop("format_version") == 1
    del record["hyperparameters"]["learning_rate"]  # which the older version did not have
    (tmp_path / "run.yaml").write_text("---\n" + yaml.safe_dump(record))
    assert start(tmp_path, settings) == []
    assert len(run_record.load(tmp_path)) == 2


@pytest.mark.parametrize(
    ("best", "model", "place"),
    [
        (r"C:\runs\a\best", r"C:\runs\a\checkpoints", r"..\best"),
        (r"D:\best", r"C:\runs\a\checkpoints", r"D:\best"),
        (r"\\server\share\best", r"C:\runs", r"\\server\share\best"),
    ],
)
def test_the_folder_of_the_best_may_be_on_another_drive(best, model, place):
    assert best_place({"best_model_dir": best, "model_dir": model}, ntpath) == place


@pytest.mark.parametrize(
    "content",
    ["{", "3", "[]", "a: b", "format_version: 2", "start: {step: x, examples: 1}", "start: 3"]
    + ["start: {step: 1, examples: 1}\nsettings: {}"]
    + ["start: {step: 1, examples: 1}\nsettings: {train_batch_size: 1}\nhyperparameters: 5"],
)
def test_what_is_no_record_is_one_line(tmp_path, content):
    (tmp_path / "run.yaml").write_text(content)
    with pytest.raises(UserError, match="run.yaml: not a file that was written here") as error:
        run_record.load(tmp_path)
    assert len(error.value.lines) == 1


def test_a_share_of_an_epoch_has_all_of_its_examples(data, tmp_path):
    """0.7 x 90 is 62.99999999999999, and 1.1 x 400 / 8 a little more than 55."""
    options = {"train_epochs": 0.7, "epochs_between_evals": 0.7, "train_batch_size": 9}
    assert Plan.of(make_run(data, tmp_path, **options).for_training(), 90).steps == 7
    options = {"train_epochs": 2, "epochs_between_evals": 1.1, "train_batch_size": 8}
    plan = Plan.of(make_run(data, tmp_path, **options).for_training(), 400)
    assert (plan.steps, plan.steps_between_evals) == (100, 55)
