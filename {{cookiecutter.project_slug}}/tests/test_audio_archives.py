"""HDF5 archives: what they hold, their index, and damage."""

import concurrent.futures
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf
from conftest import write_records
from made_audio import RATE, WAVEFORMS, elements, in_a_graph, samples_of, write_set

from library.audio import Archive, check_shard, labels_of, random_windows
from library.data import Card, DamagedRecordError, Target
from library.util import UserError


@pytest.fixture
def stored(tmp_path) -> str:
    """The dataset of WAVEFORMS, in three shards."""
    return write_set(tmp_path / "data" / "train", WAVEFORMS, 3)


def test_an_archive_has_what_was_written(stored):
    archive = Archive(stored)
    assert archive.num_examples == 7
    assert archive.sizes.tolist() == [2 * len(waveform) for waveform in WAVEFORMS]
    assert archive.index["label"].tolist() == [0, 1, 0, 1, 0, 1, 0]
    order = np.array([6, 0, 1, 1, 5])
    for number, record in zip(order, archive.read(order), strict=True):
        waveform = archive.waveform(number)
        assert waveform.dtype == np.int16
        np.testing.assert_array_equal(waveform, WAVEFORMS[number])
        assert record == waveform.tobytes()
    assert [archive.name(number) for number in (1, 2, 3, 6)] == [
        "käse/1.wav",
        "a/no\ufffdtext.wav",
        "b/one, two.wav",
        "käse/1.wav",
    ]


def test_others_can_read_an_archive(stored):
    with h5py.File(f"{stored}-00001-of-00003.h5") as file:
        assert list(file) == ["000000", "000001", "000002"]
        waveform = file["000001/waveform"]
        np.testing.assert_array_equal(waveform[:], WAVEFORMS[4])
        assert (waveform.chunks, file["000000/waveform"].chunks) == ((100,), (99,))
        attributes = dict(file["000001"].attrs)
    assert attributes == {"file": "b/4.wav", "label": 0, "class": "a"}


def test_the_same_clips_are_the_same_bytes_whenever_they_are_written(stored, tmp_path):
    time.sleep(1.1)  # HDF5 counts seconds
    again = write_set(tmp_path / "again" / "train", WAVEFORMS, 3)
    for file in Path(stored).parent.iterdir():
        assert file.read_bytes() == Path(again).with_name(file.name).read_bytes()


def test_windows_reach_beyond_a_clip_with_zeros(stored):
    archive = Archive(stored)
    cases = [
        (number, start, win_len)
        for number in (1, 3, 5)
        for win_len in (1, 7, 150)
        for start in {-win_len - 1, -win_len, -win_len + 1, -3, 0, 1, 50, 94, 98, 99, 100, 101, 200}
    ]
    for win_len in (1, 7, 150):
        ids, starts = np.array([(n, s) for n, s, w in cases if w == win_len]).T
        for window, number, start in zip(
            archive.read_windows(ids, starts, win_len), ids, starts, strict=True
        ):
            far = np.pad(WAVEFORMS[number], 500)
            np.testing.assert_array_equal(window, far[500 + start :][:win_len])


def test_many_threads_read_what_one_reads(stored):
    archive = Archive(stored)
    random = np.random.default_rng(0)
    calls = [(random.integers(7, size=64), random.integers(-60, 990, 64)) for _ in range(200)]
    expected = [archive.read_windows(ids, starts, 50) for ids, starts in calls]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda call: archive.read_windows(*call, 50), calls))
    for one, several in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, several)


def test_a_thread_opens_a_file_once(stored, monkeypatch):
    """Also one of TensorFlow, which Python forgets after each call."""
    opened, original = [], h5py.File

    def counting(path: str, **more: object) -> h5py.File:
        opened.append((path, threading.get_ident()))
        return original(path, **more)

    archive = Archive(stored)
    monkeypatch.setattr(h5py, "File", counting)

    def make() -> tf.data.Dataset:
        return samples_of(range(64 * 20)).apply(random_windows(archive, 20, seed=0)).prefetch(10)

    assert len(in_a_graph(make, 64 * 20)) == len(elements(make())) == 64 * 20
    archive.waveform(np.int64(0))
    assert len(set(opened)) == len(opened)
    assert {path for path, _ in opened} == set(archive.shards)


def save(index: Path, rows: np.ndarray) -> None:
    with open(index, "wb") as file:
        np.save(file, rows)


def relabel(index: Path) -> None:
    """As one that was left from before, when clips had other labels."""
    rows = np.load(index)
    rows["label"][:2] = 0
    save(index, rows)


@pytest.mark.parametrize(
    "change",
    [
        Path.unlink,
        lambda index: index.write_bytes(b""),
        lambda index: index.write_bytes(index.read_bytes()[:-8]),
        lambda index: index.write_bytes(index.read_bytes().replace(b"]", b"(", 1)),
        lambda index: save(index, np.load(index)[::-1]),
        lambda index: save(index, np.load(index)[:-1]),
        lambda index: save(index, np.arange(7)),
        relabel,
    ],
    ids=["missing", "empty", "cut", "header", "order", "fewer", "other", "labels"],
)
def test_an_index_that_does_not_fit_is_written_anew(stored, change, capsys):
    index = Path(f"{stored}.index")
    before = index.read_bytes()
    change(index)
    archive = Archive(stored)
    assert capsys.readouterr().out.startswith(f"{index}: rebuilt, since it was missing or did")
    assert index.read_bytes() == before
    np.testing.assert_array_equal(archive.waveform(6), WAVEFORMS[6])


def test_an_index_of_other_clips_is_reported_when_they_are_read(stored):
    rows = np.load(f"{stored}.index")
    rows["length"][3] += 5
    save(Path(f"{stored}.index"), rows)
    archive = Archive(stored)
    archive.waveform(2)
    with pytest.raises(DamagedRecordError, match="00001-of-00003.h5: clip 000000 has 99 samp"):
        archive.waveform(3)


def edit(path: str, change: Callable[[h5py.File], None]) -> None:
    """Change the second shard of a dataset, and its card with it."""
    file = Path(f"{path}-00001-of-00003.h5")
    with h5py.File(file, "r+") as archive:
        change(archive)
    card = Card.load(f"{path}.json")
    card.shards[1] = dataclasses.replace(card.shards[1], bytes=file.stat().st_size)
    card.save(f"{path}.json")


def replace_waveform(waveform: np.ndarray) -> Callable[[h5py.File], None]:
    def change(archive: h5py.File) -> None:
        del archive["000001/waveform"]
        archive["000001"]["waveform"] = waveform

    return change


def drop(name: str) -> Callable[[h5py.File], None]:
    return lambda archive: archive.__delitem__(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("000001/waveform"), "clip 000001 has no dataset waveform"),
        (drop("000001"), "clip 000001 has no dataset waveform"),
        (replace_waveform(np.zeros(100)), r"000001/waveform is float64 \[100\], not int16 \[samp"),
        (replace_waveform(np.zeros([5, 20], np.int16)), r"000001/waveform is int16 \[5, 20\], not"),
    ],
)
def test_a_clip_that_is_not_one_is_a_line(stored, change, message):
    edit(stored, change)
    with pytest.raises(DamagedRecordError, match=f"train-00001-of-00003.h5: {message}") as error:
        Archive(stored).read_windows(np.array([0, 4]), np.array([0, 0]), 10)
    assert len(error.value.lines) == 1
    Path(f"{stored}.index").unlink()
    with pytest.raises(DamagedRecordError, match=f"train-00001-of-00003.h5: {message}"):
        Archive(stored)


def test_a_clip_without_a_label_is_a_line(stored):
    edit(stored, lambda archive: archive["000002"].attrs.__delitem__("label"))
    Path(f"{stored}.index").unlink()
    with pytest.raises(DamagedRecordError, match="00001-of-00003.h5: clip 2 has no labe"):
        Archive(stored)


def test_files_that_are_missing_or_others_are_a_line(stored, tmp_path):
    shard = Path(f"{stored}-00001-of-00003.h5")
    content = shard.read_bytes()
    shard.write_bytes(b"x" * len(content))
    with pytest.raises(DamagedRecordError, match="00001-of-00003.h5: not a readable HDF5 file"):
        Archive(stored).waveform(4)
    shard.write_bytes(content[:-1])
    with pytest.raises(UserError, match="00001-of-00003.h5: .* bytes, but .*train.json says"):
        Archive(stored)
    shard.unlink()
    with pytest.raises(UserError, match="00001-of-00003.h5: there is no such file, but .*train.js"):
        Archive(stored)
    with pytest.raises(UserError, match="none.json: there is no such file"):
        Archive(tmp_path / "none")


def test_tfrecords_are_not_taken_for_archives(tmp_path):
    write_records(tmp_path / "t", [b"one", b"two"])
    before = (tmp_path / "t.index").read_bytes()
    with pytest.raises(
        UserError, match="t-00000-of-00001.tfrecord: not a readable HDF5 file"
    ) as error:
        Archive(tmp_path / "t")
    assert len(error.value.lines) == 1
    assert (tmp_path / "t.index").read_bytes() == before


def test_a_changed_byte_gives_a_clip_or_a_line(tmp_path):
    """Of samples, --verify knows the checksum; what is around them has those of HDF5."""
    path = write_set(tmp_path / "train", WAVEFORMS)
    shard = Path(f"{path}-00000-of-00001.h5")
    content, told = shard.read_bytes(), 0
    for position in np.random.default_rng(0).integers(len(content), size=200):
        changed = bytearray(content)
        changed[position] ^= 1
        shard.unlink()  # or HDF5 would go on with what it has in memory of this file
        shard.write_bytes(changed)
        archive, told = Archive(path), told + 1
        with contextlib.suppress(DamagedRecordError):
            found = archive.read(np.arange(7))
            assert [len(record) // 2 for record in found] == list(map(len, WAVEFORMS))
            assert all(archive.name(number) for number in range(7))
            told -= 1
    assert 20 < told < 180


# ---- labels ------------------------------------------------------------------------------------

NINE = Target("labels", tuple("abcdefghi"))
SEVERAL = [(0,), (), (8, 2), (1, 7, 8), (3,), (), (5,)]
VALUES = [0.5, -1e9, 0.0, 1 / 3, 7.0, 2.5, -2.0]


@pytest.mark.parametrize(
    ("target", "labels", "expected"),
    [
        (Target("class", ("a", "b")), [0, 1] * 3 + [1], np.int64([0, 1, 0, 1, 0, 1, 1])),
        (Target("none"), [-1] * 7, np.full(7, -1)),
        (Target("value"), VALUES, np.float32(VALUES)),
        (NINE, SEVERAL, np.float32([[n in each for n in range(9)] for each in SEVERAL])),
    ],
    ids=["class", "none", "value", "labels"],
)
def test_labels_are_in_the_archives_and_in_the_index(tmp_path, target, labels, expected, capsys):
    path = write_set(tmp_path / "train", WAVEFORMS, 3, target=target, labels=labels)
    found = Archive(path).labels(np.arange(7))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    tensor = labels_of(Archive(path), tf.constant([6, 0, 0], tf.int64))
    np.testing.assert_array_equal(tensor, expected[[6, 0, 0]])
    before = Path(f"{path}.index").read_bytes()
    Path(f"{path}.index").unlink()
    np.testing.assert_array_equal(Archive(path).labels(np.arange(7)), expected)
    assert "rebuilt" in capsys.readouterr().out
    assert Path(f"{path}.index").read_bytes() == before


@pytest.mark.parametrize(
    ("target", "labels", "name", "value", "message"),
    [
        (NINE, SEVERAL, "labels", [9], "has no label from 0 to 8"),
        (NINE, SEVERAL, "labels", 3, "has no label from 0 to 8"),
        (NINE, SEVERAL, "labels", [0.5], "has no label from 0 to 8"),
        (Target("value"), VALUES, "value", np.nan, "has no value"),
        (Target("value"), VALUES, "value", 3, "has no value"),
        (Target("class", ("a", "b")), [0] * 7, "label", 2, "has no label from 0 to 1"),
        (Target("class", ("a", "b")), [0] * 7, "label", -1, "has no label from 0 to 1"),
    ],
)
def test_a_label_of_another_kind_is_a_fault(tmp_path, target, labels, name, value, message):
    path = write_set(tmp_path / "train", WAVEFORMS, 3, target=target, labels=labels)
    edit(path, lambda archive: archive["000001"].attrs.__setitem__(name, value))
    shard = Path(f"{path}-00001-of-00003.h5")
    found = check_shard(shard, target, {}, lambda number, size: None)
    assert [fault for fault, _ in found if fault] == [f"clip 1 {message}"]
    Path(f"{path}.index").unlink()
    with pytest.raises(DamagedRecordError, match=f"{shard.name}: clip 1 {message}"):
        Archive(path)


def test_a_shard_that_ended_its_reader_is_not_read_again(stored):
    shard = Path(f"{stored}-00000-of-00003.h5")
    with pytest.raises(DamagedRecordError, match=f"{shard.name}: after clip 1, crashed"):
        [*check_shard(shard, Target("none"), {1: "crashed"}, lambda number, size: None)]


def test_the_classes_and_sizes_of_a_shard_are_told(tmp_path):
    path = write_set(tmp_path / "train", WAVEFORMS, target=NINE, labels=SEVERAL)
    sizes = []
    shard = Path(f"{path}-00000-of-00001.h5")
    found = check_shard(shard, NINE, {}, lambda number, size: sizes.append((number, size)))
    assert [*found] == [("", list(each)) for each in SEVERAL]
    assert sizes == [(number, 2 * len(waveform)) for number, waveform in enumerate(WAVEFORMS)]


def test_datasets_of_the_first_format_are_read(stored):
    """Without the kind of label in the card; index and archives are the same."""
    path = Path(f"{stored}.json")
    content = json.loads(path.read_text())
    for key in ("label", "value_mean", "value_std"):
        del content[key]
    path.write_text(json.dumps(content | {"format_version": 1}))
    assert Archive(stored).labels(np.arange(7)).tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_another_sample_rate_is_refused(stored):
    Archive(stored, sample_rate=RATE)
    with pytest.raises(UserError, match=f"sample_rate: 8000, but {stored} has {RATE}: set it, or"):
        Archive(stored, sample_rate=8000)
