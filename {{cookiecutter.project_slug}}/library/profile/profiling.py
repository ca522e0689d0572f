"""How fast the parts of a training are, each alone, and which of them holds the others up."""

import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import tensorflow as tf

from library.data import cut_at, stages_of

WARM_UP = 5
"""Batches or steps that are not timed: the first ones allocate memory and fill buffers."""
BALANCED = 1.25
"""Input and step are balanced where neither takes so many times as long as the other."""
WORTH_IT = 1.05
"""A gain of less is noise."""
TRACED_STEPS = 20
STORED_EXAMPLES, STORED_BYTES = 1000, 64 * 2**20
"""Of which the storage is measured, at most."""


@dataclasses.dataclass(frozen=True)
class Speed:
    """What was measured of something that works on batches."""

    examples_per_sec: float
    batch_ms: float
    cpus: float
    """Cores at work, on average."""
    resident_mb: float


class Meter:
    """Times batches until so many seconds are over."""

    def __init__(self, batch_size: int, *, seconds: float):
        self.batch_size, self.seconds, self.batches = batch_size, seconds, -WARM_UP

    def count(self) -> bool:
        """Count a batch; whether there is time for more."""
        self.batches += 1
        if self.batches == 0:
            self.begin, self.cpu_begin = time.perf_counter(), time.process_time()
        elif self.batches > 0:
            self.end, self.cpu_end = time.perf_counter(), time.process_time()
            return self.end - self.begin < self.seconds
        return True

    @property
    def speed(self) -> Speed:
        wall = self.end - self.begin
        return Speed(
            examples_per_sec=self.batches * self.batch_size / wall,
            batch_ms=1e3 * wall / self.batches,
            cpus=(self.cpu_end - self.cpu_begin) / wall,
            resident_mb=psutil.Process().memory_info().rss / 2**20,
        )


class MeterHook(tf.compat.v1.train.SessionRunHook):
    """Times training steps, and ends the training."""

    def __init__(self, meter: Meter):
        self.meter = meter

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self.meter.count():
            run_context.request_stop()


def measure_input(batches: tf.data.Dataset, batch_size: int, *, seconds: float) -> Speed:
    """Draw batches in a loop, and do nothing with them."""
    meter = Meter(batch_size, seconds=seconds)
    for _ in batches:
        if not meter.count():
            break
    return meter.speed


def measure_stages(
    build: Callable[[], tf.data.Dataset], batch_size: int, *, seconds: float
) -> Iterator[tuple[str, Speed]]:
    """The speed of the chain that `build` makes, as far as each of its stages."""
    for stage in stages_of(build):
        dataset = cut_at(stage, build)
        if stage not in ("batch", "device"):
            # What an example has become is dropped where it is: its copy is the batch's business.
            dataset = dataset.map(lambda *_: tf.constant(0)).batch(batch_size).prefetch(2)
        yield stage, measure_input(dataset, batch_size, seconds=seconds)


class TraceHook(tf.compat.v1.train.SessionRunHook):
    """Writes a trace of some steps for TensorBoard's profiler, and ends the training."""

    def __init__(self, folder: str | Path):
        self.folder, self.step = str(folder), -WARM_UP

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.step += 1
        if self.step == 0:
            tf.profiler.experimental.start(self.folder)
        elif self.step == TRACED_STEPS:
            tf.profiler.experimental.stop()
            run_context.request_stop()


# ---- storage -----------------------------------------------------------------------------------


class Stored(Protocol):
    """A data set in files, as `library.tfrecord.Reader`."""

    @property
    def shards(self) -> Sequence[str | Path]: ...

    @property
    def sizes(self) -> np.ndarray:
        """Of the examples, in bytes."""
        ...

    def read(self, ids: np.ndarray) -> Iterable[Any]:
        """The contents of these numbers, as bytes or arrays."""
        ...


def measure_storage(stored: Stored) -> dict[str, tuple[float, float]]:
    """Read some examples of a data set in three ways, from the storage and not from memory.

    For the third one, the same examples are written beside the data set, in a file each, and
    deleted again; where that is not allowed, it is left out.

    Returns:
        By name, examples/s and MB/s (10^6 bytes).
    """
    order = np.random.default_rng(0).permutation(len(stored.sizes))[:STORED_EXAMPLES]
    sizes = np.cumsum(stored.sizes[order], dtype=np.int64)
    ids = order[: 1 + np.searchsorted(sizes, STORED_BYTES)]
    total = int(sizes[len(ids) - 1])

    def in_a_row() -> None:
        left = total
        for shard in stored.shards:
            with open(shard, "rb", buffering=0) as file:
                while left > 0 and (data := file.read(min(left, 2**20))):
                    left -= len(data)

    def timed(files: Iterable[str | Path], read: Callable[[], object]) -> tuple[float, float]:
        for file in files:
            _forget(file)
        begin = time.perf_counter()
        read()
        seconds = time.perf_counter() - begin
        return len(ids) / seconds, total / seconds / 1e6

    results = {
        "large files, in a row": timed(stored.shards, in_a_row),
        "large files, by number": timed(stored.shards, lambda: stored.read(ids)),
    }
    beside = os.path.dirname(stored.shards[0])
    with (
        contextlib.suppress(PermissionError),
        tempfile.TemporaryDirectory(dir=beside, prefix=".profile-") as folder,
    ):
        files = [Path(folder) / str(number) for number in ids]
        for file, record in zip(files, stored.read(ids), strict=True):
            with open(file, "wb") as opened:
                opened.write(record)
                opened.flush()
                os.fsync(opened.fileno())
        results["a small file each"] = timed(files, lambda: [file.read_bytes() for file in files])
    return results


def _forget(file: str | Path) -> None:
    """Ask the system not to keep a file in memory; not all can be asked."""
    if sys.platform == "linux":
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---- the verdict -------------------------------------------------------------------------------


def bottleneck(step_ms: float, stage_ms: Mapping[str, float]) -> tuple[str, float]:
    """Which part holds the others up.

    Args:
        step_ms: the training step alone.
        stage_ms: a batch of the input as far as each stage, in their order; `device` is the last
            where there is one.

    Returns:
        "model", "transfer" (to the device), "disk", "preprocessing" or "balanced"; and how many
        times as long as the rest it takes, at least 1.
    """
    input_ms = list(stage_ms.values())[-1]
    times = max(input_ms, step_ms) / min(input_ms, step_ms)
    if times < BALANCED:
        return "balanced", times
    if step_ms > input_ms:
        return "model", times
    parts = {
        "disk": stage_ms["read"],
        "preprocessing": stage_ms["batch"] - stage_ms["read"],
        "transfer": input_ms - stage_ms["batch"],
    }
    return max(parts, key=parts.__getitem__), times


def verdict(found: str, times: float, gains: Mapping[str, float]) -> str:
    """A bottleneck, and what was gained by changing a setting, in words."""
    words = {
        "model": f"the model: a training step takes {times:.1f} times as long as its input",
        "transfer": f"RAM to device: the input takes {times:.1f} times as long as a training step, "
        "and the copy to the device is the most of it",
        "preprocessing": f"preprocessing on the CPU: the input takes {times:.1f} times as long as "
        "a training step, and decoding and augmenting is the most of it",
        "disk": f"the disk: the input takes {times:.1f} times as long as a training step, and "
        "reading is the most of it",
        "balanced": f"none: input and training step take about as long ({times:.2f} times)",
    }
    line = f"bottleneck: {words[found]}"
    if not gains:
        return line
    tried = ", ".join(f"{change} ({gain:.2f} x)" for change, gain in gains.items())
    best = max(gains, key=gains.__getitem__)
    if gains[best] < WORTH_IT:
        return f"{line}\nno setting that was tried gains much: {tried}"
    return f"{line}\nchange {best}: {gains[best]:.2f} times the examples/s; tried: {tried}"
