"""The same file twice: exactly, by its bytes, or nearly, by its thumbnail: what it is when tiny."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from library.convert.scan import Found
from library.data import EDGE
from library.util import UserError, replacing

NEAR = 1.5
"""Two are nearly the same where their thumbnails differ by less on average, of 255 levels: one that
was encoded again, or scaled, differs by less than 1, and two photos in a row by several."""
TABLES, PROJECTIONS, BIN = 8, 5, 20.0


def near_duplicates(thumbnails: np.ndarray) -> np.ndarray:
    """Groups of what is nearly the same.

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


def lot(checksum: str) -> float:
    """A number in [0, 1) that follows from a checksum, and is no smaller for a small one."""
    return int(sha256_of(checksum.encode())[:16], 16) / 2**64


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def split_by_content(
    files: Sequence[Found], fraction: float, scanned: Mapping[str, tuple[str, str]]
) -> tuple[list[Found], list[Found]]:
    """Those for training and those for validation.

    The content of a file says where it goes, so that it stays there when others are added; files
    that hold nearly the same go together.
    """
    usable = [found for found in files if found.name in scanned and scanned[found.name][1]]
    thumbnails = [np.frombuffer(bytes.fromhex(scanned[p.name][1]), np.uint8) for p in usable]
    groups: list[int] = near_duplicates(np.array(thumbnails)).tolist() if usable else []
    lowest: dict[int, str] = {}
    for group, found in zip(groups, usable, strict=True):
        checksum = scanned[found.name][0]
        lowest[group] = min(lowest.get(group, checksum), checksum)
    lots = {found.name: lot(lowest[group]) for group, found in zip(groups, usable, strict=True)}
    validation = [found for found in files if lots.get(found.name, 1.0) < fraction]
    taken = set(validation)
    return [found for found in files if found not in taken], validation


class Used(NamedTuple):
    """A file in a data set."""

    checksum: str  # SHA-256, hexadecimal
    name: str
    class_name: str = ""


class Duplicate(NamedTuple):
    """A file that is there before."""

    set: str
    file: str
    same_as: str  # as "train: cat/1.jpg"
    other_class: str  # that of the one before, where it is another one


def exact_duplicates(sets: Mapping[str, Sequence[Used]]) -> list[Duplicate]:
    """All but the first of equal files, by the sets that they are in."""
    first: dict[str, tuple[str, Used]] = {}
    found = []
    for name, files in sets.items():
        for file in files:
            of, original = first.setdefault(file.checksum, (name, file))
            if original is not file:
                classes = {original.class_name, file.class_name} - {""}
                other = original.class_name if len(classes) > 1 else ""
                found.append(Duplicate(name, file.name, f"{of}: {original.name}", other))
    return found


def write_checksums(path: Path, used: Sequence[Used]) -> None:
    """As `sha256sum` writes them, and checks them with --check."""
    with replacing(path) as temporary:
        text = "".join(f"{file.checksum}  {file.name}\n" for file in sorted(used))
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")


def read_checksums(path: Path) -> list[Used]:
    """The inverse, without the classes.

    Raises:
        UserError: there is no such file.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UserError(f"classes_from: {path}: {error.strerror}") from error
    return [Used(*line.split("  ", 1)) for line in text.splitlines()]
