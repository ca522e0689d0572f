"""A run that begins with the variables of another one."""

import json
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import run_program, small_model

from library.train import WarmStart
from library.util import UserError

STATISTICS = ("mean", "variance")


def train(data: Path, folder: Path, name: str, *more: object, status: int = 0):
    words = ["--model_dir", folder / name / "now", "--best_model_dir", folder / name / "best"]
    for split in ("train", "validation", "test"):
        words += [f"--{split}_data", data / split]
    words += ["--train_epochs", 1, *small_model()]
    return run_program("run.py", *words, *more, cwd=folder, status=status)


def values(folder: Path, suffix: str = "") -> dict:
    """The variables of the last checkpoint of which there is an average, or the averages."""
    reader = tf.train.load_checkpoint(str(folder))
    names = [name for name in reader.get_variable_to_shape_map() if name.endswith("/average")]
    return {name[:-8]: reader.get_tensor(name[:-8] + suffix) for name in names}


@pytest.mark.slow
def test_what_fits_is_taken_and_all_is_listed(data, trained_cnn, tmp_path):
    first = trained_cnn.settings.best_model_dir
    before = values(first, "/average")

    still = ["--learning_rate", "1e-45", "--random_seed", 7]  # no step is that small
    process = train(data, tmp_path, "second", "--warm_start_from", first, *still)
    assert f"warm start: {len(before)} variables from" in process.stdout
    assert "not taken" not in process.stdout
    after = values(tmp_path / "second" / "now")
    for name, value in before.items():
        if not name.endswith(STATISTICS):
            assert (after[name] == value).all(), name
    listed = json.loads((tmp_path / "second" / "now" / "warm_start.json").read_text())
    assert set(listed["taken"]) == {*before}
    assert listed["not_taken"] == {}
    assert listed["left"] == []

    more = ["--warm_start_from", first, "--train_epochs", 2]
    process = train(data, tmp_path, "second", *more)
    assert "warm_start_from: ignored: the run continues from" in process.stdout

    process = train(data, tmp_path, "third", "--warm_start_from", "nowhere", status=2)
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: warm_start_from: there is no checkpoint")
    assert not (tmp_path / "third").exists()


def test_what_differs_is_named(tmp_path):
    def build(outputs: int, name: str = "kernel") -> None:
        tf.compat.v1.train.create_global_step()
        for variable, shape in (("body/kernel", [3, 4]), (f"logits/{name}", [4, outputs])):
            tf.compat.v1.get_variable(variable, shape)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        build(5)
        tf.compat.v1.get_variable("body/kernel/Adam", [3, 4])
        session.run(tf.compat.v1.global_variables_initializer())
        path = tf.compat.v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))

    found = WarmStart.of(path, lambda: build(6))
    assert (found.taken, found.left) == (["body/kernel"], [])
    assert found.not_taken == {"logits/kernel": "of shape [4, 5] there, [4, 6] here"}
    found = WarmStart.of(path, lambda: build(5, "weights"))
    assert found.not_taken == {"logits/weights": "not in the checkpoint"}
    assert found.lines == [
        f"warm start: 1 variables from {path}",
        "not taken, not in the checkpoint: logits/weights",
        "not used: logits/kernel",
    ]
    with pytest.raises(UserError, match="no variable of .*model.ckpt fits this model"):
        WarmStart.of(path, lambda: tf.compat.v1.get_variable("other", [1]))
