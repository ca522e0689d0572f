"""Folders of audio files as signals; windows of signals; recorded and replayed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from made_audio import MONO, NOISE, WAVEFORM, elements, encoded, even, in_a_graph, upper, wav, write

from library.audio import dataset_from_dir, dataset_signal_slice_windows
from library.data import record_dataset, replay_dataset
from library.util import UserError


def test_a_folder_is_read_in_the_order_of_classes_and_names(tmp_path):
    sounds = {
        "10_b_wav": wav(MONO[:30]),
        "10_a_flac": encoded(WAVEFORM[:20], "FLAC"),
        "9_deeper_z_wav": wav(MONO[:10], 32),
        "9_y_wav": wav(MONO[:11], 8),
        "käse_one_wav": wav(MONO[:12], 24),
    }
    write(tmp_path, **sounds)
    (tmp_path / "9" / ".DS_Store").write_bytes(b"junk")
    dataset = dataset_from_dir(tmp_path)
    assert {name: (spec.dtype.name, spec.shape) for name, spec in dataset.element_spec.items()} == {
        "signal": ("int32", [None]),
        "sample_rate": ("int64", []),
        "class": ("string", []),
        "target": ("int64", []),
        "num_classes": ("int64", []),
        "filepath": ("string", []),
        "index": ("int64", []),
    }
    files = ["9/deeper/z.wav", "9/y.wav", "10/a.flac", "10/b.wav", "käse/one.wav"]
    samples = [(10, 32), (11, 8), (20, 16), (30, 16), (12, 24)]
    found = elements(dataset)
    assert [each["filepath"].decode() for each in found] == [str(tmp_path / name) for name in files]
    assert [each["class"].decode() for each in found] == ["9", "9", "10", "10", "käse"]
    assert [each["target"] for each in found] == [0, 0, 1, 1, 2]
    assert [each["index"] for each in found] == list(range(5))
    assert {int(each["num_classes"]) for each in found} == {3}
    for each, (length, bits) in zip(found, samples, strict=True):
        np.testing.assert_array_equal(each["signal"], upper(MONO[:length, 0], bits))
    for each, again in zip(found, in_a_graph(lambda: dataset_from_dir(tmp_path), 5), strict=True):
        assert each.keys() == again.keys()
        assert all(np.array_equal(each[key], again[key]) for key in each)


def test_an_infinite_dataset_begins_again(tmp_path):
    write(tmp_path, a_1_wav=wav(MONO), b_1_wav=wav(MONO), b_2_wav=wav(MONO))
    assert len(elements(dataset_from_dir(tmp_path))) == 3
    again = elements(dataset_from_dir(str(tmp_path), infinite=True).take(8))
    assert [each["index"] for each in again] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_rates_and_channels_can_be_mixed(tmp_path):
    sounds = {"a_1_wav": wav(NOISE[:, :1], rate=8000), "a_2_wav": wav(NOISE[:, :2], rate=44100)}
    dataset = dataset_from_dir(write(tmp_path, **sounds, a_3_wav=wav(NOISE, rate=8000)))
    assert dataset.element_spec["signal"].shape.as_list() == [None, None]
    found = elements(dataset)
    assert [each["sample_rate"] for each in found] == [8000, 44100, 8000]
    assert [each["signal"].shape for each in found] == [(4001, 1), (4001, 2), (4001, 6)]
    np.testing.assert_array_equal(found[1]["signal"], upper(NOISE[:, :2], 16))


def test_file_names_need_not_be_text(tmp_path):
    write(tmp_path, **{"a_no\udcfftext_wav": wav(MONO)})
    (found,) = elements(dataset_from_dir(tmp_path))
    assert found["filepath"].endswith(b"/a/no\xfftext.wav")


@pytest.mark.parametrize(
    ("sounds", "lines"),
    [
        ({}, ["HERE: there is no such folder"]),
        ({"a_b_1_wav": b""}, ["HERE/a/b/1.wav: "]),
        ({"a_1_raw": wav(MONO)}, ["HERE/a/1.raw: not an audio file"]),
        (
            {"a_1_wav": b"", "a_2_wav": wav(MONO), "b_3_wav": b"no sound"},
            ["HERE/a/1.wav: ", "HERE/b/3.wav: Format not recognised."],
        ),
    ],
)
def test_files_that_cannot_be_used_are_a_line_each(tmp_path, sounds, lines):
    folder = write(tmp_path / "in", **sounds)
    with pytest.raises(UserError) as error:
        dataset_from_dir(folder)
    assert len(error.value.lines) == len(lines)
    for line, expected in zip(error.value.lines, lines, strict=True):
        assert line.replace(str(folder), "HERE").startswith(expected)


def test_a_folder_without_classes_or_without_files_is_one_line(tmp_path):
    with pytest.raises(
        UserError, match="contains no class folders; give their parent folder"
    ) as error:
        dataset_from_dir(tmp_path)
    assert len(error.value.lines) == 1
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="there are no files in its folders"):
        dataset_from_dir(tmp_path)


def test_a_file_that_breaks_off_is_named_when_it_is_read(tmp_path):
    write(tmp_path, a_1_wav=wav(MONO), a_2_wav=wav(MONO)[:-100])
    with pytest.raises(tf.errors.InvalidArgumentError, match="a/2.wav: truncated: .* missing"):
        elements(dataset_from_dir(tmp_path))


# ---- windows of signals ---


def signals_of(lengths: list[int], dtype: str = "int32", channels: int | None = None):
    """Signals whose samples count from 1 on, and what stands beside them."""

    def generate() -> Iterator[dict]:
        for number, length in enumerate(lengths):
            signal = np.arange(1, length + 1) + 100 * number
            if channels:
                signal = np.stack([signal + 1000 * channel for channel in range(channels)], axis=1)
            yield {"signal": signal.astype(dtype), "index": number, "name": f"no {number}"}

    shape = [None, channels] if channels else [None]
    signature = {
        "signal": tf.TensorSpec(shape, dtype),
        "index": tf.TensorSpec([], tf.int64),
        "name": tf.TensorSpec([], tf.string),
    }
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def slow_windows(length: int, win_len: int, stride: int, pad: bool, limit: int | None):
    """(start, samples) of the windows of a signal that counts from 1 on, one by one."""
    found, start = [], 0
    while start < length and (limit is None or len(found) < limit):
        window = list(range(start + 1, length + 1))[:win_len]
        if len(window) < win_len and not pad:
            break
        found.append((start, window + [0] * (win_len - len(window))))
        if pad and start + win_len >= length:
            break
        start += stride
    return found


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize(
    ("win_len", "stride"), [(1, None), (1, 3), (3, 1), (3, 3), (3, 6), (4, None), (4, 3)]
)
def test_windows_are_those_of_a_loop_over_each_signal(win_len, stride, pad):
    lengths = list(range(12))
    for limit in (None, 1) if pad else (None, 2):
        dataset = dataset_signal_slice_windows(
            signals_of(lengths), win_len, stride=stride, pad=pad, windows_per_signal=limit
        )
        assert dataset.element_spec["signal"].shape == [win_len]
        assert dataset.element_spec["win_start_idx"] == tf.TensorSpec([], tf.int32)
        expected = [
            (number, start, window)
            for number, length in enumerate(lengths)
            for start, window in slow_windows(length, win_len, stride or win_len, pad, limit)
        ]
        found = elements(dataset)
        for each, (number, start, window) in zip(found, expected, strict=True):
            assert (each["index"], each["win_start_idx"]) == (number, start)
            assert each["name"] == f"no {number}".encode()
            counted = [sample - 100 * number if sample else 0 for sample in each["signal"]]
            assert counted == window
            assert any(window), "no window of padding alone"


@pytest.mark.parametrize("dtype", ["int16", "float64"])
def test_windows_of_several_channels_and_of_any_type(dtype):
    dataset = signals_of([5, 2], dtype, channels=2).map(lambda each: {"sound": each["signal"]})
    windows = dataset_signal_slice_windows(dataset, 3, pad=True, data_key="sound")
    assert windows.element_spec["sound"] == tf.TensorSpec([3, 2], dtype)
    found = [each["sound"].tolist() for each in elements(windows)]
    assert found == [
        [[1, 1001], [2, 1002], [3, 1003]],
        [[4, 1004], [5, 1005], [0, 0]],
        [[101, 1101], [102, 1102], [0, 0]],
    ]


def test_windows_at_random_follow_from_the_seed():
    def draw(seed: int, **more) -> list[tuple]:
        dataset = dataset_signal_slice_windows(
            signals_of([50, 3, 50, 4]), 4, windows_per_signal=5, seed=seed, **more
        )
        for each in elements(dataset):
            offset = each["win_start_idx"] + 100 * each["index"]
            assert all(s in (0, k + 1 + offset) for k, s in enumerate(each["signal"]))
        return [(int(each["index"]), int(each["win_start_idx"])) for each in elements(dataset)]

    first = draw(1)
    assert first == draw(1) != draw(2)
    assert [index for index, _ in first] == [0] * 5 + [2] * 5 + [3] * 5, "one is too short"
    assert [s for i, s in first if i == 0] != [s for i, s in first if i == 2]
    assert [s for i, s in first if i == 3] == [0] * 5
    assert draw(1, pad=True) == [*first[:5], *[(1, 0)] * 5, *first[5:]]
    one = dataset_signal_slice_windows(signals_of([50, 0, 50]), 4, seed=1, pad=True)
    assert [each["index"] for each in elements(one)] == [0, 2]


def test_windows_of_signals_are_the_same_in_a_graph():
    def make() -> tf.data.Dataset:
        signals = signals_of([50, 3, 7])
        return dataset_signal_slice_windows(signals, 4, windows_per_signal=5, seed=1, pad=True)

    for each, again in zip(elements(make()), in_a_graph(make, 15), strict=True):
        assert each["win_start_idx"] == again["win_start_idx"]
        assert (each["signal"] == again["signal"]).all()


def test_windows_at_random_begin_everywhere_as_likely():
    dataset = dataset_signal_slice_windows(signals_of([9] * 7), 4, windows_per_signal=400, seed=3)
    starts = [each["win_start_idx"] for each in elements(dataset)]
    counts = np.bincount(starts)
    assert len(counts) == 6, "from the first to the last window"
    assert even(counts)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda d: d, {"win_len": 0}, "win_len: 0 is not at least 1"),
        (lambda d: d, {"win_len": -3}, "win_len: -3 is not at least 1"),
        (lambda d: d, {"win_len": 3, "stride": 0}, "stride: 0 is not at least 1"),
        (lambda d: d, {"win_len": 3, "windows_per_signal": 0}, "windows_per_signal: 0 is not"),
        (lambda d: d, {"win_len": 3, "data_key": "sound"}, "data_key: the dataset has no sound"),
        (lambda d: d, {"win_len": 3, "data_key": "index"}, r"data_key: index has the shape \(\)"),
        (lambda d: d.map(lambda each: each["signal"]), {"win_len": 3}, "has to be one of dicts"),
        (lambda d: d.map(lambda each: (each, 1)), {"win_len": 3}, "has to be one of dicts"),
        (lambda d: d.batch(2), {"win_len": 3}, "dataset: it is batched"),
        (lambda d: d.padded_batch(2), {"win_len": 3}, "dataset: it is batched"),
        (lambda d: d.ragged_batch(2), {"win_len": 3}, "dataset: it is batched"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_line(change, options, message):
    with pytest.raises(UserError, match=message):
        dataset_signal_slice_windows(change(signals_of([9, 9])), **options)


# ---- recorded ---


def test_windows_of_files_are_recorded_and_replayed(tmp_path, monkeypatch):
    random = np.random.default_rng(1)
    for name in ("passenger", "tug"):
        signal = random.integers(-(2**31), 2**31, 150_000).astype(np.int32)
        write(tmp_path / "data", **{f"{name}_1_wav": encoded(signal, subtype="PCM_32")})
    monkeypatch.chdir(tmp_path)

    num_elems = 10
    elements_per_file = 4
    ds = dataset_from_dir("./data", infinite=True)
    ds = dataset_signal_slice_windows(ds, win_len=32768)
    record_dataset(
        ds, num_elems=num_elems, elements_per_file=elements_per_file, output_dir="./records"
    )
    replayed = replay_dataset("./records")

    files = sorted(Path("records").glob("*.tfrecord"))
    records = [sum(1 for _ in tf.data.TFRecordDataset(str(file))) for file in files]
    keys = {"class", "filepath", "index", "num_classes", "sample_rate", "signal", "target"}
    assert replayed.element_spec.keys() == keys | {"win_start_idx"}
    assert [count // len(replayed.element_spec) for count in records] == [4, 4, 2]
    expected, found = elements(ds.take(10)), elements(replayed)
    assert [each["win_start_idx"] for each in found] == [0, 32768, 65536, 98304] * 2 + [0, 32768]
    for one, other in zip(expected, found, strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])
