"""Checkpoints at the steps of the run, and where the time of a step goes; more in test_run.py."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from conftest import summaries

from library.estimator import Estimator, EstimatorSpec, RunConfig
from library.train import CheckpointHook, ProgressHook
from library.train.progress import WARM_UP
from library.util import StatusLine


@pytest.mark.parametrize("late", [0, 1], ids=["stale", "late"])
@pytest.mark.parametrize("start", [0, 3, 5, 7, 10])
def test_checkpoints_are_written_at_multiples(tmp_path, start, late):
    """The hook is told a step that was read beside the one that runs: before it, or after."""
    saved = []

    class Listener(tf.compat.v1.train.CheckpointSaverListener):
        def after_save(self, session, step):
            saved.append(int(step))

    class Context:
        def __init__(self, session):
            self.session = session

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.train.create_global_step()
        value = tf.compat.v1.placeholder(tf.int64, [])
        assign = step.assign(value)
        scaffold = tf.compat.v1.train.Scaffold()
        hook = CheckpointHook(tmp_path, 5)
        hook._listeners.append(Listener())
        hook.begin()
        scaffold.finalize()
        session.run(scaffold.init_op)
        session.run(assign, {value: start})
        hook.after_create_session(session, None)
        for now in range(start + 1, 23):
            session.run(assign, {value: now})
            seen = tf.compat.v1.train.SessionRunValues(now - 1 + late, None, None)
            hook.after_run(Context(session), seen)
        hook.end(session)
    assert saved == [start, *(m for m in (5, 10, 15, 20) if m > start), 22]


def sleeping(seconds: float, x: tf.Tensor) -> tf.Tensor:
    """The same number, some time later."""

    def sleep(value: float) -> float:
        time.sleep(seconds)
        return value

    return tf.ensure_shape(tf.numpy_function(sleep, [x], tf.float32), [])


def progress_hook(folder: Path, **changed: Any) -> ProgressHook:
    sizes = {"every": 10, "steps": 30, "batch_size": 4, "epoch_of": lambda step: step / 2}
    options: dict = {**sizes, "summary_dir": folder, "line": StatusLine()}
    return ProgressHook(["loss"], [], **options | changed)


@pytest.mark.parametrize(("waited", "computed"), [(0.04, 0.01), (0.0, 0.05), (0.06, 0.02)])
def test_the_progress_line_tells_where_the_time_goes(
    tmp_path, capsys, monkeypatch, waited, computed
):
    """Of steps that take exactly as long as they say; the first ones, ten times as long."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("library.train.progress.time", clock)
    hook = progress_hook(tmp_path)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.train.create_global_step()
        tf.constant(0.5, name="batch_loss")
        session.run(step.initializer)
        hook.begin()
        hook.after_create_session(session, None)
    for number in range(30):
        clock.now += (waited + computed) * (10 if number < WARM_UP else 1)
        asked = hook.before_run(None).fetches
        assert ("loss" in asked) == (number % 10 == 9), "it is fetched where it is shown"
        results = {name: {"waited": waited, "loss": 0.5}[name] for name in asked}
        hook.after_run(None, SimpleNamespace(results=results))
    rate, share = 4 / (waited + computed), waited / (waited + computed)
    left = {10: f"0:0{round(20 * (waited + computed))} left", 20: " left", 30: "  0:00 left"}
    for number, line in zip((10, 20, 30), capsys.readouterr().out.splitlines(), strict=True):
        begin = f"step {number} of 30  epoch {number / 2}  loss 0.5000"
        speed = f"{rate:,.0f} examples/s  {1e3 * computed:.1f} ms/step"
        assert line.startswith(f"{begin}  {speed}  {100 * share:.0f}% input wait  ")
        assert line.endswith(left[number])
    tf.compat.v1.summary.FileWriterCache.get(str(tmp_path)).flush()
    found = {(step, value.tag): value.simple_value for step, value in summaries(tmp_path)}
    assert {step for step, _ in found} == {10, 20, 30}
    assert found[30, "input_wait_share"] == pytest.approx(share, abs=1e-5)
    assert found[30, "examples_per_sec"] == pytest.approx(rate, rel=1e-5)


def test_a_step_waits_for_its_input_and_not_for_what_comes_after(tmp_path):
    """As the graph measures it; both sleep at least as long as they say."""
    waited, computed = 0.04, 0.02

    def model_fn(features: tf.Tensor, labels: None, mode: str) -> EstimatorSpec:
        loss = tf.identity(sleeping(computed, features), name="batch_loss")
        train_op = tf.compat.v1.train.get_global_step().assign_add(1)
        with tf.control_dependencies([loss]):
            return EstimatorSpec(mode, loss=loss, train_op=tf.identity(train_op))

    def input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensors(1.0).repeat().map(lambda x: sleeping(waited, x))
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # it is not made ahead
        return dataset.with_options(options)

    config = RunConfig(str(tmp_path), log_step_count_steps=None)
    hook = progress_hook(tmp_path)
    Estimator(model_fn, config=config).train(input_fn, steps=30, hooks=[hook])
    found = {(step, value.tag): value.simple_value for step, value in summaries(tmp_path)}
    assert found[30, "step_ms"] > 1e3 * computed / 2
    assert found[30, "input_wait_share"] > 0
    assert found[30, "examples_per_sec"] <= 1.01 * 4 / (waited + computed)


def test_the_time_of_checkpoints_is_known(tmp_path):
    class Slow(tf.compat.v1.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            time.sleep(0.3)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.train.create_global_step()
        hook = CheckpointHook(tmp_path, 5)
        hook._listeners.append(Slow())
        hook.begin()
        scaffold = tf.compat.v1.train.Scaffold()
        scaffold.finalize()
        session.run(scaffold.init_op)
        hook.after_create_session(session, None)
    assert hook.seconds > 0.3
