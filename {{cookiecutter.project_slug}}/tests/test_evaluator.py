"""Evaluations during a training, in one graph and session: what each of its own would find."""

import collections
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from conftest import make_run, quick_network, summaries

from library.estimator import Estimator, EstimatorSpec, RunConfig
from library.train import KeptEvaluation, global_step_of, start_training
from library.util import UserError

EXAMPLES, BATCH = 20, 7


def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
    """One weight, which is the number of the step."""
    step = tf.compat.v1.train.get_or_create_global_step()
    weight = tf.compat.v1.get_variable("weight", [], initializer=tf.zeros_initializer())
    train_op = tf.group(weight.assign_add(1.0), step.assign_add(1))
    tf.compat.v1.add_to_collection("keys", features["key"])
    metrics = {
        "mean": tf.compat.v1.metrics.mean(weight * labels),
        "auc": tf.compat.v1.metrics.auc(labels > 9, tf.sigmoid(labels - 12 * weight)),
    }
    loss = tf.reduce_mean((weight - labels) ** 2)
    return EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def input_fn() -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(EXAMPLES)
    return numbers.map(lambda n: ({"key": n}, tf.cast(n, tf.float32))).batch(BATCH)


class Recorder(tf.compat.v1.train.SessionRunHook):
    """What a hook is called for, and the examples that it sees."""

    def __init__(self, batches: float = float("inf")):
        self.calls: list[str] = []
        self.keys: list[int] = []
        self.batches = batches

    def begin(self) -> None:
        self.calls.append("begin")
        self.twice = 2 * tf.compat.v1.train.get_global_step()  # hooks may add to the graph
        (self.tensor,) = tf.compat.v1.get_collection("keys")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append(f"session {session.run(self.twice)}")

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self.tensor)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.calls.append("batch")
        self.keys += run_values.results.tolist()
        if self.calls.count("batch") >= self.batches:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self.calls.append(f"end {session.run(self.twice)}")


@pytest.fixture(scope="module")
def estimator(tmp_path_factory) -> Any:
    """After three steps, each with a checkpoint."""
    config = RunConfig(model_dir=str(tmp_path_factory.mktemp("model")), save_checkpoints_steps=1)
    made = Estimator(model_fn, config=config)
    made.train(input_fn, max_steps=3)
    return made


@pytest.fixture
def checkpoints(estimator) -> list[str]:
    state = tf.train.get_checkpoint_state(estimator.model_dir)
    return list(state.all_model_checkpoint_paths)[-2:]


def evaluators(estimator: Any) -> dict[str, Callable[..., dict[str, Any]]]:
    return {"alone": estimator.evaluate, "kept": KeptEvaluation(estimator)}


def test_each_evaluation_finds_what_a_graph_of_its_own_would_find(estimator, checkpoints):
    """Metrics, and all that hooks are called for; whatever was evaluated before."""
    made: list[str] = []
    order, found = [checkpoints[1], *checkpoints], {}
    for how, evaluate in evaluators(estimator).items():
        hook = Recorder()

        def counted_input(how: str = how) -> tf.data.Dataset:
            made.append(how)
            return input_fn()

        metrics = [evaluate(counted_input, None, [hook], path, "one") for path in order]
        found[how] = [*metrics, hook.calls, hook.keys]
    assert found["kept"] == found["alone"]
    second, first, again, calls, keys = found["kept"]
    assert second == again != first
    assert calls[:6] == ["begin", "session 6", "batch", "batch", "batch", "end 6"]
    assert calls[6:12] == ["begin", "session 4", "batch", "batch", "batch", "end 4"]
    assert keys == [*range(EXAMPLES)] * 3
    assert made == ["alone"] * 3 + ["kept"]  # graph and input, once


def test_the_input_begins_at_its_start_after_an_evaluation_that_stopped_early(
    estimator, checkpoints
):
    hook, evaluate = Recorder(batches=1), KeptEvaluation(estimator)
    evaluate(input_fn, hooks=[hook], checkpoint_path=checkpoints[0])
    assert hook.keys == [*range(BATCH)]
    hook.batches, hook.keys = float("inf"), []
    found = evaluate(input_fn, hooks=[hook], checkpoint_path=checkpoints[1])
    assert hook.keys == [*range(EXAMPLES)]
    assert found == estimator.evaluate(input_fn, checkpoint_path=checkpoints[1])


def test_an_input_that_fails_ends_the_evaluation_and_not_the_next_one(estimator, checkpoints):
    disk = {"is there": True}

    def read(number: Any) -> Any:
        if number == 1 and not disk["is there"]:
            raise OSError("the disk is gone")
        return number

    def failing_input() -> tf.data.Dataset:
        def check(number: Any, example: Any) -> Any:
            with tf.control_dependencies([tf.numpy_function(read, [number], tf.int64)]):
                return tf.nest.map_structure(tf.identity, example)

        return input_fn().enumerate().map(check)

    errors, how = [], evaluators(estimator)
    first = how["kept"](failing_input, checkpoint_path=checkpoints[1])
    disk["is there"] = False
    for name in ("kept", "alone", "kept"):
        with pytest.raises(tf.errors.OpError, match="the disk is gone") as error:
            how[name](failing_input, checkpoint_path=checkpoints[1])
        errors.append(type(error.value))
    assert len({*errors}) == 1
    disk["is there"] = True
    assert how["kept"](failing_input, checkpoint_path=checkpoints[1]) == first


def test_a_checkpoint_that_is_gone_is_an_error_and_the_next_one_is_evaluated(
    estimator, checkpoints
):
    evaluate = KeptEvaluation(estimator)
    for _ in range(2):
        with pytest.raises(ValueError, match="not a valid checkpoint"):
            evaluate(input_fn, checkpoint_path=f"{checkpoints[1]}0")
        metrics = evaluate(input_fn, checkpoint_path=checkpoints[1])
        assert metrics["global_step"] == global_step_of(checkpoints[1])


def shown(folder: str | Path) -> list[Any]:
    """What TensorBoard shows of an evaluation: step, tag, value, text."""
    return [
        (step, value.tag, value.simple_value, tuple(value.tensor.string_val))
        for step, value in summaries(Path(folder))
    ]


def test_tensorboard_shows_the_same(estimator, checkpoints):
    found = {}
    for name, evaluate in evaluators(estimator).items():
        for path in checkpoints:
            evaluate(input_fn, checkpoint_path=path, name=f"shown_{name}")
        found[name] = shown(estimator.eval_dir(f"shown_{name}"))
    assert found["kept"] == found["alone"]
    assert {tag for _, tag, *_ in found["kept"]} == {"loss", "mean", "auc", "checkpoint_path"}


def test_a_training_writes_the_metrics_that_an_evaluation_of_the_checkpoint_finds(trained):
    """As the command evaluate makes one; digit for digit."""
    run, checkpoint = trained.replace(model="latest").trained()
    written = shown(run.settings.model_dir / "eval")
    found = run.estimator().evaluate(
        lambda: run.inputs.evaluation_input(run, run.settings.validation_data),
        checkpoint_path=checkpoint,
        name="again",
    )
    last = global_step_of(checkpoint)
    numbers = {tag: value for step, tag, value, _ in written if step == last and tag in found}
    assert {"loss", *run.head.metric_names} <= numbers.keys()
    assert numbers == {name: found[name] for name in numbers}


def counted(run: Any, counts: collections.Counter[str], **changed: Any) -> Any:
    """The run, with inputs that count how often they are made."""

    def counting(name: str) -> Callable[..., Any]:
        def make(*args: Any) -> Any:
            counts[name] += 1
            return changed.get(name, getattr(run.inputs, name))(*args)

        return make

    names = ("train_input", "evaluation_input")
    inputs = SimpleNamespace(**{name: counting(name) for name in names})
    return run.replace(inputs=inputs)


@pytest.mark.slow
def test_a_training_opens_each_of_its_inputs_once(data, tmp_path, monkeypatch):
    quick_network(monkeypatch)
    counts: collections.Counter[str] = collections.Counter()
    run = make_run(data, tmp_path, train_epochs=2, limit_train_examples=16, train_batch_size=8)
    start_training(counted(run, counts))
    assert counts == {"train_input": 1, "evaluation_input": 1}
    assert len({step for step, _ in summaries(tmp_path / "checkpoints/eval")}) == 2


def test_a_mistake_in_the_input_is_found_before_a_new_run_is_written(data, tmp_path):
    def train_input(run: Any) -> Any:
        raise UserError("cache: no room")

    run = counted(make_run(data, tmp_path), collections.Counter(), train_input=train_input)
    with pytest.raises(UserError, match="cache: no room"):
        start_training(run)
    assert not [*tmp_path.rglob("*")]
