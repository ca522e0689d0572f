"""Duplicates: equal files, by their checksums, and near duplicates, by their thumbnails."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from library.data import EDGE
from library.util import replacing

CHECKSUM = 32
"""Bytes of a SHA-256."""
PLANE = EDGE * EDGE
NEAR, FAR = 1.5, 40
"""Of 255 levels: near duplicates differ by less than NEAR in brightness on average, and by less
than FAR everywhere. What is encoded again or scaled differs by less than 1, and by 35 at most; two
photos in a row by several; a spot of 6 x 6 pixels in 256 x 256 by more than FAR."""
TABLES, WINDOW = 12, 6
"""Orders in which thumbnails are sorted, and how many behind it each is compared with."""
CODES, BIN, MOST_CODES = 15, 2**13, 6
"""Codes of 4 bits in a key; the width of a code, about 21 levels; codes in which near duplicates
may differ."""
AT_ONCE = 2**15
ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
"""What stands for a letter of a name in a file of checksums."""

Groups = np.ndarray
"""int64 [n]: of each file, the lowest number in its group."""


def stacked(parts: Iterable[np.ndarray], rows: int, folder: Path) -> np.ndarray:
    """The bytes of arrays as uint8 [rows, columns], in an unnamed file: the system decides how much
    of it is in memory."""
    with TemporaryFile(dir=folder) as file:
        for part in parts:
            file.write(np.ascontiguousarray(part).data)
        file.flush()
        return np.memmap(file, np.uint8, "r+").reshape(rows, -1)


def merge(groups: Groups, pairs: np.ndarray) -> None:
    """Make one group of the groups of each pair: int64 [m, 2]."""
    while len(pairs):
        roots = groups[pairs]
        np.minimum.at(groups, roots.max(axis=1), roots.min(axis=1))
        while (lower := groups[groups] != groups).any():
            groups[lower] = groups[groups[lower]]
        pairs = pairs[groups[pairs[:, 0]] != groups[pairs[:, 1]]]


def equal_files(checksums: np.ndarray) -> Groups:
    """Groups of files of equal checksums: uint8 [n, CHECKSUM]."""
    columns = np.ascontiguousarray(checksums).view(np.uint64)
    order = np.lexsort(columns.T)
    new = np.any(np.diff(columns[order], axis=0) != 0, axis=1)
    first = np.flatnonzero(np.append(True, new)[: len(order)])
    groups = np.empty(len(order), np.int64)
    groups[order] = np.repeat(order[first], np.diff(np.append(first, len(order))))
    return groups


def near_duplicates(thumbnails: np.ndarray) -> Groups:
    """Groups of near duplicates, in time that grows as n log n whatever the thumbnails are.

    Candidates are neighbors in orders of keys made by locality-sensitive hashing: an LSH forest,
    Bawa et al. 2005, https://doi.org/10.1145/1060745.1060840, with random projections, Datar et al.
    2004, https://doi.org/10.1145/997817.997857. All is in whole numbers: the same on any machine.

    Args:
        thumbnails: uint8 [n, PLANE or more]; the first plane is the brightness.
    """
    groups = np.arange(len(thumbnails))
    random = np.random.RandomState(0)  # a stream that no version of NumPy changes
    planes = thumbnails.shape[1] // PLANE
    for table in range(TABLES if len(groups) else 0):
        first = table % planes * PLANE
        keys = _keys(thumbnails[:, first : first + PLANE], random)
        order = np.argsort(keys, kind="stable")
        for step in range(1, min(WINDOW, len(order) - 1) + 1):
            found = [np.empty([0, 2], np.int64)]
            for begin in range(0, len(order) - step, AT_ONCE):
                behind = order[begin + step : begin + step + AT_ONCE]
                pairs = np.stack([order[begin : begin + len(behind)], behind], axis=1)
                pairs = pairs[groups[pairs[:, 0]] != groups[pairs[:, 1]]]
                pairs = pairs[_differing(keys[pairs[:, 0]] ^ keys[pairs[:, 1]]) <= MOST_CODES]
                found.append(_alike(thumbnails, pairs))
            merge(groups, np.concatenate(found))
    return groups


def _keys(plane: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """CODES random projections of each row, in bins of BIN: uint8 [n, PLANE] -> uint64 [n].

    The sums are below 2^24, where float32 is exact.
    """
    directions = np.rint(random.normal(scale=24, size=[PLANE, CODES])).clip(-127, 127)
    shifts, bits = random.randint(BIN, size=CODES), np.arange(CODES, dtype=np.uint64)[::-1] * 4
    keys = np.empty(len(plane), np.uint64)
    for begin in range(0, len(plane), AT_ONCE):
        rows = plane[begin : begin + AT_ONCE].astype(np.float32)
        codes = np.floor((rows @ directions.astype(np.float32) + shifts) / BIN).astype(np.int64)
        keys[begin : begin + AT_ONCE] = ((codes & 15).astype(np.uint64) << bits).sum(axis=1)
    return keys


def _differing(bits: np.ndarray) -> np.ndarray:
    """How many of the codes have a bit: uint64 [n], at most 15 codes."""
    ones = np.uint64(0x1111111111111111)
    return ((bits | bits >> 1 | bits >> 2 | bits >> 3) & ones) * ones >> np.uint64(60)


def _alike(thumbnails: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The pairs whose thumbnails are near: int64 [m, 2]."""
    some = thumbnails[:, :PLANE:8]  # nearly all others differ here already
    pairs = pairs[_difference(some, pairs).mean(axis=1) < 4 * NEAR]
    difference = _difference(thumbnails, pairs)
    brightness = thumbnails[pairs[:, 0], :PLANE].astype(np.float32)
    contrast = np.abs(brightness - brightness.mean(axis=1, keepdims=True)).mean(axis=1)
    near = difference[:, :PLANE].mean(axis=1) < np.minimum(NEAR, NEAR / 3 + contrast / 4)
    return pairs[near & (difference.max(axis=1, initial=0) < FAR)]


def _difference(rows: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    a, b = rows[pairs[:, 0]], rows[pairs[:, 1]]
    return np.maximum(a, b) - np.minimum(a, b)


def unit_hash(checksum: str) -> float:
    """A number in [0, 1) that follows from a checksum, and is no smaller for a small one."""
    return int(hashlib.sha256(checksum.encode()).hexdigest()[:16], 16) / 2**64


def held_out(
    groups: Groups, checksums: np.ndarray, fraction: float, *, exact_below: int = 0
) -> np.ndarray:
    """Which files are for validation, about this fraction of the groups: bool [n].

    The lowest checksum in a group says where it goes: so it stays there when others are added.
    With fewer groups than `exact_below`, such a share would be far from the fraction: they are
    taken in the order of their checksums until that of the files is nearest to it.
    """
    order = np.lexsort((checksums.view(">u8")[:, 0], groups))
    lowest = order[np.flatnonzero(np.diff(groups[order], prepend=-1))]
    hashes = np.array([unit_hash(checksums[number].tobytes().hex()) for number in lowest])
    taken = hashes < fraction
    if 1 < len(lowest) < exact_below:
        sizes = np.bincount(groups)[groups[lowest]]
        shares = sizes[hashes.argsort()].cumsum() / len(groups)
        taken = hashes <= np.sort(hashes)[abs(shares[:-1] - fraction).argmin()]
    chosen = np.zeros(len(groups), bool)
    chosen[groups[lowest]] = taken
    return chosen[groups]


# ---- what a dataset keeps of its files ---------------------------------------------------------


def write_checksums(path: Path, used: Iterable[tuple[str, str]]) -> None:
    """Write <path>.sha256: checksum, hexadecimal, and name of each file, as `sha256sum` does."""
    with replacing(f"{path}.sha256") as temporary, open(temporary, "wb") as file:
        for checksum, name in used:
            escaped = re.sub(r"[\\\n\r]", lambda letter: ESCAPED[letter[0]], name)
            line = "\\" * (escaped != name) + f"{checksum}  {escaped}\n"
            file.write(line.encode(errors="surrogateescape"))


def read_checksums(path: Path) -> Iterator[tuple[str, str]]:
    """The inverse."""
    letters = {escaped: letter for letter, escaped in ESCAPED.items()}
    with open(f"{path}.sha256", "rb") as file:
        for line in file:
            checksum, _, name = line.decode(errors="surrogateescape")[:-1].partition("  ")
            if checksum.startswith("\\"):
                name = re.sub(r"\\.", lambda each: letters[each[0]], name)
            yield checksum.lstrip("\\"), name


def write_seen(
    path: Path, names: Iterable[str], checksums: np.ndarray, thumbnails: np.ndarray
) -> None:
    """Write <path>.sha256 and <path>.thumbnails, a NumPy file of as many rows in the same order."""
    write_checksums(path, zip((row.tobytes().hex() for row in checksums), names, strict=True))
    with replacing(f"{path}.thumbnails") as temporary, open(temporary, "wb") as file:
        np.save(file, thumbnails)


def read_seen(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Checksums and thumbnails of a dataset: uint8 [n, CHECKSUM] and [n, bytes].

    Datasets of older versions have no thumbnails: [n, 0].
    """
    checksums, thumbnails = bytearray(), np.empty([0, 0], np.uint8)
    for checksum, _ in read_checksums(path):
        checksums += bytes.fromhex(checksum)
    rows = np.frombuffer(checksums, np.uint8).reshape(-1, CHECKSUM)
    if os.path.exists(f"{path}.thumbnails"):
        thumbnails = np.load(f"{path}.thumbnails", mmap_mode="r")
    return rows, thumbnails if len(thumbnails) == len(rows) else rows[:, :0]
