"""What tasks of a cluster do beside training: hold variables, and end when another is gone."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from library.distribute.cluster import COMING_SECS, Cluster, wait_until_gone, wait_until_there
from library.util import RunError

CHIEF_PATIENCE_SECS = 60.0
"""Seconds that the chief may be unreachable before a parameter server ends."""


def serve(cluster: Cluster) -> None:
    """Hold variables for the others, until the chief is gone."""
    spec = tf.train.ClusterSpec(dict(cluster.addresses))
    server = tf.distribute.Server(spec, job_name="ps", task_index=cluster.index)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the chief may have to save before it ends
    print(f"{cluster.name} serves at {server.target}", flush=True)
    wait_until_gone(cluster.others("chief"), CHIEF_PATIENCE_SECS)
    print("the chief is gone: done", flush=True)


def end_unless_there(tasks: Mapping[str, str], secs: float = COMING_SECS) -> None:
    """End this process, status 1, when one of these tasks, addresses by name, does not start.

    For what waits for them in TensorFlow, which has no time limit.
    """

    def watch() -> None:
        try:
            wait_until_there(tasks, secs)
        except RunError as error:
            _end(f"error: {error}")

    threading.Thread(target=watch, name="watch", daemon=True).start()


class WatchHook(tf.compat.v1.train.SessionRunHook):
    """Ends this process, status 1, when a task is gone that it cannot train without.

    TensorFlow would wait for it for ever; and a step that waits can be ended by nothing but the end
    of its process.
    """

    def __init__(self, tasks: Mapping[str, str], advice: str, *, finished: Callable[[], bool]):
        """`tasks` are addresses by name; when the run is `finished`, nothing is missing."""
        self.tasks, self.advice, self.finished = tasks, advice, finished
        self.ended = threading.Event()

    def begin(self) -> None:
        wait_until_there(self.tasks)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def _watch(self) -> None:
        gone = wait_until_gone(self.tasks, enough=self.ended.is_set)
        if gone and not self.ended.is_set():
            _end("" if self.finished() else f"error: {gone} is gone: {self.advice}")

    def end(self, session: Any) -> None:
        self.ended.set()


def _end(error: str) -> None:
    sys.stdout.flush()
    if error:
        print(error, file=sys.stderr, flush=True)
    os._exit(1 if error else 0)
