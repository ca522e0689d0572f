"""Conversion to a URL: the files of a local one, whatever fails or is killed on the way."""

import re
import shutil
import signal

import fsspec
import pytest
import requests
from conftest import run_convert, run_program, run_signaled
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer

from project.settings import modality

MORE = ["--num_shards", 5, "--max_rejected", 0.1]


class Store(MemoryFileSystem):
    """Memory that replaces no file, and of which the first `failures` uploads fail."""

    protocol = "store"
    fault, failures = OSError("503 SlowDown"), 0

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("store://", "memory://"))

    def put_file(self, source, target, **options):
        Store.failures -= 1
        if Store.failures >= 0:
            raise Store.fault
        if self.exists(target):
            raise FileExistsError
        super().put_file(source, target, **options)


@pytest.fixture
def store(monkeypatch):
    """The URL of an empty folder."""
    fsspec.register_implementation("store", Store, clobber=True)
    monkeypatch.setattr("library.data.remote.FIRST_PAUSE_SECS", 0.001)
    monkeypatch.setattr(Store, "failures", 0)
    Store.store.clear()
    return "store://bucket/data"


@pytest.fixture
def source(samples, tmp_path):
    """A folder of files, of which one is broken, and one is there twice."""
    folder = tmp_path / "in" / "train"
    shutil.copytree(samples / "test", folder)
    file = next(file for file in sorted(folder.rglob("*")) if file.is_file())
    shutil.copy(file, file.with_stem("copy"))
    file.with_stem("broken").write_bytes(b"broken")
    return folder


def convert(source, place, cwd, *more, status=0):
    words = ["--dataset_dir", source, "--tfrecord_dir", place, *MORE, *more]
    return run_convert(*words, cwd=cwd, status=status)


def files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def stored() -> dict[str, bytes]:
    return {name.rpartition("/")[2]: file.getvalue() for name, file in Store.store.items()}


def test_files_at_a_url_are_those_of_a_local_conversion(source, samples, store, tmp_path):
    for folder in (source, samples / "test"):
        here = convert(folder, tmp_path / "out", tmp_path)
        there = convert(folder, store, tmp_path)
        assert there.stdout.splitlines()[-2:] == [
            line.replace(str(tmp_path / "out"), store) for line in here.stdout.splitlines()[-2:]
        ]
    expected = files(tmp_path / "out")
    assert {"train.rejected.csv", "train.duplicates.csv", "validation.json"} < expected.keys()
    assert stored() == expected
    assert not [*tmp_path.glob(f"data/**/*{modality.SUFFIX}")], "no shard stays here"


def test_what_is_there_says_what_can_be_written(source, samples, store, tmp_path):
    convert(source, store, tmp_path)
    shutil.rmtree(tmp_path / "data")  # as on another machine
    before = stored()
    process = convert(source, store, tmp_path, status=2)
    assert f"{store}/train.json already exists; delete it there to replace it" in process.stderr
    process = convert(source, store, tmp_path, "--overwrite", status=2)
    assert process.stderr.startswith(f"error: overwrite: {store} is no folder of this machine")
    process = convert(source, "https://host/data", tmp_path, status=2)
    assert process.stderr.startswith("error: tfrecord_dir: https://host/data: a web server is read")
    assert stored() == before
    process = convert(source, store, tmp_path, "--tfrecord_filename", "test")
    assert f"the classes are those of {tmp_path / 'data'}" not in process.stdout
    assert "leak: 25 test files are also in train or validation" in process.stdout
    Store.store.clear()
    convert(source, store, tmp_path)
    assert stored() == before


def test_several_splits_and_a_page_of_them(source, store, tmp_path):
    shutil.copytree(source, source.with_name("test"))
    process = convert(source.parent, store, tmp_path, "--contact_sheet")
    assert f"{store}/train: " in process.stdout
    assert {"train.json", "validation.json", "test.json"} < stored().keys()
    assert (tmp_path / "data/store/bucket/data/test.contact_sheet.html").exists()


def test_shards_that_fail_or_vanish_are_written_again(source, store, tmp_path, monkeypatch):
    convert(source, tmp_path / "out", tmp_path)
    monkeypatch.setattr(Store, "failures", 3)
    convert(source, store, tmp_path)
    assert stored() == files(tmp_path / "out")
    Store.store.clear()
    parts = ["--shards", "0-2"]
    convert(source, store, tmp_path, *parts)
    assert len(stored()) == 2 * 3
    del Store.store[min(Store.store)]
    process = convert(source, store, tmp_path)
    assert re.search(r"resuming: 5 of \d+ shards already done", process.stdout)
    assert stored() == files(tmp_path / "out")


@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        (OSError("503 SlowDown"), 1, "503 SlowDown, 6 times in a row; finished shards are kept"),
        (PermissionError("Forbidden"), 2, "no access: Forbidden"),
        (FileNotFoundError("no such bucket"), 2, "no such bucket or folder: no such bucket"),
        (NotImplementedError(), 2, "no access: NotImplementedError"),
    ],
)
def test_a_store_that_refuses_is_one_line(
    source, store, tmp_path, monkeypatch, fault, status, line
):
    monkeypatch.setattr(Store, "failures", 100)
    monkeypatch.setattr(Store, "fault", fault)
    process = convert(source, store, tmp_path, status=status)
    assert process.stderr.splitlines()[-1].startswith(f"error: {store}/train-00000-of-00005")
    assert line in process.stderr
    assert stored() == {}


@pytest.mark.slow
def test_kills_while_s3_is_written_leave_the_files_of_a_local_conversion(
    source, tmp_path, monkeypatch
):
    server = ThreadedMotoServer(port=0)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    requests.put(f"{url}/bucket").raise_for_status()
    secrets = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "hush"}
    environment = {**secrets, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": url}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    convert(source, tmp_path / "out", tmp_path)
    words = ["--dataset_dir", source, "--tfrecord_dir", "s3://bucket/data", *MORE]
    folder = "data/s3/bucket/data"
    for moment in (".train.partial/*.npz 2", ".train.partial/*.npz 6", "*.thumbnails 1"):
        killed = {"signals": [signal.SIGKILL], "at_files": f"{folder}/{moment}"}
        run_signaled("convert_dataset.py", *words, "--num_workers", 2, cwd=tmp_path, **killed)
    process = run_program("convert_dataset.py", *words, cwd=tmp_path, status=2)
    assert "s3://bucket/data/train.json already exists" in process.stderr, "now it does"
    there = fsspec.filesystem("s3", skip_instance_cache=True).cat("bucket/data/*")
    stored = {name.rpartition("/")[2]: content for name, content in there.items()}
    assert stored == files(tmp_path / "out")
    words = ["--tfrecord_dir", "s3://bucket/data", "--tfrecord_filename", "train", "--verify"]
    run_program("convert_dataset.py", *words, cwd=tmp_path)
    words = ["--dataset_dir", source, "--tfrecord_dir", "s3://none/data"]
    process = run_program("convert_dataset.py", *words, cwd=tmp_path, status=2)
    assert "no such bucket or folder: The specified bucket does not exist" in process.stderr
    assert "hush" not in process.stderr
    server.stop()
