"""Random and covering windows of audio clips."""

from collections.abc import Iterable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from made_audio import WAVEFORMS, even, in_a_graph, samples_of, write_set

from library.audio import Archive, covering_windows, random_windows, to_float


@pytest.fixture
def stored(tmp_path) -> str:
    """The dataset of WAVEFORMS, in three shards."""
    return write_set(tmp_path / "data" / "train", WAVEFORMS, 3)


Window = tuple[int, int, list[int]]
"""Number of the sample, id of the clip, samples."""


def drawn(path: str, win_len: int, seed: int, numbers: range, **more: int) -> list[Window]:
    """The windows of some samples of a run."""
    clips = more.pop("clips", 7)
    windows = random_windows(Archive(path), win_len, seed, **more)
    dataset = samples_of(numbers, clips).apply(windows)
    assert dataset.element_spec[2] == tf.TensorSpec([win_len], tf.int16)
    return listed(dataset.as_numpy_iterator())


def listed(windows: Iterable[tuple]) -> list[Window]:
    return [(int(number), int(example), window.tolist()) for number, example, window in windows]


@pytest.mark.parametrize("start", [1, 63, 64, 100])
def test_a_window_follows_from_the_seed_and_its_number(stored, start):
    whole = drawn(stored, 40, 5, range(200))
    assert drawn(stored, 40, 5, range(start, 200)) == whole[start:]
    assert drawn(stored, 40, 5, range(start, 200), num_parallel_calls=1) == whole[start:]
    assert drawn(stored, 40, 6, range(200)) != whole
    for number, example, window in whole:
        assert example == number % 7
        inside = np.lib.stride_tricks.sliding_window_view(np.pad(WAVEFORMS[example], 40), 40)
        assert (inside == window).all(axis=1).any()
    windows = [window for _, example, window in whole if example == 2]
    assert len({tuple(window) for window in windows}) > 20, "another one each time"


def test_windows_of_archives_are_the_same_in_a_graph(stored):
    archive = Archive(stored)
    found = in_a_graph(lambda: samples_of(range(9, 20)).apply(random_windows(archive, 40, 5)), 11)
    assert listed(found) == drawn(stored, 40, 5, range(9, 20))


def test_every_start_is_as_likely(tmp_path):
    path = write_set(tmp_path / "train", [np.arange(1, 11, dtype=np.int16)])
    windows = [window for _, _, window in drawn(path, 4, 0, range(2800), clips=1)]
    counts = np.bincount([window[0] - 1 for window in windows])
    assert len(counts) == 7, "from the first to the last window"
    assert even(counts)
    assert all(np.diff(window).tolist() == [1, 1, 1] for window in windows)


def test_a_short_clip_is_whole_at_a_place_at_random(tmp_path):
    path = write_set(tmp_path / "train", [np.int16([1, 2, 3])])
    windows = [window for _, _, window in drawn(path, 7, 0, range(2000), clips=1)]
    places = [window.index(1) for window in windows]
    for window, place in zip(windows, places, strict=True):
        assert window == [0] * place + [1, 2, 3] + [0] * (4 - place)
    counts = np.bincount(places)
    assert len(counts) == 5
    assert even(counts)
    assert {tuple(window) for _, _, window in drawn(path, 3, 0, range(99), clips=1)} == {(1, 2, 3)}


# ---- whole clips ---


@hypothesis_settings(deadline=None, max_examples=200)
@given(length=st.integers(1, 400), win_len=st.integers(1, 120))
def test_windows_cover_a_clip_as_few_and_as_even_as_can_be(length, win_len):
    windows = covering_windows(tf.range(1, length + 1), win_len).numpy()
    assert windows.shape == (-(-length // win_len), win_len)
    missing = max(0, win_len - length)
    assert windows[0].tolist()[: missing // 2] == [0] * (missing // 2)
    samples = windows[windows > 0]
    assert len(samples) == windows.size - missing
    assert set(samples) == set(range(1, length + 1)), "every sample"
    assert windows[0][missing // 2] == 1
    assert windows[-1][win_len - 1 - (missing - missing // 2)] == length
    if len(windows) > 1:
        steps = np.diff(windows[:, 0])
        assert steps.max() <= win_len
        assert steps.max() - steps.min() <= 1
    assert (np.diff(windows[:, missing // 2 : win_len - (missing - missing // 2)]) == 1).all()


def test_long_clips_do_not_overflow():
    """The last start is a product of more than 32 bits."""
    waveform = np.arange(70_000, dtype=np.int32)
    np.testing.assert_array_equal(covering_windows(tf.constant(waveform), 1)[:, 0], waveform)


def test_windows_cover_what_is_in_a_dataset_and_what_is_empty():
    lengths = tf.data.Dataset.from_tensor_slices([10, 3, 4])
    dataset = lengths.map(lambda length: covering_windows(tf.range(1, length + 1), 4))
    assert dataset.element_spec.shape.as_list() == [None, 4]
    assert [windows.tolist() for windows in dataset.as_numpy_iterator()] == [
        [[1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 9, 10]],
        [[1, 2, 3, 0]],
        [[1, 2, 3, 4]],
    ]
    assert covering_windows(tf.zeros([0]), 3).numpy().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
def test_whole_numbers_become_floats_from_minus_1_to_1(dtype):
    lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
    floats = to_float(tf.constant([lowest, lowest // 2, 0, highest // 2 + 1, highest], dtype))
    assert floats.dtype == tf.float32
    np.testing.assert_allclose(floats, [-1, -0.5, 0, 0.5, 1], rtol=0, atol=2**-15)
    assert floats[0] == -1
    assert floats[-1] <= 1
