"""What the benchmarks share: pictures like photos, data sets of them, and pairs run in turns."""

import importlib.metadata
import io
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

PROJECT = next(Path(__file__).parent.parent.glob("*/run.py")).parent
sys.path.insert(0, str(PROJECT))

from library.data import Card, Target, write_index  # noqa: E402
from library.images import Jpeg, write_shard  # noqa: E402  the project is not installed

WIDTH, HEIGHT, QUALITY = 500, 375, 90


def photo(seed: int, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """A JPEG of about 0.45 byte a pixel: shapes of every size, and some noise."""
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


def make_data_set(
    path: Path, jpegs: Sequence[bytes], copies: int = 1, per_shard: int = 1000
) -> Card:
    """Write a data set of two classes: these pictures, each so many times."""
    examples = []
    for number, jpeg in enumerate(jpegs):
        width, height = Image.open(io.BytesIO(jpeg)).size
        examples.append((f"{number}.jpg", number % 2, Jpeg(jpeg, height, width)))
    images, total, target = len(jpegs), len(jpegs) * copies, Target("class", ("a", "b"))
    begins = range(0, total, per_shard)
    written = [
        write_shard(
            path.with_name(f"{path.name}-{number:05}-of-{len(begins):05}.tfrecord"),
            (examples[i % images] for i in range(begin, min(begin + per_shard, total))),
            target,
        )
        for number, begin in enumerate(begins)
    ]
    write_index(path, [rows for _, rows in written])
    classes = {"a": (total + 1) // 2, "b": total // 2}
    card = Card(list(classes), classes, [shard for shard, _ in written], {})
    card.save(path.with_name(f"{path.name}.json"))
    return card


def system_name() -> str:
    """The processor, its cores, and TensorFlow's version: what a figure depends on."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*: (.*)", info)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    version = importlib.metadata.version("tensorflow")
    return f"{cores} cores of {name[1] if name else platform.processor()}, TensorFlow {version}"


def in_turns(rounds: int, **runs: Callable[[], object]) -> dict[str, tuple[float, float]]:
    """Run each in turns, so that what else the machine does slows all; one round is not counted.

    Returns:
        By name: medians of seconds and of CPU seconds.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: tuple(statistics.median(each) for each in zip(*pairs[1:], strict=True))
        for name, pairs in times.items()
    }
