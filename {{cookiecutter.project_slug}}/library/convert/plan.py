"""The plan of a conversion: what is converted and how, and the jobs that follow from that.

All is written to `.<name>.partial` in the folder of the dataset, shard by shard. A conversion that
was stopped resumes with the shards that have no report, on this machine or on others; when all are
there, they move to their places.
"""

import dataclasses
import errno
import hashlib
import os
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from library.convert.duplicates import split_by_content
from library.convert.jobs import Job, ScanJob, ShardJob
from library.convert.listing import FileListing, LabeledFile
from library.convert.options import VALIDATION, ConvertOptions
from library.convert.workers import run_jobs
from library.data import Modality
from library.util import Progress, RunError, UserError, files_below, remove_leftovers, write_text

FORMAT_VERSION = 2
"""Of the folder of a conversion that is not finished."""
FILES_PER_SCAN = 500
RESUMES = "the same command resumes with the others"


def counted(number: int, noun: str) -> str:
    """A number and what it counts: "1 image", "2 classes"."""
    return f"{number} {re.sub('(?<=ss)es$|s$', '', noun) if number == 1 else noun}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is converted, and how."""

    options: ConvertOptions
    shard_options: Any
    modality: Modality
    listing: FileListing

    @property
    def partial(self) -> Path:
        return self.options.tfrecord_dir / f".{self.options.name}.partial"

    @property
    def complete(self) -> Path:
        """What is left to be moved."""
        return self.options.tfrecord_dir / f".{self.options.name}.complete"

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that make a difference to the result."""
        return self.options.recorded | dataclasses.asdict(self.shard_options)

    def describe(self) -> None:
        """Say what the options leave to the program."""
        options = self.options
        if options.labels:
            found = files_below(options.root, follow_links=options.follow_links)
            others = sum(not reason for _, reason in found) - len(self.listing.files)
            if others > 0:
                print(f"{counted(others, 'files')} below {options.root} not in {options.labels}")
        if options.card_of_classes and not options.classes_from:
            print(f"classes of {options.card_of_classes}")
        if options.fraction and options.validation_fraction is None:
            print(f"{options.fraction:g} of the {self.modality.UNIT} are kept for {VALIDATION}")

    @property
    def fingerprint(self) -> str:
        """A checksum of the options, and of the files' names, labels, sizes and times."""
        known = (FORMAT_VERSION, self.listing.target, sorted(self.recorded.items()))
        digest = hashlib.sha256(repr(known).encode())
        for name, label in self.listing.files:
            try:
                status = os.stat(self.options.root / name)
                line = f"{name}\0{label}\0{status.st_size}\0{status.st_mtime_ns}\n"
            except OSError:
                line = f"{name}\0{label}\0\n"
            digest.update(line.encode(errors="surrogateescape"))
        return digest.hexdigest()

    def open(self) -> None:
        """Make the folder of the conversion, or take that of the same one that was stopped.

        Raises:
            UserError: other machines work on another plan there.
        """
        plan, file = self.fingerprint, self.partial / "plan"
        same = file.exists() and file.read_text().strip() == plan
        if self.options.shards or self.options.finalize:  # other machines may be at work in it
            if file.exists() and not same:
                raise UserError(
                    f"shards: {self.partial} is of a conversion of other files, or with other "
                    "options: give the same ones, or delete it"
                )
        elif not same:
            shutil.rmtree(self.partial, ignore_errors=True)
        else:
            remove_leftovers(self.partial)
        self.partial.mkdir(parents=True, exist_ok=True)
        write_text(file, plan)

    def split(self) -> dict[str, Sequence[LabeledFile]]:
        """The files of each dataset to write, shuffled."""
        files, name = self.listing.files, self.options.name
        files = random.Random(self.options.random_seed).sample(files, len(files))
        if not self.options.fraction:
            return {name: files}
        train, validation = split_by_content(files, self.options.fraction, self._scan(files))
        for part, of in ((validation, VALIDATION), (train, name)):
            if not part:
                message = f"{self.options.fraction:g} of {len(files)} {self.modality.UNIT} leaves"
                if self.options.validation_fraction is not None:
                    raise UserError(f"validation_fraction: {message} none for {of}")
                print(f"no {VALIDATION} dataset: {message} none for {of}")
                return {name: files}
        return {name: train, VALIDATION: validation}

    def _scan(self, files: Sequence[LabeledFile]) -> dict[str, tuple[str, str]]:
        """The checksum and the thumbnail of each file."""
        parts = [files[at : at + FILES_PER_SCAN] for at in range(0, len(files), FILES_PER_SCAN)]
        jobs = [
            ScanJob(self.partial / f"scan-{n:05}", self.options.root, part, self.modality.__name__)
            for n, part in enumerate(parts)
        ]
        self.run(jobs, "files compared", "scans")
        scanned: dict[str, tuple[str, str]] = {}
        for job in jobs:
            scanned |= job.read_report()["scanned"]
        return scanned

    def shard_jobs(self, name: str, files: Sequence[LabeledFile]) -> list[ShardJob]:
        """A job for each shard of a dataset; how many follows from the options and files alone."""
        count = self.options.num_shards_of(len(files))
        of_all = (self.modality.__name__, self.listing.target, self.shard_options)
        names = [f"{name}-{n:05}-of-{count:05}{self.modality.SUFFIX}" for n in range(count)]
        return [
            ShardJob(self.partial / each, self.options.root, files[number::count], *of_all)
            for number, each in enumerate(names)
        ]

    def run(self, jobs: Sequence[Job], unit: str, what: str) -> None:
        """Do the jobs that have no report yet."""
        missing = [job for job in jobs if not job.report.exists()]
        if missing and len(missing) < len(jobs):
            print(f"resuming: {len(jobs) - len(missing)} of {len(jobs)} {what} already done")
        try:
            if self.options.runner:
                from library.convert.beam import run_with_beam

                run_with_beam(missing, self.options.runner, self.options.beam_options or "")
                return
            with Progress(sum(len(job.files) for job in missing), unit) as progress:
                for count, size in run_jobs(missing, self.options.processes):
                    progress.update(count, size)
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(f"finished shards are kept: {RESUMES}") from interrupt
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = f"no space left for {self.options.tfrecord_dir}"
            if not full:
                reason = f"{error.filename or self.options.path}: {error.strerror or error}"
            raise RunError(f"{reason}; finished shards are kept: {RESUMES}") from error
