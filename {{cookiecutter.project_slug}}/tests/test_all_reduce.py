"""All-reduce across machines, here processes on loopback: the same weights as one machine."""

import json
import re
import socket
import time
from pathlib import Path

import forked
import numpy as np
import pytest
import tensorflow as tf

from library import estimator

ROOT = Path(__file__).parent.parent
STEPS, GLOBAL_BATCH_SIZE = 20, 16
LIMIT_SECS = 1200
"""Seconds after which a cluster hangs, however slow and busy the machine is."""


class CountHook(estimator.SessionRunHook):
    """Counts the steps of this process."""

    steps = 0

    def after_run(self, run_context, run_values):
        self.steps += 1


def linear_model(features, labels, mode):
    weights = tf.compat.v1.get_variable("weights", [4, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean((features @ weights - labels) ** 2)
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.05, 0.9)
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def linear_input(input_context=None) -> tf.data.Dataset:
    """Batches of this worker's share: together they are a global batch, in whatever order."""
    features = np.random.default_rng(1).normal(size=[48, 4]).astype(np.float32)
    labels = features @ np.array([[1], [2], [3], [4]], np.float32)
    examples = tf.data.Dataset.from_tensor_slices((features, labels))
    workers = 1
    if input_context:
        workers = input_context.num_input_pipelines
        examples = examples.shard(workers, input_context.input_pipeline_id)
    return examples.repeat().batch(GLOBAL_BATCH_SIZE // workers, drop_remainder=True)


def train_task(model_dir: str, evaluates: bool) -> None:
    """What each process does; its TF_CONFIG tells it which task it is."""
    tf.compat.v1.disable_eager_execution()  # the strategy is copied, which eager mode forbids
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    config = estimator.RunConfig(model_dir, train_distribute=strategy, save_checkpoints_steps=10)
    model, hook = estimator.Estimator(linear_model, config=config), CountHook()
    if evaluates:
        estimator.train_and_evaluate(
            model,
            estimator.TrainSpec(linear_input, max_steps=STEPS, hooks=[hook]),
            estimator.EvalSpec(linear_input, steps=3, start_delay_secs=0, throttle_secs=1),
        )
    else:
        for _ in range(2):  # the second one goes on from the checkpoint
            model.train(linear_input, steps=STEPS // 2, hooks=[hook])
    print(f"steps: {hook.steps}")


def run_cluster(*jobs: str, model_dir: Path, evaluates: bool) -> list[int]:
    """Run a process for each job, such as "chief", on loopback; return the steps of each."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in jobs]
    cluster, tasks = {}, []
    for job, server in zip(jobs, held, strict=True):
        addresses = cluster.setdefault(job, [])
        tasks.append({"type": job, "index": len(addresses)})
        addresses.append(f"127.0.0.1:{server.getsockname()[1]}")
        server.close()
    program = model_dir.with_name("program.py")
    program.write_text(
        f"from tests import test_all_reduce as t\nt.train_task({str(model_dir)!r}, {evaluates})"
    )
    logs = [model_dir.with_name(f"{job}-{number}.log") for number, job in enumerate(jobs)]
    processes = []
    try:
        for task, log in zip(tasks, logs, strict=True):
            tf_config = json.dumps({"cluster": cluster, "task": task})
            environment = {"PYTHONPATH": str(ROOT), "TF_CONFIG": tf_config}
            processes.append(forked.start([str(program)], ROOT, environment, [log, log]))
        end = time.monotonic() + LIMIT_SECS
        # When one fails, the others wait for it: the exit codes and the logs tell.
        while any(process.poll() is None for process in processes) and time.monotonic() < end:
            if any(process.poll() for process in processes):
                break
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    printed = [log.read_text() for log in logs]
    assert [process.returncode for process in processes] == [0] * len(jobs), "\n".join(printed)
    return [int(re.search(r"^steps: (\d+)$", text, re.MULTILINE)[1]) for text in printed]


def weights_of(model_dir: Path) -> np.ndarray:
    return tf.train.load_variable(str(model_dir), "weights")


def train_alone(model_dir: Path, steps: list[int]) -> np.ndarray:
    """The weights that one process comes to with the same global batches."""
    model = estimator.Estimator(linear_model, str(model_dir))
    for each in steps:
        model.train(linear_input, steps=each)
    return weights_of(model_dir)


@pytest.mark.slow
def test_two_workers_and_an_evaluator(tmp_path):
    steps = run_cluster(
        "worker", "worker", "evaluator", model_dir=tmp_path / "three", evaluates=True
    )
    assert steps == [STEPS, STEPS, 0], "the hooks run on each worker, and not on the evaluator"
    alone = train_alone(tmp_path / "alone", [STEPS])
    np.testing.assert_allclose(weights_of(tmp_path / "three"), alone, atol=1e-5)
    assert list(tmp_path.glob("three/eval/events*")), "the evaluator has found the checkpoint"
    # The first worker is the chief; what the others save, as they have to, lies apart.
    assert (tmp_path / "three/model.ckpt-20.index").exists()
    assert [folder.name for folder in tmp_path.glob("three/tmp_*")] == ["tmp_worker_1"]


@pytest.mark.slow
@pytest.mark.skipif(hasattr(tf, "estimator"), reason="TensorFlow 2.15 refuses Estimator.train here")
def test_estimator_train_with_a_chief(tmp_path):
    steps = run_cluster("chief", "worker", model_dir=tmp_path / "two", evaluates=False)
    assert steps == [STEPS, STEPS]
    alone = train_alone(tmp_path / "alone", [STEPS // 2, STEPS // 2])
    np.testing.assert_allclose(weights_of(tmp_path / "two"), alone, atol=1e-5)
    assert [folder.name for folder in tmp_path.glob("two/tmp_*")] == ["tmp_worker_0"]
