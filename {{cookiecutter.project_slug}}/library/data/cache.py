"""Examples kept where they are read faster: in memory, or in a data set of their own on this disk.

A cache is read by id, so that each epoch still has an order of its own.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import psutil
import tensorflow as tf

from library.data.card import Card
from library.data.sources import read_in_order
from library.data.tfrecord import Reader, write_index, write_shard
from library.util import UserError, check_folder

SAMPLE = 100
"""Examples whose size stands for that of all."""
SHARE = 0.9
"""Of what is free: the rest is for the training."""
CONTAINER = Path("/sys/fs/cgroup")


class Memory:
    """Records by their number, in memory: a `library.sources.Source`."""

    dtype = np.dtype(object)
    shape: Sequence[int] = ()

    def __init__(self, records: Iterable[bytes]):
        self.records = np.array([*records], object)

    @property
    def num_examples(self) -> int:
        return len(self.records)

    def read(self, ids: np.ndarray) -> np.ndarray:
        return self.records[ids]


def cached(
    path: str,
    kind: str,
    convert: Callable[[tf.data.Dataset], Iterable[bytes]],
    *,
    folder: str | Path,
) -> Memory | Reader:
    """The records of a data set, kept; they are read once, in their order.

    Memory is filled once in a process, and files once for all processes: a cache that is there is
    used again as long as the card of the data set is the same.

    Args:
        path: the data set, as "data/train"; also on another file system that TensorFlow reads.
        kind: "memory" or "file".
        convert: a dataset of records -> what is kept for each of them, in the same order.
        folder: for files; it holds a data set for each that was cached.

    Raises:
        UserError: there is no room for it: memory or disk would be full.
    """
    card = Card.load(f"{path}.json")
    version = hashlib.sha256(f"{card}{convert.__module__}.{convert.__qualname__}".encode())
    name = Path(folder) / f"{Path(path).name}-{version.hexdigest()[:16]}"
    if kind == "memory":
        return _in_memory(str(path), convert, name)
    check_folder("cache_dir", folder)
    if not Path(f"{name}.json").exists():
        _fill(name, path, card, convert)
    return Reader(name)


@functools.lru_cache(maxsize=1)
def _in_memory(path: str, convert: Callable, version: Path) -> Memory:
    """One at a time is kept; `version` is there to tell data sets of one path apart."""
    records = _records(path)
    size = _expect_room("memory", path, records, convert, free_memory())
    print(f"cache: {path}, about {size / 2**30:.2f} GB, is read into memory", flush=True)
    return Memory(convert(records))


def _fill(name: Path, path: str, card: Card, convert: Callable) -> None:
    """Write the data set `name`; its card comes last."""
    name.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(name.parent).free
    size = _expect_room("file", path, _records(path), convert, free)
    print(f"cache: {path}, about {size / 2**30:.2f} GB, is written to {name.parent}", flush=True)
    records = iter(convert(_records(path)))
    written = []
    for number, shard in enumerate(card.shards):
        file = name.with_name(f"{name.name}-{number:05}-of-{len(card.shards):05}.tfrecord")
        written.append(write_shard(file, itertools.islice(records, shard.examples)))
    write_index(name.with_name(f"{name.name}.index"), [rows for _, rows in written])
    shards = [shard for shard, _ in written]
    options = {**card.options, "cache_of": str(path)}
    dataclasses.replace(card, shards=shards, options=options).save(f"{name}.json")


def _records(path: str) -> tf.data.Dataset:
    return read_in_order(path).map(lambda number, record: record)


def _expect_room(
    kind: str, path: str, records: tf.data.Dataset, convert: Callable, free: int
) -> float:
    """The size of all, in bytes, by that of some; or a refusal."""
    sizes = [len(record) for record in convert(records.take(SAMPLE))]
    count = Card.load(f"{path}.json").num_examples
    size = count * float(np.mean(sizes))
    if size > SHARE * free:
        another = "file or none" if kind == "memory" else "none, or another cache_dir"
        raise UserError(
            f"cache: {kind} has no room for {path}: {count:,} examples take about "
            f"{size / 2**30:.2f} GB, and {free / 2**30:.2f} GB are free: set cache: {another}"
        )
    return size


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, or of its container (cgroup v2)."""
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # "max" is no number, and no limit
        limit = int((CONTAINER / "memory.max").read_text())
        free = min(free, limit - int((CONTAINER / "memory.current").read_text()))
    return free
