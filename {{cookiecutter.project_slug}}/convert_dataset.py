"""Convert a folder per class of pictures into TFRecord shards, an index and a card.

python convert_dataset.py --dataset_dir photos/train --tfrecord_dir data \\
    --tfrecord_filename train --validation_fraction 0.1

The folders' names are the names of the classes. Pictures are JPEG, PNG, or
whatever else Pillow reads; files that cannot be used are listed, with the
reason, in <name>.rejected.csv.
"""

import collections
import csv
import dataclasses
import hashlib
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from tqdm import tqdm

from library.config import Parser
from library.errors import UserError, run
from library.files import replacing
from library.options import REQUIRED, option
from library.pictures import BadPictureError, files_below, is_junk, standard_jpeg
from library.quiet import quiet_import

PICTURES_PER_SHARD = 1000
VALIDATION = "validation"


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of this program."""

    dataset_dir: Path = option(REQUIRED, "folder with a folder of pictures for each class")
    tfrecord_filename: str = option(REQUIRED, "name of the data set, as train")
    tfrecord_dir: Path = option(REQUIRED, "folder to write to, as data")
    max_edge: int = option(
        384, "longer edge that pictures are scaled down to, in pixels", minimum=16
    )
    jpeg_quality: int = option(95, "of pictures that are encoded", minimum=1, maximum=100)
    num_shards: int | None = option(
        None, f"files to write; null: one for {PICTURES_PER_SHARD} pictures", minimum=1
    )
    num_workers: int | None = option(None, "threads; null: one for each core", minimum=1)
    random_seed: int = option(0, "fixes the order of the pictures in the shards", minimum=0)
    validation_fraction: float = option(
        0.0, f"share of the pictures for a second set, {VALIDATION}", minimum=0, maximum=0.9
    )
    max_rejected: float = option(
        0.01, "share of unusable files above which all fails", minimum=0, maximum=1
    )
    overwrite: bool = option(False, "replace a data set of this name")


@dataclasses.dataclass(frozen=True)
class Picture:
    """A file to convert."""

    path: Path
    label: int


def main() -> None:
    parser = Parser(__doc__, Options)
    parser.parse(sys.argv[1:])
    resolved = parser.resolve(Options)
    parser.raise_errors()
    convert(resolved.options)


def convert(options: Options) -> None:
    """Do what the flags say.

    All files are written in a folder of their own, and move to their places when all are whole.

    Raises:
        UserError: the input cannot be used, or the output is there already.
    """
    if not re.fullmatch(r"\w[\w.-]*", options.tfrecord_filename):
        raise UserError(
            f"tfrecord_filename: {options.tfrecord_filename} is not a name of letters, digits, "
            "., - and _; the folder is tfrecord_dir"
        )
    classes, pictures = find_pictures(options.dataset_dir)
    sets = split(pictures, options)
    folder = options.tfrecord_dir
    report = folder / f"{options.tfrecord_filename}.rejected.csv"

    partial = folder / f".{options.tfrecord_filename}.partial"
    complete = folder / f".{options.tfrecord_filename}.complete"
    if complete.exists():  # a conversion was stopped while it put its files in their places
        put_in_place(complete)
    check_places(folder, sets, options)
    shutil.rmtree(partial, ignore_errors=True)  # of a conversion that was killed
    partial.mkdir(parents=True)
    try:
        cards, rejected = write_sets(partial, sets, classes, options)
        report.unlink(missing_ok=True)  # of an earlier conversion
        if rejected:
            with (
                replacing(report) as temporary,
                open(
                    temporary, "w", newline="", encoding="utf-8", errors="surrogateescape"
                ) as file,
            ):
                csv.writer(file).writerows([("file", "reason"), *rejected])
        if len(rejected) > options.max_rejected * len(pictures):
            raise UserError(too_many(rejected, len(pictures), options, report))
        os.replace(partial, complete)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    put_in_place(complete)
    for name, card in cards.items():
        print(f"{folder / name}: {card.num_examples} pictures of {len(classes)} classes")
    if rejected:
        print(f"{len(rejected)} files could not be used: see {report}")


def find_pictures(dataset_dir: Path) -> tuple[list[str], list[Picture]]:
    """The names of the classes in the order of their labels, and all files, sorted."""
    if not dataset_dir.is_dir():
        raise UserError(f"dataset_dir: {dataset_dir} is not a folder")
    folders = [path for path in dataset_dir.iterdir() if path.is_dir() and not is_junk(path)]
    if not folders:
        raise UserError(f"dataset_dir: {dataset_dir} has no folders: one for each class is needed")
    for folder in folders:
        if folder.name.encode(errors="replace").decode() != folder.name:
            raise UserError(f"dataset_dir: the name of {ascii(str(folder))} is not in UTF-8")

    def numbers_by_value(folder: Path) -> tuple[float, str]:
        return float(folder.name) if folder.name.isdecimal() else float("inf"), folder.name

    folders.sort(key=numbers_by_value)
    pictures = [
        Picture(path, label) for label, folder in enumerate(folders) for path in files_below(folder)
    ]
    if not pictures:
        raise UserError(f"dataset_dir: the folders in {dataset_dir} hold no files")
    return [folder.name for folder in folders], pictures


def split(pictures: list[Picture], options: Options) -> dict[str, list[Picture]]:
    """The sets to write, each in an order by lot.

    A picture's content says where it goes, so that it stays there when others are added, and
    equal pictures are never on both sides.
    """
    pictures = random.Random(options.random_seed).sample(pictures, len(pictures))
    fraction, name = options.validation_fraction, options.tfrecord_filename
    if not fraction:
        return {name: pictures}
    if name == VALIDATION:
        raise UserError(f"tfrecord_filename: {VALIDATION} is the name of the second set")
    sets: dict[str, list[Picture]] = {name: [], VALIDATION: []}
    for picture in pictures:
        try:
            content = picture.path.read_bytes()
        except OSError:
            content = b""  # it will be rejected
        lot = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64
        sets[VALIDATION if lot < fraction else name].append(picture)
    for name, members in sets.items():
        if not members:
            raise UserError(
                f"validation_fraction: {fraction:g} of {len(pictures)} pictures leaves none "
                f"for {name}"
            )
    return sets


def check_places(folder: Path, sets: Iterable[str], options: Options) -> None:
    """Refuse to replace what nobody asked to replace, and to leave a split that is no more."""
    for card in (folder / f"{name}.json" for name in sets):
        if card.exists() and not options.overwrite:
            raise UserError(f"tfrecord_filename: {card} is there already: --overwrite replaces it")
    validation = folder / f"{VALIDATION}.json"
    if validation.exists() and options.tfrecord_filename != VALIDATION:
        try:
            used = json.loads(validation.read_text(encoding="utf-8"))["options"]
            source, fraction = used["tfrecord_filename"], used["validation_fraction"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{validation}: not the card of a data set") from error
        if VALIDATION in sets and source != options.tfrecord_filename:
            raise UserError(
                f"validation_fraction: {validation} is not of {options.tfrecord_filename}, but of "
                f"{source}: take another tfrecord_dir"
            )
        if VALIDATION not in sets and source == options.tfrecord_filename:
            raise UserError(
                f"validation_fraction: {validation} has pictures of {source}, which would be in "
                f"both: give {fraction:g} again, or delete it"
            )


def put_in_place(complete: Path) -> None:
    """Move whole sets to the folder above, where they replace those of their names.

    It can be stopped at any moment, and called again: what is not moved yet is in `complete`, and
    no card is there before all that it names.
    """
    folder = complete.parent
    for card in sorted(complete.glob("*.json")):
        name, content = card.stem, json.loads(card.read_text(encoding="utf-8"))
        new = [shard["file"] for shard in content["shards"]] + [f"{name}.index"]
        old = [*folder.glob(f"{name}-?????-of-?????.tfrecord"), folder / f"{name}.index"]
        (folder / card.name).unlink(missing_ok=True)
        for file in (file for file in old if file.name not in new):
            file.unlink(missing_ok=True)
        for file in (complete / file for file in new):
            if file.exists():
                os.replace(file, folder / file.name)
        os.replace(card, folder / card.name)
    complete.rmdir()


def write_sets(
    folder: Path, sets: dict[str, list[Picture]], classes: Sequence[str], options: Options
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Write shards, index and card of each set.

    Returns:
        The cards by set, and what was rejected: file and reason.
    """
    # These import TensorFlow, which takes seconds: not before the input is known to be right.
    with quiet_import():
        from library.images import to_example
        from library.tfrecord import Card, write_index, write_shard

    cards: dict[str, Card] = {}
    rejected: list[tuple[str, str]] = []

    def encode(picture: Picture) -> tuple[Picture, bytes | None, str]:
        name = picture.path.relative_to(options.dataset_dir).as_posix()
        try:
            jpeg = standard_jpeg(
                picture.path.read_bytes(), max_edge=options.max_edge, quality=options.jpeg_quality
            )
        except (BadPictureError, OSError) as error:
            return picture, None, str(error)
        return picture, to_example(jpeg, picture.label, classes[picture.label], name), ""

    def records(part: list[Picture], count: collections.Counter) -> Iterator[bytes]:
        for picture, record, reason in pool.imap(encode, part, chunksize=8):
            progress.update()
            if record is None:
                rejected.append((str(picture.path), reason))
            else:
                count[classes[picture.label]] += 1
                yield record

    total = sum(map(len, sets.values()))
    with (
        ThreadPool(options.num_workers or os.cpu_count()) as pool,
        tqdm(total=total, unit=" pictures", disable=None) as progress,  # None: on a terminal only
    ):
        for name, members in sets.items():
            wanted = options.num_shards or -(-len(members) // PICTURES_PER_SHARD)
            num_shards = min(wanted, len(members))
            count: collections.Counter = collections.Counter(dict.fromkeys(classes, 0))
            written = [
                write_shard(
                    folder / f"{name}-{number:05}-of-{num_shards:05}.tfrecord",
                    records(members[number::num_shards], count),
                )
                for number in range(num_shards)
            ]
            write_index(folder / f"{name}.index", [rows for _, rows in written])
            shards = [shard for shard, _ in written]
            cards[name] = Card(list(classes), dict(count), shards, used(options))
            cards[name].save(folder / f"{name}.json")
    return cards, rejected


def used(options: Options) -> dict[str, Any]:
    """The options that make a difference to the result."""
    indifferent = ("dataset_dir", "tfrecord_dir", "num_workers", "max_rejected", "overwrite")
    return {k: v for k, v in dataclasses.asdict(options).items() if k not in indifferent}


def too_many(
    rejected: Sequence[tuple[str, str]], total: int, options: Options, report: Path
) -> str:
    """The line that says why a conversion failed."""
    top = collections.Counter(reason for _, reason in rejected).most_common(3)
    reasons = ", ".join(f"{count} {reason}" for reason, count in top)
    return (
        f"max_rejected: {len(rejected)} of {total} files could not be used, more than "
        f"{options.max_rejected:g} of them ({reasons}): see {report}"
    )


if __name__ == "__main__":
    run(main)
