"""Jobs of a conversion: what is done with some files, in a worker, and a report that comes last."""

import collections
import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from library.convert.listing import Files
from library.convert.workers import Tell
from library.data import Label, Modality, Target
from library.util import BadFileError, replacing, write_text

MAX_BYTES = 2**30
"""Of a file; TFRecords and protobuf end at 2 GB."""
Report = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """A shard to write or verify, or files to look at."""

    work: Callable[["ShardJob", Mapping[int, str], Tell], Report]  # one of the functions below
    output: Path
    root: Path
    files: Files
    modality_name: str  # of the module
    target: Target
    options: Any = None  # the ShardOptions of the modality

    def __call__(self, bad: Mapping[int, str], tell: Tell) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a decoder says of a file helps no one here
            write_text(self.report, json.dumps(self.work(self, bad, tell)))

    @property
    def modality(self) -> Modality:
        return cast(Modality, importlib.import_module(self.modality_name))

    @property
    def report(self) -> Path:
        return self.output.with_name(f"{self.output.name}.json")

    @property
    def rows(self) -> Path:
        """The index rows of a shard, with 0 as its number."""
        return self.output.with_name(f"{self.output.name}.npy")

    @property
    def seen(self) -> Path:
        """Checksum and thumbnail of each file: uint8 [files, bytes]; zeros where there is none."""
        return self.output.with_name(f"{self.output.name}.seen.npy")

    def load_seen(self) -> np.ndarray:
        return cast(np.ndarray, np.load(self.seen, mmap_mode="r"))

    def read_report(self) -> Report:
        return cast(Report, json.loads(self.report.read_text(encoding="utf-8")))


def write_shard(job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Write a shard, its index rows, and what is seen of its files."""
    rejected: list[tuple[int, str]] = []
    seen: list[bytes] = []

    def examples() -> Iterator[tuple[str, Label, Any]]:
        for number, data in _read_files(job, bad, tell, rejected):
            try:
                content = job.modality.canonicalize(data, job.options)
                seen.append(_seen(job, data, content))
            except BadFileError as error:
                rejected.append((number, str(error)))
            else:
                yield *job.files[number], content

    shard, rows = job.modality.write_shard(job.output, examples(), job.target)
    _save(job.rows, rows)
    _save(job.seen, _stack(len(seen), dict(enumerate(seen))))
    return {"shard": dataclasses.asdict(shard), "rejected": rejected}


def scan_files(job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Look at files before they are split."""
    seen: dict[int, bytes] = {}
    for number, data in _read_files(job, bad, tell, []):
        with contextlib.suppress(BadFileError):  # its conversion will say why
            content = job.modality.canonicalize(data, job.options)
            seen[number] = _seen(job, data, content)
    _save(job.seen, _stack(len(job.files), seen))
    return {}


def _seen(job: ShardJob, data: bytes, content: Any) -> bytes:
    return hashlib.sha256(data).digest() + job.modality.thumbnail(content, job.options)


def _stack(count: int, seen: Mapping[int, bytes]) -> np.ndarray:
    rows = np.zeros([count, max(map(len, seen.values()), default=0)], np.uint8)
    for number, each in seen.items():
        rows[number] = np.frombuffer(each, np.uint8)
    return rows


def _save(path: Path, array: np.ndarray) -> None:
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.save(file, array)


def survey_files(job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Count what a function, the options of the job, says of files."""
    return collections.Counter(job.options(data) for _, data in _read_files(job, bad, tell, []))


def verify_shard(job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Read a shard, which is the only file of the job."""
    return job.modality.verify_shard(job.root / job.files[0].name, job.target, bad, tell)


def _read_files(
    job: ShardJob, bad: Mapping[int, str], tell: Tell, rejected: list[tuple[int, str]]
) -> Iterator[tuple[int, bytes]]:
    """Number and content of each file; an OSError is that of a storage that fails."""
    for number, file in enumerate(job.files):
        path = job.root / file.name
        try:
            if number in bad:
                raise BadFileError(bad[number])
            tell(number, os.path.getsize(path))
            data = read_whole(path)
        except BadFileError as error:
            rejected.append((number, str(error)))
        except (FileNotFoundError, PermissionError) as error:
            rejected.append((number, str(error.strerror)))
        else:
            yield number, data


def read_whole(path: Path) -> bytes:
    """The content of a file; BadFileError where it changes meanwhile, or is too large."""
    with open(path, "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        if before.st_size > MAX_BYTES:
            raise BadFileError(f"too large: {before.st_size:,} bytes")
        data = file.readall()
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (len(data), after.st_mtime_ns):
        raise BadFileError("changed while it was read")
    return data
