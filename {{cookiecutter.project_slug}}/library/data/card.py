"""The card of a dataset, <name>.json: its classes, shards and kind of label."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from library.config import URL
from library.util import UserError, parse_json, typed, write_json

FORMAT_VERSION = 2
LABELS = ("class", "labels", "value", "none")
"""Of each example: its class, any number of classes, a number, nothing."""
Label = int | tuple[int, ...] | float
"""Of one example: the number of its class, the numbers of its classes, or its value."""
UNLABELED = -1
"""The label of an example that has none."""
NOT_FOUND = 5
"""TensorFlow's code of an error; source: tensorflow/core/protobuf/error_codes.proto."""


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

    @property
    def target(self) -> Target:
        counts = tuple(self.examples_per_class.get(name, 0) for name in self.classes)
        mean, std = self.value_mean, self.value_std
        return Target(self.label, tuple(self.classes), mean, std, examples_per_class=counts)

    @classmethod
    def load(cls, path: str | Path) -> "Card":
        """Read a card, also from another file system of TensorFlow; UserError if it is none."""
        text = _read_text(str(path))
        try:
            content = parse_json(text)
            version = content["format_version"]
            if version not in (1, FORMAT_VERSION):
                raise UserError(
                    f"{path}: format_version {version}, but this program reads up to "
                    f"{FORMAT_VERSION}: convert the dataset again"
                )
            if version == 1:  # which knew classes only
                label = "class" if content["classes"] else "none"
                content |= {"label": label, "format_version": FORMAT_VERSION}
            card: Card = typed(cls, content)
            names = [shard.file for shard in card.shards]
            if card.label not in LABELS or not all(map(is_name, names)) or not card.shards:
                raise ValueError
            return card
        except (ValueError, KeyError) as error:
            raise UserError(f"{path}: not the card of a dataset") from error

    def save(self, path: str | Path) -> None:
        write_json(path, dataclasses.asdict(self))

    def files(self, path: str | Path) -> list[str]:
        """The shards of the dataset `path`, as "data/train", each of the size that it has here."""
        folder = os.path.dirname(path)
        sizes = {os.path.join(folder, shard.file): shard.bytes for shard in self.shards}
        expect_sizes(sizes, f"{path}.json")
        return list(sizes)


def expect_sizes(sizes: dict[str, int], card: str) -> None:
    """UserError if a file is missing, or not of its size in bytes, which the file `card` names."""
    for file, expected in sizes.items():
        try:
            size = _size_of(file)
        except UserError as error:
            raise UserError(f"{error}, but {card} names it") from error
        if size != expected:
            raise UserError(f"{file}: {size} bytes, but {card} says {expected}")


def is_name(file: str) -> bool:
    """Whether a file is in the folder of its card, and not anywhere else."""
    return bool(re.fullmatch(r"[^/\\:\0]+", file)) and file not in (".", "..")


def _read_text(path: str) -> str:
    with _translate_errors(path):
        if not URL.match(path):
            return Path(path).read_text(encoding="utf-8")
        import tensorflow as tf  # only here: conversion does without it

        with tf.io.gfile.GFile(path) as file:
            return file.read()


def _size_of(path: str) -> int:
    with _translate_errors(path):
        if not URL.match(path):
            return os.path.getsize(path)
        import tensorflow as tf

        return tf.io.gfile.stat(path).length


@contextlib.contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    """Why a file cannot be read, as every file system says it, becomes a one-line error."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text in UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except Exception as error:  # TensorFlow's own
        if not hasattr(error, "error_code"):
            raise
        missing = error.error_code == NOT_FOUND
        reason = "there is no such file" if missing else getattr(error, "message", error)
        raise UserError(f"{path}: {reason}") from error
