"""Random changes of clips: within their bounds, and the same for the same seed."""

import numpy as np
import pytest
import tensorflow as tf
from made_audio import RATE, sine

from library.audio import change, mask

NONE = {"speed": 0.0, "gain_db": 0.0, "noise": 0.0}
TONE = sine(500, RATE).astype(np.float32)


def changed(seed: int, **options: float) -> np.ndarray:
    found = change(tf.constant(TONE), tf.constant([seed, 7], tf.int64), **{**NONE, **options})
    return found.numpy()


def test_nothing_is_changed_unasked():
    np.testing.assert_array_equal(changed(0), TONE)


@pytest.mark.parametrize("option", [{"speed": 0.3}, {"gain_db": 6.0}, {"noise": 0.1}], ids=str)
def test_a_change_follows_from_its_seed(option):
    np.testing.assert_array_equal(changed(3, **option), changed(3, **option))
    assert np.abs(changed(3, **option) - changed(4, **option)).max() > 1e-3


def test_speed_changes_the_pitch_up_to_its_bound():
    spectra = [np.abs(np.fft.rfft(changed(seed, speed=0.25))) for seed in range(40)]
    pitches = np.array([spectrum.argmax() for spectrum in spectra]) * RATE / len(TONE)
    assert 500 / 1.25 - 1 <= pitches.min() < 430
    assert 580 < pitches.max() <= 500 * 1.25 + 1
    slower = [changed(seed, speed=0.25) for seed, pitch in enumerate(pitches) if pitch < 500]
    assert all(np.abs(each[:50]).max() > 0.1 for each in slower), "the whole window is filled"


def test_a_faster_clip_ends_in_silence_on_both_sides():
    found = [changed(seed, speed=0.25) for seed in range(20)]
    shortest = min(found, key=np.count_nonzero)
    at = np.flatnonzero(np.abs(shortest) > 1e-3)
    assert 0.8 * len(TONE) - 20 <= at[-1] - at[0] < 0.87 * len(TONE)
    assert at[0] == pytest.approx(len(TONE) - at[-1], abs=30)


def test_gain_and_noise_keep_to_their_bounds():
    gains = [np.abs(changed(seed, gain_db=6)).max() / np.abs(TONE).max() for seed in range(40)]
    decibels = 20 * np.log10(gains)
    assert -6 <= decibels.min() < -3 < 3 < decibels.max() <= 6
    shares = [np.std(changed(seed, noise=0.1) - TONE) / np.abs(TONE).max() for seed in range(40)]
    assert 0 <= min(shares) < 0.03 < 0.07 < max(shares) <= 0.102


def test_masks_hide_one_stretch_of_each_axis():
    spectrogram, drawn = np.ones([200, 60, 40], np.float32), np.random.default_rng(0)
    draws = drawn.uniform(size=[200, 2, 2]).astype(np.float32)
    hidden = mask(spectrogram, draws, shares=(0.3, 0.2)).numpy() == 0
    for along, share, size in ((hidden.all(axis=2), 0.3, 60), (hidden.all(axis=1), 0.2, 40)):
        lengths = along.sum(axis=1)
        assert lengths.min() == 0
        assert size * share - 2 < lengths.max() <= size * share + 1
        edges = np.abs(np.diff(along.astype(int), axis=1)).sum(axis=1)
        assert edges.max() == 2, "in one piece"
        assert along.mean(axis=0).min() > 0, "everywhere"
    assert (hidden == (hidden.all(axis=2)[:, :, None] | hidden.all(axis=1)[:, None])).all()
    np.testing.assert_array_equal(mask(spectrogram, draws, shares=(0.0, 0.0)), spectrogram)
