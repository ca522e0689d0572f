"""Resident memory of the input, over an hour and with the data: python benchmarks/level.py

    python benchmarks/level.py [MINUTES]

Batches are drawn from one dataset, and then from one ten times as large, for MINUTES (60) in all,
each in a process of its own. Shown are the memory at the end of the first and of the last half, and
the slope of the line through all moments of the last half. In the first one the allocator's arenas
find their size: about 100 MB in some minutes.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from common import make_dataset, make_jpeg, output_of, train_batches

IMAGES, BATCH, MOMENTS = 600, 64, 360


def draw(path: str, seconds: float) -> None:
    """Draw batches for so long; print when and how much memory there was, as JSON."""
    points, batches, begin = [], 0, time.monotonic()
    for _ in train_batches(path, train_batch_size=BATCH, image_size=224, min_crop_area=0.08):
        batches += 1
        now = time.monotonic() - begin
        if now > seconds:
            break
        if now > len(points) * seconds / MOMENTS:
            points.append((now, psutil.Process().memory_info().rss / 2**20))
    print(json.dumps({"batches": batches, "points": points}))


def main() -> None:
    minutes = float(sys.argv[1]) if sys.argv[1:] else 60
    jpegs = [make_jpeg(seed) for seed in range(IMAGES)]
    with tempfile.TemporaryDirectory() as folder:
        for copies in (1, 10):
            path = Path(folder) / f"times{copies}"
            card = make_dataset(path, jpegs, copies=copies)
            found = output_of(sys.executable, __file__, "draw", path, 60 * minutes / 2)
            points = np.array(found["points"])
            hours, mb = points[len(points) // 2 :].T / [[3600], [1]]
            (slope, _), covariance = np.polyfit(hours, mb, 1, cov=True)
            print(
                f"{card.num_examples:,} images, {BATCH * found['batches']:,} drawn in "
                f"{points[-1, 0] / 60:.0f} minutes: {mb[0]:,.0f} MB resident at half time, "
                f"{mb[-1]:,.0f} at the end, at most {mb.max():,.0f}; slope since then "
                f"{slope:+.1f} MB an hour, standard error {covariance[0, 0] ** 0.5:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    draw(sys.argv[2], float(sys.argv[3])) if sys.argv[1:2] == ["draw"] else main()
