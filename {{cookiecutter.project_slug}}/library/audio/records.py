"""An archive of recordings: how it is written, compared with others, and verified.

What is here is what a conversion of another kind of file has in another way.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from library.audio import archives
from library.audio.files import read_sound, standard_waveform
from library.config import option
from library.data import EDGE, DamagedRecordError, Label, Shard, Target

UNIT = "audio clips"
SUFFIX = ".h5"
HELP = """
WAV, FLAC, OGG, MP3 and more are told by their content.
"""
LOWEST_HZ, HIGHEST_HZ = 60.0, 3800.0
"""Of what is compared: the telephone has no more."""
FRAME_SECS = 0.1
QUIETEST = 1e-3
"""Of the loudest energy: what is below is another one in an MP3."""
RANGE_DB = 80.0


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """The flags that are about recordings."""

    sample_rate: int = option(
        16000,
        "samples per second, that all recordings are brought to",
        group="shards",
        minimum=1000,
        maximum=192_000,
    )
    chunk_secs: float = option(
        1.0, "seconds that are stored together: a window of training", group="shards", above=0
    )


def canonicalize(data: bytes, options: ShardOptions) -> tuple[np.ndarray, int]:
    """What is kept of a file: its waveform, int16 [samples], and the length of a chunk.

    Raises:
        BadFileError: it cannot be used.
    """
    waveform = standard_waveform(data, sample_rate=options.sample_rate)
    return waveform, max(1, round(options.chunk_secs * options.sample_rate))


def write_shard(
    path: Path, examples: Iterable[tuple[str, Label, tuple[np.ndarray, int]]], target: Target
) -> tuple[Shard, np.ndarray]:
    """Write a file of examples: name of the file, label, recording."""
    shard = archives.write_archive(
        path,
        (
            (file, cast(int, label), "".join(target.names(label)), each)
            for file, label, each in examples
        ),
    )
    return shard, archives.index_of([path])


def open_data(path: str | Path) -> archives.Archive:
    """The examples of the data set `path`; an index that does not fit is written anew."""
    return archives.Archive(path)


def thumbnail(data: bytes) -> bytes:
    """What a recording sounds like in short: the energies of EDGE bands in each of EDGE parts.

    They are relative to the loudest one, in decibels, RANGE_DB in 255 levels.

    Raises:
        BadFileError: it cannot be used.
    """
    samples, rate = read_sound(data)
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


def write_index(path: Path, rows_by_shard: Iterable[np.ndarray]) -> None:
    """Write label and length of every example of the data set `path`."""
    archives.write_rows(path, rows_by_shard)


def verify_shard(
    path: Path, target: Target, bad: Mapping[int, str], tell: Callable[[int, int], None]
) -> dict[str, Any]:
    """Read a shard: its faults, and what it holds."""
    shard, faults, digest = path.name, [], ""
    count: collections.Counter[str] = collections.Counter()
    examples = 0
    try:
        digest = archives.sha256_of_file(path)
        for row in archives.index_of([path]):
            tell(examples, int(row["length"]) * 2)
            if target.classes and not 0 <= row["label"] < len(target.classes):
                faults.append(
                    f"{shard}: recording {examples} has no label from 0 to "
                    f"{len(target.classes) - 1}"
                )
            elif target.classes:
                count[target.classes[row["label"]]] += 1
            examples += 1
    except OSError as error:
        faults.append(f"{shard}: {error.strerror}")
    except DamagedRecordError as error:
        faults.append(str(error))
    return {
        "faults": faults,
        "examples": examples,
        "examples_per_class": count,
        "sha256": digest,
    }
