"""Data on a server with latency, cold and warm, against files: python benchmarks/remote.py

    python benchmarks/remote.py [ROUNDS] [--mosaic PYTHON]

The server is one of this machine (tests/storage_server.py of the project), which waits 20 ms before
each answer, and is read as s3://. The same JPEGs come in the same order; "decoded" is the training
input of the project. With the Python of an environment that has mosaicml-streaming, its shuffled
stream reads the same images from the same server; it is opened while the clock runs.
"""

import concurrent.futures
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from common import (
    PROJECT,
    drain,
    in_turns,
    make_dataset,
    make_jpeg,
    output_of,
    show_rates,
    system_name,
    timed,
    train_batches,
)

import tensorflow as tf  # isort: skip  after library, which chooses its Keras
from library.data import BlockCache, Card, Reader, read_by_id, shuffle_and_repeat
from library.data.remote import BLOCK, FETCHES, read_range

IMAGES, SIZE, BATCH, ROUNDS, LATENCY_SECS = 1600, 224, 64, 3, 0.02
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}

MOSAIC = """if True:
    import json, sys, time
    from streaming import MDSWriter, StreamingDataset
    folder, cache, jpegs, batch = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if cache == "write":
        with MDSWriter(out=folder, columns={"jpeg": "bytes"}, size_limit=2**24) as writer:
            for name in json.loads(jpegs):
                writer.write({"jpeg": open(name, "rb").read()})
        print(json.dumps(0))
    else:
        begin = time.perf_counter(), time.process_time()
        dataset = StreamingDataset(
            remote="s3://bucket/mds", local=cache, shuffle=True, batch_size=batch
        )
        count = sum(1 for _ in dataset)
        end = time.perf_counter(), time.process_time()
        print(json.dumps([count, end[0] - begin[0], end[1] - begin[1]]))
"""


@contextlib.contextmanager
def storage_server(folder: Path) -> Iterator[str]:
    """Serve a folder from a process of its own: the URL."""
    words = [sys.executable, str(PROJECT / "tests" / "storage_server.py"), str(folder)]
    server = subprocess.Popen([*words, str(LATENCY_SECS)], stdout=subprocess.PIPE, text=True)
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
    return ids.apply(read_by_id(reader, tf.data.AUTOTUNE))


def decoded(path: str, cache: Path) -> tf.data.Dataset:
    options = {"image_size": SIZE, "train_batch_size": BATCH, "cache_dir": cache}
    return train_batches(path, **options).take(IMAGES // BATCH)


def from_empty(cache: Path, images: tf.data.Dataset) -> None:
    shutil.rmtree(cache, ignore_errors=True)
    drain(images)


def mosaic(python: str, folder: Path, cache: Path) -> Callable[[], tuple[float, float]]:
    def epoch() -> tuple[float, float]:
        count, *times = output_of(python, "-c", MOSAIC, folder, cache, "", BATCH, PYTHONPATH="")
        assert count >= IMAGES, f"{count} images"  # some come again, to fill a batch
        return times[0], times[1]

    return epoch


def main() -> None:
    words = [word for word in sys.argv[1:] if word.isdigit()]
    rounds = int(words[0]) if words else ROUNDS
    python = sys.argv[sys.argv.index("--mosaic") + 1] if "--mosaic" in sys.argv else ""
    with tempfile.TemporaryDirectory() as name:
        folder, warm, cold = (Path(name, part) for part in ("storage", "warm", "cold"))
        (folder / "bucket").mkdir(parents=True)
        local = folder / "bucket" / "train"
        jpegs = [make_jpeg(seed) for seed in range(IMAGES)]
        card = make_dataset(local, jpegs, per_shard=200)
        size = sum(shard.bytes for shard in card.shards)
        print(f"{system_name()}; {IMAGES} JPEGs, {size / IMAGES / 1e3:.0f} KB each")
        if python:
            files = [Path(name, f"{number}.jpg") for number in range(IMAGES)]
            for file, jpeg in zip(files, jpegs, strict=True):
                file.write_bytes(jpeg)
            listed = "[" + ",".join(f'"{file}"' for file in files) + "]"
            output_of(
                python,
                "-c",
                MOSAIC,
                folder / "bucket" / "mds",
                "write",
                listed,
                BATCH,
                PYTHONPATH="",
            )
        with storage_server(folder) as endpoint:
            os.environ |= {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint}
            url, here = "s3://bucket/train", str(local)
            reads = {
                "local files": timed(drain, records(here, warm)),
                "s3, all blocks in order": timed(download, card, url),
                "s3, cold cache": timed(from_empty, cold, records(url, cold)),
                "s3, warm cache": timed(drain, records(url, warm)),
            }
            if python:
                of_cold, of_warm = Path(name, "mosaic-cold"), Path(name, "mosaic-warm")
                empty = mosaic(python, folder, of_cold)
                reads["mosaicml-streaming, cold"] = lambda: (
                    shutil.rmtree(of_cold, ignore_errors=True) or empty()
                )
                reads["mosaicml-streaming, warm"] = mosaic(python, folder, of_warm)
            show_rates(in_turns(rounds, reads, warm_up=1), IMAGES, "images", "read only:")
            inputs = {
                "local files": timed(drain, decoded(here, warm)),
                "s3, cold cache": timed(from_empty, cold, decoded(url, cold)),
                "s3, warm cache": timed(drain, decoded(url, warm)),
            }
            show_rates(in_turns(rounds, inputs, warm_up=1), IMAGES, "images", "decoded:")


if __name__ == "__main__":
    main()
