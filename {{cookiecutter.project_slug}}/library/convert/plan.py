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
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from library.convert.duplicates import split_by_content
from library.convert.jobs import Report, ShardJob, scan_files, write_shard
from library.convert.listing import FileListing, LabeledFile
from library.convert.options import VALIDATION, ConvertOptions
from library.convert.workers import run_jobs
from library.data import Modality
from library.util import Progress, RunError, UserError, counted, remove_leftovers, write_text

FORMAT_VERSION = 2
"""Of the folder of a conversion that is not finished."""
FILES_PER_SCAN = 500
RESUMES = "finished shards are kept: the same command resumes with the others"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is converted, and how."""

    options: ConvertOptions
    shard_options: Any
    modality: Modality
    listing: FileListing

    @property
    def partial(self) -> Path:
        return self.options.hidden("partial")

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that make a difference to the result."""
        return self.options.recorded | dataclasses.asdict(self.shard_options)

    def fingerprint(self) -> str:
        """A checksum of the options, and of the files' names, labels, sizes and times."""
        known = (FORMAT_VERSION, self.listing.target, sorted(self.recorded.items()))
        digest = hashlib.sha256(repr(known).encode())
        for file in self.listing.files:
            try:
                status = os.stat(self.options.root / file.name)
                line = f"{file}{status.st_size} {status.st_mtime_ns}\n"
            except OSError:
                line = f"{file}\n"
            digest.update(line.encode())
        return digest.hexdigest()

    def open(self) -> None:
        """Make the folder of the conversion, or take that of the same one that was stopped."""
        plan, file = self.fingerprint(), self.partial / "plan"
        same = file.exists() and file.read_text().strip() == plan
        shared = self.options.shards or self.options.finalize  # other machines may be at work in it
        if shared and file.exists() and not same:
            raise UserError(
                f"shards: {self.partial} is of a conversion of other files, or with other options: "
                "give the same ones, or delete it"
            )
        if not shared and not same:
            shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True, exist_ok=True)
        if not shared:
            remove_leftovers(self.partial)
        write_text(file, plan)

    def split(self) -> dict[str, Sequence[LabeledFile]]:
        """The files of each dataset to write, shuffled."""
        files, options = self.listing.files, self.options
        files = random.Random(options.random_seed).sample(files, len(files))
        if not options.fraction:
            return {options.name: files}
        parts = [files[at : at + FILES_PER_SCAN] for at in range(0, len(files), FILES_PER_SCAN)]
        jobs = [self.job(scan_files, f"scan-{n:06}", part) for n, part in enumerate(parts)]
        self.run(jobs, "files compared", "scans")
        scanned = {name: found for job in jobs for name, found in job.read_report().items()}
        train, validation = split_by_content(files, options.fraction, scanned)
        if train and validation:
            return {options.name: train, VALIDATION: validation}
        empty, count = options.name if validation else VALIDATION, len(files)
        message = (
            f"{options.fraction:g} of {counted(count, self.modality.UNIT)} leaves none for {empty}"
        )
        if options.validation_fraction is not None:
            raise UserError(f"validation_fraction: {message}")
        print(f"no {VALIDATION} dataset: {message}")
        return {options.name: files}

    def shard_jobs(self, name: str, files: Sequence[LabeledFile]) -> list[ShardJob]:
        """A job for each shard of a dataset; how many follows from the options and files alone."""
        count = self.options.num_shards_of(len(files))
        names = [f"{name}-{n:05}-of-{count:05}{self.modality.SUFFIX}" for n in range(count)]
        return [self.job(write_shard, each, files[n::count]) for n, each in enumerate(names)]

    def job(
        self, work: Callable[..., Report], output: str, files: Sequence[LabeledFile]
    ) -> ShardJob:
        what = (self.modality.__name__, self.listing.target, self.shard_options)
        return ShardJob(work, self.partial / output, self.options.root, files, *what)

    def run(self, jobs: Sequence[ShardJob], unit: str, what: str) -> None:
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
            raise KeyboardInterrupt(RESUMES) from interrupt
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "no space left" if full else error.strerror or error
            place = self.options.tfrecord_dir if full else error.filename or self.options.path
            raise RunError(f"{place}: {reason}; {RESUMES}") from error
