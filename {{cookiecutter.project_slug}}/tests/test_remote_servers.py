"""Datasets on servers of this machine: what fails on the way changes no byte; kills; S3 itself."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import requests
from conftest import ROOT, run_program, write_records
from moto.server import ThreadedMotoServer
from storage_server import Server

from library.data import BlockCache, Reader

pytestmark = pytest.mark.slow

COUNT, SHARDS = 300, 3
BLOCK = 4096
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "hush",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """300 records of 0 to 20 kB in three shards: the dataset bucket/train."""
    made = random.Random(0)
    records = [made.randbytes(made.randrange(20_000)) for _ in range(COUNT)]
    folder, size = tmp_path_factory.mktemp("storage"), COUNT // SHARDS
    (folder / "bucket").mkdir()
    write_records(
        folder / "bucket" / "train", *[records[n : n + size] for n in range(0, COUNT, size)]
    )
    return folder


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("library.data.remote.BLOCK", BLOCK)


def in_shuffled_order(reader, seed=0) -> list[bytes]:
    ids = np.random.default_rng(seed).permutation(COUNT)
    return [record for n in range(0, COUNT, 64) for record in reader.read(ids[n : n + 64])]


def size_of(cache: Path) -> int:
    return sum(file.stat().st_size for file in cache.glob("blocks/*-*"))


def test_faults_and_hangs_of_a_server_change_no_byte(folder, tmp_path, monkeypatch, small_blocks):
    monkeypatch.setattr("library.data.remote.STALL_SECS", 1.0)
    monkeypatch.setattr("library.data.remote.FIRST_PAUSE_SECS", 0.01)
    local, limit = Reader(folder / "bucket" / "train"), 300_000  # a tenth
    with Server(folder, failing=0.05, hanging=0.01) as server:
        cache = BlockCache(tmp_path, limit / 1e9)
        reader = Reader(f"http://127.0.0.1:{server.port}/bucket/train", cache)
        for seed in range(2):
            assert in_shuffled_order(reader, seed) == in_shuffled_order(local, seed)
            assert 0 < size_of(tmp_path) <= limit
        assert server.faults > 20
        assert server.hangs > 2


READER = """if True:
    import random, sys
    import numpy as np
    from library.data import BlockCache, Reader, remote
    remote.BLOCK = int(sys.argv[3])
    reader = Reader(sys.argv[1], BlockCache(sys.argv[2], 300_000 / 1e9))
    print("open", flush=True)
    while True:
        reader.read(np.random.default_rng().permutation(reader.num_examples)[:16])
"""


def test_kills_at_random_moments_leave_a_cache_within_its_limit(folder, tmp_path, small_blocks):
    """Two processes share it; 12 are killed."""
    local, made = Reader(folder / "bucket" / "train"), random.Random(1)
    with Server(folder) as server:
        url = f"http://127.0.0.1:{server.port}/bucket/train"
        command = [sys.executable, "-c", READER, url, str(tmp_path), str(BLOCK)]
        for _ in range(6):
            both = [
                subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
                for _ in range(2)
            ]
            for process in both:
                assert process.stdout.readline() == "open\n"
            time.sleep(made.uniform(0, 0.3))
            for process in both:
                process.send_signal(signal.SIGKILL)
                process.communicate()
            assert size_of(tmp_path) <= 300_000
        reader = Reader(url, BlockCache(tmp_path, 300_000 / 1e9))
        assert in_shuffled_order(reader) == in_shuffled_order(local)
        assert 0 < size_of(tmp_path) <= 300_000


@pytest.fixture
def s3(folder, monkeypatch) -> dict[str, str]:
    """The environment with which the same bucket is on an S3 server of this process."""
    server = ThreadedMotoServer(port=0)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    requests.put(f"{url}/bucket").raise_for_status()
    for file in (folder / "bucket").iterdir():
        requests.put(f"{url}/bucket/{file.name}", data=file.read_bytes()).raise_for_status()
    environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": url}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    yield environment
    server.stop()


def test_s3_gives_the_records_of_local_files_and_keeps_its_secrets(
    folder, tmp_path, monkeypatch, s3
):
    monkeypatch.setattr("library.data.remote.BLOCK", 10 * BLOCK)
    local = Reader(folder / "bucket" / "train")
    reader = Reader("s3://bucket/train", BlockCache(tmp_path, 1))
    for seed in range(2):
        assert in_shuffled_order(reader, seed) == in_shuffled_order(local, seed)
    for name in ("s3://bucket/none", "s3://elsewhere/train"):
        process = run_program("run.py", "--train_data", name, cwd=tmp_path, status=2, **s3)
        assert process.stderr.endswith(f"error: {name}.json: there is no such file\n")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert "hush" not in "".join(file.read_text(errors="replace") for file in files)


def test_nobody_listens(tmp_path):
    environment = {**os.environ, **ENVIRONMENT, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    code = "from library.data import Reader, remote; remote.FIRST_PAUSE_SECS = 0.01\n"
    code += "from library.util import run_main\nrun_main(lambda: Reader('s3://bucket/train'))"
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 1
    *_, line = process.stderr.splitlines()
    assert line.startswith("error: s3://bucket/train.json: ")
    assert line.endswith("6 times in a row")
    assert "hush" not in process.stderr
