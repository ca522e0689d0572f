"""The end of a conversion: card, index and lists, all moved to their places together."""

import collections
import csv
import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from library.convert.duplicates import HashedFile, exact_duplicates, read_checksums, write_checksums
from library.convert.jobs import Report, ShardJob
from library.convert.options import VALIDATION
from library.convert.plan import Plan
from library.data import Card, Label, Shard, Target, write_index
from library.util import UserError, counted, replacing


def finish(plan: Plan, jobs: Mapping[str, Sequence[ShardJob]]) -> None:
    """Make datasets of shards that are all there.

    Raises:
        UserError: a shard is missing, or too many files were rejected, or all.
    """
    options, partial = plan.options, plan.partial
    reports = {name: _reports(name, of_set) for name, of_set in jobs.items()}
    _report_rejected(plan, [row for of_set in reports.values() for row in of_set])
    used = {
        name: [_hashed_file(*row) for report in of_set for row in report["used"]]
        for name, of_set in reports.items()
    }
    _report_duplicates(plan, used)
    target = plan.listing.target
    if target.label == "value" and not options.card_of_classes:
        values = np.array([file.label for file in used[options.name]] or [0.0])
        std = float(values.std()) or 1.0
        target = dataclasses.replace(target, mean=float(values.mean()), std=std)
    cards = {}
    for name, of_set in jobs.items():
        if not used[name]:
            raise UserError(f"dataset_dir: all files of {name} in {options.root} were rejected")
        count = collections.Counter(dict.fromkeys(target.classes, 0))
        count.update(each for file in used[name] for each in _class_names(target, file.label))
        shards = [Shard(**report["shard"]) for report in reports[name]]
        kind = (target.label, target.mean, target.std)
        cards[name] = Card([*target.classes], dict(count), shards, plan.recorded, *kind)
        cards[name].save(partial / f"{name}.json")
        write_index(partial / name, [np.load(job.rows) for job in of_set])
        write_checksums(partial / f"{name}.sha256", used[name])
    for pattern in ("scan-*", "*-?????-of-?????.*.json", "*-?????-of-?????.*.npy"):
        for file in partial.glob(pattern):
            file.unlink()
    (partial / "plan").unlink()  # last: until then the conversion can resume
    os.replace(partial, options.hidden("complete"))
    put_in_place(options.hidden("complete"))
    for name, card in cards.items():
        _describe(options.tfrecord_dir / name, card, plan.modality.UNIT)


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


def _reports(name: str, jobs: Sequence[ShardJob]) -> list[Report]:
    missing = [str(number) for number, job in enumerate(jobs) if not job.report.exists()]
    if missing:
        some = ", ".join(missing[:10]) + (" ..." if len(missing) > 10 else "")
        raise UserError(f"finalize: {len(missing)} of {len(jobs)} shards of {name} missing: {some}")
    return [job.read_report() for job in jobs]


def _report_rejected(plan: Plan, reports: Sequence[Report]) -> None:
    """List the rejected files; UserError where they are more than `max_rejected`."""
    options, listing = plan.options, plan.listing
    rejected = [*listing.rejected, *(tuple(row) for each in reports for row in each["rejected"])]
    table = _write_table(plan, "rejected", [("file", "reason"), *sorted(rejected)])
    total = len(listing.files) + len(listing.rejected)
    if len(rejected) > options.max_rejected * total:
        top = collections.Counter(reason for _, reason in rejected).most_common(3)
        reasons = ", ".join(f"{count} {reason}" for reason, count in top)
        raise UserError(
            f"max_rejected: {len(rejected)} of {counted(total, 'files')} rejected, above the "
            f"limit of {100 * options.max_rejected:g} % ({reasons}): see {table}"
        )
    if rejected:
        print(f"{counted(len(rejected), f'rejected {plan.modality.UNIT}')}: see {table}")


def _report_duplicates(plan: Plan, used: Mapping[str, Sequence[HashedFile]]) -> None:
    """List the duplicates, also of the dataset whose classes these are."""
    target, options, known = plan.listing.target, plan.options, {}
    if card := options.card_of_classes:
        for name in dict.fromkeys((card.stem, VALIDATION)):
            checksums = card.with_name(f"{name}.sha256")
            needed = options.classes_from and name != VALIDATION
            if name not in used and (needed or checksums.exists()):
                known[name] = read_checksums(checksums)
    found = [each for each in exact_duplicates({**known, **used}) if each.set in used]
    rows = [(*each[:3], ";".join(_class_names(target, each.conflict))) for each in found]
    header = ("set", "file", "same as", "conflicting label")
    table = _write_table(plan, "duplicates", [header, *rows])
    conflicts = sum(each.conflict is not None for each in found)
    leaks = sum(each.same_as.partition(": ")[0] in known for each in found)
    if found:
        print(f"{counted(len(found), 'duplicate files')}: see {table}")
    if conflicts:
        have = f"{counted(conflicts, 'duplicates')} {'has' if conflicts == 1 else 'have'}"
        print(f"label conflict: {have} a different {'class' if target.classes else 'value'}")
    if leaks:
        are = f"{counted(leaks, f'{options.name} files')} {'is' if leaks == 1 else 'are'}"
        print(f"leak: {are} also in {' or '.join(known)}")


def _hashed_file(checksum: str, name: str, label: Label | list[int]) -> HashedFile:
    """A row of a report, where JSON has made lists of tuples."""
    return HashedFile(checksum, name, tuple(label) if isinstance(label, list) else label)


def _class_names(target: Target, label: Label | None) -> list[str]:
    numbers = label if isinstance(label, tuple) else (label,)
    return [target.classes[int(each)] for each in numbers if target.classes and each is not None]


def _write_table(plan: Plan, what: str, rows: Sequence[Sequence[str]]) -> Path:
    """A CSV file, the first row of which is its header; none where that is all."""
    path = plan.options.path.with_name(f"{plan.options.name}.{what}.csv")
    path.unlink(missing_ok=True)
    if len(rows) > 1:
        with (
            replacing(path) as temporary,
            open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            csv.writer(file).writerows(rows)
    return path


def _describe(path: Path, card: Card, unit: str) -> None:
    """Say what a dataset holds."""
    what = f" of {counted(len(card.classes), 'classes')}" if card.classes else ""
    if card.label == "value":
        what = f" with values: mean {card.value_mean:.4g}, standard deviation {card.value_std:.4g}"
    print(f"{path}: {counted(card.num_examples, unit)}{what}")
    if without := [name for name, examples in card.examples_per_class.items() if not examples]:
        print(f"{path}: no examples of {', '.join(without)}")
