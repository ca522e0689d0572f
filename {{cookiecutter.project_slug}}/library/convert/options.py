"""The options of a conversion, and what they mean beside what is there already."""

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any

from library.config import URL, Location, option
from library.convert.listing import SPLITS, split_folders
from library.convert.packed import Packed, folder_of
from library.data import Card
from library.util import UserError, check_folder, did_you_mean

VALIDATION = "validation"
SHARD_MB, SHARD_FILES = 150, 1000
FEW_FILES, MANY_SHARDS = 64, 16
"""Of a small dataset: files in a shard, so that there are some to read in turns; up to so many."""
DEFAULT_FRACTION = 0.1


@dataclasses.dataclass(frozen=True)
class _Files:
    """What is converted"""

    dataset_dir: Path | None = option(
        None,
        "folder of the files, as dataset/train; a .zip, .tar or .tar.gz file of it; or a folder of "
        "Parquet files of the Hugging Face hub, or of TensorFlow Datasets",
    )
    labels: Path | None = option(
        None, "CSV file with the columns file and label, labels or value, instead of class folders"
    )
    leave_out: Path | None = option(
        None, "CSV file with a column file: these are left out, as suspects.csv of run.py audit"
    )
    relabel: Path | None = option(
        None, "CSV file with the columns file and suggested, or label: the class that each gets"
    )
    unlabeled: bool = option(False, "all files below the folder, without labels")
    classes_from: Path | None = option(
        None, "card of a dataset whose classes these are; null: train.json, if it has all of them"
    )
    follow_links: bool = option(False, "also links that lead out of the dataset")
    validation_fraction: float | None = option(
        None,
        f"share of the files for a second dataset, {VALIDATION}; null: {DEFAULT_FRACTION:g} for a "
        "dataset called train that has none yet",
        minimum=0,
        maximum=0.9,
    )
    group_by: str | None = option(
        None,
        "files of one group stay in one dataset: a column of the CSV file, or a regular "
        "expression that finds the group in the name",
    )
    near_duplicates: bool = option(
        True, "near duplicates count as duplicates, and stay in one dataset"
    )
    max_rejected: float = option(
        0.01, "share of rejected files above which the conversion fails", minimum=0, maximum=1
    )


@dataclasses.dataclass(frozen=True)
class _Shards:
    """Shards"""

    tfrecord_filename: str | None = option(None, "name of the dataset; null: that of the folder")
    tfrecord_dir: Location = option(
        Location("data"), "folder to write to, also at a URL, as s3://bucket/data"
    )
    num_shards: int | None = option(
        None,
        f"files to write; null: {SHARD_MB} MB or {SHARD_FILES} files each, fewer in small datasets",
        minimum=1,
    )
    random_seed: int = option(0, "fixes the order of the examples in the shards", minimum=0)
    overwrite: bool = option(False, "replace a dataset of this name")


@dataclasses.dataclass(frozen=True)
class _Work:
    """Work"""

    num_workers: int | None = option(
        None, "processes; 0: this one alone, to debug; null: one for each core", minimum=0
    )
    shards: str | None = option(None, "only these, as 0-99: other machines write the others")
    finalize: bool = option(False, "only index and card, of shards that other machines wrote")
    runner: str | None = option(None, "Apache Beam's runner, as DirectRunner, instead of processes")
    beam_options: str | None = option(None, "Beam's own options, in one line")
    contact_sheet: bool = option(
        False,
        "also write <name>.contact_sheet.html, a look at the files; also of a finished dataset",
    )
    verify: bool = option(False, "read a finished dataset, and name its faults")


@dataclasses.dataclass(frozen=True)
class ConvertOptions(_Files, _Shards, _Work):
    """The options of convert_dataset.py, but for those of the modality."""

    @property
    def root(self) -> Path:
        if self.dataset_dir is None:
            raise UserError("dataset_dir: missing: give the folder, as --dataset_dir dataset/train")
        packed = isinstance(self.dataset_dir, Packed)
        return self.dataset_dir if packed else folder_of(self.dataset_dir)

    @property
    def name(self) -> str:
        if self.tfrecord_filename:
            return self.tfrecord_filename
        root = self.root
        return root.name if isinstance(root, Packed) else os.path.basename(os.path.abspath(root))

    @property
    def path(self) -> Path:
        """The dataset, as data/train."""
        return self.folder / self.name

    @property
    def url(self) -> str:
        """Of the folder to write to, unless that is on this machine."""
        return self.tfrecord_dir.rstrip("/") if URL.match(self.tfrecord_dir) else ""

    @property
    def folder(self) -> Path:
        """All that is written, but for the shards where these go to a URL."""
        return Path("data", self.url.replace("://", "/")) if self.url else Path(self.tfrecord_dir)

    @property
    def place(self) -> str:
        """The folder where the dataset will be."""
        return self.url or str(self.folder)

    @property
    def remedy(self) -> str:
        """How to replace a dataset: an object store cannot do that at once."""
        return f"{'delete it there' if self.url else 'use --overwrite'} to replace it"

    def hidden(self, word: str) -> Path:
        """The folder of a conversion that is "partial", or "complete" and not in its place."""
        return self.folder / f".{self.name}.{word}"

    @property
    def processes(self) -> int:
        return (os.cpu_count() or 1) if self.num_workers is None else self.num_workers

    @property
    def card_of_classes(self) -> Path | None:
        """The card that says which classes there are, if any."""
        train = self.folder / "train.json"
        usual = self.name != "train" and train.exists()
        return self.classes_from or (train if usual else None)

    @property
    def may_differ(self) -> bool:
        """Whether the classes may be other ones than in that card."""
        return not self.classes_from and self.name not in SPLITS

    @property
    def fraction(self) -> float:
        """The share of the files for validation, given or usual."""
        if self.validation_fraction is not None:
            return self.validation_fraction
        if self.name != "train" or VALIDATION in split_folders(self.root.parent, only=False):
            return 0.0
        source, before, _ = self._split_before()
        return DEFAULT_FRACTION if source is None else before if source == self.name else 0.0

    def _split_before(self) -> tuple[str | None, float, str | None]:
        """The dataset that the existing validation dataset is a part of, its share, and groups."""
        card = self.folder / f"{VALIDATION}.json"
        if not card.exists():
            return None, 0.0, None
        known = Card.load(card).options
        source, share = known.get("tfrecord_filename", VALIDATION), known.get("validation_fraction")
        return source, share or 0.0, known.get("group_by")

    @property
    def recorded(self) -> dict[str, Any]:
        """What makes a difference to the result."""
        first = ("unlabeled", "follow_links", "num_shards", "random_seed")
        values = {name: getattr(self, name) for name in (*first, "group_by", "near_duplicates")}
        return {"tfrecord_filename": self.name, "validation_fraction": self.fraction, **values}

    def num_shards_of(self, num_files: int, file_size: float) -> int:
        """How many shards so many files become, of so many bytes on average."""
        files_per_shard = max(SHARD_FILES, SHARD_MB * 1e6 / max(file_size, 1))
        few = min(MANY_SHARDS, math.ceil(num_files / FEW_FILES))
        usual = max(few, math.ceil(num_files / files_per_shard))
        return min(self.num_shards or usual, num_files)

    @property
    def chosen(self) -> slice:
        """The shards to write."""
        ends = [int(number) for number in (self.shards or "").split("-") if number]
        return slice(ends[0], ends[-1] + 1) if ends else slice(None)

    def check(self) -> None:
        """Raise a UserError for options that make no sense together."""
        name, shards = self.name, self.shards
        if not re.fullmatch(r"\w[\w.-]*", name):
            hint = "" if self.tfrecord_filename else ": choose one with --tfrecord_filename"
            raise UserError(
                f"tfrecord_filename: {name} is not a name of letters, digits, . - _{hint}"
            )
        if not self.root.is_dir():
            near = did_you_mean(self.root.name, [each.name for each in self.root.parent.glob("*/")])
            raise UserError(f"dataset_dir: {self.root} is neither a folder nor an archive{near}")
        check_folder("tfrecord_dir", self.folder)
        if (card := self.classes_from) and card.suffix != ".json":
            raise UserError(f"classes_from: {card} is not a card: that of a dataset is {card}.json")
        if self.labels and self.unlabeled:
            raise UserError("unlabeled: --labels gives each file a label: leave out one of them")
        if self.beam_options and not self.runner:
            raise UserError("beam_options: nothing runs on Beam: give --runner, too")
        if self.group_by and not self.fraction:
            raise UserError("group_by: there is no split: give --validation_fraction too")
        if self.validation_fraction and name == VALIDATION:
            raise UserError(f"tfrecord_filename: {VALIDATION} is the name of the second dataset")
        if shards is None:
            return
        if not re.fullmatch(r"\d+(-\d+)?", shards):
            raise UserError(f"shards: {shards} is not a number, or two as 0-99")
        if self.finalize:
            raise UserError("shards: --finalize comes when all shards are there: leave out one")
        if not self.num_shards:
            raise UserError("shards: give --num_shards too: it has to be the same everywhere")
        if not self.chosen.start < self.chosen.stop <= self.num_shards:
            raise UserError(f"shards: {shards} is not within 0-{self.num_shards - 1}")

    def check_places(self, unit: str) -> None:
        """Refuse to replace what nobody asked to replace, and to leave a split that is no more."""
        validation = self.folder / f"{VALIDATION}.json"
        for card in [self.path.with_name(f"{self.name}.json"), *[validation] * bool(self.fraction)]:
            if card.exists() and not self.overwrite:
                there = f"{self.place}/{card.name}"
                raise UserError(f"tfrecord_filename: {there} already exists; {self.remedy}")
        source, before, groups = self._split_before()
        if self.fraction and source not in (None, self.name):
            raise UserError(
                f"validation_fraction: {validation} is not of {self.name}, but of {source}: use "
                "another tfrecord_dir"
            )
        if self.fraction and self.validation_fraction is None and groups and not self.group_by:
            raise UserError(
                f"group_by: {validation} was split by {groups}: give it again, or a "
                "--validation_fraction to split without groups"
            )
        if not self.fraction and source == self.name != VALIDATION:
            raise UserError(
                f"validation_fraction: {validation} has {unit} of {source}, which would be in "
                f"both: give {before:g} again, or delete it"
            )
