"""Duplicates: equal files, by their bytes, and near duplicates, by their thumbnails."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from library.convert.listing import LabeledFile
from library.data import EDGE, Label
from library.util import UserError, replacing

NEAR = 1.5
"""Of 255 levels: thumbnails of near duplicates differ by less on average. What was encoded again or
scaled differs by less than 1, two photos in a row by several."""
TABLES, PROJECTIONS, BIN = 8, 5, 20.0
ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
"""What stands for a letter of a name in a file of checksums."""


def near_duplicates(thumbnails: np.ndarray) -> np.ndarray:
    """Groups of near duplicates.

    Candidates are found by locality-sensitive hashing with random projections, Datar et al. 2004,
    https://doi.org/10.1145/997817.997857: of those that differ by 1 level, one pair in 10^7 is
    missed. Whether they are alike is then compared.

    Args:
        thumbnails: uint8 [n, EDGE * EDGE].

    Returns:
        int64 [n]: the lowest number in the group of each.
    """
    groups = np.arange(len(thumbnails))

    def root(number: int) -> int:
        while groups[number] != number:
            groups[number] = groups[groups[number]]
            number = groups[number]
        return number

    random = np.random.default_rng(0)
    for _ in range(TABLES):
        directions = random.normal(size=[EDGE * EDGE, PROJECTIONS])
        directions /= np.linalg.norm(directions, axis=0)
        keys = np.floor((thumbnails @ directions + random.uniform(0, BIN)) / BIN)
        keys = keys.astype(np.int32)
        order = np.lexsort(keys.T)
        changes = np.any(np.diff(keys[order], axis=0) != 0, axis=1)
        for bucket in np.split(order, np.flatnonzero(changes) + 1):
            while len(bucket) > 1:
                first, others = bucket[0], bucket[1:]
                difference = thumbnails[others].astype(np.int16) - thumbnails[first]
                alike = np.abs(difference).mean(axis=1) < NEAR
                for other in others[alike]:
                    a, b = sorted((root(first), root(other)))
                    groups[b] = a
                bucket = others[~alike]
    return np.array([root(number) for number in range(len(thumbnails))], np.int64)


def unit_hash(checksum: str) -> float:
    """A number in [0, 1) that follows from a checksum, and is no smaller for a small one."""
    return int(sha256_of(checksum.encode())[:16], 16) / 2**64


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def split_by_content(
    files: Sequence[LabeledFile], fraction: float, scanned: Mapping[str, tuple[str, str]]
) -> tuple[list[LabeledFile], list[LabeledFile]]:
    """Those for training and, of about this fraction, those for validation.

    The content of a file says where it goes, so that it stays there when others are added; near
    duplicates go together. `scanned` has the checksum and the thumbnail, hexadecimal, of each name.
    """
    usable = [file.name for file in files if scanned.get(file.name, ("", ""))[1]]
    thumbnails = bytes.fromhex("".join(scanned[name][1] for name in usable))
    pixels = np.frombuffer(thumbnails, np.uint8).reshape(-1, EDGE * EDGE)
    group_of = dict(zip(usable, near_duplicates(pixels).tolist(), strict=True))
    lowest: dict[int, str] = {}
    for name, group in group_of.items():
        lowest[group] = min(lowest.get(group, "g"), scanned[name][0])
    parts: tuple[list[LabeledFile], list[LabeledFile]] = [], []
    for file in files:
        group = group_of.get(file.name, -1)
        parts[group >= 0 and unit_hash(lowest[group]) < fraction].append(file)
    return parts


class HashedFile(NamedTuple):
    """A file in a dataset, by its SHA-256, hexadecimal."""

    checksum: str
    name: str
    label: Label | None = None  # None: not known


class Duplicate(NamedTuple):
    """A file that is there before."""

    set: str
    file: str
    same_as: str  # as "train: cat/1.jpg"
    conflict: Label | None  # the label of the one before, where it is another one


def exact_duplicates(sets: Mapping[str, Sequence[HashedFile]]) -> list[Duplicate]:
    """All but the first of equal files, by the sets that they are in."""
    first: dict[str, tuple[str, HashedFile]] = {}
    found = []
    for name, files in sets.items():
        for file in files:
            of, original = first.setdefault(file.checksum, (name, file))
            if original is not file:
                conflict = None if file.label in (None, original.label) else original.label
                found.append(Duplicate(name, file.name, f"{of}: {original.name}", conflict))
    return found


def write_checksums(path: Path, used: Sequence[HashedFile]) -> None:
    """As `sha256sum` writes them, and checks them with --check."""
    lines = []
    for checksum, name, _ in sorted(used):
        escaped = re.sub(r"[\\\n\r]", lambda letter: ESCAPED[letter[0]], name)
        lines.append("\\" * (escaped != name) + f"{checksum}  {escaped}\n")
    with replacing(path) as temporary:
        temporary.write_bytes("".join(lines).encode(errors="surrogateescape"))


def read_checksums(path: Path) -> list[HashedFile]:
    """The inverse, without the labels; UserError where there is no such file."""
    try:
        lines = path.read_bytes().decode(errors="surrogateescape").split("\n")[:-1]
    except OSError as error:
        raise UserError(f"classes_from: {path}: {error.strerror}") from error
    letters = {escaped: letter for letter, escaped in ESCAPED.items()}
    found = []
    for checksum, _, name in (line.partition("  ") for line in lines):
        if checksum.startswith("\\"):
            name = re.sub(r"\\.", lambda each: letters[each[0]], name)
        found.append(HashedFile(checksum.lstrip("\\"), name))
    return found
