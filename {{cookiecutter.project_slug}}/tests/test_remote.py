"""Datasets at a URL: the bytes and the order of local files, a cache within its limit, faults."""

import collections
import concurrent.futures
import functools
import logging
import random
import shutil
import threading
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import numpy as np
import pytest
from conftest import write_records
from fsspec.implementations.memory import MemoryFileSystem

from library.config import Parser, Settings
from library.data import BlockCache, Card, DamagedRecordError, Reader, train_records
from library.data import remote as remote_files
from library.data.remote import BLOCK_NAME
from library.util import RunError, UserError

COUNT, SHARDS = 60, 3
BLOCK = 64


class Flaky(MemoryFileSystem):
    """Memory, of which the first `failures` requests for the same bytes have a fault."""

    protocol = "flaky"
    fault, failures = None, 0
    requests: collections.Counter = collections.Counter()

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://"))

    def cat_file(self, path, start=None, end=None, **options):
        data = super().cat_file(path, start, end, **options)
        Flaky.requests[path, start] += 1
        return Flaky.fault(data) if Flaky.requests[path, start] <= Flaky.failures else data


class Closed(MemoryFileSystem):
    """Memory that asks for a token when it is opened."""

    protocol, fault = "closed", None

    def __init__(self, **options):
        raise Closed.fault


class RefusedError(Exception):
    """As Azure has it."""

    status_code = 403


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setattr(Flaky, "requests", collections.Counter())
    monkeypatch.setattr("library.data.remote.BLOCK", BLOCK)
    monkeypatch.setattr("library.data.remote.FIRST_PAUSE_SECS", 0.001)


def begin_faults(monkeypatch, fault, failures):
    monkeypatch.setattr(Flaky, "requests", collections.Counter())
    monkeypatch.setattr(Flaky, "fault", staticmethod(fault))
    monkeypatch.setattr(Flaky, "failures", failures)


def cut(data):
    return data[:-1]


def cut_connection(data):
    raise ConnectionResetError("cut")


def throttled(data):
    raise OSError("503 https://user:password@host/x?sig=abc SlowDown")


def changed(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.fixture
def local(tmp_path) -> str:
    """60 records of 0 to 199 bytes, in three shards."""
    made = random.Random(0)
    records = [made.randbytes(made.randrange(200)) for _ in range(COUNT)]
    size = COUNT // SHARDS
    (tmp_path / "local").mkdir()
    return write_records(
        tmp_path / "local" / "train", *[records[n : n + size] for n in range(0, COUNT, size)]
    )


@pytest.fixture
def remote(local, tmp_path) -> str:
    """The same dataset elsewhere."""
    files = fsspec.filesystem("memory")
    for file in (tmp_path / "local").iterdir():
        files.pipe(f"memory://{tmp_path}/{file.name}", file.read_bytes())
    return f"flaky://{tmp_path}/train"


def blocks_in(folder) -> list:
    return [each for each in (folder / "blocks").iterdir() if BLOCK_NAME.fullmatch(each.name)]


def cache_of(folder, blocks: int) -> BlockCache:
    return BlockCache(folder, (blocks + 0.5) * BLOCK / 1e9)


def read_all(reader, seed=0) -> list[bytes]:
    ids = np.random.default_rng(seed).permutation(COUNT)
    found = [reader.read(ids[n : n + 16]) for n in range(0, COUNT, 16)]
    return np.concatenate(found)[np.argsort(ids)].tolist()


def test_records_are_those_of_local_files_cold_and_warm(local, remote, tmp_path):
    expected = read_all(Reader(local))
    assert read_all(Reader(remote)) == expected, "without a cache"
    cache = cache_of(tmp_path, 1000)
    Flaky.requests.clear()
    assert read_all(Reader(remote, cache)) == expected
    shards = Card.load(f"{remote}.json").shards
    num_blocks = sum(-(-shard.bytes // BLOCK) for shard in shards)
    assert Flaky.requests.total() == num_blocks + 3, "each block once, the index, the card twice"
    assert len(blocks_in(tmp_path)) == num_blocks
    assert read_all(Reader(remote, cache), seed=1) == expected
    assert Flaky.requests.total() == num_blocks + 5, "the index and the card"
    assert [*Reader(remote).beginnings(5)] == [*Reader(local).beginnings(5)]


def test_classes_are_read_once(local, remote, tmp_path):
    reads = []

    def classes_of(source):
        reads.append(source)
        return np.arange(source.num_examples) % 3

    def ids(path):
        settings = Settings(train_data=path, sampling="balanced", cache_dir=tmp_path / "cache")
        records = train_records(settings, classes_of=classes_of).take(30)
        return [int(id_) for _, id_, _ in records.as_numpy_iterator()]

    expected = ids(local)
    assert [ids(remote), ids(remote)] == [expected] * 2
    assert len(reads) == 2
    (kept,) = (tmp_path / "cache").glob("*.npy")
    kept.write_bytes(kept.read_bytes()[:-1])
    assert ids(remote) == expected
    assert len(reads) == 3


@pytest.mark.parametrize("room", [1, 7, 40])
def test_a_cache_is_within_its_limit_while_threads_share_it(local, remote, tmp_path, room):
    readers = [Reader(remote, cache_of(tmp_path, room)) for _ in range(3)]

    def work(number):
        found, most = [], 0
        for ids in np.random.default_rng(number).permutation(COUNT).reshape(-1, 6):
            found += zip(ids, readers[number].read(ids), strict=True)
            with open(tmp_path / "blocks" / ".count") as count:  # while no other thread writes
                if remote_files.fcntl:
                    remote_files.fcntl.flock(count, remote_files.fcntl.LOCK_EX)
                most = max(most, len(blocks_in(tmp_path)))
        return [record for _, record in sorted(found)], most

    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        results = [*threads.map(work, range(3))]
    expected = read_all(Reader(local))
    for found, most in results:
        assert found == expected
        assert 0 < most <= room


def test_a_smaller_limit_and_a_lost_count_hold_at_once(remote, tmp_path):
    read_all(Reader(remote, cache_of(tmp_path, 1000)))
    (tmp_path / "blocks" / ".count").write_bytes(b"")
    (tmp_path / "blocks" / "notes.txt").write_text("not a block")
    for block in blocks_in(tmp_path)[:1]:
        block.unlink()
    reader = Reader(remote, cache_of(tmp_path, 10))
    assert 0 < len(blocks_in(tmp_path)) <= 10
    read_all(reader)
    assert 0 < len(blocks_in(tmp_path)) <= 10
    assert (tmp_path / "blocks" / "notes.txt").exists(), "only blocks are dropped"


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: bytes(len(data))])
def test_a_damaged_block_is_fetched_again(local, remote, tmp_path, damage):
    reader = Reader(remote, cache_of(tmp_path, 1000))
    expected = read_all(reader)
    whole = {file: file.read_bytes() for file in blocks_in(tmp_path)}
    for file, content in whole.items():
        file.write_bytes(damage(content))
    assert read_all(reader, seed=1) == expected
    assert {file: file.read_bytes() for file in blocks_in(tmp_path)} == whole


def test_a_damaged_record_elsewhere_is_named(remote, tmp_path):
    shard = Card.load(f"{remote}.json").shards[1].file
    path = f"memory://{tmp_path}/{shard}"
    content = bytearray(fsspec.filesystem("memory").cat_file(path))
    content[-10] ^= 1
    fsspec.filesystem("memory").pipe(path, bytes(content))
    with pytest.raises(DamagedRecordError, match=f"flaky:.*{shard}: record 19 is damaged"):
        read_all(Reader(remote, cache_of(tmp_path, 1000)))


@pytest.mark.parametrize("fault", [cut, cut_connection, throttled, changed])
def test_faults_change_no_byte(local, remote, tmp_path, monkeypatch, fault):
    reader = Reader(remote, cache_of(tmp_path, 20))
    begin_faults(monkeypatch, fault, 1 if fault is changed else 2)
    assert read_all(reader) == read_all(Reader(local))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (cut, r"\d+ bytes instead of \d+"),
        (cut_connection, "cut"),
        (throttled, "503 https://host/x SlowDown"),
    ],
)
def test_what_never_answers_is_one_line_without_secrets(
    remote, tmp_path, monkeypatch, fault, reason
):
    reader = Reader(remote, cache_of(tmp_path, 20))
    begin_faults(monkeypatch, fault, 100)
    with pytest.raises(RunError, match=rf"flaky://.*\.tfrecord: {reason}, 6 times in a row"):
        read_all(reader)


def test_what_is_the_users_mistake_is_not_tried_again(remote, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"flaky://.*none.json: there is no such file"):
        Reader(f"flaky://{tmp_path}/none")
    with pytest.raises(UserError, match=r"ftpx://x/train.json: Protocol not known: ftpx"):
        Reader("ftpx://x/train")

    def forbidden(data):
        raise PermissionError("Forbidden")

    begin_faults(monkeypatch, forbidden, 100)
    with pytest.raises(UserError, match=r"train.json: no access: Forbidden"):
        Reader(remote)
    assert Flaky.requests.total() == 1


@pytest.mark.parametrize(
    ("fault", "kind", "line"),
    [
        (ConnectionError("no way to /info?access_token=hush"), RunError, "/info, 6 times in a row"),
        (RefusedError("Server failed to authenticate"), UserError, "no access: Server failed to"),
        (OSError("Parameter validation:\nInvalid bucket name"), UserError, "n: Invalid bucket"),
        (ValueError("no account"), UserError, "no account"),
    ],
)
def test_a_file_system_that_does_not_open_is_one_line(monkeypatch, fault, kind, line):
    fsspec.register_implementation("closed", Closed, clobber=True)
    monkeypatch.setattr(Closed, "fault", fault)
    with pytest.raises(kind, match=f"closed://bucket/train.json: .*{line}") as caught:
        Reader("closed://bucket/train")
    assert "hush" not in str(caught.value)
    for client in ("azure.identity", "gcsfs"):  # which log tracebacks, and secrets
        assert not logging.getLogger(client).isEnabledFor(logging.ERROR)


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (401, "no access: 401"),
        (403, "no access: 403"),
        (404, "there is no such file"),
        (500, "500, .*, 6 times in a row"),
        (None, "Cannot connect to host .*, 6 times in a row"),
    ],
)
def test_what_a_web_server_answers_is_what_is_said(status, line):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            self.send_error(status)

        do_HEAD = do_GET  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port if status else 9
        with pytest.raises((UserError, RunError), match=f"train.json: {line}") as caught:
            Reader(f"http://127.0.0.1:{port}/train")
        assert isinstance(caught.value, UserError) == (status in (401, 403, 404))
        server.shutdown()


def test_a_server_that_tells_no_sizes_is_one_line():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            self.send_response(200)
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match="train.json: the server does not tell the size"):
            Reader(f"http://127.0.0.1:{server.server_port}/train")
        server.shutdown()


def test_a_server_that_knows_no_ranges_is_one_line(local, tmp_path):
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path / "local")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        reader = Reader(f"http://127.0.0.1:{server.server_port}/train")
        with pytest.raises(UserError, match="tfrecord: the server sends whole files: it has to"):
            read_all(reader)
        server.shutdown()


def test_shards_and_index_have_to_be_those_of_the_card(remote, tmp_path):
    files = fsspec.filesystem("memory")
    files.pipe(f"memory://{tmp_path}/train.index", b"damaged")
    with pytest.raises(UserError, match=r"train.index: does not fit the shards: copy"):
        Reader(remote)
    shard = Card.load(f"{remote}.json").shards[2].file
    files.pipe(f"memory://{tmp_path}/{shard}", b"short")
    with pytest.raises(UserError, match=rf"{shard}: 5 bytes, but flaky://.*train.json says"):
        Reader(remote)
    files.rm(f"memory://{tmp_path}/{shard}")
    with pytest.raises(UserError, match=rf"{shard}: there is no such file, but flaky://.* names"):
        Reader(remote)


def test_a_missing_package_is_one_line(remote, monkeypatch):
    fsspec.register_implementation("nowhere", "not_installed.Files")
    with pytest.raises(UserError, match=r"not_installed.*: pip install -e .\[remote\]"):
        Reader("nowhere://bucket/train")
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(UserError, match=r"fsspec.*: pip install -e .\[remote\]"):
        Reader(remote)


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hush@bucket/train",
        "https://host/train?sv=1&sig=hush",
        "https://host/train?X-Amz-Signature=hush",
    ],
)
def test_a_url_with_a_secret_is_refused_without_it(url, tmp_path):
    parser = Parser("", Settings, root=tmp_path)
    parser.parse(["--train_data", url])
    parser.resolve(Settings)
    with pytest.raises(UserError, match="train_data: a URL with a password or sig") as caught:
        parser.raise_errors()
    assert "hush" not in str(caught.value)


def test_a_full_disk_ends_the_cache_and_not_the_training(local, remote, tmp_path, capsys):
    cache = cache_of(tmp_path, 1000)
    reader = Reader(remote, cache)
    shutil.rmtree(tmp_path / "blocks")
    (tmp_path / "blocks").write_text("no folder")
    assert read_all(reader) == read_all(Reader(local))
    assert "blocks: File exists: no more blocks are kept" in capsys.readouterr().out
