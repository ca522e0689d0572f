"""Shards, index and card: written as TensorFlow reads them, read by id, damage named."""

import concurrent.futures
import gc
import io
import json
import os
import shutil
import warnings

import numpy as np
import psutil
import pytest
import tensorflow as tf
from conftest import write_records

from library.data import Card, DamagedRecordError, Reader, index_of, verify
from library.util import UserError

RECORDS = [[b"", b"a" * 1000, b"b"], [b"c", b"d"]]


@pytest.fixture
def path(tmp_path) -> str:
    """A dataset of two shards and five records."""
    return write_records(tmp_path / "some", *RECORDS)


def test_tensorflow_reads_what_is_written(path, tmp_path):
    files = sorted(map(str, tmp_path.glob("*.tfrecord")))
    found = list(tf.data.TFRecordDataset(files).as_numpy_iterator())
    assert found == sum(RECORDS, [])


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def remove(file):
    file.unlink()


def cut(file):
    file.write_bytes(file.read_bytes()[:-3])


def of_another_set(file):
    """An index of as many records, which are of other lengths."""
    rows = np.load(file)
    rows["length"] = 7
    file.write_bytes(npy(rows))


def empty(file):
    file.write_bytes(b"")


def of_another_kind(file):
    file.write_bytes(npy(np.zeros(5)))


def test_threads_share_a_reader_where_a_file_has_one_place_for_all(path, monkeypatch):
    """As on Windows, which has no os.pread."""
    monkeypatch.delattr(os, "pread", raising=False)
    reader = Reader(path)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: reader.read(np.array([n % 5]))[0], range(2000)))
    assert found == sum(RECORDS, []) * 400


@pytest.mark.parametrize("change", [remove, cut, empty, of_another_set, of_another_kind])
def test_an_index_that_does_not_fit_is_rewritten(path, tmp_path, change, capsys):
    before = (tmp_path / "some.index").read_bytes()
    change(tmp_path / "some.index")
    assert Reader(path).read(np.arange(5)).tolist() == sum(RECORDS, [])
    assert "some.index: rewritten" in capsys.readouterr().out
    assert (tmp_path / "some.index").read_bytes() == before


def test_any_tfrecords_can_be_indexed(tmp_path):
    files = [str(tmp_path / name) for name in ("a", "b", "empty")]
    for file, records in zip(files, [*RECORDS, []], strict=True):
        with tf.io.TFRecordWriter(file) as writer:
            for record in records:
                writer.write(record)
    rows = index_of(files)
    assert rows.dtype.names == ("shard", "length", "offset")
    assert rows["shard"].tolist() == [0, 0, 0, 1, 1]
    assert rows["length"].tolist() == [0, 1000, 1, 1, 1]
    assert rows["offset"].tolist() == [0, 16, 1032, 0, 17]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "a: record 2 is cut off"),
        (lambda data: data[:20], "a: record 1 has a damaged header"),
        (lambda data: b"\1" + data[1:], "a: record 0 has a damaged header"),
    ],
)
def test_damage_is_found_when_shards_are_indexed(path, tmp_path, change, message):
    data = (tmp_path / "some-00000-of-00002.tfrecord").read_bytes()
    (tmp_path / "a").write_bytes(change(data))
    with pytest.raises(DamagedRecordError, match=message):
        index_of([tmp_path / "a"])


def test_shards_of_another_number_of_records_are_refused(path, tmp_path):
    """One record where two were: the bytes are as many, and the records are not."""
    file = tmp_path / "some-00001-of-00002.tfrecord"
    (tmp_path / "some.index").unlink()
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(b"c" * 18)
    with pytest.raises(UserError, match="some.json: its shards hold another number of records"):
        Reader(path)


def test_a_dataset_can_be_moved(path, tmp_path):
    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    assert Reader(tmp_path / "elsewhere" / "some").read(np.array([4])).tolist() == [b"d"]


def test_a_damaged_record_is_named(path, tmp_path):
    file = tmp_path / "some-00001-of-00002.tfrecord"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1  # the last byte of "d"
    file.write_bytes(data)
    reader = Reader(path)
    assert reader.read(np.array([3])).tolist() == [b"c"]
    with pytest.raises(DamagedRecordError, match="00001-of-00002.tfrecord: record 1 is damaged"):
        reader.read(np.array([4]))


@pytest.mark.parametrize(
    ("suffix", "change", "message"),
    [
        (".json", remove, "some.json: there is no such file"),
        (".json", lambda file: file.write_text("{}"), "some.json: not the card of a dataset"),
        (
            "-00000-of-00002.tfrecord",
            lambda file: file.unlink(),
            "there is no such file, but .*json",
        ),
        (
            "-00000-of-00002.tfrecord",
            lambda file: file.write_bytes(b"x"),
            "1 bytes, but .*json says",
        ),
    ],
)
def test_files_that_do_not_belong_together_are_refused(path, tmp_path, suffix, change, message):
    change(tmp_path / f"some{suffix}")
    with pytest.raises(UserError, match=message):
        Reader(path)


def test_more_shards_than_files_may_be_open_are_read(tmp_path):
    write_records(tmp_path / "many", *[[b"%03d" % number] for number in range(250)])
    resource = pytest.importorskip("resource", reason="Windows has no such limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 120, hard))
    try:
        ids = np.random.default_rng(0).integers(0, 250, 1000)
        assert [*map(int, Reader(tmp_path / "many").read(ids))] == ids.tolist()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reader_that_nobody_needs_closes_its_files(path):
    def opened() -> int:
        shards = [os.path.realpath(f"{path}-0000{number}-of-00002.tfrecord") for number in (0, 1)]
        return sum(file.path in shards for file in process.open_files())

    process, reader = psutil.Process(), Reader(path)
    assert reader.read(np.arange(5)).tolist() == sum(RECORDS, [])
    assert opened() == 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del reader
        gc.collect()
    assert (opened(), caught) == (0, [])


def test_a_card_of_another_version_is_refused(path, tmp_path):
    card = json.loads((tmp_path / "some.json").read_text())
    (tmp_path / "some.json").write_text(json.dumps(card | {"format_version": 7}))
    with pytest.raises(UserError, match="format_version 7, but this program reads up to 2"):
        Card.load(tmp_path / "some.json")


def test_a_whole_dataset_is_verified(path):
    verify(path)
