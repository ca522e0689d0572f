"""Training examples of audio clips: the same windows from archives, a cache and a stream."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from made_audio import RATE, WAVEFORMS, noises, write_set

from library.audio import (
    Archive,
    encoded_examples,
    playable,
    random_windows,
    train_keys,
    train_windows,
    wav_bytes,
)
from library.config import Settings
from library.util import UserError

Sample = tuple[int, int, bytes]
"""Its number in the run, the id of the clip, and the window."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = write_set(tmp_path / "data" / "train", WAVEFORMS, 3)
    return Settings(train_data=path, cache_dir=tmp_path / "cache", random_seed=5)


def samples_of(settings: Settings, start: int = 0, count: int = 21, **share: int) -> list[Sample]:
    windows = train_windows(settings, Archive(settings.train_data), 40, start, **share).take(count)
    assert windows.element_spec[2].shape == [40]
    return [(int(n), int(i), window.tobytes()) for n, i, window in windows.as_numpy_iterator()]


@pytest.mark.parametrize("more", [{"cache": "memory"}, {"cache": "file"}, {"shuffle": "stream"}])
def test_every_source_gives_the_same_window_of_a_sample(settings, more):
    """Also of clips shorter than a window; a stream has another order, and so other numbers."""
    other = dataclasses.replace(settings, **more)
    found = samples_of(other)
    if "cache" in more:
        assert found == samples_of(settings)
    assert samples_of(other, 9, 12) == found[9:]
    assert samples_of(other, 1, 10, num_workers=2, worker=1) == found[2::2]
    for epoch in (found[:7], found[7:14], found[14:]):
        assert sorted(example for _, example, _ in epoch) == list(range(7))
    direct = archive_windows(settings, found)
    assert [window for _, _, window in found] == direct


def archive_windows(settings: Settings, samples: list[Sample]) -> list[bytes]:
    """The windows that `random_windows` draws for the numbers and ids of these samples."""
    pairs = np.int64([[number, example] for number, example, _ in samples])
    dataset = tf.data.Dataset.from_tensor_slices((pairs[:, 0], pairs[:, 1]))
    windows = dataset.apply(random_windows(Archive(settings.train_data), 40, settings.random_seed))
    return [window.tobytes() for _, _, window in windows.as_numpy_iterator()]


def test_a_limit_has_the_same_few_clips_in_every_epoch(settings):
    few = dataclasses.replace(settings, limit_train_examples=3)
    ids = [example for _, example, _ in samples_of(few, count=9)]
    assert sorted(ids[:3]) == sorted(ids[3:6]) == sorted(ids[6:])
    assert len(set(ids)) == 3


def test_decoded_images_are_no_cache_of_audio(settings):
    decoded = dataclasses.replace(settings, cache="memory", cache_decoded=True)
    with pytest.raises(UserError, match="cache_decoded: audio clips are stored decoded"):
        samples_of(decoded)


@pytest.mark.parametrize("more", [{}, {"cache": "memory"}, {"shuffle": "stream"}])
def test_keys_are_the_files_of_the_training_examples(settings, more):
    settings, archive = dataclasses.replace(settings, **more), Archive(settings.train_data)
    expected = [archive.name(example) for _, example, _ in samples_of(settings)]
    assert train_keys(settings, 0, 21) == expected
    assert train_keys(settings, 6, 5) == expected[6:11]


def test_encoded_examples_are_spread_over_the_dataset(tmp_path):
    waveforms = noises(*range(1, 11))
    path = write_set(tmp_path / "train", waveforms, 2)
    expected = [wav_bytes(waveforms[number], sample_rate=RATE) for number in (0, 3, 6)]
    card = Archive(path).card
    assert encoded_examples(path, card.spread(3)) == expected
    assert len(encoded_examples(path, card.spread(99))) == 10


def test_what_is_played_of_a_clip_is_its_beginning_in_at_most_100_kb(tmp_path):
    random = np.random.default_rng(0)
    loud = random.integers(-32768, 32768, 90_000).astype(np.int16)  # noise, which does not shrink
    path = write_set(tmp_path / "test", [*WAVEFORMS, loud], 2)
    archive = Archive(path)
    numbers = {archive.name(number): number for number in (3, 7)}
    found = playable(path, {*numbers, "unknown.wav"})
    assert found.keys() == numbers.keys()
    for name, number in numbers.items():
        assert found[name].startswith(b"fLaC")
        assert len(found[name]) < 100_000
        waveform, rate = soundfile.read(io.BytesIO(found[name]), dtype="int16")
        assert rate == RATE
        np.testing.assert_array_equal(waveform, archive.waveform(number)[:45_000])
    assert playable(path, ()) == {}
