"""A data set read back: whether it is what its card says."""

import collections
import tempfile
from collections.abc import Callable
from pathlib import Path

from library.convert.conversion import Task, read_report
from library.convert.scan import Found
from library.convert.workers import run_tasks
from library.data import Card
from library.util import Progress, UserError


def verify(path: Path, verify_shard: Callable, num_workers: int) -> str:
    """Read every shard: checksums, counts, labels, and each example.

    Args:
        path: the data set, as "data/train".
        verify_shard: of `library.shards`; it writes a report for each task, which is a shard.
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
            for examples, size in run_tasks(verify_shard, tasks, num_workers):
                progress.update(examples, size)
        for task, shard in zip(tasks, card.shards, strict=True):
            report = read_report(task)
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
    if faults:
        more = f"{len(faults)} faults, the first one: " if len(faults) > 1 else ""
        raise UserError(f"{path}: {more}{faults[0]}")
    return (
        f"{path}: {card.num_examples} examples in {len(card.shards)} shards are what they were "
        "written as"
    )
