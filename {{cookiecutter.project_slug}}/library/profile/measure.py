"""Measures how fast batches come, and how fast a dataset is read from its storage."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from library.data import Examples

WARM_UP = 5
"""Batches or steps that are not timed: the first ones allocate memory and fill buffers."""
TRACED_STEPS = 20
STORED_EXAMPLES, STORED_BYTES = 1000, 64 * 2**20
"""Read at most, to measure the storage."""


class Meter(tf.compat.v1.train.SessionRunHook):
    """Times batches for so many seconds; as a hook, it times training steps and ends them."""

    def __init__(self, batch_size: int, seconds: float):
        self.batch_size, self.seconds, self.batches = batch_size, seconds, -WARM_UP

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self.count():
            run_context.request_stop()

    def count(self) -> bool:
        """Count a batch; whether there is time for more."""
        self.batches += 1
        if self.batches == 0:
            self.begin, self.cpu_begin = time.perf_counter(), time.process_time()
        elif self.batches > 0:
            self.wall = time.perf_counter() - self.begin
            self.batch_ms = 1e3 * self.wall / self.batches
            self.examples_per_sec = self.batch_size * self.batches / self.wall
            return self.wall < self.seconds
        return True

    def show(self, name: str) -> None:
        """Print a row: also the cores at work, and the memory of this process."""
        cores = (time.process_time() - self.cpu_begin) / (time.perf_counter() - self.begin)
        memory = psutil.Process().memory_info().rss / 2**20
        numbers = f"{self.examples_per_sec:12,.0f}{self.batch_ms:12.1f}{cores:7.1f}{memory:13,.0f}"
        print(f"{name:36}{numbers}", flush=True)


class TraceHook(tf.compat.v1.train.SessionRunHook):
    """Writes a trace of some steps for TensorBoard's profiler, and ends the training."""

    def __init__(self, folder: Path):
        self.folder, self.step = str(folder), -WARM_UP

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.step += 1
        if self.step == 0:
            tf.profiler.experimental.start(self.folder)
        elif self.step == TRACED_STEPS:
            tf.profiler.experimental.stop()
            run_context.request_stop()


def measure_storage(examples: Examples) -> dict[str, tuple[float, float]]:
    """Read some examples of a dataset in three ways, from the storage and not from memory.

    For the third one, they are written beside the dataset, to a file each, and deleted again; where
    that is not allowed, it is left out.

    Returns:
        By name, examples/s and MB/s (10^6 bytes).
    """
    order = np.random.default_rng(0).permutation(len(examples.sizes))[:STORED_EXAMPLES]
    sizes = np.cumsum(examples.sizes[order], dtype=np.int64)
    ids = order[: 1 + np.searchsorted(sizes, STORED_BYTES)]
    total = int(sizes[len(ids) - 1])

    def read_in_order() -> None:
        left = total
        for shard in examples.shards:
            with open(shard, "rb", buffering=0) as file:
                while left > 0 and (data := file.read(min(left, 2**20))):
                    left -= len(data)

    def timed(files: Iterable[str | Path], read: Callable[[], object]) -> tuple[float, float]:
        if sys.platform == "linux":  # which can be asked not to keep a file in memory
            for path in files:
                with open(path, "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        read()
        seconds = time.perf_counter() - begin
        return len(ids) / seconds, total / seconds / 1e6

    results = {
        "large files, in order": timed(examples.shards, read_in_order),
        "large files, by number": timed(examples.shards, lambda: examples.read(ids)),
    }
    folder = os.path.dirname(examples.shards[0])
    with (
        contextlib.suppress(OSError),  # also of a read-only or full disk
        tempfile.TemporaryDirectory(dir=folder, prefix=".profile-") as temporary,
    ):
        files = [Path(temporary) / str(number) for number in ids]
        for path, record in zip(files, examples.read(ids), strict=True):
            with open(path, "wb") as file:
                file.write(record)
                file.flush()
                os.fsync(file.fileno())
        results["a small file each"] = timed(files, lambda: [file.read_bytes() for file in files])
    return results
