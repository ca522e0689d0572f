"""A data set read back: whether it is what its card says."""

import collections
import contextlib
import hashlib
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path

from google.protobuf.message import DecodeError
from PIL import Image

from library.conversion import Task, load_report, write_report
from library.errors import UserError
from library.example import Example
from library.layouts import Found
from library.progress import Progress
from library.tfrecord import FOOTER, HEADER, Card, Reader, length_in, masked_crc
from library.workers import Tell, run_tasks


def verify(path: Path, num_workers: int) -> str:
    """Read every shard: checksums, counts, labels, and each picture decoded.

    Args:
        path: the data set, as "data/train".
        num_workers: processes.

    Returns:
        What was found good, in a line.

    Raises:
        UserError: there are faults: the first one, with its shard and record, and their number.
    """
    card = Card.load(f"{path}.json")
    faults: list[str] = []
    count: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        tasks = [
            Task(Path(folder) / shard.file, path.parent, [Found(shard.file, 0)], card.classes)
            for shard in card.shards
        ]
        with Progress(card.num_examples, "examples") as progress:
            for examples, size in run_tasks(_verify_shard, tasks, num_workers):
                progress.update(examples, size)
        for task, shard in zip(tasks, card.shards, strict=True):
            report = load_report(task)
            faults += report["faults"]
            count.update(report["examples_per_class"])
            if report["examples"] != shard.examples:
                faults.append(
                    f"{shard.file}: {report['examples']} records, but the card says "
                    f"{shard.examples}"
                )
            if report["sha256"] != shard.sha256:
                faults.append(f"{shard.file}: its SHA-256 is not that of the card")
    if not faults:
        for name, examples in card.examples_per_class.items():
            if count[name] != examples:
                faults.append(f"{count[name]} examples of {name}, but the card says {examples}")
        Reader(path)  # writes an index that does not fit anew
    if faults:
        more = f"{len(faults)} faults, the first one: " if len(faults) > 1 else ""
        raise UserError(f"{path}: {more}{faults[0]}")
    return (
        f"{path}: {card.num_examples} examples in {len(card.shards)} shards are what they were "
        "written as"
    )


def _verify_shard(task: Task, bad: Mapping[int, str], tell: Tell) -> None:
    """Write a report of a shard: its faults, and what it holds."""
    (shard, _), *_ = task.files
    faults, number = [], 0
    count: collections.Counter[str] = collections.Counter()
    digest = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(task.root / shard, "rb"))
        except OSError as error:
            faults.append(f"{shard}: {error.strerror}")
            file = io.BytesIO()
        while header := file.read(HEADER.size):
            digest.update(header)
            length = length_in(header)
            if length is None:
                faults.append(f"{shard}: record {number} has a damaged header")
                break
            tell(number, length)
            record, footer = file.read(length), file.read(FOOTER.size)
            digest.update(record + footer)
            if len(footer) < FOOTER.size:
                faults.append(f"{shard}: record {number} is cut off")
                break
            if FOOTER.unpack(footer)[0] != masked_crc(record):
                fault = "is damaged"
            else:
                fault = bad.get(number) or _fault_of(record, task.classes, count)
            if fault:
                faults.append(f"{shard}: record {number} {fault}")
            number += 1
        while rest := file.read(2**20):
            digest.update(rest)
    write_report(
        task,
        faults=faults,
        examples=number,
        examples_per_class=count,
        sha256=digest.hexdigest(),
    )


def _fault_of(record: bytes, classes: list[str], count: collections.Counter[str]) -> str:
    """What is wrong with an example, or ""; its class is counted."""
    try:
        feature = Example.FromString(record).features.feature
        (encoded,) = feature["image/encoded"].bytes_list.value
    except (DecodeError, ValueError):
        return "is no example of a picture"
    if classes:
        labels = feature["image/class/label"].int64_list.value
        if len(labels) != 1 or not 0 <= labels[0] < len(classes):
            return f"has no label from 0 to {len(classes) - 1}"
        count[classes[labels[0]]] += 1
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            image.load()
    except (OSError, SyntaxError, ValueError) as error:
        return f"has a broken picture: {error}"
    return ""
