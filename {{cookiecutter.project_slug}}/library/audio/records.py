"""What conversion does with audio clips that it does otherwise with images."""

import collections
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from library.audio.archives import (
    Archive,
    index_dtype,
    index_row,
    labels_and_lengths,
    name_of,
    no_label,
)
from library.audio.files import canonical_waveform, measures
from library.config import option
from library.data import EDGE, DamagedRecordError, Label, Shard, Target
from library.util import counted, replacing, sha256_of

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
AT_ONCE = 2**16
"""Samples: shorter parts of a clip are computed together, in less time; longer ones one by one."""
LOWEST_RATE, HIGHEST_RATE, MAX_DEFAULT_RATE = 1000, 192_000, 16_000
"""Samples per second; more than the last, which speech does not need, have to be asked for."""

open_data = Archive


class Clip(NamedTuple):
    """What is kept of a file."""

    waveform: np.ndarray  # int16 [samples]
    chunk: int  # samples that are stored together
    thumbnail: bytes


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """Audio clips"""

    sample_rate: int | None = option(
        None,
        "samples per second that all clips are resampled to; null: that of the training set, or "
        f"the commonest of the files, at most {MAX_DEFAULT_RATE}",
        minimum=LOWEST_RATE,
        maximum=HIGHEST_RATE,
    )
    chunk_secs: float = option(1.0, "seconds stored together: a training window", above=0)

    @property
    def rate(self) -> int:
        return self.sample_rate or MAX_DEFAULT_RATE


@dataclasses.dataclass(frozen=True)
class _ResolvedOptions(ShardOptions):
    """With what the files say."""

    source_rates: dict[str, int] = dataclasses.field(default_factory=dict)


def rate_of(options: Mapping[str, Any]) -> int | None:
    """Samples per second, of the options on a card; None: it is no card of audio clips."""
    rate = options.get("sample_rate")
    return rate if isinstance(rate, int) and LOWEST_RATE <= rate <= HIGHEST_RATE else None


def resolve_options(
    options: ShardOptions, some: Sequence[Path], known: Mapping[str, Any]
) -> ShardOptions:
    """The options with a sample rate: see `library.data.Modality`."""
    found: collections.Counter[int] = collections.Counter()
    for path in some:
        if rate := measures(path).get("samples per second"):  # else its conversion will say why
            found[int(rate)] += 1
    commonest = max(found, key=lambda rate: (found[rate], rate), default=MAX_DEFAULT_RATE)
    usual = min(commonest, MAX_DEFAULT_RATE)
    rate = options.sample_rate or rate_of(known) or usual
    rates = {str(each): count for each, count in sorted(found.items(), key=lambda item: -item[1])}
    if rates:
        counts = ", ".join(f"{each} ({count})" for each, count in rates.items())
        files = counted(len(some), "files")
        print(f"sample rates of {files}: {counts}; the dataset has {rate}")
    fields = dataclasses.asdict(options) | {"sample_rate": rate}
    return _ResolvedOptions(**fields, source_rates=rates)


def canonicalize(data: bytes, options: ShardOptions) -> Clip:
    """What is kept of a file."""
    waveform = canonical_waveform(data, sample_rate=options.rate)
    chunk = max(1, round(options.chunk_secs * options.rate))
    return Clip(waveform, chunk, _thumbnail(waveform, options.rate))


# ---- shards --------------------------------------------------------------------------------------


def write_shard(
    path: Path, examples: Iterable[tuple[str, Label, Clip]], target: Target
) -> tuple[Shard, np.ndarray]:
    """Write one archive: name of the file, label and clip of each; its card's entry, index rows."""
    rows = []
    with replacing(path) as temporary:
        with _created(temporary) as archive:
            for number, (file, label, (waveform, chunk, *_)) in enumerate(examples):
                name, without_time = name_of(number).encode(), _untimed(h5py.h5p.GROUP_CREATE)
                group = h5py.Group(h5py.h5g.create(archive.id, name, gcpl=without_time))
                chunks = (min(chunk, len(waveform)),)
                group.create_dataset("waveform", data=waveform, chunks=chunks)
                group.attrs["file"] = file.encode(errors="surrogateescape")
                group.attrs.update(_attributes(label, target))
                rows.append(index_row(label, len(waveform), target))
        size, checksum = temporary.stat().st_size, sha256_of(temporary)
    return Shard(path.name, len(rows), size, checksum), np.array(rows, index_dtype(target))


def _created(path: Path) -> h5py.File:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    # Not the latest: what HDF5 2.0 writes then, 1.14 does not read.
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    name, without_time = os.fsencode(path), _untimed(h5py.h5p.FILE_CREATE)
    return h5py.File(h5py.h5f.create(name, h5py.h5f.ACC_TRUNC, without_time, access))


def _untimed(kind: int) -> h5py.h5p.PropOCID:
    """Of a file or group without the time: the same clips are always the same bytes."""
    properties = h5py.h5p.create(kind)
    properties.set_obj_track_times(False)
    return properties


def _attributes(label: Any, target: Target) -> dict[str, Any]:
    if target.label == "labels":
        return {"labels": np.array(label, np.int64)}
    if target.label == "value":
        return {"value": np.float64(label)}
    return {"label": label, "class": target.classes[label] if target.classes else ""}


def check_shard(
    path: Path, target: Target, bad: Mapping[int, str], tell: Callable[[int, int], None]
) -> Iterator[tuple[str, Sequence[int]]]:
    """Fault and classes of each example of a shard: see `library.data.Modality`."""
    for number, reason in bad.items():  # or the next process would end in the same place
        raise DamagedRecordError(f"{path}: after clip {number}, {reason}")
    for number, (label, length) in enumerate(labels_and_lengths(path, target)):
        tell(number, length * 2)
        classes = np.atleast_1d(label).astype(int).tolist() if label is not None else []
        fault = no_label(number, target) if label is None else ""
        yield fault, classes if target.classes else []


# ---- thumbnails --------------------------------------------------------------------------------


def _thumbnail(waveform: np.ndarray, rate: int) -> bytes:
    """What a clip sounds like in short: the energies of EDGE bands in each of EDGE parts.

    They are relative to the loudest one, in decibels, RANGE_DB in 255 levels.
    """
    parts = np.array_split(waveform / np.float32(32768), EDGE)
    # Of two lengths, one sample apart.
    calls = itertools.groupby(parts, lambda part: len(part) if len(part) < AT_ONCE else object())
    energies = np.concatenate([_band_energies(np.array([*some]), rate) for _, some in calls])
    decibels = 10 * np.log10(energies / max(energies.max(), 1e-12) + QUIETEST)
    return np.uint8(np.clip(-decibels / RANGE_DB, 0, 1) * 255).tobytes()


def _band_energies(signals: np.ndarray, rate: int) -> np.ndarray:
    """The average energies in EDGE bands of equal ratio: [n, samples] -> [n, EDGE]."""
    count, length = signals.shape
    size = max(2, min(length, round(FRAME_SECS * rate)))
    padded = np.pad(signals, [(0, 0), (0, max(0, size - length))])
    frames = padded[:, : padded.shape[1] // size * size].reshape(count, -1, size)
    spectrum = np.fft.rfft(frames * np.hanning(size))
    below = np.cumsum(np.mean(np.square(np.abs(spectrum)), axis=1), axis=1)
    below = np.pad(below, [(0, 0), (1, 0)])
    edges = np.geomspace(LOWEST_HZ, HIGHEST_HZ, EDGE + 1) * size / rate
    upto = [np.interp(edges, np.arange(len(row)), row) for row in below]
    return np.diff(upto) / size**2
