"""Mutated pictures: each is in a shard and can be decoded, or in the list with a reason.

    python tests/test_images_fuzz.py 10000

makes and converts so many; the test does fewer.
"""

import csv
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a program of its own

from conftest import convert  # noqa: E402
from test_images_kinds import ENCODED, KEPT  # noqa: E402

from library.data import Target, read_in_order  # noqa: E402
from library.images import decode_window, parse_example  # noqa: E402


def mutated(data: bytes, random: np.random.Generator) -> bytes:
    """Some bytes changed, cut out, doubled, or the end cut off."""
    content = bytearray(data)
    for _ in range(random.integers(1, 8)):
        if not content:
            break
        # The first bytes are what a decoder's choices hang on: half of the harm is done there.
        most = len(content) if random.random() < 0.5 else min(len(content), 100)
        position = int(random.integers(most))
        length = int(random.integers(1, 9))
        kind = random.integers(5)
        if kind == 0:
            content[position] ^= 1 << int(random.integers(8))
        elif kind == 1:
            content[position : position + length] = random.bytes(length)
        elif kind == 2:
            del content[position : position + length]
        elif kind == 3:
            content[position:position] = content[position : position + length]
        elif random.random() < 0.2:
            del content[max(position, 20) :]
    return bytes(content)


def whole(shape: tf.Tensor) -> tf.Tensor:
    return tf.stack([0, 0, shape[0], shape[1]])


def fuzz(folder: Path, count: int) -> None:
    kinds = [*KEPT.values(), *ENCODED.values()]
    random = np.random.default_rng(0)
    (folder / "in" / "x").mkdir(parents=True)
    for number in range(count):
        data = mutated(kinds[number % len(kinds)], random)
        (folder / "in" / "x" / f"{number:05}.jpg").write_bytes(data)
    begin = time.monotonic()
    words = "--max_rejected", 1
    process = convert(folder / "in", folder / "out", "fuzz", *words, processes=True)
    print(process.stdout, f"{time.monotonic() - begin:.0f} s")
    assert "Traceback" not in process.stderr
    records = read_in_order(folder / "out" / "fuzz").map(lambda number, record: record)
    names = set()
    for record in records:
        example = parse_example(record, Target("none"))
        pixels = decode_window(
            example["encoded"], whole, image_size=64
        )  # raises where it cannot be
        assert pixels.shape[2] == 3
        names.add(example["key"].numpy().decode())
    with open(folder / "out" / "fuzz.rejected.csv", newline="") as file:
        reasons = {row["file"]: row["reason"] for row in csv.DictReader(file)}
    assert all(reasons.values())
    assert not names & reasons.keys()
    assert len(names) + len(reasons) == count
    assert min(len(names), len(reasons)) > count / 10


@pytest.mark.slow
def test_mutated_pictures_are_used_or_rejected(tmp_path):
    fuzz(tmp_path, 1000)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        fuzz(Path(place), int(sys.argv[1]))
