"""What the tasks of a cluster do beside training: serve, evaluate, mind the others."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from library.distribute import COMING_SECS, Cluster, wait_until_gone, wait_until_there
from library.estimator import Estimator, EvalSpec
from library.train.exporter import global_step_of
from library.train.hooks import EarlyStopHook
from library.util import RunError

CHIEF_PATIENCE_SECS = 60.0
"""For which a chief may be out of reach before a parameter server ends."""


def end_unless_there(tasks: Mapping[str, str], secs: float = COMING_SECS) -> None:
    """End this process, status 1, when one of these tasks does not come in time.

    For what waits for them in TensorFlow, without an end.

    Args:
        tasks: addresses by name.
        secs: for how long.
    """

    def watch() -> None:
        try:
            wait_until_there(tasks, secs)
        except RunError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    threading.Thread(target=watch, name="watch", daemon=True).start()


def serve(cluster: Cluster) -> None:
    """Hold variables for the others, until the chief is gone."""
    server = tf.distribute.Server(
        tf.train.ClusterSpec(dict(cluster.addresses)), job_name="ps", task_index=cluster.index
    )
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the chief may have to save before it ends
    print(f"{cluster.name} serves at {server.target}", flush=True)
    wait_until_gone(cluster.others("chief"), CHIEF_PATIENCE_SECS)
    print("the chief is gone: done", flush=True)


def evaluate_checkpoint(estimator: Estimator, spec: EvalSpec, checkpoint: str) -> None:
    """Evaluate a checkpoint, and do with it what `train_and_evaluate` does after one."""
    metrics = estimator.evaluate(spec.input_fn, checkpoint_path=checkpoint, hooks=spec.hooks)
    for exporter in spec.exporters:
        exporter.export(estimator, "", checkpoint, metrics, is_the_final_export=False)


def evaluate_checkpoints(
    estimator: Estimator, spec: EvalSpec, *, steps: int, early_stop: EarlyStopHook
) -> None:
    """Evaluate what the chief saves, the latest one each time, and keep the best.

    Args:
        estimator: of the run.
        spec: what to evaluate on, and the exporters, that of `early_stop` among them.
        steps: the step at which the run ends.
        early_stop: says whether it ends before.
    """
    for checkpoint in tf.train.checkpoints_iterator(estimator.model_dir):
        try:
            step = global_step_of(checkpoint)
            if early_stop.exporter.evaluated_step != step:
                evaluate_checkpoint(estimator, spec, checkpoint)
        except (tf.errors.OpError, OSError, ValueError):
            if tf.io.gfile.exists(f"{checkpoint}.index"):
                raise
            continue  # the chief has deleted it by now: a newer one is there
        if step >= steps or early_stop.due:
            return


class WatchHook(tf.compat.v1.train.SessionRunHook):
    """Ends this process, status 1, when a task is gone that it cannot train without.

    TensorFlow would wait for it for ever; and a step that waits can be ended by nothing but the end
    of its process.
    """

    def __init__(self, tasks: Mapping[str, str], advice: str, *, finished: Callable[[], bool]):
        """
        Args:
            tasks: addresses by name.
            advice: what to do, in the line that names the task.
            finished: whether the run has come to its end, so that nothing is missing.
        """
        self.tasks, self.advice, self.finished = tasks, advice, finished
        self.ended = threading.Event()

    def begin(self) -> None:
        wait_until_there(self.tasks)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def _watch(self) -> None:
        gone = wait_until_gone(self.tasks, enough=self.ended.is_set)
        if gone and not self.ended.is_set():
            done = self.finished()
            if not done:
                print(f"error: {gone} is gone: {self.advice}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(0 if done else 1)

    def end(self, session: Any) -> None:
        self.ended.set()
