"""Sources: each example once an epoch, with its key, from any start and any file system."""

import itertools
import os

import fsspec
import h5py
import numpy as np
import pytest
import tensorflow as tf
from conftest import write_records

from library.data import (
    DamagedRecordError,
    Hdf5Rows,
    Reader,
    list_files,
    read_by_id,
    read_files,
    read_generator,
    read_in_order,
    read_stream,
    shuffle_and_repeat,
    verify,
)
from library.data.tfrecord import FRAME
from library.util import UserError

COUNT = 40


@pytest.fixture
def many(tmp_path) -> str:
    """A data set of 40 records in 5 shards, each record its number."""
    records = [f"{number:03}".encode() for number in range(COUNT)]
    return write_records(tmp_path / "many", *[records[n : n + 8] for n in range(0, COUNT, 8)])


def by_id(many, start):
    reader = Reader(many)
    ids = shuffle_and_repeat(reader.num_examples, 1, start)
    return ids.apply(read_by_id(reader, 2)), int


def as_files(many, start):
    folder = os.path.dirname(many)
    for number in range(COUNT):
        with open(f"{folder}/{number:03}.txt", "w") as file:
            file.write(f"{number:03}")
    files = list_files(f"{folder}/*.txt")
    ids = shuffle_and_repeat(len(files), 1, start)
    return ids.apply(read_files(files, 2)), lambda key: int(os.path.basename(key)[:3])


def from_hdf5(many, start):
    file = f"{many}.h5"
    if not os.path.exists(file):
        with h5py.File(file, "w") as opened:
            opened["rows"] = np.arange(COUNT)[:, None] + np.zeros([1, 3], int)
    rows = Hdf5Rows(file, "rows")
    ids = shuffle_and_repeat(rows.num_examples, 1, start)
    rows_first = ids.apply(read_by_id(rows, 2)).map(lambda key, row: (key, row[0]))
    return rows_first, int


def from_generator(many, start):
    def examples(epoch):
        for number in np.random.default_rng(epoch).permutation(COUNT):
            yield f"number {number}", f"{number:03}"

    string = tf.TensorSpec([], tf.string)
    return read_generator(examples, (string, string), start), lambda key: int(key.split()[1])


def as_a_stream(many, start):
    return read_stream(many, 3, start, buffer_mb=1e-4), int


SOURCES = [by_id, as_files, from_hdf5, from_generator, as_a_stream]


@pytest.mark.parametrize("source", SOURCES)
def test_every_example_comes_once_an_epoch_with_its_key(many, source):
    dataset, number_of = source(many, 0)
    found = list(dataset.take(3 * COUNT).as_numpy_iterator())
    numbers = np.array([int(content) for _, content in found])
    assert [number_of(key) for key, _ in found] == numbers.tolist()
    epochs = numbers.reshape(3, COUNT)
    assert (np.sort(epochs) == np.arange(COUNT)).all()
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = list(source(many, 0)[0].take(3 * COUNT).as_numpy_iterator())
    assert again == found, "the order follows from the seed"


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_starts_anywhere(many, source):
    whole = list(source(many, 0)[0].take(100).as_numpy_iterator())
    for start in (7, 39, 40, 65):
        rest = list(source(many, start)[0].take(100 - start).as_numpy_iterator())
        assert rest == whole[start:], start


def test_contents_have_their_static_shape(many):
    reader_spec = by_id(many, 0)[0].element_spec
    assert reader_spec == (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string))
    from_hdf5(many, 0)
    rows = Hdf5Rows(f"{many}.h5", "rows")
    dataset = tf.data.Dataset.range(5).apply(read_by_id(rows, 1))
    assert dataset.element_spec == (tf.TensorSpec([], tf.int64), tf.TensorSpec([3], tf.int64))


def test_ids_can_come_again_and_in_any_order(many):
    from_hdf5(many, 0)
    wanted = [4, 0, 1, 1, 3, 2] * 30
    for source in (Reader(many), Hdf5Rows(f"{many}.h5", "rows")):
        ids = tf.data.Dataset.from_tensor_slices(np.array(wanted))
        found = ids.apply(read_by_id(source, 2)).as_numpy_iterator()
        assert [int(np.ravel(content)[0]) for _, content in found] == wanted


def test_hdf5_that_cannot_be_read_is_one_line(many, tmp_path):
    from_hdf5(many, 0)
    with pytest.raises(UserError, match=r"none.h5: there is no such file"):
        Hdf5Rows(tmp_path / "none.h5", "rows")
    with pytest.raises(UserError, match=r"many.json: not an HDF5 file"):
        Hdf5Rows(f"{many}.json", "rows")
    with pytest.raises(UserError, match=r"many.h5: there is no dataset waveform"):
        Hdf5Rows(f"{many}.h5", "waveform")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["group/one"] = 3
    for name in ("group", "group/one"):
        with pytest.raises(UserError, match=f"other.h5: {name} has no rows"):
            Hdf5Rows(tmp_path / "other.h5", name)


def test_a_pattern_without_files_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"\*\.jpg: there is no such file"):
        list_files(f"{tmp_path}/*.jpg")


def test_all_in_order(many):
    found = list(read_in_order(many).as_numpy_iterator())
    assert found == [(number, f"{number:03}".encode()) for number in range(COUNT)]


# ---- streams -----------------------------------------------------------------------------------


def stream(path: str, count: int, start: int = 0) -> list[int]:
    dataset = read_stream(path, 3, start, buffer_mb=1e-4).take(count)
    return [int(record) for _, record in dataset.as_numpy_iterator()]


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "window"), [([8] * 5, 2), ([70, 3, 120, 1, 55, 90, 64], 37)])
def test_a_stream_that_stops_20_times_misses_nothing_and_repeats_nothing(tmp_path, sizes, window):
    """Bytes and order are those of a stream that never stops, whatever the sizes of the shards."""
    ends = np.cumsum(sizes)
    shards = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    path = write_records(
        tmp_path / "many", *[[f"{number:03}".encode() for number in shard] for shard in shards]
    )

    def records(start: int, count: int) -> list[tuple[int, bytes]]:
        buffer_mb = 2 * window * (FRAME + 3) / 2**20
        found = read_stream(path, 3, start, buffer_mb=buffer_mb).take(count)
        return list(found.as_numpy_iterator())

    end = 4 * ends[-1]
    whole = records(0, end)
    epochs = np.array([number for number, _ in whole]).reshape(4, -1)
    assert (np.sort(epochs) == np.arange(ends[-1])).all()
    stops = np.random.default_rng(0).integers(0, end, 20)
    stops = [0, *np.sort(stops).tolist(), end]
    parts = [records(stop, next_ - stop) for stop, next_ in itertools.pairwise(stops)]
    assert [*itertools.chain(*parts)] == whole


def test_a_stream_leaves_whole_shards_unread(many, tmp_path):
    """After three of five shards, two are enough: the others may be gone but for their size."""
    found = stream(many, 16, start=24)
    shards = {record // 8 for record in found}
    assert len(shards) == 2
    for shard in set(range(5)) - shards:
        file = tmp_path / f"many-{shard:05}-of-00005.tfrecord"
        file.write_bytes(bytes(file.stat().st_size))
    assert stream(many, 16, start=24) == found
    with pytest.raises(tf.errors.DataLossError):
        stream(many, COUNT)
    with pytest.raises(DamagedRecordError, match="record 0 is damaged"):
        verify(many)


# ---- other file systems ------------------------------------------------------------------------


@pytest.fixture
def remote(many) -> str:
    """The same data set at a URL."""
    folder = os.path.dirname(many)
    fsspec.filesystem("memory").put(folder, folder, recursive=True)
    return f"memory:/{many}"


def test_streams_are_read_from_other_file_systems(many, remote):
    assert stream(remote, 100) == stream(many, 100)
    assert stream(remote, 60, start=40) == stream(many, 100)[40:]
    assert list(read_in_order(remote).as_numpy_iterator()) == list(
        read_in_order(many).as_numpy_iterator()
    )
    found, _ = by_id(remote, 7)
    expected, _ = by_id(many, 7)
    count = 3 * COUNT
    assert [*found.take(count).as_numpy_iterator()] == [*expected.take(count).as_numpy_iterator()]


def test_files_are_read_from_other_file_systems(many):
    as_files(many, 0)  # writes them
    for file in list_files(f"{os.path.dirname(many)}/*.txt"):
        tf.io.gfile.copy(file, f"ram:/{file}")
    files = list_files(f"ram:/{os.path.dirname(many)}/*.txt")
    found = tf.data.Dataset.range(COUNT).apply(read_files(files, 1)).as_numpy_iterator()
    assert [content for _, content in found] == [f"{n:03}".encode() for n in range(COUNT)]


def test_what_is_missing_elsewhere_is_one_line(remote):
    with pytest.raises(UserError, match="memory://.*/none.json: there is no such file"):
        read_in_order(f"{os.path.dirname(remote)}/none")
    fsspec.filesystem("memory").rm(f"{remote}-00002-of-00005.tfrecord")
    with pytest.raises(UserError, match="00002-of-00005.tfrecord: .*but memory://.*json names it"):
        read_in_order(remote)
