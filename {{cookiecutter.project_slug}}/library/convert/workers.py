"""Processes that may be killed: a task that crashes or hangs is begun again without its culprit."""

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

SPAWN = multiprocessing.get_context("spawn")
SECONDS_PER_ITEM, SECONDS_PER_MB = 5.0, 0.1
POLL_SECONDS = 0.5

Tell = Callable[[int, int], None]
Function = Callable[[Any, Mapping[int, str], Tell], None]


def run_tasks(
    function: Function, tasks: Sequence[Any], num_workers: int
) -> Iterator[tuple[int, int]]:
    """Do tasks in processes of their own.

    An item of a task that takes longer than SECONDS_PER_ITEM, and SECONDS_PER_MB of its size, or
    ends the process, is bad: the task is begun again, and told so.

    Args:
        function: takes a task, the reasons why some of its items are bad, by their number, and
            what it has to call with the number and the size of each item before it works on it.
        tasks: what can be pickled.
        num_workers: processes at the same time.

    Yields:
        How many items are new, 1 or 0, and their bytes.

    Raises:
        OSError: as in the worker, a full disk for example.
        RuntimeError: any other error in a worker, with its traceback.
    """
    waiting = collections.deque(enumerate(tasks))
    counted: collections.Counter[int] = collections.Counter()  # items, by task
    busy = [_Worker(function) for _ in range(min(num_workers, len(tasks)))]
    try:
        for worker in busy:
            worker.begin(*waiting.popleft(), {})
        while busy:
            by_connection: dict[Any, _Worker] = {worker.connection: worker for worker in busy}
            ready = multiprocessing.connection.wait(list(by_connection), POLL_SECONDS)
            for worker in map(by_connection.__getitem__, ready):
                message = worker.receive()
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, str):
                    busy[busy.index(worker)] = worker.replacement(message)
                elif message is not None:
                    item, size = message
                    new = item >= counted[worker.number]
                    counted[worker.number] = max(item + 1, counted[worker.number])
                    yield (1, size) if new else (0, 0)
                elif waiting:
                    worker.begin(*waiting.popleft(), {})
                else:
                    worker.kill()
                    busy.remove(worker)
            for position, worker in enumerate(busy):
                if worker.overdue:
                    busy[position] = worker.replacement(f"not done in {worker.seconds:.0f} s")
    finally:
        for worker in busy:
            worker.kill()


class _Worker:
    """A process that does one task at a time, and tells which item it is at."""

    def __init__(self, function: Function):
        self.function = function
        self.connection, there = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_work, args=(function, there), daemon=True)
        # What ignores ctrl-C hands that on: it is for the parent, also while a child imports.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        there.close()

    def begin(self, number: int, task: Any, bad: Mapping[int, str]) -> None:
        self.number, self.task, self.bad, self.item = number, task, dict(bad), -1
        self.connection.send((task, self.bad))

    def receive(self) -> tuple[int, int] | None | str | Exception:
        """An item and its size; None at the end of the task; why it ended early."""
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionResetError):
            return "the decoder crashed"
        if isinstance(message, tuple):
            (self.item, size), self.since = message, time.monotonic()
            self.seconds = SECONDS_PER_ITEM + SECONDS_PER_MB * size / 1e6
        return message

    @property
    def overdue(self) -> bool:
        return self.item >= 0 and time.monotonic() - self.since > self.seconds

    def replacement(self, reason: str) -> "_Worker":
        """Another process at the same task, without the item that this one was at."""
        self.kill()
        if self.item < 0:
            raise RuntimeError(f"a worker ended before its first item: {reason}")
        another = _Worker(self.function)
        another.begin(self.number, self.task, {**self.bad, self.item: reason})
        return another

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _work(function: Function, connection: Connection) -> None:
    """The life of a worker: it ends with its parent."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task, bad = connection.recv()
            try:
                function(task, bad, lambda item, size: connection.send((item, size)))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except OSError as error:
                connection.send(error)
            except Exception:
                connection.send(RuntimeError(traceback.format_exc()))
            else:
                connection.send(None)
