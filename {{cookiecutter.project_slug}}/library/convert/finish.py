"""The end of a conversion: card, index and lists, all moved to their places together."""

import collections
import csv
import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from library.convert.duplicates import (
    HashedFile,
    exact_duplicates,
    read_checksums,
    write_checksums,
)
from library.convert.jobs import Report, ShardJob
from library.convert.options import VALIDATION
from library.convert.plan import Plan, counted
from library.data import Card, Label, Shard, Target
from library.util import UserError, replacing

_Table = Sequence[Sequence[str]]


def finish(plan: Plan, jobs: Mapping[str, Sequence[ShardJob]]) -> None:
    """Make datasets of shards that are all there.

    Raises:
        UserError: a shard is missing, or too many files were rejected, or all.
    """
    options, partial = plan.options, plan.partial
    reports = {name: _reports(name, of_set) for name, of_set in jobs.items()}
    _report_rejected(plan, [row for each in reports.values() for row in each])
    used = {
        name: [_hashed(*row) for report in of_set for row in report["used"]]
        for name, of_set in reports.items()
    }
    _report_duplicates(plan, used)
    target = plan.listing.target
    if target.label == "value" and not options.card_of_classes:
        target = _standardized(target, used[options.name])
    cards = {}
    for name, of_set in jobs.items():
        if not used[name]:
            raise UserError(f"dataset_dir: all files of {name} in {options.root} were rejected")
        count = collections.Counter(dict.fromkeys(target.classes, 0))
        count.update(each for file in used[name] for each in target.names(file.label))
        shards = [Shard(**report["shard"]) for report in reports[name]]
        kind = (target.label, target.mean, target.std)
        cards[name] = Card([*target.classes], dict(count), shards, plan.recorded, *kind)
        cards[name].save(partial / f"{name}.json")
        plan.modality.write_index(partial / name, [np.load(job.rows) for job in of_set])
        write_checksums(partial / f"{name}.sha256", used[name])
    for pattern in ("scan-*", "*-?????-of-?????.*.json", "*-?????-of-?????.*.npy"):
        for file in partial.glob(pattern):
            file.unlink()
    (partial / "plan").unlink()  # last: until then the conversion can resume
    os.replace(partial, plan.complete)
    put_in_place(plan.complete)
    for name, card in cards.items():
        _describe(f"{options.tfrecord_dir / name}", card, plan.modality.UNIT)


def _reports(name: str, jobs: Sequence[ShardJob]) -> list[Report]:
    missing = [str(number) for number, job in enumerate(jobs) if not job.report.exists()]
    if missing:
        some = ", ".join(missing[:10]) + (" ..." if len(missing) > 10 else "")
        raise UserError(f"finalize: {len(missing)} of {len(jobs)} shards of {name} missing: {some}")
    return [job.read_report() for job in jobs]


def _standardized(target: Target, used: Sequence[HashedFile]) -> Target:
    """With mean and standard deviation of the values of a training set."""
    values = np.array([file.label for file in used])
    return dataclasses.replace(target, mean=float(values.mean()), std=float(values.std()) or 1.0)


def _report_rejected(plan: Plan, reports: Sequence[Report]) -> None:
    """List the rejected files; UserError where they are more than `max_rejected`."""
    options, listing = plan.options, plan.listing
    rejected = [*listing.rejected, *(tuple(row) for each in reports for row in each["rejected"])]
    file = options.path.with_name(f"{options.name}.rejected.csv")
    _write_table(file, [("file", "reason"), *sorted(rejected)])
    total = len(listing.files) + len(listing.rejected)
    if len(rejected) > options.max_rejected * total:
        top = collections.Counter(reason for _, reason in rejected).most_common(3)
        reasons = ", ".join(f"{count} {reason}" for reason, count in top)
        raise UserError(
            f"max_rejected: {len(rejected)} of {counted(total, 'files')} rejected, more than "
            f"{options.max_rejected:g} of them ({reasons}): see {file}"
        )
    if rejected:
        print(f"{counted(len(rejected), f'rejected {plan.modality.UNIT}')}: see {file}")


def _report_duplicates(plan: Plan, used: Mapping[str, Sequence[HashedFile]]) -> None:
    """List the duplicates, also of the dataset whose classes these are."""
    options, target, known = plan.options, plan.listing.target, {}
    if card := options.card_of_classes:
        for name in dict.fromkeys((card.stem, VALIDATION)):
            checksums = card.with_name(f"{name}.sha256")
            if name not in used and (checksums.exists() or name != VALIDATION):
                known[name] = read_checksums(checksums)
    found = [each for each in exact_duplicates({**known, **used}) if each.set in used]
    table = options.path.with_name(f"{options.name}.duplicates.csv")
    rows = [(*each[:3], _text(target, each.conflict)) for each in found]
    _write_table(table, [("set", "file", "same as", "conflicting label"), *rows])
    if found:
        print(f"{counted(len(found), 'duplicate files')}: see {table}")
    if conflicts := sum(each.conflict is not None for each in found):
        has = "has" if conflicts == 1 else "have"
        what = "class" if target.label == "class" else "label"
        print(f"label conflict: {counted(conflicts, 'duplicates')} {has} a different {what}")
    if leaks := sum(
        each.same_as.startswith(tuple(f"{name}: " for name in known)) for each in found
    ):
        is_also = "is also" if leaks == 1 else "are also"
        print(f"leak: {counted(leaks, f'{options.name} files')} {is_also} in {' or '.join(known)}")


def _hashed(checksum: str, name: str, label: Any) -> HashedFile:
    """A row of a report."""
    return HashedFile(checksum, name, tuple(label) if isinstance(label, list) else label)


def _text(target: Target, label: Label | None) -> str:
    if label is None:
        return ""
    return str(label) if target.label == "value" else ";".join(target.names(label))


def _write_table(path: Path, rows: _Table) -> None:
    """A CSV file, the first row of which is its header; none where that is all."""
    path.unlink(missing_ok=True)
    if len(rows) > 1:
        with (
            replacing(path) as temporary,
            open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            csv.writer(file).writerows(rows)


def _describe(path: str, card: Card, unit: str) -> None:
    """Say what a dataset holds."""
    examples = f"{path}: {counted(card.num_examples, unit)}"
    if card.label == "value":
        stats = f"mean {card.value_mean:.4g} and standard deviation {card.value_std:.4g}"
        print(f"{examples} with values of {stats}")
        return
    print(examples + (f" of {counted(len(card.classes), 'classes')}" if card.classes else ""))
    without = [name for name, examples in card.examples_per_class.items() if not examples]
    if without:
        print(f"{path}: no examples of {', '.join(without)}")


def put_in_place(complete: Path) -> None:
    """Move whole datasets to the folder above, where they replace those of their names.

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
