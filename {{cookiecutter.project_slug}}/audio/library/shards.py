"""An archive of recordings: how it is written, compared with others, and verified.

What is here is what a conversion of another kind of file has in another way.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from library import archives
from library.conversion import Task, write_report
from library.duplicates import EDGE
from library.options import option
from library.sounds import read_sound, standard_waveform
from library.tfrecord import DamagedRecordError, Shard
from library.workers import Tell

UNIT = "recordings"
SUFFIX = ".h5"
HELP = """
WAV, FLAC, OGG, MP3 and more are told by their content.
"""
QUIETEST_DB = -60.0


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


def standard(data: bytes, options: ShardOptions) -> tuple[np.ndarray, int]:
    """What is kept of a file: its waveform, int16 [samples], and the length of a chunk.

    Raises:
        BadFileError: it cannot be used.
    """
    waveform = standard_waveform(data, sample_rate=options.sample_rate)
    return waveform, max(1, round(options.chunk_secs * options.sample_rate))


def write_shard(
    path: Path, examples: Iterable[tuple[str, int, str, tuple[np.ndarray, int]]]
) -> Shard:
    """Write a file of examples: name of the file, label, name of the class, recording."""
    return archives.write_archive(path, examples)


def open_data(path: str | Path) -> archives.Archive:
    """The examples of the data set `path`; an index that does not fit is written anew."""
    return archives.Archive(path)


def thumbnail(data: bytes) -> bytes:
    """What a recording sounds like in short: its loudness in EDGE * EDGE parts, in 255 levels.

    Raises:
        BadFileError: it cannot be used.
    """
    samples, _ = read_sound(data)
    energies = np.square(samples.mean(axis=1, dtype=np.float64))
    ends = np.linspace(0, len(energies), EDGE**2 + 1).astype(int)
    sums = np.diff(np.append(0, np.cumsum(energies))[ends])
    decibels = 10 * np.log10(sums / np.maximum(np.diff(ends), 1) + 1e-12)
    return np.uint8(np.clip(decibels / QUIETEST_DB, 0, 1) * 255).tobytes()


def write_index(path: Path, shards: Sequence[Path]) -> None:
    """Write label and length of every example of the data set `path`."""
    archives.write_index(path, shards)


def verify_shard(task: Task, bad: Mapping[int, str], tell: Tell) -> None:
    """Write a report of a shard: its faults, and what it holds."""
    (shard, _), *_ = task.files
    path, faults, digest = task.root / shard, [], ""
    count: collections.Counter[str] = collections.Counter()
    examples = 0
    try:
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        for row in archives.index_of([path]):
            tell(examples, int(row["length"]) * 2)
            if task.classes and not 0 <= row["label"] < len(task.classes):
                faults.append(
                    f"{shard}: recording {examples} has no label from 0 to {len(task.classes) - 1}"
                )
            elif task.classes:
                count[task.classes[row["label"]]] += 1
            examples += 1
    except OSError as error:
        faults.append(f"{shard}: {error.strerror}")
    except DamagedRecordError as error:
        faults.append(str(error))
    write_report(task, faults=faults, examples=examples, examples_per_class=count, sha256=digest)
