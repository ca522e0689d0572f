"""Processes that may die: a job that crashes or hangs begins again without its culprit; or Beam."""

import collections
import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import shlex
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from library.util import RunError, UserError

SPAWN = multiprocessing.get_context("spawn")
SECONDS_PER_MB = 0.1
TIMED_OUT = 1 if os.name == "nt" else -signal.SIGPROF
"""The exit status of a process whose time is over."""
MOST_WORKERS = 60 if os.name == "nt" else 1000
"""Windows waits for 63 things at once."""

NO_ITEM = -1
"""What a worker is at that has done its items: none is to blame if it dies."""

Tell = Callable[[int, int], None]
Work = Callable[[Mapping[int, str], Tell], None]


def run_jobs(
    jobs: Sequence[Work], num_workers: int, *, seconds_per_item: float = 5.0
) -> Iterator[tuple[int, int]]:
    """Do jobs in processes of their own.

    An item that ends the process, or takes more of its time than `seconds_per_item` and
    SECONDS_PER_MB, is bad: the job begins again, and is told so. Time is that of a processor: a
    pause or a slow disk takes none.

    Args:
        jobs: functions that can be pickled. They take the reasons why some items are bad, by their
            number, and what they call with the number and size of each item before they read it.
        num_workers: processes at the same time; 0: none, all is done here.

    Yields:
        How many items are new, and their bytes.

    Raises:
        OSError, UserError, RunError: as in the worker, a full disk for example.
        RuntimeError: any other error in a worker, with its traceback.
    """
    waiting = collections.deque(jobs)
    while waiting and not num_workers:
        sizes: dict[int, int] = {}
        waiting.popleft()({}, sizes.__setitem__)
        sizes.pop(NO_ITEM, None)
        yield len(sizes), sum(sizes.values())
    count = min(num_workers, len(jobs), MOST_WORKERS)
    workers = [_Worker(seconds_per_item, waiting.popleft()) for _ in range(count)]
    try:
        while workers:
            ready = multiprocessing.connection.wait([worker.connection for worker in workers])
            for worker in [each for each in workers if each.connection in ready]:
                message = worker.receive()
                if isinstance(message, tuple):
                    yield message
                elif message:
                    raise message
                elif waiting:
                    worker.begin(waiting.popleft())
                else:
                    worker.kill()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.kill()


class _Worker:
    """A process that does one job at a time, and tells which item it is at."""

    def __init__(self, seconds: float, job: Work):
        self.seconds = seconds
        self.start()
        self.begin(job)

    def start(self) -> None:
        self.connection, there = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_work, args=(there, self.seconds), daemon=True)
        # What ignores ctrl-C hands that on: it is for the parent, also while a child imports.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        there.close()

    def begin(self, job: Work) -> None:
        self.job, self.bad, self.item, self.done = job, dict[int, str](), NO_ITEM, 0
        self.connection.send((job, self.bad))

    def receive(self) -> tuple[int, int] | Exception | None:
        """How many items are new, and their bytes; None at the end of the job."""
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.begin_again()
            return 0, 0
        if not isinstance(message, tuple):
            return message
        self.item, size = message
        if self.item < self.done:
            return 0, 0
        self.done = self.item + 1
        return 1, size

    def begin_again(self) -> None:
        """Another process for the same job, without the item that this one died of."""
        self.kill()
        if self.item == NO_ITEM:
            raise RuntimeError(f"a worker ended, at none of its items: {self.process.exitcode}")
        hung = self.process.exitcode == TIMED_OUT
        self.bad[self.item] = "the decoder hung" if hung else "the decoder crashed"
        self.item = NO_ITEM
        self.start()
        self.connection.send((self.job, self.bad))

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _work(connection: Connection, seconds: float) -> None:
    """The life of a worker: it ends with its parent."""

    def tell(item: int, size: int) -> None:
        connection.send((item, size))
        limit = seconds + SECONDS_PER_MB * size / 1e6
        if os.name == "nt":  # where only the time of the clock can be had
            faulthandler.dump_traceback_later(limit, exit=True)
        else:  # also ends what does not return from C
            signal.setitimer(signal.ITIMER_PROF, limit)

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            job, bad = connection.recv()
            try:
                job(bad, tell)
            except (BrokenPipeError, ConnectionResetError):
                raise
            except (OSError, UserError, RunError) as error:
                connection.send(error)
            except Exception:
                connection.send(RuntimeError(traceback.format_exc()))
            else:
                connection.send(None)


def run_with_beam(jobs: Sequence[Work], runner: str, beam_options: str) -> None:
    """Do jobs as a pipeline on DirectRunner, FlinkRunner, SparkRunner, ...: wherever Beam runs.

    The folders of the files and of the dataset have to be the same for all workers, as on a network
    file system, and `library` has to be installed: Beam's option `--setup_file` does that.

    Raises:
        UserError: Beam is not installed, or knows no such runner or flag.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise UserError(f"runner: {error}: pip install apache-beam, or leave it out") from error
    here = str(Path(__file__).parents[2])  # for the processes of DirectRunner
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.getenv("PYTHONPATH")])])
    try:
        options = PipelineOptions([f"--runner={runner}", *shlex.split(beam_options)])
        pipeline = beam.Pipeline(options=options)
    except (ValueError, SystemExit) as error:
        raise UserError(f"runner: {runner} {beam_options}: {error}") from error
    with pipeline:  # reshuffled, or Beam may do all jobs in one worker
        shuffled = pipeline | beam.Create(list(jobs)) | beam.Reshuffle()
        shuffled | beam.Map(lambda job: job({}, lambda number, size: None))
