"""Training examples kept where they are read faster: in memory, or in a dataset on this disk.

A cache is read by id, so that each epoch still has an order of its own.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import psutil
import tensorflow as tf

from library.data.card import Card
from library.data.sources import ReadShard, Source, read_in_order, read_tfrecords
from library.data.tfrecord import Reader, write_index, write_shard
from library.util import UserError, check_folder

SAMPLE = 100
"""Examples whose mean size stands for that of all."""
SHARE = 0.9
"""Of the free memory or disk; the rest is for the training."""
CONTAINER = Path("/sys/fs/cgroup")

Convert = Callable[[tf.data.Dataset], Iterable[bytes]]
"""A dataset of contents -> what is kept of each, in the same order."""


class Memory:
    """Contents in memory: a `library.data.Source`."""

    dtype = np.dtype(object)
    shape: Sequence[int] = ()

    def __init__(self, contents: Iterable[bytes]):
        self.contents = np.array([*contents], object)

    @property
    def num_examples(self) -> int:
        return len(self.contents)

    def read(self, ids: np.ndarray) -> np.ndarray:
        return self.contents[ids]


_in_memory: dict[Path, Memory] = {}


def cached(
    path: str,
    kind: str,
    convert: Convert,
    folder: str | Path,
    read_shard: ReadShard = read_tfrecords,
) -> Source:
    """The dataset `path` in a cache: "memory", filled once a process, or "file", once in all.

    It is read in order, also from another file system that TensorFlow reads. A cache is used again
    as long as the card of the dataset is the same.

    Raises:
        UserError: there is no room: memory or disk would be full.
    """
    card = Card.load(f"{path}.json")
    version = hashlib.sha256(f"{card}{convert.__module__}.{convert.__qualname__}".encode())
    name = Path(folder) / f"{Path(path).name}-{version.hexdigest()[:16]}"
    with tf.__internal__.eager_context.eager_mode():  # also where an Estimator builds its graph
        if kind == "memory":
            if name not in _in_memory:
                _in_memory.clear()  # one is kept at a time
                _in_memory[name] = _read(path, convert, read_shard)
            return _in_memory[name]
        check_folder("cache_dir", folder)
        if not Path(f"{name}.json").exists():
            _fill(name, path, convert, read_shard)
        return Reader(name)


def _read(path: str, convert: Convert, read_shard: ReadShard) -> Memory:
    """Fill memory."""
    contents = _contents(path, read_shard)
    size = _expect_room("memory", path, contents, convert, free_memory())
    print(f"cache: reading {path}, about {size / 2**30:.2f} GB, into memory", flush=True)
    return Memory(convert(contents))


def _fill(name: Path, path: str, convert: Convert, read_shard: ReadShard) -> None:
    """Write the dataset `name`; its card comes last."""
    name.parent.mkdir(parents=True, exist_ok=True)
    contents, card = _contents(path, read_shard), Card.load(f"{path}.json")
    free = shutil.disk_usage(name.parent).free
    size = _expect_room("file", path, contents, convert, free)
    print(f"cache: writing {path}, about {size / 2**30:.2f} GB, to {name.parent}", flush=True)
    kept, written = iter(convert(contents)), []
    for number, shard in enumerate(card.shards):
        file = name.with_name(f"{name.name}-{number:05}-of-{len(card.shards):05}.tfrecord")
        written.append(write_shard(file, itertools.islice(kept, shard.examples)))
    write_index(name, [rows for _, rows in written])
    shards, options = [shard for shard, _ in written], {**card.options, "cache_of": str(path)}
    dataclasses.replace(card, shards=shards, options=options).save(f"{name}.json")


def _contents(path: str, read_shard: ReadShard) -> tf.data.Dataset:
    return read_in_order(path, read_shard).map(lambda number, content: content)


def _expect_room(
    kind: str, path: str, contents: tf.data.Dataset, convert: Convert, free: int
) -> float:
    """The size of all in bytes, estimated from some; a UserError if that is not free."""
    sizes = [len(content) for content in convert(contents.take(SAMPLE))]
    count = Card.load(f"{path}.json").num_examples
    size = count * float(np.mean(sizes))
    if size > SHARE * free:
        instead = "file or none" if kind == "memory" else "none, or another cache_dir"
        raise UserError(
            f"cache: {kind} has no room for {path}: {count:,} examples take about "
            f"{size / 2**30:.2f} GB, and {free / 2**30:.2f} GB are free: set cache: {instead}"
        )
    return size


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, or of its container (cgroup v2)."""
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # "max" is no number, and no limit
        limit = int((CONTAINER / "memory.max").read_text())
        free = min(free, limit - int((CONTAINER / "memory.current").read_text()))
    return free
