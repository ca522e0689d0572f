"""What conversion does with audio clips that it does otherwise with images."""

import dataclasses

import numpy as np

from library.audio.archives import Archive, Clip
from library.audio.files import canonical_waveform, read_audio
from library.config import option
from library.data import EDGE

UNIT = "audio clips"
SUFFIX = ".h5"
HELP = """
WAV, FLAC, OGG, MP3 and more are detected from their content.
"""
LOWEST_HZ, HIGHEST_HZ = 60.0, 3800.0
"""The frequencies that are compared: a telephone has no more."""
FRAME_SECS = 0.1
QUIETEST = 1e-3
"""Share of the loudest energy: what is below differs from copy to copy in an MP3."""
RANGE_DB = 80.0


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """Audio clips"""

    sample_rate: int = option(
        16000, "samples per second that all clips are resampled to", minimum=1000, maximum=192_000
    )
    chunk_secs: float = option(1.0, "seconds stored together: a training window", above=0)


def canonicalize(data: bytes, options: ShardOptions) -> Clip:
    """What is kept of a file: its waveform, and the length of a chunk.

    Raises:
        BadFileError: it cannot be used.
    """
    waveform = canonical_waveform(data, sample_rate=options.sample_rate)
    return waveform, max(1, round(options.chunk_secs * options.sample_rate))


def open_data(path: str) -> Archive:
    """The clips of the dataset `path`."""
    return Archive(path)


def thumbnail(data: bytes) -> bytes:
    """What a clip sounds like in short: the energies of EDGE bands in each of EDGE parts.

    They are relative to the loudest one, in decibels, RANGE_DB in 255 levels.

    Raises:
        BadFileError: it cannot be used.
    """
    samples, rate = read_audio(data)
    parts = np.array_split(samples.mean(axis=1), EDGE)
    energies = np.array([_band_energies(part, rate) for part in parts])
    decibels = 10 * np.log10(energies / max(energies.max(), 1e-12) + QUIETEST)
    return np.uint8(np.clip(-decibels / RANGE_DB, 0, 1) * 255).tobytes()


def _band_energies(signal: np.ndarray, rate: int) -> np.ndarray:
    """The average energies in EDGE bands of equal ratio."""
    size = max(2, min(len(signal), round(FRAME_SECS * rate)))
    padded = np.pad(signal, [0, max(0, size - len(signal))])
    frames = padded[: len(padded) // size * size].reshape(-1, size)
    spectrum = np.fft.rfft(frames * np.hanning(size))
    below = np.append(0, np.cumsum(np.mean(np.square(np.abs(spectrum)), axis=0)))
    edges = np.geomspace(LOWEST_HZ, HIGHEST_HZ, EDGE + 1) * size / rate
    return np.diff(np.interp(edges, np.arange(len(below)), below)) / size**2
