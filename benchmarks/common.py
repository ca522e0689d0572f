"""What the benchmarks share: JPEGs, datasets, runs, and what takes turns to be compared."""

import dataclasses
import importlib.metadata
import io
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

PROJECT = next(Path(__file__).parent.parent.glob("*/run.py")).parent
sys.path.insert(0, str(PROJECT))  # the project has no name to install it by

from library.data import Card, Target, write_index  # noqa: E402
from library.images import Jpeg, write_shard  # noqa: E402

if TYPE_CHECKING:
    from library.train import Run

WIDTH, HEIGHT, QUALITY = 500, 375, 90
Times = tuple[float, float]
"""Wall seconds and CPU seconds."""


def make_jpeg(seed: int, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """A JPEG of about 0.45 byte per pixel, as a camera's: shapes of every size, and some noise."""
    random = np.random.default_rng(seed)
    pixels = np.zeros([height, width, 3])
    for cells in (4, 16, 64, 256):
        grid = random.integers(0, 256, [cells * height // width, cells, 3], np.uint8)
        layer = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        pixels += (np.asarray(layer) - 128.0) * 1.2 / np.log2(cells)
    pixels = 128 + pixels + random.normal(0, 11, pixels.shape)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def write_files(folder: Path, jpegs: Sequence[bytes], count: int) -> None:
    """Write so many files, of these JPEGs again and again."""
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number:06}.jpg").write_bytes(jpegs[number % len(jpegs)])


def make_dataset(
    path: Path, jpegs: Sequence[bytes], *, copies: int = 1, per_shard: int = 1000
) -> Card:
    """Write a dataset of two classes: these images, each so many times."""
    examples = []
    for number, jpeg in enumerate(jpegs):
        width, height = Image.open(io.BytesIO(jpeg)).size
        examples.append((f"{number}.jpg", number % 2, Jpeg(jpeg, height, width)))
    total = len(jpegs) * copies
    classes = {"a": (total + 1) // 2, "b": total // 2}
    begins = range(0, total, per_shard)
    written = [
        write_shard(
            path.with_name(f"{path.name}-{number:05}-of-{len(begins):05}.tfrecord"),
            (examples[i % len(jpegs)] for i in range(begin, min(begin + per_shard, total))),
            Target("class", tuple(classes)),
        )
        for number, begin in enumerate(begins)
    ]
    write_index(path, [rows for _, rows in written])
    card = Card(list(classes), classes, [shard for shard, _ in written], {})
    card.save(path.with_name(f"{path.name}.json"))
    return card


def make_run(**options: Any) -> "Run":
    """The run with these settings and hyperparameters, and the defaults of all others."""
    from library.config import Settings
    from library.train import Run
    from project import input_fn, networks
    from project.model_fn import HEADS, model_fn
    from project.settings import Hyperparameters, modality

    names = {field.name for field in dataclasses.fields(Settings)} & options.keys()
    return Run(
        settings=Settings(**{name: options.pop(name) for name in names}),
        hyperparameters=Hyperparameters(**options),
        modality=modality,
        inputs=input_fn,
        networks=networks,
        model_fn=model_fn,
        heads=HEADS,
    )


def train_batches(path: str | Path, **options: Any) -> Iterable[Any]:
    """The training input of the project, from the dataset `path`."""
    run = make_run(train_data=str(path), validation_data=str(path), **options).for_training()
    return run.inputs.train_input(run)


def system_name() -> str:
    """The processor, its cores, and TensorFlow's version: what a figure depends on."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*: (.*)", info)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    version = importlib.metadata.version("tensorflow")
    return f"{cores} cores of {name[1] if name else platform.processor()}, TensorFlow {version}"


# ---- processes and turns -----------------------------------------------------------------------


def output_of(*words: object, **environment: str) -> Any:
    """Run a program whose last line is JSON, and return that; where it fails, so do we."""
    command = [str(word) for word in words]
    environ = {**os.environ, **environment}
    process = subprocess.run(command, env=environ, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)}:\n{process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def timed(function: Callable[..., object], *args: object) -> Callable[[], Times]:
    """A function that calls this one, and returns what that took, until it has a result."""

    def call() -> Times:
        wall, cpu = time.perf_counter(), time.process_time()
        result = function(*args)
        times = time.perf_counter() - wall, time.process_time() - cpu
        del result  # after the clock: see `drain`
        return times

    return call


def in_turns(
    rounds: int, runs: Mapping[str, Callable[[], Times]], *, warm_up: int = 0
) -> dict[str, Times]:
    """Call all in turns, so that what else the machine does slows each; medians by name.

    The first `warm_up` rounds do not count.
    """
    found: dict[str, list[Times]] = {name: [] for name in runs}
    for _ in range(warm_up + rounds):
        for name, run in runs.items():
            found[name].append(run())
    return {name: medians(times[warm_up:]) for name, times in found.items()}


def medians(times: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """The median of each column."""
    return tuple(statistics.median(column) for column in zip(*times, strict=True))


def drain(dataset: Iterable[object]) -> Iterator[object]:
    """Read to the end; the iterator, since TensorFlow may take seconds to delete it.

    Its autotuner sleeps longer each time, and is not always woken up.
    """
    iterator = iter(dataset)
    for _ in iterator:
        pass
    return iterator


def show_rates(times: Mapping[str, Times], count: int, unit: str, title: str = "") -> None:
    """Print how many a second, and CPU time; each beside that of the first one."""
    first_wall, first_cpu = next(iter(times.values()))
    first_cpu = max(first_cpu, 0.01)  # the step of the clock for processes
    for name, (wall, cpu) in times.items():
        print(
            f"{f'{title} {name}'.strip():38} {count / wall:9,.1f} {unit}/s "
            f"({first_wall / wall:.2f} x), {1e3 * cpu / count:7.3f} CPU ms each "
            f"({cpu / first_cpu:.2f} x)",
            flush=True,
        )
