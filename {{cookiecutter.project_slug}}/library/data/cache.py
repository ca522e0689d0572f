"""The examples of a training run, in its order: as they are stored, or from a cache.

A cache keeps them where they are read faster, in memory or in a dataset on this disk. It is read by
id, so that each epoch still has an order of its own.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import psutil
import tensorflow as tf

from library.config import FOLDS, URL, Settings
from library.data.card import Card
from library.data.modality import Source
from library.data.order import mix_and_repeat, shuffle_and_repeat
from library.data.remote import BlockCache
from library.data.sources import (
    ReadShard,
    join,
    read_by_id,
    read_in_order,
    read_stream,
    read_tfrecords,
)
from library.data.stages import Transformation
from library.data.tfrecord import Reader, write_index, write_shard
from library.util import Progress, UserError, check_folder, replacing

SAMPLE = 100
"""Examples whose mean size stands for that of all."""
SHARE = 0.9
"""Of the free memory or disk; the rest is for the training."""
CONTAINER = Path("/sys/fs/cgroup")

Convert = Callable[[tf.data.Dataset], Iterable[bytes]]
"""A dataset of contents -> what is kept of each, in the same order.

Its attribute `version`, where it has one, names all that the result depends on."""


def train_records(
    settings: Settings,
    start: int = 0,
    *,
    num_workers: int = 1,
    worker: int = 0,
    to_cache: Convert | None = None,
    open_data: Callable[..., Source] | None = None,
    read_shard: ReadShard = read_tfrecords,
    read: Callable[[Source, int], Transformation] = read_by_id,
    classes_of: Callable[[Source], np.ndarray] | None = None,
) -> tf.data.Dataset:
    """The training examples of a run, shuffled, without end.

    Args:
        settings: the data, its order, its cache, and how many of the examples are used.
        start: number of examples that the run has behind it.
        num_workers, worker: processes that share the samples, and the number of this one.
        to_cache: a dataset of contents -> what a cache keeps of each; None: the contents.
        open_data: opens one or more datasets as one, where examples are read by id; None: as
            TFRecords.
        read_shard: reads a shard where they are a stream, or go to a cache.
        read: what makes samples, (number, id), into the result; called with the source and
            `num_parallel_calls`.
        classes_of: the class of each example, int64 [n], for a `sampling` that is not natural.

    Returns:
        A dataset of (number of the sample in the run, int64; id of the example, int64; content).
    """
    seed, blocks = settings.random_seed, BlockCache.of(settings)
    paths = (settings.train_data, *settings.extra_data)
    options = tf.data.Options()
    options.deterministic = settings.deterministic
    numbers = tf.data.Dataset.range(start + worker, tf.int64.max, num_workers)
    if settings.shuffle == "stream":
        buffer_mb = settings.shuffle_buffer_mb
        stream = read_stream(
            paths[0], seed, start, buffer_mb=buffer_mb, read_shard=read_shard, blocks=blocks
        )
        pairs = tf.data.Dataset.zip((numbers, stream.shard(num_workers, worker)))
        return pairs.map(lambda number, example: (number, *example)).with_options(options)
    if settings.cache == "none":
        source = open_data(*paths) if open_data else join([Reader(x, blocks) for x in paths])
    else:
        convert = to_cache or tf.data.Dataset.as_numpy_iterator
        with tf.__internal__.eager_context.eager_mode():  # also where an Estimator makes its graph
            for other in _in_memory.keys() - {*paths}:  # those of one run are kept at a time
                del _in_memory[other]
            kind, folder = settings.cache, settings.cache_dir
            source = join([_cached(x, kind, convert, folder, read_shard) for x in paths])
    # Ids are shuffled, never examples: a global shuffle that takes no memory.
    if settings.sampling == "natural" and not settings.mixture_weights:
        ids = shuffle_and_repeat(num_train_examples(settings, source), seed, start)
        if settings.fold is not None:
            ids = ids.map(functools.partial(_outside, fold=settings.fold))
    else:
        ids = mix_and_repeat(*_shares(settings, source, classes_of), seed, start)
    samples = tf.data.Dataset.zip((numbers, ids.shard(num_workers, worker)))
    return samples.apply(read(source, settings.num_parallel_calls)).with_options(options)


def num_train_examples(settings: Settings, data: Card | Source) -> int:
    """The examples of an epoch: all, or `limit_train_examples`, but for those of the `fold`."""
    count = min(data.num_examples, settings.limit_train_examples or data.num_examples)
    return count if settings.fold is None else count - len(range(settings.fold, count, FOLDS))


def _shares(
    settings: Settings, source: Source, classes_of: Callable[[Source], np.ndarray] | None
) -> tuple[list[np.ndarray], list[float]]:
    """The parts of a mixture, ids of each, and their weights: datasets, and in them classes."""
    power = {"natural": 1, "sqrt": 0.5, "balanced": 0}[settings.sampling]
    used = np.arange(min(source.num_examples, settings.limit_train_examples or sys.maxsize))
    if settings.fold is not None:
        used = np.delete(used, slice(settings.fold, None, FOLDS))
    datasets, weights = [used], settings.mixture_weights
    if weights:
        paths = (settings.train_data, *settings.extra_data)
        ends = np.cumsum([Card.load(f"{path}.json").num_examples for path in paths])
        datasets = np.split(used, np.searchsorted(used, ends[:-1]))
    if power == 1:
        return datasets, [*weights]
    assert classes_of, "sampling needs the classes"
    classes, parts, shares = (
        _classes(settings, source, classes_of),
        list[np.ndarray](),
        list[float](),
    )
    for ids, weight in zip(datasets, weights or [0], strict=True):
        found = [ids[classes[ids] == each] for each in np.unique(classes[ids])]
        sizes = [len(part) ** power for part in found]
        parts += found
        shares += [weight * size / sum(sizes) if weight else size for size in sizes]
    return parts, shares


def _classes(
    settings: Settings, source: Source, classes_of: Callable[[Source], np.ndarray]
) -> np.ndarray:
    """The class of each example; of data at a URL in `cache_dir`: all is read to know them."""
    paths = (settings.train_data, *settings.extra_data)
    if not any(map(URL.match, paths)):
        return classes_of(source)
    cards = f"{[Card.load(f'{path}.json') for path in paths]}"
    name = f"{hashlib.sha256(cards.encode()).hexdigest()[:16]}.classes.npy"
    file = Path(settings.cache_dir) / name
    with contextlib.suppress(OSError, ValueError, EOFError):
        if (kept := np.load(file)).shape == (source.num_examples,):
            return kept
    classes = classes_of(source)
    with contextlib.suppress(OSError), replacing(file) as new, open(new, "wb") as opened:
        np.save(opened, classes)
    return classes


def _outside(number: tf.Tensor, fold: int) -> tf.Tensor:
    """The ids without fold, fold + FOLDS and so on, by their number: int64 -> int64."""
    row, place = number // (FOLDS - 1), number % (FOLDS - 1)
    return row * FOLDS + place + tf.cast(place >= fold, tf.int64)


class _Memory(Source):
    """Contents in memory."""

    def __init__(self, contents: Iterable[bytes]):
        self.contents = np.array([*contents], object)

    @property
    def num_examples(self) -> int:
        return len(self.contents)

    def read(self, ids: np.ndarray) -> np.ndarray:
        return self.contents[ids]


_in_memory: dict[str, tuple[Path, _Memory]] = {}
"""Of a dataset by its path, the last one."""


def _cached(
    path: str, kind: str, convert: Convert, folder: str | Path, read_shard: ReadShard
) -> Source:
    """The dataset `path` in a cache: "memory", filled once a process, or "file", once in all.

    It is read in order, also from a URL. A cache is used again as long as the card of the dataset
    is the same.
    """
    card = Card.load(f"{path}.json")
    kept = getattr(convert, "version", None) or f"{convert.__module__}.{convert.__qualname__}"
    version = hashlib.sha256(f"{card}{kept}".encode())
    name = Path(folder) / f"{Path(path).name}-{version.hexdigest()[:16]}"

    def fill(instead: str, free: int, what: str) -> Iterator[bytes]:
        """What is kept of all contents, if there is room for as much as some of them foretell."""
        contents = read_in_order(path, read_shard).map(lambda number, content: content)
        kept = iter(convert(contents))
        first = [*itertools.islice(kept, SAMPLE)]
        mean = float(np.mean([*map(len, first)]))
        size = f"{card.num_examples * mean / 2**30:.2f} GB"
        if card.num_examples * mean > SHARE * free:
            raise UserError(
                f"cache: {kind} has no room for {path}: {card.num_examples:,} examples take about "
                f"{size}, and {free / 2**30:.2f} GB are free: set cache: {instead}"
            )
        print(f"cache: {what.format(f'{path}, about {size},')}", flush=True)
        with Progress(card.num_examples, "examples") as progress:
            for content in itertools.chain(first, kept):
                progress.update(1, len(content))
                yield content

    if kind == "memory":
        if path not in _in_memory or _in_memory[path][0] != name:
            _in_memory.pop(path, None)
            contents = fill("file or none", free_memory(), "reading {} into memory")
            _in_memory[path] = name, _Memory(contents)
        return _in_memory[path][1]
    check_folder("cache_dir", folder)
    if not Path(f"{name}.json").exists():
        name.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        contents = fill("none, or another cache_dir", free, f"writing {{}} to {folder}")
        _write(name, contents, card, path)
    return Reader(name)


def _write(name: Path, records: Iterator[bytes], card: Card, path: str) -> None:
    """Write the dataset `name`, in as many shards as `path` has; its card comes last."""
    written = []
    for number, shard in enumerate(card.shards):
        file = name.with_name(f"{name.name}-{number:05}-of-{len(card.shards):05}.tfrecord")
        written.append(write_shard(file, itertools.islice(records, shard.examples)))
    write_index(name, [rows for _, rows in written])
    shards, options = [shard for shard, _ in written], {**card.options, "cache_of": path}
    dataclasses.replace(card, shards=shards, options=options).save(f"{name}.json")


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, or of its container (cgroup v2)."""
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # "max" is no number, and no limit
        limit = int((CONTAINER / "memory.max").read_text())
        used = int((CONTAINER / "memory.current").read_text())
        rows = (CONTAINER / "memory.stat").read_text().splitlines()
        droppable = dict(row.split() for row in rows).get("inactive_file", 0)  # files in memory
        free = min(free, limit - used + int(droppable))
    return free
