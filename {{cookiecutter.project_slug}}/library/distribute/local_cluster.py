"""A cluster on this machine, to try things out: a process and a log for each task."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from library.util import RunError, UserError

MISTAKEN, INTERRUPTED = 2, 130
"""Exit statuses, of a mistake of the user, and after ctrl-C or --max_time."""

MAX_RESTARTS = 3
"""Of a worker that was killed."""

SAVING_SECS = 60.0
"""That the chief has for its last checkpoint."""

ENDING_SECS = 10.0
"""For which workers may go on after chief and evaluator have ended."""


class _Task:
    def __init__(self, command: Sequence[str], job: str, index: int, cluster: dict, logs: Path):
        self.job, self.name = job, f"{job} {index}"
        self.log, self.command = logs / f"{job}-{index}.log", command
        task = {"type": job, "index": index}
        self.environment = {
            **os.environ,
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # they share it
            "PYTHONUNBUFFERED": "1",
        }
        self.restarts = 0
        self.log.unlink(missing_ok=True)
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            # A session of its own: ctrl-C in the terminal is for us, who end them in order.
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        return self.process.poll()

    @property
    def last_words(self) -> str:
        """The last line of the log, without the word that `library.errors.run` begins it with."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        line = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        return line.removeprefix("error: ").removeprefix("interrupted: ")

    def must_be_well(self) -> None:
        """Raise what a failed task would have raised here."""
        if self.status == INTERRUPTED:
            raise KeyboardInterrupt(self.last_words)
        if self.status == MISTAKEN:
            raise UserError(self.last_words)
        if self.status:
            raise RunError(
                f"{self.name} ended with status {self.status}: {self.last_words} (see {self.log}); "
                "the last checkpoint is whole, and the same command goes on from it"
            )

    def end(self, number: signal.Signals, secs: float) -> None:
        """Send a signal, and kill what is still there after so many seconds."""
        if self.status is None:
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(secs)
            self.process.kill()
            self.process.wait()


def run_on_this_machine(
    command: Sequence[str], *, workers: int, servers: int, logs: str | Path
) -> None:
    """Run a program as each task of a cluster: chief, workers, parameter servers, evaluator.

    What the chief says is printed as it comes. A worker that is killed is started again.

    Args:
        command: the program, which reads TF_CONFIG.
        workers: how many beside the chief.
        servers: how many parameter servers; 0: all-reduce.
        logs: the folder for a file of each task, such as worker-1.log.

    Raises:
        UserError: what a task says of a mistake of the user; or this is Windows.
        RunError: a task failed; it names the task and its log.
        KeyboardInterrupt: after the chief has saved, and all have ended.
    """
    if sys.platform == "win32":
        raise UserError("cluster: Windows has none of the signals that end a task in order")
    logs = Path(logs)
    logs.mkdir(parents=True, exist_ok=True)
    jobs = {"chief": 1, "worker": workers, "ps": servers}
    ports = _free_ports(sum(jobs.values()))
    cluster = {
        job: [f"localhost:{next(ports)}" for _ in range(count)]
        for job, count in jobs.items()
        if count
    }
    jobs["evaluator"] = 1
    print(f"logs of {', '.join(f'{count} {job}' for job, count in jobs.items())}: {logs}")
    tasks = [
        _Task(command, job, index, cluster, logs)
        for job, count in jobs.items()
        for index in range(count)
    ]
    chief = tasks[0]
    try:
        with open(chief.log, encoding="utf-8", errors="replace") as lines:
            while chief.status is None:
                _watch_over(tasks[1:], restart=servers > 0)
                print(lines.read(), end="", flush=True)
                time.sleep(0.2)
            print(lines.read(), end="", flush=True)
        chief.must_be_well()
        evaluator = tasks[-1]
        evaluator.process.wait()
        evaluator.must_be_well()
        deadline = time.monotonic() + ENDING_SECS
        for task in tasks:
            if task.job == "worker":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    task.process.wait(max(0.0, deadline - time.monotonic()))
    except KeyboardInterrupt:
        chief.end(signal.SIGINT, SAVING_SECS)  # saves
        raise KeyboardInterrupt(chief.last_words) from None
    finally:
        for task in tasks:
            task.end(signal.SIGKILL if task.job == "ps" else signal.SIGTERM, 5)


def _watch_over(tasks: Sequence[_Task], *, restart: bool) -> None:
    """Start killed workers again; raise for what else has failed."""
    for task in tasks:
        # One that was interrupted has come to its --max_time, and so will the chief.
        if task.status in (None, 0, INTERRUPTED):
            continue
        killed = task.status < 0 and task.job in ("worker", "evaluator") and restart
        if not killed or task.restarts == MAX_RESTARTS:
            task.must_be_well()
        task.restarts += 1
        print(f"{task.name} was killed: started again", flush=True)
        task.start()


def _free_ports(count: int) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        ports = [each.getsockname()[1] for each in sockets]
    return iter(ports)
