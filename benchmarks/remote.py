"""Data on a server with latency, cold and warm, against files: python benchmarks/remote.py

    python benchmarks/remote.py [--rounds 3] [--megabits 1000] [--mosaic PYTHON]

The server is one of this machine (tests/storage_server.py of the project), which waits 20 ms before
each answer, and sends so many megabits a second; it is read as s3://. The same JPEGs come in the
same order, in batches; "decoded" is the training input of the project. With the Python of an
environment that has mosaicml-streaming, its shuffled stream reads the same images from the same
server, to bytes of Python, as "in Python" does. All are opened before the clock runs.
"""

import argparse
import concurrent.futures
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from common import (
    PROJECT,
    Times,
    drain,
    in_turns,
    make_dataset,
    make_jpeg,
    output_of,
    show_rates,
    system_name,
    timed,
    train_batches,
    write_files,
)

import tensorflow as tf  # isort: skip  after library, which chooses its Keras
from library.data import BlockCache, Card, Reader, read_by_id, shuffle_and_repeat
from library.data.remote import BLOCK, FETCHES, read_range

T = TypeVar("T")
IMAGES, COPIES, SIZE, BATCH = 4800, 8, 224, 64
PER_SHARD = 230
"""With which no two shards are alike: the cache would have one of them only."""
LATENCY_SECS = 0.02
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}

MOSAIC = """if True:
    import json, os, sys, time
    from streaming import MDSWriter, StreamingDataset
    folder, cache, files, batch = *sys.argv[1:4], int(sys.argv[4])
    if files:
        with MDSWriter(out=folder, columns={"jpeg": "bytes"}, size_limit=2**24) as writer:
            for file in os.scandir(files):
                writer.write({"jpeg": open(file, "rb").read()})
        print(json.dumps([0, 0, 0]))
    else:
        dataset = StreamingDataset(
            remote="s3://bucket/mds", local=cache, shuffle=True, batch_size=batch
        )
        begin = time.perf_counter(), time.process_time()
        count = sum(1 for _ in dataset)
        end = time.perf_counter(), time.process_time()
        print(json.dumps([count, end[0] - begin[0], end[1] - begin[1]]))
"""


@contextlib.contextmanager
def storage_server(folder: Path, megabits: float) -> Iterator[str]:
    """Serve a folder from a process of its own: the URL."""
    words = [sys.executable, PROJECT / "tests" / "storage_server.py", folder, LATENCY_SECS]
    command = [str(word) for word in (*words, megabits / 8)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    try:
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.kill()
        server.communicate()


def download(card: Card, url: str) -> None:
    """All blocks, as many at the same time as our reader asks for: the limit of the link."""
    blocks = [
        (f"{os.path.dirname(url)}/{shard.file}", begin, min(begin + BLOCK, shard.bytes))
        for shard in card.shards
        for begin in range(0, shard.bytes, BLOCK)
    ]
    with concurrent.futures.ThreadPoolExecutor(FETCHES) as threads:
        drain(threads.map(lambda block: read_range(*block), blocks))


def records(path: str, cache: Path) -> tf.data.Dataset:
    reader = Reader(path, BlockCache(cache, 10))
    ids = shuffle_and_repeat(IMAGES, seed=1, epochs=1)
    return ids.apply(read_by_id(reader, tf.data.AUTOTUNE)).batch(BATCH)


def python_records(reader: Reader) -> None:
    ids = shuffle_and_repeat(IMAGES, seed=1, epochs=1).batch(BATCH)
    drain(map(reader.read, ids.as_numpy_iterator()))


def decoded(path: str, cache: Path) -> tf.data.Dataset:
    options = {"image_size": SIZE, "train_batch_size": BATCH, "cache_dir": cache}
    return train_batches(path, **options).take(IMAGES // BATCH)


def from_empty(cache: Path, read: Callable[..., T], *args: object) -> T:
    shutil.rmtree(cache, ignore_errors=True)
    return read(*args)


def mosaic(python: str, folder: Path, cache: Path, files: str | Path = "") -> Times:
    """An epoch of mosaicml-streaming, or the data that it reads, from files."""
    words = (folder / "bucket" / "mds", cache, files, BATCH)
    count, *times = output_of(python, "-c", MOSAIC, *words, PYTHONPATH="")
    assert files or count >= IMAGES, f"{count} images"  # some come again, to fill a batch
    return times[0], times[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabits", type=float, default=1000)
    parser.add_argument("--mosaic", metavar="PYTHON", default="")
    options = parser.parse_args()
    rounds, python = options.rounds, options.mosaic
    with tempfile.TemporaryDirectory() as name:
        folder, warm, cold = (Path(name, part) for part in ("storage", "warm", "cold"))
        (folder / "bucket").mkdir(parents=True)
        local = folder / "bucket" / "train"
        jpegs = [make_jpeg(seed) for seed in range(IMAGES // COPIES)]
        card = make_dataset(local, jpegs, copies=COPIES, per_shard=PER_SHARD)
        size = sum(shard.bytes for shard in card.shards)
        print(f"{system_name()}; {IMAGES} JPEGs, {size / IMAGES / 1e3:.0f} KB each")
        if python:
            write_files(Path(name, "files"), jpegs, IMAGES)
            mosaic(python, folder, cold, Path(name, "files"))
        with storage_server(folder, options.megabits) as endpoint:
            os.environ |= {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint}
            url, here = "s3://bucket/train", str(local)
            reads = {
                "s3, all blocks in order": timed(download, card, url),
                "s3, cold cache": timed(from_empty, cold, drain, records(url, cold)),
                "s3, warm cache": timed(drain, records(url, warm)),
                "local files": timed(drain, records(here, warm)),
                "s3, warm cache, in Python": timed(
                    python_records, Reader(url, BlockCache(warm, 10))
                ),
            }
            if python:
                theirs = Path(name, "mosaic")
                reads["mosaicml-streaming, cold"] = lambda: from_empty(
                    theirs, mosaic, python, folder, theirs
                )
                reads["mosaicml-streaming, warm"] = lambda: mosaic(python, folder, theirs)
            show_rates(in_turns(rounds, reads, warm_up=1), IMAGES, "images", "read only:")
            inputs = {
                "local files": timed(drain, decoded(here, warm)),
                "s3, cold cache": timed(from_empty, cold, drain, decoded(url, cold)),
                "s3, warm cache": timed(drain, decoded(url, warm)),
            }
            show_rates(in_turns(rounds, inputs, warm_up=1), IMAGES, "images", "decoded:")


if __name__ == "__main__":
    main()
