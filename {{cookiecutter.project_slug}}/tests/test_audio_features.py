"""Log-mel features against a slow reference."""

import numpy as np
import pytest
import tensorflow as tf
from made_audio import NOISE, RATE, sine

from library.audio import log_mel

FEATURES = {
    "sample_rate": RATE,
    "frame_secs": 0.025,
    "hop_secs": 0.01,
    "mel_bands": 40,
    "min_hz": 60.0,
    "max_hz": 7600.0,
}


def mel(hertz: np.ndarray) -> np.ndarray:
    return 1127 * np.log1p(np.asarray(hertz) / 700)


def slow_log_mel(waveform: np.ndarray) -> np.ndarray:
    """The same, frame by frame and band by band."""
    edges = np.linspace(mel(60), mel(7600), 42)
    bins = mel(np.arange(257) * RATE / 512)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = []
    for begin in range(0, len(waveform) - 399, 160):
        energies = np.abs(np.fft.rfft(waveform[begin : begin + 400] * window, 512)) ** 2
        bands = []
        for low, center, high in zip(edges, edges[1:], edges[2:], strict=False):
            rising, falling = (bins - low) / (center - low), (high - bins) / (high - center)
            weights = np.maximum(0, np.minimum(rising, falling))
            bands.append(np.log(energies @ weights + 1e-6))
        frames.append(bands)
    return np.array(frames)


def test_features_are_those_of_a_slow_reference():
    waveforms = np.stack([NOISE[:, 0] / 2**31, sine(1000, RATE)[:4001], sine(50, RATE)[:4001]])
    found = log_mel(waveforms.astype(np.float32), **FEATURES)
    assert found.dtype == tf.float32
    assert found.shape == [3, 1 + (4001 - 400) // 160, 40]
    np.testing.assert_allclose(found, np.stack(list(map(slow_log_mel, waveforms))), atol=0.01)


@pytest.mark.parametrize("hertz", [100, 440, 1000, 3000, 7000])
def test_a_pure_tone_is_in_the_band_of_its_pitch(hertz):
    tone = sine(hertz, RATE).astype(np.float32)
    found = log_mel(tone[np.newaxis], **FEATURES)[0].numpy().mean(axis=0)
    centers = np.linspace(mel(60), mel(7600), 42)[1:-1]
    nearest = np.abs(centers - mel(hertz)).argmin()
    assert abs(found.argmax() - nearest) <= 1
    far = np.abs(centers - mel(hertz)) > 300
    assert found[far].max() < found.max() - 6, "26 dB less in other bands"


def test_silence_is_finite():
    found = log_mel(np.zeros([2, RATE], np.float32), **FEATURES)
    np.testing.assert_allclose(found, np.log(1e-6), rtol=1e-6)


def test_features_in_a_dataset_are_the_same():
    waveforms = np.stack([sine(440, RATE), sine(880, RATE)]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensors(waveforms).map(lambda each: log_mel(each, **FEATURES))
    assert dataset.element_spec.shape == [2, 98, 40]
    (found,) = dataset.as_numpy_iterator()
    np.testing.assert_allclose(found, log_mel(waveforms, **FEATURES), atol=1e-4)
