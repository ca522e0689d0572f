"""The same picture twice: exactly, by its bytes, or nearly, by what it looks like when tiny."""

import hashlib
import io

import numpy as np
from PIL import Image

EDGE = 16
"""A picture's thumbnail is its gray, averaged down to EDGE x EDGE pixels."""
NEAR = 1.5
"""Two are nearly the same where their thumbnails differ by less on average, of 255 levels: one that
was encoded again, or scaled, differs by less than 1, and two photos in a row by several."""
TABLES, PROJECTIONS, BIN = 8, 5, 20.0


def thumbnail(data: bytes) -> bytes:
    """The thumbnail of an encoded picture; what cannot be decoded raises as Pillow does."""
    with Image.open(io.BytesIO(data)) as image:
        image.draft("L", (8 * EDGE, 8 * EDGE))
        return image.convert("L").resize((EDGE, EDGE), Image.Resampling.BILINEAR).tobytes()


def near_duplicates(thumbnails: np.ndarray) -> np.ndarray:
    """Groups of nearly the same pictures.

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
