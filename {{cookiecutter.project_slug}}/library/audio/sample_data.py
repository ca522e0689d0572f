"""Recordings of made sounds, to try a project out.

python -m library.audio.sample_data sounds      makes sounds/train and sounds/test

Six classes that differ in how pitch and loudness change: pitch, length, loudness and noise are
drawn by lot. The same arguments give the same recordings.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile

from library.config import Parser
from library.util import UserError, run_main

SAMPLE_RATE = 16000  # samples per second
MIN_SECS, MAX_SECS = 0.5, 1.2
MIN_HZ, MAX_HZ = 200.0, 2000.0
MAX_NOISE = 0.3  # of the amplitude

PER_CLASS = {"train": 200, "test": 25}

Sound = tuple[np.ndarray, np.ndarray]
"""Pitch, in octaves above the first one, and loudness: by time, from 0 to 1."""

SOUNDS: dict[str, Callable[[np.ndarray], Sound]] = {
    "falling": lambda t: (-t, np.ones_like(t)),
    "pulses": lambda t: (0 * t, (np.sin(2 * np.pi * 8 * t) > 0).astype(float)),
    "rising": lambda t: (t, np.ones_like(t)),
    "siren": lambda t: (0.5 * np.sin(2 * np.pi * 3 * t), np.ones_like(t)),
    "steps": lambda t: (np.floor(4 * t) % 2, np.ones_like(t)),
    "tone": lambda t: (0 * t, np.ones_like(t)),
}


def make_sound(name: str, random: np.random.Generator) -> np.ndarray:
    """One recording of a class: float [samples] in [-1, 1]."""
    samples = int(SAMPLE_RATE * random.uniform(MIN_SECS, MAX_SECS))
    octaves, loudness = SOUNDS[name](np.linspace(0, 1, samples))
    pitch = np.exp2(octaves + random.uniform(np.log2(MIN_HZ), np.log2(MAX_HZ)))
    signal = loudness * np.sin(2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE)
    signal += random.normal(0, random.uniform(0, MAX_NOISE), samples)
    return signal * random.uniform(0.1, 0.9) / np.abs(signal).max()


def make(folder: str | Path, *, per_class: dict[str, int], seed: int = 0) -> None:
    """Write a folder per split, and in it a folder per class, of WAV files.

    Args:
        folder: where; it must not be there yet.
        per_class: number of recordings of each class, by split.
        seed: other seeds give other recordings.

    Raises:
        UserError: the folder is there already.
    """
    folder = Path(folder)
    if folder.exists():
        raise UserError(f"{folder} is there already")
    random = np.random.default_rng(seed)
    for split, count in per_class.items():
        for name in SOUNDS:
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                file = folder / split / name / f"{name}-{number:04}.wav"
                soundfile.write(file, make_sound(name, random), SAMPLE_RATE, "PCM_16")


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", help="folder to make; it must not be there yet")
    folder = parser.parse(sys.argv[1:])["folder"]
    parser.raise_errors()
    make(folder, per_class=PER_CLASS)
    print(f"{len(SOUNDS) * sum(PER_CLASS.values())} recordings of {', '.join(SOUNDS)} in {folder}")


if __name__ == "__main__":
    run_main(main)
