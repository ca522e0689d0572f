"""The card of a dataset, <name>.json: its classes, shards and kind of label."""

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from library.config import URL
from library.data.remote import FETCHES, read_file, size_of
from library.util import UserError, read_card, write_json

T = TypeVar("T")

FORMAT_VERSION = 2
LABELS = ("class", "labels", "value", "none")
"""Of each example: its class, any number of classes, a number, nothing."""
Label = int | tuple[int, ...] | float
"""Of one example: the number of its class, the numbers of its classes, or its value."""
UNLABELED = -1
"""The label of an example that has none."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A finished file of examples."""

    file: str
    examples: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Target:
    """What is learned: all that a head has to know of the labels."""

    label: str  # one of LABELS
    classes: tuple[str, ...] = ()
    mean: float = 0.0  # of the values of the training set
    std: float = 1.0
    thresholds: tuple[float, ...] = ()  # of each of several classes, chosen on the validation set
    examples_per_class: tuple[int, ...] = ()  # of the training set

    def __str__(self) -> str:
        if self.label in ("value", "none"):
            return "values" if self.label == "value" else "no labels"
        few, more = self.classes[:10], len(self.classes) - 10
        kind = "labels among" if self.label == "labels" else "the classes"
        return f"{kind} {', '.join(few)}{f' and {more} more' if more > 0 else ''}"


@dataclasses.dataclass(frozen=True)
class Card:
    """What a dataset holds; its target travels on in the card of the model."""

    classes: list[str]  # in the order of the labels
    examples_per_class: dict[str, int]
    shards: list[Shard]
    options: dict[str, Any]  # with which the dataset was made
    label: str = "class"  # one of LABELS
    value_mean: float = 0.0
    value_std: float = 1.0
    format_version: int = FORMAT_VERSION

    @property
    def num_examples(self) -> int:
        return sum(shard.examples for shard in self.shards)

    def may_have(self, labels: np.ndarray) -> bool:
        """Whether these labels, [examples], have as many of each class as the dataset."""
        sizes = [self.examples_per_class.get(name, 0) for name in self.classes]
        if self.label != "class" or sum(sizes) != len(labels):
            return True
        return np.array_equal(np.sort(labels), np.repeat(np.arange(len(sizes)), sizes))

    def spread(self, count: int) -> list[int]:
        """The ids of at most `count` examples, spread over all."""
        count = min(count, self.num_examples)
        return [i * self.num_examples // count for i in range(count)]

    @property
    def target(self) -> Target:
        counts = tuple(self.examples_per_class.get(name, 0) for name in self.classes)
        mean, std = self.value_mean, self.value_std
        return Target(self.label, tuple(self.classes), mean, std, examples_per_class=counts)

    @classmethod
    def load(cls, path: str | Path) -> "Card":
        """Read a card, also from a URL; UserError if it is none."""
        what, remedy = "the card of a dataset", "convert the dataset again"
        text = content_of(str(path))
        return read_card(cls, text, place=path, what=what, remedy=remedy, prepare=_upgraded)

    def joined(self, others: Sequence["Card"]) -> "Card":
        """The card of this dataset and others of the same kind of label as one."""
        cards = [self, *others]
        counts = sum((Counter(each.examples_per_class) for each in cards), Counter[str]())
        sizes = [each.num_examples for each in cards]
        mean = float(np.average([each.value_mean for each in cards], weights=sizes))
        squares = [each.value_std**2 + (each.value_mean - mean) ** 2 for each in cards]
        std = float(np.sqrt(np.average(squares, weights=sizes)))
        shards = [shard for each in cards for shard in each.shards]
        return dataclasses.replace(
            self,
            examples_per_class=dict(counts),
            shards=shards,
            value_mean=mean,
            value_std=std,
        )

    def save(self, path: str | Path) -> None:
        write_json(path, dataclasses.asdict(self))

    def files(self, path: str | Path) -> list[str]:
        """The shards of the dataset `path`, as "data/train", each of the size that it has here."""
        folder = os.path.dirname(path)
        sizes = {os.path.join(folder, shard.file): shard.bytes for shard in self.shards}
        expect_sizes(sizes, f"{path}.json")
        return list(sizes)


def _upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a card in the newest format; an error where it is none."""
    if content["format_version"] == 1:  # which knew classes only
        content["label"] = "class" if content["classes"] else "none"
    names = [shard["file"] for shard in content["shards"]]
    if content["label"] not in LABELS or not names or not all(map(is_name, names)):
        raise ValueError
    return content


def expect_sizes(sizes: dict[str, int], card: str) -> None:
    """UserError if a file is missing, or not of its size in bytes, which the file `card` names."""
    with ThreadPoolExecutor(FETCHES if URL.match(card) else 1) as threads:
        found = threads.map(_size_of, sizes)
        for file, expected in sizes.items():
            try:
                size = next(found)
            except UserError as error:
                raise UserError(f"{error}, but {card} names it") from error
            if size != expected:
                raise UserError(f"{file}: {size} bytes, but {card} says {expected}")


def is_name(file: str) -> bool:
    """Whether a file is in the folder of its card, and not anywhere else."""
    return bool(re.fullmatch(r"[^/\\:\0]+", file)) and file not in (".", "..")


def content_of(path: str) -> bytes:
    """What a small file holds, at a path or URL; UserError where it cannot be read."""
    return read_file(path) if URL.match(path) else _of_file(path, Path.read_bytes)


def _size_of(path: str) -> int:
    return size_of(path) if URL.match(path) else _of_file(path, os.path.getsize)


def _of_file(path: str, read: Callable[[Path], T]) -> T:
    """What `read` says of a file on this machine; an error becomes one line."""
    try:
        return read(Path(path))
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
