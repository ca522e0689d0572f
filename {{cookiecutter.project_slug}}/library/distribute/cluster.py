"""A process among others that train together, as the environment variable TF_CONFIG says.

    {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2222"]},
     "task": {"type": "worker", "index": 0} }

With parameter servers (ps), these hold the variables, and chief and workers train on them.
Without, chief and workers all hold them, and average their gradients. An evaluator stands beside.
https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver
"""

import dataclasses
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from library.util import RunError, UserError, did_you_mean

JOBS = ("chief", "worker", "ps", "evaluator")

PATIENCE_SECS = 10.0
"""For which a task may be out of reach."""

COMING_SECS = 300.0
"""In which all tasks have to come."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks that train together, and which of them this process is; without others, chief."""

    addresses: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)  # by job
    job: str = "chief"
    index: int = 0

    @classmethod
    def from_environment(cls) -> "Cluster":
        """What TF_CONFIG says.

        Raises:
            UserError: it says nothing that could be.
        """
        try:
            content = json.loads(os.environ.get("TF_CONFIG") or "{}")
        except ValueError as error:
            raise UserError(f"TF_CONFIG: not JSON: {error}") from error
        if not isinstance(content, dict) or not content.get("cluster"):
            return cls()
        jobs, task = content["cluster"], content.get("task")
        _check_jobs(jobs)
        if not isinstance(task, dict):
            raise UserError(
                'TF_CONFIG: task is not a mapping, such as {"type": "worker", "index": 0}'
            )
        job, index = task.get("type"), task.get("index", 0)
        if job not in JOBS or (job not in jobs and job != "evaluator"):
            known = ", ".join(jobs)
            raise UserError(
                f"TF_CONFIG: task type {job} is not evaluator or one of the cluster's, {known}"
                f"{did_you_mean(str(job), JOBS)}"
            )
        if job in jobs and (not isinstance(index, int) or not 0 <= index < len(jobs[job])):
            raise UserError(f"TF_CONFIG: task index {index} is none of {len(jobs[job])} of {job}")
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


def _check_jobs(jobs: Any) -> None:
    if not isinstance(jobs, dict):
        raise UserError("TF_CONFIG: cluster is not a mapping of jobs to addresses")
    for name, addresses in jobs.items():
        if name not in JOBS:
            raise UserError(
                f"TF_CONFIG: job {name} is not one of {', '.join(JOBS)}{did_you_mean(name, JOBS)}"
            )
        good = (
            isinstance(addresses, list)
            and len(addresses) > 0
            and all(
                isinstance(address, str) and address.rpartition(":")[2].isdigit()
                for address in addresses
            )
        )
        if not good:
            raise UserError(f"TF_CONFIG: job {name}: {addresses} is not a list of host:port")
    everyone = [address for addresses in jobs.values() for address in addresses]
    twice = sorted({address for address in everyone if everyone.count(address) > 1})
    if twice:
        raise UserError(f"TF_CONFIG: {twice[0]} is the address of two tasks")
    if len(jobs.get("chief", [])) > 1 or (jobs.get("ps") and not jobs.get("chief")):
        raise UserError("TF_CONFIG: a cluster with parameter servers has one chief")


def reachable(address: str) -> bool:
    """Whether a process listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def wait_until_there(tasks: Mapping[str, str], secs: float = COMING_SECS) -> None:
    """Wait for tasks to listen.

    Args:
        tasks: addresses by name.
        secs: for how long.

    Raises:
        RunError: one of them has not come.
    """
    deadline = time.monotonic() + secs
    for name, address in tasks.items():
        while not reachable(address):
            if time.monotonic() > deadline:
                raise RunError(f"{name} at {address} has not come in {secs:.0f} s")
            time.sleep(0.5)


def wait_until_gone(
    tasks: Mapping[str, str],
    patience_secs: float = PATIENCE_SECS,
    enough: Callable[[], bool] = lambda: False,
) -> str | None:
    """Wait until one of these tasks, which was there, is out of reach.

    Args:
        tasks: addresses by name.
        patience_secs: how long a task may be out of reach.
        enough: whether to stop waiting.

    Returns:
        Its name; None when it was enough.
    """
    last_seen: dict[str, float] = {}
    while not enough():
        for name, address in tasks.items():
            if reachable(address):
                last_seen[name] = time.monotonic()
            elif time.monotonic() - last_seen.get(name, float("inf")) > patience_secs:
                return name
        time.sleep(1)
    return None
