"""The plan of a conversion: what is converted and how, and the jobs that follow from that.

All is written to `.<name>.partial` in the folder of the dataset, shard by shard. A conversion that
was stopped resumes with the shards that have no report, on this machine or on others; when all are
there, they move to their places.
"""

import contextlib
import dataclasses
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from library.convert.duplicates import (
    CHECKSUM,
    equal_files,
    held_out,
    merge,
    near_duplicates,
    stacked,
)
from library.convert.jobs import Report, ShardJob, scan_files, survey_files, write_shard
from library.convert.listing import FileListing, Files
from library.convert.options import VALIDATION, ConvertOptions
from library.convert.workers import run_jobs
from library.data import Card, Modality
from library.util import Progress, RunError, UserError, counted, remove_leftovers, write_text

FORMAT_VERSION = 3
"""Of the folder of a conversion that is not finished."""
FILES_PER_SCAN, FILES_PER_SURVEY = 500, 100
LARGE_SHARE, FEW = 0.1, 5
"""Of a class in one group of near duplicates, above which it is reported; in files, too."""
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

    def resolved(self) -> "Plan":
        """The same, with what the options of the modality leave to the files."""
        card = self.options.card_of_classes
        known = Card.load(card).options if card else {}
        resolved = self.modality.resolve_options(self.shard_options, self._survey, known)
        return dataclasses.replace(self, shard_options=resolved)

    def _survey(self, fact: Callable[[bytes], str]) -> dict[str, int]:
        """How many of some files there are of each `fact`, the commonest first."""
        files = self.listing.files[:: -(-len(self.listing.files) // FILES_PER_SURVEY)]
        job = dataclasses.replace(self.job(survey_files, "scan-survey", files), options=fact)
        self.run([job], "files surveyed", "scans")
        return dict(sorted(job.read_report().items(), key=lambda item: (-item[1], item[0])))

    def split(self) -> dict[str, Files]:
        """The files of each dataset to write, shuffled."""
        files, options = self.listing.files, self.options
        order = np.random.default_rng(options.random_seed).permutation(len(files))
        if not options.fraction:
            return {options.name: files[order]}
        starts = range(0, len(files), FILES_PER_SCAN)
        jobs = [
            self.job(scan_files, f"scan-{n:06}", files[at : at + FILES_PER_SCAN])
            for n, at in enumerate(starts)
        ]
        self.run(jobs, "files compared", "scans")
        held, largest = self._held_out([job.load_seen() for job in jobs])
        if held.any() and not held.all():
            if largest:
                print(largest)
            return {options.name: files[order[~held[order]]], VALIDATION: files[order[held[order]]]}
        empty, count = options.name if held.any() else VALIDATION, len(files)
        message = (
            f"{options.fraction:g} of {counted(count, self.modality.UNIT)} leaves none for {empty}"
        )
        message += f"; {largest}" if largest else ""
        if options.validation_fraction is not None:
            raise UserError(f"validation_fraction: {message}")
        print(f"no {VALIDATION} dataset: {message}")
        return {options.name: files[order]}

    def _held_out(self, seen: Sequence[np.ndarray]) -> tuple[np.ndarray, str]:
        """Which files are for validation, bool [n]; what to say of the largest group."""
        rows, keys = stacked(seen, self.partial), self.listing.keys
        checksums = np.zeros([len(rows), CHECKSUM], np.uint8)
        checksums[:] = rows[:, :CHECKSUM] if rows.shape[1] else 0
        if self.options.near_duplicates and rows.shape[1]:
            groups = near_duplicates(rows[:, CHECKSUM:])
        else:
            groups = equal_files(checksums)
        usable: np.ndarray = np.any(checksums, axis=1)
        largest = self._largest_group(groups, usable)
        if keys:
            first: dict[str, int] = {}
            pairs = [(first.setdefault(key, n), n) for n, key in enumerate(keys) if key]
            merge(groups, np.array(pairs))
        held = held_out(groups, checksums, self.options.fraction) & usable
        if keys and usable.any() and not held.any():  # few groups: one of them, at least
            held = groups == groups[np.flatnonzero(usable)[0]]
        return held, largest

    def _largest_group(self, groups: np.ndarray, usable: np.ndarray) -> str:
        """A line about the largest share of a class in one group, where it is too large."""
        files = self.listing.files
        classes = self.listing.target.classes if self.listing.target.label == "class" else ()
        labels = np.fromiter(files.labels, np.int64) if classes else np.zeros(len(files), np.int64)
        numbers = np.flatnonzero(usable)
        codes = groups[numbers] * max(len(classes), 1) + labels[numbers]
        found, first, counts = np.unique(codes, return_index=True, return_counts=True)
        totals = np.bincount(labels[numbers], minlength=1)[labels[numbers][first]]
        shares = np.where(counts > FEW, counts / np.maximum(totals, 1), 0)
        if not len(found) or shares.max() <= LARGE_SHARE:
            return ""
        largest = int(shares.argmax())
        some = [files[int(n)].name for n in numbers[codes == found[largest]][:2]]
        what = f" of {classes[labels[numbers[first[largest]]]]}" if classes else ""
        total = counted(int(totals[largest]), self.modality.UNIT)
        advice = "if they differ, --no-near_duplicates keeps only equal files together"
        return (
            f"{counts[largest]} of {total}{what} are one group of near duplicates, as "
            f"{' and '.join(some)}: {advice if self.options.near_duplicates else 'equal files'}"
        )

    def shard_jobs(self, name: str, files: Files) -> list[ShardJob]:
        """A job for each shard of a dataset; how many follows from the options and files alone."""
        count = self.options.num_shards_of(len(files))
        names = [f"{name}-{n:05}-of-{count:05}{self.modality.SUFFIX}" for n in range(count)]
        return [self.job(write_shard, each, files[n::count]) for n, each in enumerate(names)]

    def job(self, work: Callable[..., Report], output: str, files: Files) -> ShardJob:
        what = (self.modality.__name__, self.listing.target, self.shard_options)
        return ShardJob(work, self.partial / output, self.options.root, files, *what)

    def run(self, jobs: Sequence[ShardJob], unit: str, what: str) -> None:
        """Do the jobs that have no report yet."""
        missing = [job for job in jobs if not job.report.exists()]
        if missing and len(missing) < len(jobs):
            print(f"resuming: {len(jobs) - len(missing)} of {len(jobs)} {what} already done")
        if self.options.runner:
            from library.convert.beam import run_with_beam

            run_with_beam(missing, self.options.runner, self.options.beam_options or "")
            return
        with Progress(sum(len(job.files) for job in missing), unit) as progress:
            for count, size in run_jobs(missing, self.options.processes):
                progress.update(count, size)

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """A stop, a full disk or one that fails: in a line that says how to resume."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(RESUMES) from interrupt
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "no space left" if full else error.strerror or error
            place = self.options.tfrecord_dir if full else error.filename or self.options.path
            raise RunError(f"{place}: {reason}; {RESUMES}") from error
