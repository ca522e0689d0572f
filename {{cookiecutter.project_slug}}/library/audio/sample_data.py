"""Synthetic audio clips, to try a project out.

python -m library.audio.sample_data clips                  clips/train and clips/test
python -m library.audio.sample_data clips --task labels    and clips/train.csv, clips/test.csv

Six sounds differ in how pitch and loudness change; pitch, length, loudness and noise are random.
With --task class, each sound has a folder; with labels, a clip is a mix of up to three sounds; with
value, each clip is a tone, and the value its pitch, in octaves above 200 Hz. The tables are for
--labels of convert_dataset.py. The same arguments give the same clips.
"""

import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import soundfile

from library.config import Parser
from library.util import UserError, run_main

SAMPLE_RATE = 16000  # samples per second
MIN_SECS, MAX_SECS = 0.5, 1.2
MIN_HZ, MAX_HZ = 200.0, 2000.0
MAX_NOISE = 0.3  # of the amplitude
MAX_SOUNDS = 3  # in a clip with several labels

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


def make_clip(names: Sequence[str], random: np.random.Generator) -> tuple[np.ndarray, float]:
    """A mix of these sounds, float [samples] in [-1, 1], and the first pitch of the last one."""
    samples = int(SAMPLE_RATE * random.uniform(MIN_SECS, MAX_SECS))
    signal, pitch = np.zeros(samples), 0.0
    for name in names:
        octaves, loudness = SOUNDS[name](np.linspace(0, 1, samples))
        pitch = random.uniform(np.log2(MIN_HZ), np.log2(MAX_HZ))
        phase = np.cumsum(np.exp2(octaves + pitch)) / SAMPLE_RATE
        signal = signal + loudness * np.sin(2 * np.pi * phase)
    signal += random.normal(0, random.uniform(0, MAX_NOISE), samples)
    return signal * random.uniform(0.1, 0.9) / np.abs(signal).max(), pitch - np.log2(MIN_HZ)


def make(
    folder: str | Path, *, per_class: dict[str, int], seed: int = 0, task: str = "class"
) -> None:
    """Write a folder of WAV files for each split; for labels or value with a table beside it.

    The folder must not exist yet; `per_class` is the number of clips of each sound, by split.
    """
    folder = Path(folder)
    if folder.exists():
        raise UserError(f"{folder} already exists")
    random = np.random.default_rng(seed)
    for split, count in per_class.items():
        rows = [["file", task]]
        for name in SOUNDS:
            for number in range(count):
                names = [name]
                if task == "labels":
                    names = sorted(random.permutation([*SOUNDS])[: random.integers(MAX_SOUNDS + 1)])
                elif task == "value":
                    names = ["tone"]
                clip, pitch = make_clip(names, random)
                stem = f"{name}/{name}-{number:04}" if task == "class" else f"{len(rows):05}"
                file = f"{stem}.wav"
                (folder / split / file).parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(folder / split / file, clip, SAMPLE_RATE, "PCM_16")
                rows.append([file, ";".join(names) if task == "labels" else f"{pitch:.4f}"])
        if task != "class":
            with open(folder / f"{split}.csv", "w", newline="", encoding="utf-8") as table:
                csv.writer(table).writerows(rows)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", help="folder to make; it must not exist yet")
    parser.add_argument("--task", choices=("class", "labels", "value"), default="class")
    flags = parser.parse(sys.argv[1:])
    parser.raise_errors()
    make(flags["folder"], per_class=PER_CLASS, task=flags["task"])
    print(f"{len(SOUNDS) * sum(PER_CLASS.values())} audio clips in {flags['folder']}")


if __name__ == "__main__":
    run_main(main)
