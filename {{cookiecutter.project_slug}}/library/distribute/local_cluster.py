"""A cluster on this machine, to try things out: a process and a log for each task."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from library.util import RunError, UserError

MISTAKEN, INTERRUPTED = 2, 130
"""Exit statuses of a task: a mistake of the user; ctrl-C or --max_minutes."""

MAX_RESTARTS = 3
"""Restarts of a worker that was killed."""

SAVING_SECS, ENDING_SECS = 60.0, 10.0
"""Seconds for the chief's last checkpoint, and for workers after chief and evaluator have ended."""

NOISE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.|[IWEF]\d{4} |(INFO|WARNING|ERROR):\w+:|"
    r"WARNING: All log messages|To enable the following instructions|.*Warning: |\n"
)
"""Lines of a log that are TensorFlow's: they are in the file only."""
RESULTS = re.compile(r" +(step|\d+) |best model|stopped early")
"""Lines of the evaluator that the chief does not have."""


class _Task:
    def __init__(self, command: Sequence[str], job: str, index: int, cluster: dict, logs: Path):
        self.command, self.job, self.name = command, job, f"{job} {index}"
        self.log, self.restarts = logs / f"{job}-{index}.log", 0
        config = {"cluster": cluster, "task": {"type": job, "index": index}}
        self.environment = {
            **os.environ,
            "TF_CONFIG": json.dumps(config),
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # they share it
            "PYTHONUNBUFFERED": "1",
        }
        self.log.unlink(missing_ok=True)
        self.printed = 0  # bytes of the log
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # ctrl-C in the terminal is for us, who end them in order
            )

    @property
    def status(self) -> int | None:
        return self.process.poll()

    @property
    def last_line(self) -> str:
        """The last line of the log, without the word that `run_main` begins it with."""
        text = self.log.read_text(encoding="utf-8", errors="replace").strip()
        line = (text or "it printed nothing").split("\n")[-1]
        return line.removeprefix("error: ").removeprefix("interrupted: ")

    def print_new(self, is_shown: Callable[[str], Any]) -> None:
        """Print the whole lines that are new in the log, as far as they are to be shown."""
        new, newline, _ = self.log.read_bytes()[self.printed :].rpartition(b"\n")
        self.printed += len(new + newline)
        lines = (new + newline).decode(errors="replace").splitlines(keepends=True)
        print("".join(filter(is_shown, lines)), end="", flush=True)

    def check(self) -> None:
        """Raise what a failed task would have raised here."""
        if self.status == INTERRUPTED:
            raise KeyboardInterrupt(self.last_line)
        if self.status == MISTAKEN:
            raise UserError(self.last_line)
        if self.status:
            raise RunError(
                f"{self.name} ended with status {self.status}: {self.last_line} (see {self.log}); "
                "the last checkpoint is complete: run the same command to resume"
            )

    def look_after(self, *, restart: bool) -> None:
        """Start the task again if it was killed; raise it if it failed."""
        if self.status in (None, INTERRUPTED):  # by --max_minutes, as the chief will be
            return
        killed = (self.status or 0) < 0 and self.job != "ps"
        if not (restart and killed and self.restarts < MAX_RESTARTS):
            self.check()
            return
        self.restarts += 1
        print(f"{self.name} was killed: started again", flush=True)
        self.start()

    def end(self, number: signal.Signals, secs: float) -> None:
        """Send a signal, and kill what is still there after so many seconds."""
        if self.status is None:
            self.process.send_signal(number)
            _wait(self.process, secs)
            self.process.kill()
            self.process.wait()


def run_local_cluster(
    command: Sequence[str], *, workers: int, servers: int, logs: str | Path
) -> None:
    """Run a program as each task of a cluster: chief, workers, parameter servers, evaluator.

    The command reads TF_CONFIG. There are `workers` beside the chief; without servers, they use
    all-reduce. What the chief prints is printed as it comes, and so are the evaluations; each task
    has a file in `logs`, such as worker-1.log, with TensorFlow's messages. A worker that is killed
    is started again. Whatever ends a task otherwise is raised here, when all have ended.
    """
    if sys.platform == "win32":
        raise UserError("cluster: Windows lacks the signals that end a task in order")
    logs = Path(logs)
    logs.mkdir(parents=True, exist_ok=True)
    jobs = {"chief": 1, "worker": workers, "ps": servers}
    ports = _free_ports(1 + workers + servers)
    addresses = {job: [f"localhost:{ports.pop()}" for _ in range(n)] for job, n in jobs.items()}
    cluster = {job: tasks for job, tasks in addresses.items() if tasks}
    jobs["evaluator"] = 1
    print(f"logs of {', '.join(f'{count} {job}' for job, count in jobs.items())}: {logs}")
    tasks = [_Task(command, job, i, cluster, logs) for job in jobs for i in range(jobs[job])]
    chief, *others, evaluator = tasks

    def print_new() -> None:
        chief.print_new(lambda line: not NOISE.match(line))
        evaluator.print_new(RESULTS.match)

    try:
        while chief.status is None:
            for task in tasks[1:]:
                task.look_after(restart=servers > 0)
            print_new()
            time.sleep(0.2)
        print_new()
        chief.check()
        evaluator.process.wait()
        print_new()
        evaluator.check()
        deadline = time.monotonic() + ENDING_SECS
        for task in others[:workers]:
            _wait(task.process, max(0.0, deadline - time.monotonic()))
    except KeyboardInterrupt:
        chief.end(signal.SIGINT, SAVING_SECS)  # saves
        raise KeyboardInterrupt(chief.last_line) from None
    finally:
        for task in tasks:
            task.end(signal.SIGKILL if task.job == "ps" else signal.SIGTERM, 5)


def _wait(process: subprocess.Popen, secs: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(secs)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in made]
