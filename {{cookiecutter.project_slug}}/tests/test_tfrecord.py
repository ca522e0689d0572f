"""Shards, index and card: written as TensorFlow reads them, read by id, damage named."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf

from library.errors import UserError
from library.tfrecord import Card, Reader, read_by_id, write_index, write_shard

RECORDS = [[b"", b"a" * 1000, b"b"], [b"c", b"d"]]


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.fixture
def path(tmp_path) -> str:
    """A data set of two shards and five records."""
    written = [
        write_shard(tmp_path / f"some-{number:05}-of-00002.tfrecord", records)
        for number, records in enumerate(RECORDS)
    ]
    write_index(tmp_path / "some.index", [rows for _, rows in written])
    Card(["x"], {"x": 5}, [shard for shard, _ in written], {}).save(tmp_path / "some.json")
    return str(tmp_path / "some")


def test_tensorflow_reads_what_is_written(path, tmp_path):
    files = sorted(map(str, tmp_path.glob("*.tfrecord")))
    found = list(tf.data.TFRecordDataset(files).as_numpy_iterator())
    assert found == sum(RECORDS, [])


def test_records_are_read_by_id_in_any_order(path):
    dataset = tf.data.Dataset.from_tensor_slices(np.array([4, 0, 1, 1, 3, 2] * 30))
    found = list(dataset.apply(read_by_id(Reader(path), 2)).as_numpy_iterator())
    records = sum(RECORDS, [])
    assert found == [records[i] for i in [4, 0, 1, 1, 3, 2]] * 30


def test_a_damaged_record_is_named(path, tmp_path):
    file = tmp_path / "some-00001-of-00002.tfrecord"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1  # the last byte of "d"
    file.write_bytes(data)
    reader = Reader(path)
    assert reader.read(np.array([3])).tolist() == [b"c"]
    with pytest.raises(ValueError, match=r"some-00001-of-00002.tfrecord: record 1 is damaged"):
        reader.read(np.array([4]))


@pytest.mark.parametrize(
    ("suffix", "change", "message"),
    [
        (".json", lambda file: file.unlink(), "some.json: No such file"),
        (".json", lambda file: file.write_text("{}"), "some.json: not the card of a data set"),
        (".index", lambda file: file.unlink(), "some.index: not the index"),
        (".index", lambda file: file.write_bytes(npy(np.zeros(3))), "does not belong to"),
        ("-00000-of-00002.tfrecord", lambda file: file.unlink(), "0 bytes, but its card says"),
        ("-00000-of-00002.tfrecord", lambda file: file.write_bytes(b"x"), "1 bytes, but its card"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(path, tmp_path, suffix, change, message):
    change(tmp_path / f"some{suffix}")
    with pytest.raises(UserError, match=message):
        Reader(path)


def test_a_card_of_another_version_is_refused(path, tmp_path):
    card = json.loads((tmp_path / "some.json").read_text())
    (tmp_path / "some.json").write_text(json.dumps(card | {"format_version": 7}))
    with pytest.raises(UserError, match="format_version 7, but this program reads 1"):
        Card.load(tmp_path / "some.json")
