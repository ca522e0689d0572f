"""Checkpoints at the steps of the run, and where the time of a step goes; more in test_run.py."""

import re
import time

import pytest
import tensorflow as tf
from conftest import summaries

from library.estimator import Estimator, EstimatorSpec, RunConfig
from library.train import CheckpointHook, ProgressHook
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


@pytest.mark.parametrize(
    ("input_secs", "step_secs", "least", "most"),
    [(0.04, 0, 0.5, 1), (0, 0.04, 0, 0.4), (0.08, 0.04, 0.2, 0.8)],
    ids=["input", "step", "both"],
)
def test_the_progress_line_tells_where_the_time_goes(
    tmp_path, capsys, input_secs, step_secs, least, most
):
    def input_fn() -> tf.data.Dataset:
        numbers = tf.data.Dataset.from_tensors(1.0).repeat()
        return numbers.map(lambda x: sleeping(input_secs, x)).prefetch(1)

    def model_fn(features: tf.Tensor, labels: None, mode: str) -> EstimatorSpec:
        loss = tf.identity(sleeping(step_secs, features), name="batch_loss")
        train_op = tf.compat.v1.train.get_global_step().assign_add(1)
        with tf.control_dependencies([loss]):
            return EstimatorSpec(mode, loss=loss, train_op=tf.identity(train_op))

    save = CheckpointHook(tmp_path, 1000)
    sizes = {"every": 10, "steps": 30, "batch_size": 4, "epoch_of": lambda step: step / 2}
    line = StatusLine()
    progress = ProgressHook(["loss"], [save], **sizes, summary_dir=tmp_path, line=line)
    config = RunConfig(str(tmp_path), log_step_count_steps=None)
    Estimator(model_fn, config=config).train(input_fn, steps=30, hooks=[progress, save])

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["10", "20", "30"]
    rate, step_ms, share = re.search(
        r"([\d,.]+) examples/s  ([\d.]+) ms/step  (\d+)% input wait", lines[-1]
    ).groups()
    assert least <= float(share) / 100 <= most
    iteration = max(input_secs, step_secs)
    assert float(rate.replace(",", "")) <= 1.05 * 4 / iteration
    assert float(step_ms) >= 1e3 * step_secs
    found = {
        (step, value.tag): value.simple_value
        for step, value in summaries(tmp_path)
        if value.tag in ("examples_per_sec", "step_ms", "input_wait_share")
    }
    assert {step for step, _ in found} == {10, 20, 30}
    assert found[30, "input_wait_share"] == pytest.approx(float(share) / 100, abs=0.006)


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
