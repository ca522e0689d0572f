"""A process among others that train together, as the environment variable TF_CONFIG says.

    {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2222"]},
     "task": {"type": "worker", "index": 0}}

With parameter servers (ps), these hold the variables, and chief and workers train on them.
Without, chief and workers all hold them, and average their gradients. An evaluator stands beside.
https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver
"""

import dataclasses
import json
import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from library.util import RunError, UserError, did_you_mean

JOBS = ("chief", "worker", "ps", "evaluator")
PATIENCE_SECS = 10.0
"""Seconds that a peer may be unreachable before it counts as lost."""
COMING_SECS = 300.0
"""Seconds in which all tasks of a cluster have to start."""
CHIEF_PATIENCE_SECS = 60.0
"""Seconds that the chief may be unreachable before a parameter server ends."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks that train together, and which of them this process is; without others, chief."""

    addresses: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)  # by job
    job: str = "chief"
    index: int = 0

    @classmethod
    def from_environment(cls) -> "Cluster":
        """The cluster of TF_CONFIG; the Estimator then reads the same one there."""
        try:
            config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        except ValueError as error:
            raise UserError(f"TF_CONFIG: not JSON: {error}") from error
        example = '{"cluster": {...}, "task": {...}}'
        _expect(isinstance(config, dict), f"not a mapping, such as {example}")
        jobs, task = config.get("cluster"), config.get("task")
        if not jobs:
            _expect(not task, "there is a task, but no cluster")
            os.environ.pop("TF_CONFIG", None)
            return cls()
        _check_jobs(jobs)
        job, index = _check_task(task, jobs)
        if [job for job in jobs if job != "evaluator"] == ["worker"] and len(jobs["worker"]) == 1:
            jobs["chief"] = jobs.pop("worker")  # the Estimator asks for one
            job = "chief" if job == "worker" else job
        config |= {"cluster": jobs, "task": {"type": job, "index": index}}
        os.environ["TF_CONFIG"] = json.dumps(config)
        return cls({name: jobs[name] for name in jobs if name != "evaluator"}, job, index)

    @property
    def num_workers(self) -> int:
        """The processes that compute gradients."""
        return max(1, sum(len(self.addresses.get(job, ())) for job in ("chief", "worker")))

    @property
    def worker(self) -> int:
        """The number of this process among them: the chief is the first."""
        return self.index + (len(self.addresses.get("chief", ())) if self.job == "worker" else 0)

    @property
    def is_chief(self) -> bool:
        """Whether this process keeps the checkpoints."""
        return self.job in ("chief", "worker") and self.worker == 0

    @property
    def is_evaluator(self) -> bool:
        return self.job == "evaluator"

    @property
    def has_servers(self) -> bool:
        return "ps" in self.addresses

    @property
    def all_reduce(self) -> bool:
        """Whether workers average their gradients among themselves."""
        return self.num_workers > 1 and not self.has_servers

    @property
    def name(self) -> str:
        return f"{self.job} {self.index}"

    def others(self, *jobs: str) -> dict[str, str]:
        """The addresses of the other tasks of these jobs, by their names."""
        tasks = {
            f"{job} {number}": address
            for job in jobs
            for number, address in enumerate(self.addresses.get(job, []))
        }
        tasks.pop(self.name, None)
        return tasks

    @property
    def needed(self) -> dict[str, str]:
        """The tasks that this one cannot train without."""
        return self.others("ps") if self.has_servers else self.others("chief", "worker")


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise UserError(f"TF_CONFIG: {otherwise}")


def _check_task(task: Any, jobs: dict[str, list[str]]) -> tuple[str, int]:
    example = '{"type": "worker", "index": 0}'
    _expect(isinstance(task, dict), f"task is not a mapping, such as {example}")
    job, index = task.get("type"), task.get("index", 0)
    known = f"{', '.join(jobs)}{did_you_mean(str(job), JOBS)}"
    fits = job in (*jobs, "evaluator")
    _expect(fits, f"task type {job} is not evaluator or one of the cluster's, {known}")
    count = len(jobs.get(job, ())) or math.inf  # evaluators need not be named
    fits = isinstance(index, int) and 0 <= index < count
    _expect(fits, f"task index {index} is none of {count} of {job}")
    return job, index


def _check_jobs(jobs: Any) -> None:
    _expect(isinstance(jobs, dict), "cluster is not a mapping of jobs to addresses")
    for job, addresses in jobs.items():
        _expect(job in JOBS, f"job {job} is not one of {', '.join(JOBS)}{did_you_mean(job, JOBS)}")
        fits = isinstance(addresses, list) and addresses and all(map(_is_address, addresses))
        _expect(bool(fits), f"job {job}: {addresses} is not a list of host:port")
    everyone = [address for addresses in jobs.values() for address in addresses]
    for address in everyone:
        _expect(everyone.count(address) == 1, f"{address} is the address of two tasks")
    chiefs = len(jobs.get("chief", []))
    fits = chiefs == 1 or (chiefs == 0 and "ps" not in jobs)
    _expect(fits, "a cluster has at most one chief, and with parameter servers exactly one")


def _is_address(text: Any) -> bool:
    found = re.fullmatch(r"\S+:([0-9]{1,5})", text) if isinstance(text, str) else None
    return found is not None and int(found[1]) < 2**16


def reachable(address: str) -> bool:
    """Whether a process listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, UnicodeError):  # no such host, or no name of one
        return False
    return True


def wait_until_there(tasks: Mapping[str, str], secs: float = COMING_SECS) -> None:
    """Wait for tasks, addresses by name, to listen; a RunError names one that does not in time."""
    deadline = time.monotonic() + secs
    for name, address in tasks.items():
        while not reachable(address):
            if time.monotonic() > deadline:
                raise RunError(f"{name} at {address} has not started in {secs:.0f} s")
            time.sleep(0.5)


def wait_until_gone(
    tasks: Mapping[str, str],
    patience_secs: float = PATIENCE_SECS,
    enough: Callable[[], bool] = lambda: False,
) -> str | None:
    """Wait until a task that was there is unreachable for so long: its name; None if `enough`."""
    last_seen: dict[str, float] = {}
    while not enough():
        for name, address in tasks.items():
            if reachable(address):
                last_seen[name] = time.monotonic()
            elif time.monotonic() - last_seen.get(name, float("inf")) > patience_secs:
                return name
        time.sleep(1)
    return None


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


@dataclasses.dataclass(eq=False)
class WatchHook(tf.compat.v1.train.SessionRunHook):
    """Ends this process, status 1, when a task is gone that it cannot train without.

    TensorFlow would wait for it for ever; and a step that waits can be ended by nothing but the end
    of its process.
    """

    tasks: Mapping[str, str]  # addresses by name
    advice: str
    finished: Callable[[], bool]  # whether the run is: then nothing is missing
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)

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
