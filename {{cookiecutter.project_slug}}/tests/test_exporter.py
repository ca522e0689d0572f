"""The best checkpoint: kept, ranked, whole at every moment, and found again."""

import contextlib
import json
import math
import os
from pathlib import Path

import pytest
import tensorflow as tf

from library.train import BestCheckpointExporter, find_checkpoint, global_step_of, read_best
from library.util import UserError


@pytest.fixture
def checkpoint(tmp_path):
    """A function that writes a checkpoint of a step; its only variable has the step's value."""

    def write(step: int) -> str:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.get_variable("w", initializer=float(step))
            global_step = tf.compat.v1.train.create_global_step()
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(global_step.assign(step))
            path = str(tmp_path / "run" / "model.ckpt")
            return tf.compat.v1.train.Saver().save(session, path, global_step=step)

    return write


@pytest.fixture
def best(tmp_path):
    return tmp_path / "best"


def export(exporter, path: str, value: float, step: int):
    return exporter.export(None, "", path, {"loss": value, "global_step": step}, False)


def steps_in(folder) -> list[int]:
    return sorted(int(file.stem.split("-")[1]) for file in folder.glob("model.ckpt-*.index"))


def test_the_best_is_kept_and_no_other(checkpoint, best, tmp_path):
    asset = tmp_path / "names.json"
    asset.write_text("[]")
    exporter = BestCheckpointExporter(best, assets=[asset])
    kept = [export(exporter, checkpoint(s), v, s) for s, v in ((1, 0.5), (2, 0.3), (3, 0.4))]
    assert [bool(one) for one in kept] == [True, True, False]
    assert steps_in(best) == [2]
    assert tf.train.latest_checkpoint(best) == str(best / "model.ckpt-2")
    assert tf.train.load_variable(str(best / "model.ckpt-2"), "w") == 2.0
    assert (best / "names.json").read_text() == "[]"
    record = json.loads((best / "best.json").read_text())
    assert (record["metric"], record["mode"]) == ("loss", "min")
    assert (record["value"], record["step"]) == (0.3, 2)
    assert record["time"].endswith("+00:00")
    assert not [file for file in best.iterdir() if file.name.endswith(".tmp")]


def test_what_goes_with_the_best_is_not_that_of_the_second_best(checkpoint, best, tmp_path):
    asset = tmp_path / "thresholds.json"
    exporter = BestCheckpointExporter(best, keep=2, assets=[asset])
    for step, value in ((1, 0.5), (2, 0.3), (3, 0.4)):
        asset.write_text(str(step))
        assert export(exporter, checkpoint(step), value, step)
    assert (best / "thresholds.json").read_text() == "2"
    assert steps_in(best) == [2, 3]


def test_after_a_restart_the_best_is_still_the_best(checkpoint, best):
    export(BestCheckpointExporter(best), checkpoint(1), 0.3, 1)
    assert export(BestCheckpointExporter(best), checkpoint(2), 0.4, 2) is None
    assert steps_in(best) == [1]


def test_the_larger_value_wins_where_it_should(checkpoint, best):
    exporter = BestCheckpointExporter(best, mode="max")
    for step, value in ((1, 0.3), (2, 0.5), (3, 0.5), (4, 0.4)):
        export(exporter, checkpoint(step), value, step)
    assert steps_in(best) == [2], "of equal values, the earlier"


def test_not_a_number_never_wins(checkpoint, best):
    exporter = BestCheckpointExporter(best)
    assert export(exporter, checkpoint(1), math.nan, 1) is None
    assert steps_in(best) == []
    assert read_best(best) is None
    export(exporter, checkpoint(2), 0.5, 2)
    assert export(exporter, checkpoint(3), math.nan, 3) is None
    assert steps_in(best) == [2]


def test_several_are_kept_when_asked_for(checkpoint, best):
    exporter = BestCheckpointExporter(best, keep=2)
    for step, value in ((1, 0.5), (2, 0.3), (3, 0.4), (4, 0.6)):
        export(exporter, checkpoint(step), value, step)
    assert steps_in(best) == [2, 3]
    assert tf.train.latest_checkpoint(best) == str(best / "model.ckpt-2")


def test_patience_counts_evaluations_and_survives_a_restart(checkpoint, best):
    values = (0.5, 0.6, math.nan, 0.4, 0.4, 0.7)
    found = []
    for step, value in enumerate(values, 1):
        exporter = BestCheckpointExporter(best, keep=3)  # a new process each time
        export(exporter, checkpoint(step), value, step)
        found.append(exporter.evaluations_without_improvement)
        assert exporter.evaluated_step == step
    assert found == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("renames", range(6))
def test_a_stop_at_any_moment_leaves_a_whole_best(checkpoint, best, monkeypatch, renames):
    export(BestCheckpointExporter(best), checkpoint(1), 0.5, 1)
    new = checkpoint(2)
    left = iter(range(renames))
    rename = os.replace

    def stop_after_some(source, target):
        if next(left, None) is None:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", stop_after_some)
    with contextlib.suppress(KeyboardInterrupt):
        export(BestCheckpointExporter(best), new, 0.3, 2)
    found = find_checkpoint("best", model_dir="", best_model_dir=str(best))
    step = json.loads((best / "best.json").read_text())["step"]
    assert tf.train.load_variable(found, "w") == global_step_of(found) == step


def again(best, values: dict[int, float], **measured_with) -> BestCheckpointExporter:
    """A start that evaluates with something else, and what it finds by the step."""
    exporter = BestCheckpointExporter(best, keep=2, measured_with=measured_with)
    exporter.measure_again(lambda path: {"loss": values.pop(global_step_of(path))})
    assert values == {}, "each is evaluated once, and no other"
    return exporter


def test_values_of_another_loss_are_not_compared(checkpoint, best, capsys):
    exporter = BestCheckpointExporter(best, keep=2, measured_with={"smoothing": 0})
    for step, value in enumerate((0.1, 0.2, 0.3), 1):
        export(exporter, checkpoint(step), value, step)
    assert exporter.evaluations_without_improvement == 2
    again(best, {}, smoothing=0)
    exporter = again(best, {1: 0.9, 2: 0.8}, smoothing=0.1)
    assert "again, since smoothing changed: loss 0.1000 -> 0.9000\n" in capsys.readouterr().out
    assert (exporter.evaluations_without_improvement, exporter.evaluated_step) == (0, 3)
    record = read_best(best)
    assert (record["step"], record["value"]) == (2, 0.8), "the better one by the new loss"
    assert [one["step"] for one in record["kept"]] == [2, 1]
    assert tf.train.latest_checkpoint(best) == str(best / "model.ckpt-2")
    assert export(exporter, checkpoint(4), 0.7, 4), "an improvement, though 0.1 was less"
    again(best, {}, smoothing=0.1)


def test_patience_goes_on_where_the_values_are_the_same(checkpoint, best):
    exporter = BestCheckpointExporter(best, measured_with={"learning_rate": 1})
    for step, value in enumerate((0.1, 0.2), 1):
        export(exporter, checkpoint(step), value, step)
    exporter = again(best, {1: 0.1}, learning_rate=2)
    assert exporter.evaluations_without_improvement == 1


def test_a_record_that_does_not_say_with_what_is_measured_again(checkpoint, best):
    export(BestCheckpointExporter(best), checkpoint(1), 0.5, 1)
    record = json.loads((best / "best.json").read_text())
    del record["measured_with"]  # as older versions wrote it
    (best / "best.json").write_text(json.dumps(record))
    again(best, {1: math.nan}, smoothing=0.1)
    exporter = again(best, {}, smoothing=0.1)
    assert export(exporter, checkpoint(2), 9.0, 2), "better than what is not a number"


def test_another_metric_in_the_same_folder_is_refused(checkpoint, best):
    export(BestCheckpointExporter(best), checkpoint(1), 0.5, 1)
    exporter = BestCheckpointExporter(best, "accuracy", "max")
    with pytest.raises(UserError, match="keeps the min of loss, not the max of accuracy"):
        exporter.export(None, "", "", {"accuracy": 1.0, "global_step": 2}, False)
    with pytest.raises(ValueError, match="no metric auc; it has loss, global_step"):
        export(BestCheckpointExporter(best, "auc"), "", 1.0, 2)


def test_the_record_has_a_version_and_one_without_is_read(checkpoint, best):
    export(BestCheckpointExporter(best), checkpoint(1), 0.5, 1)
    record = json.loads((best / "best.json").read_text())
    assert record.pop("format_version") == 1
    (best / "best.json").write_text(json.dumps(record))
    assert export(BestCheckpointExporter(best), checkpoint(2), 0.6, 2) is None
    assert read_best(best)["step"] == 1


def test_a_checkpoint_has_the_step_that_is_in_it(best, checkpoint):
    path = checkpoint(2)  # whose step was 3 when it was written, as with a parameter server
    assert export(BestCheckpointExporter(best), path, 0.7, 3) == str(best / "model.ckpt-3")
    found = find_checkpoint("best", model_dir="", best_model_dir=best)
    assert found == str(best / "model.ckpt-3")
    assert global_step_of(found) == 2  # its content


@pytest.mark.parametrize("deleted", ["model.ckpt-2.*", "model.ckpt-2.data*", "model.ckpt-2.index"])
def test_a_checkpoint_that_was_deleted_meanwhile_is_not_kept(best, checkpoint, capsys, deleted):
    export(BestCheckpointExporter(best), checkpoint(1), 0.7, 1)
    path = checkpoint(2)
    for file in Path(path).parent.glob(deleted):
        file.unlink()
    assert export(BestCheckpointExporter(best), path, 0.6, 2) is None
    assert "model.ckpt-2 was deleted or damaged before it could be kept" in capsys.readouterr().out
    assert read_best(best)["step"] == 1
    assert not [*best.glob("*-2.*")]
    assert find_checkpoint("best", model_dir="", best_model_dir=best).endswith("model.ckpt-1")


@pytest.mark.parametrize(
    "content",
    ["", "[1]", "3", "{}", '{"format_version": 2}', '{"kept": 3, "value": 1, "step": 1}']
    + ['{"value": "x", "step": 1, "kept": []}', '{"value": 1, "step": 1, "kept": []}'],
)
def test_what_is_no_record_is_one_line(best, content):
    best.mkdir()
    (best / "best.json").write_text(content)
    with pytest.raises(UserError, match="best.json: not a file that was written here") as error:
        read_best(best)
    assert len(error.value.lines) == 1


@pytest.mark.parametrize("model", ["best", "latest", "elsewhere"])
def test_a_checkpoint_that_is_not_there_is_one_line(tmp_path, model):
    with pytest.raises(UserError, match="model: there is no") as error:
        find_checkpoint(model, model_dir=str(tmp_path), best_model_dir=str(tmp_path))
    assert len(error.value.lines) == 1


def test_a_misspelt_run_is_answered_with_the_nearest_one(tmp_path):
    (tmp_path / "runs/large/best").mkdir(parents=True)
    with pytest.raises(UserError, match=r"train first \(did you mean large\?\)$"):
        find_checkpoint("best", model_dir="", best_model_dir=tmp_path / "runs/lagre/best")


def test_checkpoints_are_found_by_name_folder_and_path(checkpoint, tmp_path):
    path = checkpoint(3)
    for model in ("latest", str(tmp_path / "run"), path):
        found = find_checkpoint(model, model_dir=str(tmp_path / "run"), best_model_dir="")
        assert found == path
    assert global_step_of(path) == 3
