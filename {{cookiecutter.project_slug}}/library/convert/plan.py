"""The plan of a conversion: what is converted and how, and the jobs that follow from that.

All is written to `.<name>.partial` in the folder of the dataset, shard by shard. A conversion that
was stopped resumes with the shards that have no report, on this machine or on others; when all are
there, they move to their places. A shard that goes to a URL is there before it has a report.
"""

import contextlib
import dataclasses
import errno
import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from library.convert import duplicates, jobs
from library.convert.jobs import Report, ShardJob
from library.convert.listing import FileListing, Files, some_paths
from library.convert.options import VALIDATION, ConvertOptions
from library.convert.workers import run_jobs, run_with_beam
from library.data import Modality
from library.util import Progress, RunError, UserError, counted, remove_leftovers, write_text

FORMAT_VERSION = 4
"""Of the folder of a conversion that is not finished."""
FILES_PER_SCAN = 500
LARGE_SHARE, FEW = 0.1, 5
"""Of a class in one group of near duplicates, above which it is reported; in files, too."""
FEW_KEYS = 50
"""Of `group_by`, below which the share for validation is as near as it can be."""
RESUMES = "finished shards are kept: the same command resumes with the others"


def used_files(done: Sequence[ShardJob]) -> Files:
    """Those of these jobs that can be used, in their order."""
    ids = [job.files.ids[job.load("numbers")] for job in done]
    return Files(done[0].files.names, done[0].files.labels, np.concatenate(ids))


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

    def fingerprint(self) -> str:
        """A checksum of the options, and of the files' names, labels, groups, sizes and times."""
        recorded = self.options.recorded | dataclasses.asdict(self.shard_options)
        known = (FORMAT_VERSION, self.listing.target, sorted(recorded.items()))
        digest = hashlib.sha256(repr(known).encode())
        for key in self.listing.keys or ():
            digest.update(f"{key!r}\n".encode())
        for file in self.listing.files:
            try:
                status = (self.options.root / file.name).stat()
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

    def split(self) -> dict[str, Files]:
        """The files of each dataset to write, shuffled."""
        files, options = self.listing.files, self.options
        order = np.random.default_rng(options.random_seed).permutation(len(files))
        if not options.fraction:
            return {options.name: files[order]}
        scans = [
            self.job(jobs.scan_files, f"scan-{n:06}", files[at : at + FILES_PER_SCAN])
            for n, at in enumerate(range(0, len(files), FILES_PER_SCAN))
        ]
        self.run(scans, "files compared", "scans")
        held, largest = self._held_out(scans)
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

    def _held_out(self, scans: Sequence[ShardJob]) -> tuple[np.ndarray, str]:
        """Which files are for validation, bool [n]; what to say of the largest group."""
        files, keys = self.listing.files, self.listing.keys
        held, usable = np.zeros(len(files), bool), used_files(scans).ids
        if not len(usable):
            return held, ""
        checksums, thumbnails = self.seen(scans)
        if self.options.near_duplicates:
            groups = duplicates.near_duplicates(thumbnails)
        else:
            groups = duplicates.equal_files(checksums)
        largest = self._largest_group(groups, files[usable])
        if keys:
            first: dict[str, int] = {}
            pairs = [
                (first.setdefault(keys[id_], n), n) for n, id_ in enumerate(usable) if keys[id_]
            ]
            duplicates.merge(groups, np.array(pairs, np.int64).reshape(-1, 2))
        held[usable] = duplicates.held_out(
            groups, checksums, self.options.fraction, exact_below=FEW_KEYS if keys else 0
        )
        return held, largest

    def _largest_group(self, groups: np.ndarray, files: Files) -> str:
        """A line about the largest share of a class in one group, where it is too large."""
        target = self.listing.target
        classes = target.classes if target.label == "class" else ("",)
        labels = np.array([files.labels[i] if target.label == "class" else 0 for i in files.ids])
        codes = groups * len(classes) + labels
        found, first, counts = np.unique(codes, return_index=True, return_counts=True)
        totals = np.bincount(labels)[labels[first]]
        shares = np.where(counts > FEW, counts / totals, 0)
        largest = int(shares.argmax())
        if shares[largest] <= LARGE_SHARE:
            return ""
        some = [files[int(n)].name for n in np.flatnonzero(codes == found[largest])[:2]]
        name = classes[labels[first[largest]]]
        total = counted(int(totals[largest]), self.modality.UNIT) + (f" of {name}" if name else "")
        advice = "if they differ, --no-near_duplicates keeps only equal files together"
        return (
            f"{counts[largest]} of {total} are one group of near duplicates, as "
            f"{' and '.join(some)}: {advice if self.options.near_duplicates else 'equal files'}"
        )

    def seen(self, done: Sequence[ShardJob]) -> tuple[np.ndarray, np.ndarray]:
        """Checksums and thumbnails of the files that can be used, uint8 [n, bytes] each."""
        parts = [job.load("checksums") for job in done]
        checksums = np.concatenate(parts).reshape(-1, duplicates.CHECKSUM)
        thumbnails = (job.load("thumbnails") for job in done)
        return checksums, duplicates.stacked(thumbnails, len(checksums), self.partial)

    def shard_jobs(self, name: str, files: Files) -> list[ShardJob]:
        """A job for each shard of a dataset; how many follows from the options and files alone."""
        some = some_paths(self.options.root, files)
        size = sum(path.stat().st_size for path in some if path.exists()) / len(some)
        count = self.options.num_shards_of(len(files), size)
        names = [f"{name}-{n:05}-of-{count:05}{self.modality.SUFFIX}" for n in range(count)]
        return [self.job(jobs.write_shard, each, files[n::count]) for n, each in enumerate(names)]

    def job(self, work: Callable[..., Report], output: str, files: Files) -> ShardJob:
        what = (self.modality.__name__, self.listing.target, self.shard_options, self.options.url)
        return ShardJob(work, self.partial / output, self.options.root, files, *what)

    def run(self, wanted: Sequence[ShardJob], unit: str, what: str) -> None:
        """Do the jobs that have no report yet."""
        missing = [job for job in wanted if not job.report.exists()]
        if missing and len(missing) < len(wanted):
            print(f"resuming: {len(wanted) - len(missing)} of {len(wanted)} {what} already done")
        if self.options.runner:
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
        except RunError as error:
            raise RunError(f"{error}; {RESUMES}") from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "no space left" if full else error.strerror or error
            place = self.options.folder if full else error.filename or self.options.path
            raise RunError(f"{place}: {reason}; {RESUMES}") from error
