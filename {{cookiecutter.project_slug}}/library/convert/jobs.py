"""Jobs of a conversion: some files each, and a report that is written last."""

import dataclasses
import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
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
class Job:
    """Some files to read; called in a worker, with the bad ones and the way to tell of each."""

    output: Path
    root: Path
    files: Sequence[LabeledFile]
    modality_name: str  # of the module

    def __call__(self, bad: Mapping[int, str], tell: Tell) -> None:
        raise NotImplementedError

    @property
    def modality(self) -> Modality:
        return cast(Modality, importlib.import_module(self.modality_name))

    @property
    def report(self) -> Path:
        return self.output.with_name(f"{self.output.name}.json")

    def write_report(self, **content: Any) -> None:
        write_text(self.report, json.dumps(content))

    def read_report(self) -> Report:
        return cast(Report, json.loads(self.report.read_text(encoding="utf-8")))

    def read_files(
        self, bad: Mapping[int, str], tell: Tell, rejected: list[tuple[str, str]]
    ) -> Iterator[tuple[LabeledFile, bytes]]:
        """The content of each file; those that cannot be read become `rejected`."""
        for number, file in enumerate(self.files):
            path = self.root / file.name
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


@dataclasses.dataclass(frozen=True)
class ShardJob(Job):
    """A shard to write."""

    target: Target
    options: Any  # the ShardOptions of the modality

    @property
    def rows(self) -> Path:
        """The rows of the index, with 0 as the number of the shard."""
        return self.output.with_name(f"{self.output.name}.npy")

    def __call__(self, bad: Mapping[int, str], tell: Tell) -> None:
        rejected: list[tuple[str, str]] = []
        used: list[tuple[str, str, Label]] = []

        def examples() -> Iterator[tuple[str, Label, Any]]:
            for file, data in self.read_files(bad, tell, rejected):
                try:
                    content = self.modality.canonicalize(data, self.options)
                except BadFileError as error:
                    rejected.append((file.name, str(error)))
                else:
                    used.append((sha256_of(data), *file))
                    yield *file, content

        shard, rows = self.modality.write_shard(self.output, examples(), self.target)
        with replacing(self.rows) as temporary, open(temporary, "wb") as file:
            np.save(file, rows)
        self.write_report(shard=dataclasses.asdict(shard), rejected=rejected, used=used)


@dataclasses.dataclass(frozen=True)
class ScanJob(Job):
    """Files to look at before they are split: the checksum and the thumbnail of each."""

    def __call__(self, bad: Mapping[int, str], tell: Tell) -> None:
        scanned = {}
        for file, data in self.read_files(bad, tell, []):
            try:
                thumbnail = self.modality.thumbnail(data).hex()
            except BadFileError:  # its conversion will say why
                thumbnail = ""
            scanned[file.name] = (sha256_of(data), thumbnail)
        self.write_report(scanned=scanned)


def read_whole(path: Path) -> bytes:
    """The content of a file that nobody is writing to.

    Raises:
        BadFileError: it changed, or is too large for a record.
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        if before.st_size > MAX_BYTES:
            raise BadFileError(f"too large: {before.st_size:,} bytes")
        data = file.readall()
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (len(data), after.st_mtime_ns):
        raise BadFileError("changed while it was read")
    return data
