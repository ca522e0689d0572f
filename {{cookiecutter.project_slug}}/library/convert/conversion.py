"""A conversion: a plan, shards written by processes of their own, and what stands when it stops.

All is written to `.<name>.partial` in the folder of the data set, shard by shard, each with a
report that comes last. A conversion that was stopped goes on with the shards that have none, on
this machine or on others; when all are there, they move to their places.
"""

import collections
import csv
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from library.convert.duplicates import sha256_of
from library.convert.scan import Found
from library.convert.workers import Tell
from library.data import Card, Shard
from library.util import BadFileError, UserError, remove_leftovers, replacing

FILES_PER_SCAN = 500
MAX_BYTES = 2**30
"""Of a file; TFRecords and protobuf end at 2 GB."""

Report = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """A shard to write, or some files to look at."""

    output: Path
    root: Path
    files: Sequence[Found]
    classes: Sequence[str] = ()
    options: Any = None
    """Of the kind of shard: see `library.shards`."""

    @property
    def report(self) -> Path:
        return self.output.with_name(f"{self.output.name}.json")


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


# ---- in a worker -------------------------------------------------------------------------------


def convert_shard(
    task: Task,
    bad: Mapping[int, str],
    tell: Tell,
    *,
    standard: Callable[[bytes, Any], Any],
    write_shard: Callable[[Path, Iterable[tuple[str, int, str, Any]]], Shard],
) -> None:
    """Write a shard of examples, and its report.

    Args:
        task: what to write.
        bad: files that must not be touched, by their number, with the reason.
        tell: called with the number of a file and its size, before that is read.
        standard: the content of a file and the options -> what is kept of it, or a BadFileError.
        write_shard: writes to a path what is kept: name of the file, label, name of the class, and
            what `standard` gave.
    """
    rejected: list[tuple[str, str]] = []
    used: list[tuple[str, str, str]] = []
    count: collections.Counter[int] = collections.Counter()

    def examples() -> Iterator[tuple[str, int, str, Any]]:
        for found, data in _read_all(task, bad, tell, rejected):
            try:
                content = standard(data, task.options)
            except BadFileError as error:
                rejected.append((found.name, str(error)))
                continue
            count[found.label] += 1
            class_name = task.classes[found.label] if task.classes else ""
            used.append((sha256_of(data), found.name, class_name))
            yield found.name, found.label, class_name, content

    shard = write_shard(task.output, examples())
    write_report(
        task,
        shard=dataclasses.asdict(shard),
        examples_per_class={task.classes[label]: n for label, n in sorted(count.items())}
        if task.classes
        else {},
        rejected=rejected,
        used=used,
    )


def scan_files(
    task: Task, bad: Mapping[int, str], tell: Tell, *, thumbnail: Callable[[bytes], bytes]
) -> None:
    """Write a report of what splits a data set: the checksum and the thumbnail of each file."""
    rejected: list[tuple[str, str]] = []
    scanned = {}
    for found, data in _read_all(task, bad, tell, rejected):
        try:
            tiny = thumbnail(data).hex()
        except BadFileError:  # it will be rejected, with its reason, when it is converted
            tiny = ""
        scanned[found.name] = (sha256_of(data), tiny)
    write_report(task, scanned=scanned)


def _read_all(
    task: Task, bad: Mapping[int, str], tell: Tell, rejected: list[tuple[str, str]]
) -> Iterator[tuple[Found, bytes]]:
    for number, found in enumerate(task.files):
        path = task.root / found.name
        try:
            if number in bad:
                raise BadFileError(bad[number])
            size = os.path.getsize(path)
        except (BadFileError, OSError) as error:
            rejected.append((found.name, _reason(error)))
            continue
        tell(number, size)  # not within a try: when nobody listens any more, this is the end
        try:
            data = read_whole(path)
        except (BadFileError, OSError) as error:
            rejected.append((found.name, _reason(error)))
        else:
            yield found, data


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def write_report(task: Task, **content: Any) -> None:
    with replacing(task.report) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8", errors="surrogateescape")


# ---- the plan ----------------------------------------------------------------------------------


def load_report(task: Task) -> Report | None:
    """What a finished task has written, or None."""
    try:
        return read_report(task)
    except FileNotFoundError:
        return None


def read_report(task: Task) -> Report:
    """What a finished task has written."""
    return json.loads(task.report.read_text(encoding="utf-8", errors="surrogateescape"))


def fingerprint(root: Path, files: Iterable[Found], **options: Any) -> str:
    """A checksum of a conversion: of its options and of its files' names, sizes and times."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True, default=str).encode())
    for found in files:
        try:
            status = os.stat(root / found.name)
            line = f"{found.name}\0{found.label}\0{status.st_size}\0{status.st_mtime_ns}\n"
        except OSError:
            line = f"{found.name}\0{found.label}\0\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def open_partial(partial: Path, plan: str, *, shared: bool) -> None:
    """Make the folder of a conversion, or take that of the same one that was stopped.

    Args:
        partial: the folder.
        plan: its `fingerprint`.
        shared: whether other machines may be at work in it: it is not cleaned then.

    Raises:
        UserError: other machines work on another plan there.
    """
    file = partial / "plan"
    known = file.read_text() if file.exists() else None
    if shared and known not in (None, plan):
        raise UserError(
            f"shards: {partial} is of a conversion of other files, or with other options: give the "
            "same ones, or delete it"
        )
    if not shared and known != plan:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    if not shared:
        remove_leftovers(partial)
    with replacing(file) as temporary:
        temporary.write_text(plan)


# ---- the end -----------------------------------------------------------------------------------


def finish(
    folder: Path, name: str, tasks: Sequence[Task], classes: Sequence[str], options: dict[str, Any]
) -> tuple[Card, list[Report]]:
    """Write the card of a set whose shards are all there.

    Returns:
        The card, and the reports of the shards.

    Raises:
        UserError: a shard is missing.
    """
    found = [load_report(task) for task in tasks]
    reports = [report for report in found if report is not None]
    missing = [str(number) for number, report in enumerate(found) if report is None]
    if missing:
        some = ", ".join(missing[:10]) + (" ..." if len(missing) > 10 else "")
        raise UserError(
            f"finalize: {len(missing)} of {len(tasks)} shards of {name} missing: {some}"
        )
    shards = [Shard(**report["shard"]) for report in reports]
    count: collections.Counter[str] = collections.Counter(dict.fromkeys(classes, 0))
    for report in reports:
        count.update(report["examples_per_class"])
    card = Card(list(classes), dict(count), shards, options)
    card.save(folder / f"{name}.json")
    return card, reports


def write_table(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """A CSV file, the first row of which is its header; none where that is all."""
    path.unlink(missing_ok=True)
    if len(rows) > 1:
        with (
            replacing(path) as temporary,
            open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            csv.writer(file).writerows(rows)


def remove_reports(partial: Path) -> None:
    """Leave nothing but what is moved to its place."""
    for pattern in ("scan-*", "*-?????-of-?????.*.json"):
        for file in partial.glob(pattern):
            file.unlink()
    (partial / "plan").unlink()  # last: until then it can be gone on with


def put_in_place(complete: Path) -> None:
    """Move whole sets to the folder above, where they replace those of their names.

    It can be stopped at any moment, and called again: what is not moved yet is in `complete`, and
    no card is there before all that it names.
    """
    folder = complete.parent
    for path in sorted(complete.glob("*.json")):
        name, card = path.stem, Card.load(path)
        new = [shard.file for shard in card.shards] + [f"{name}.index", f"{name}.sha256"]
        old = [*folder.glob(f"{name}-?????-of-?????.*"), folder / f"{name}.index"]
        (folder / path.name).unlink(missing_ok=True)
        for file in (file for file in old if file.name not in new):
            file.unlink(missing_ok=True)
        for file in (complete / file for file in new):
            if file.exists():
                os.replace(file, folder / file.name)
        os.replace(path, folder / path.name)
    shutil.rmtree(complete)
