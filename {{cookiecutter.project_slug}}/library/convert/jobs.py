"""Jobs of a conversion: what is done with some files, in a worker, and a report that comes last."""

import dataclasses
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from library.convert.duplicates import sha256_of
from library.convert.listing import LabeledFile
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
    files: Sequence[LabeledFile]
    modality_name: str  # of the module
    target: Target
    options: Any = None  # the ShardOptions of the modality

    def __call__(self, bad: Mapping[int, str], tell: Tell) -> None:
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

    def read_report(self) -> Report:
        return cast(Report, json.loads(self.report.read_text(encoding="utf-8")))


def write_shard(job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Write a shard and its index rows."""
    rejected: list[tuple[str, str]] = []
    used: list[tuple[str, str, Label]] = []

    def examples() -> Iterator[tuple[str, Label, Any]]:
        for file, data in _read_files(job, bad, tell, rejected):
            try:
                content = job.modality.canonicalize(data, job.options)
            except BadFileError as error:
                rejected.append((file.name, str(error)))
            else:
                used.append((sha256_of(data), *file))
                yield *file, content

    shard, rows = job.modality.write_shard(job.output, examples(), job.target)
    with replacing(job.rows) as temporary, open(temporary, "wb") as file:
        np.save(file, rows)
    return {"shard": dataclasses.asdict(shard), "rejected": rejected, "used": used}


def scan_files(job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Look at files before they are split: the checksum and the thumbnail of each."""
    scanned = {}
    for file, data in _read_files(job, bad, tell, []):
        try:
            thumbnail = job.modality.thumbnail(data).hex()
        except BadFileError:  # its conversion will say why
            thumbnail = ""
        scanned[file.name] = (sha256_of(data), thumbnail)
    return scanned


def verify_shard(job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Read a shard, which is the only file of the job."""
    return job.modality.verify_shard(job.root / job.files[0].name, job.target, bad, tell)


def _read_files(
    job: ShardJob, bad: Mapping[int, str], tell: Tell, rejected: list[tuple[str, str]]
) -> Iterator[tuple[LabeledFile, bytes]]:
    """The content of each file; an OSError is that of a storage that fails."""
    for number, file in enumerate(job.files):
        path = job.root / file.name
        try:
            if number in bad:
                raise BadFileError(bad[number])
            tell(number, os.path.getsize(path))
            data = read_whole(path)
        except BadFileError as error:
            rejected.append((file.name, str(error)))
        except (FileNotFoundError, PermissionError) as error:
            rejected.append((file.name, str(error.strerror)))
        else:
            yield file, data


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
