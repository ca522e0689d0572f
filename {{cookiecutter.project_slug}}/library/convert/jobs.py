"""Jobs of a conversion: what is done with some files, in a worker, and a report that comes last."""

import collections
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
from library.convert.packed import Packed
from library.convert.workers import NO_ITEM, Tell
from library.data import DamagedRecordError, Modality, Target, copy_file, write_file
from library.util import BadFileError, replacing, sha256_of

MAX_BYTES = 2**30
"""Of a file; TFRecords and protobuf end at 2 GB."""
Report = dict[str, Any]
"""Arrays, and what can be JSON."""


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
    url: str = ""  # of the folder that a shard goes to, where that is not on this machine

    def __call__(self, bad: Mapping[int, str], tell: Tell) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a decoder says of a file helps no one here
            report = self.work(self, bad, tell)
        arrays: dict[str, Any] = {
            name: each if isinstance(each, np.ndarray) else np.array(json.dumps(each))
            for name, each in report.items()
        }
        with replacing(self.report) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)

    @property
    def modality(self) -> Modality:
        return cast(Modality, importlib.import_module(self.modality_name))

    @property
    def report(self) -> Path:
        return self.output.with_name(f"{self.output.name}.npz")

    def load(self, name: str) -> Any:
        """A part of the report."""
        with np.load(self.report) as report:
            found = report[name]
        return json.loads(str(found)) if found.dtype.kind == "U" else found


# ---- what is done ------------------------------------------------------------------------------


def write_shard(job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Write a shard: what `scan_files` reports, index rows, and the entry for the card."""
    seen: Report = {}
    examples = ((*job.files[n], content) for n, content in _contents(job, bad, tell, seen))
    shard, rows = job.modality.write_shard(job.output, examples, job.target)
    if job.url:
        tell(NO_ITEM, 10**12)  # it may take its time
        write_file(f"{job.url}/{shard.file}", job.output)
        job.output.unlink()
    return {**seen, "rows": rows, "shard": dataclasses.asdict(shard)}


def scan_files(job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Look at files before they are split."""
    seen: Report = {}
    collections.deque(_contents(job, bad, tell, seen), maxlen=0)
    return seen


def verify_shard(job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Read a shard, which is the only file of the job."""
    path, checksum, examples = job.root / job.files[0].name, "", 0
    faults, count = list[str](), collections.Counter[str]()
    try:
        checksum = sha256_of(path)
        for fault, labels in job.modality.check_shard(path, job.target, bad, tell):
            faults += [f"{path.name}: {fault}"] if fault else []
            count.update(job.target.classes[label] for label in labels)
            examples += 1
    except DamagedRecordError as error:
        faults.append(str(error).removeprefix(f"{job.root}{os.sep}"))
    except OSError as error:
        faults.append(f"{path.name}: {error.strerror}")
    found = {"faults": faults, "examples": examples, "examples_per_class": count}
    return {**found, "sha256": checksum}


def verify_copy(url: str, job: ShardJob, bad: Mapping[int, str], tell: Tell) -> Report:
    """Read a shard from elsewhere."""
    tell(NO_ITEM, 10**12)  # it may take its time
    copy_file(url, job.output)
    try:
        return verify_shard(dataclasses.replace(job, root=job.output.parent), bad, tell)
    finally:
        job.output.unlink()


# ---- the files of a job ------------------------------------------------------------------------


def _contents(
    job: ShardJob, bad: Mapping[int, str], tell: Tell, seen: Report
) -> Iterator[tuple[int, Any]]:
    """Number and canonical content of each file that can be used; at the end, `seen` tells:

    numbers, int64 [n], of these files; their checksums, and their thumbnails, uint8, one after
    another; rejected, the numbers of the other ones with the reasons.
    """
    numbers, checksums, thumbnails = list[int](), list[bytes](), list[bytes]()
    rejected: list[tuple[int, str]] = []
    for number, file in enumerate(job.files):
        path = job.root / file.name
        try:
            if number in bad:
                raise BadFileError(bad[number])
            tell(number, path.stat().st_size)
            data = read_whole(path)
            content = job.modality.canonicalize(data, job.options)
        except BadFileError as error:
            rejected.append((number, str(error)))
        except (FileNotFoundError, PermissionError) as error:  # others: a storage that fails
            rejected.append((number, str(error.strerror)))
        else:
            numbers.append(number)
            checksums.append(hashlib.sha256(data).digest())
            thumbnails.append(content.thumbnail)
            yield number, content
    seen |= {"numbers": np.array(numbers, np.int64), "rejected": rejected}
    seen |= {"checksums": np.frombuffer(b"".join(checksums), np.uint8)}
    seen |= {"thumbnails": np.frombuffer(b"".join(thumbnails), np.uint8)}


def read_whole(path: Path) -> bytes:
    """The content of a file; BadFileError where it changes meanwhile, or is too large."""
    if isinstance(path, Packed):
        if (size := path.stat().st_size) > MAX_BYTES:
            raise BadFileError(f"too large: {size:,} bytes")
        return path.read()
    with open(path, "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        if before.st_size > MAX_BYTES:
            raise BadFileError(f"too large: {before.st_size:,} bytes")
        data = file.readall()
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (len(data), after.st_mtime_ns):
        raise BadFileError("changed while it was read")
    return data
