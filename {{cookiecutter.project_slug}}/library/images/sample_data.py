"""Drawn images to try a project out; the same arguments give the same images.

    python -m library.images.sample_data FOLDER [--task class|labels|value]

makes FOLDER/train and FOLDER/test. class: six shapes, a folder each; size, place, angle, colors and
noise are random. The others write FOLDER/train.csv and FOLDER/test.csv for `--labels`: labels: the
colors of discs side by side, or of none; value: the radius of a disc in pixels, one of which is in
the test set only.
"""

import cmath
import csv
import itertools
import math
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from library.config import Parser
from library.util import UserError, run_main

SIZE = 64  # pixels
EVERY_NTH_IS_PNG = 5
JPEG_QUALITY = 90
MAX_NOISE = 24.0  # standard deviation, of 255
FEW = {"train": 60, "test": 10}
PER_CLASS = {"class": {"train": 200, "test": 50}, "labels": FEW, "value": FEW}
"""Images of each class, set of labels or value that the program makes."""

SHAPES: dict[str, list[complex]] = {
    "bar": [-1 - 0.25j, 1 - 0.25j, 1 + 0.25j, -1 + 0.25j],
    "circle": [cmath.rect(0.9, math.tau * corner / 48) for corner in range(48)],
    "cross": [1j**turn * each for turn in range(4) for each in (-0.3 - 1j, 0.3 - 1j, 0.3 - 0.3j)],
    "square": [1j**turn for turn in range(4)],
    "star": [cmath.rect((1.1, 0.45)[i % 2], math.tau * i / 10) for i in range(10)],
    "triangle": [cmath.rect(1.1, math.tau * corner / 3) for corner in range(3)],
}
"""The corners of each shape, x + iy in a square of -1 to 1."""
COLORS = {"blue": (60, 60, 255), "green": (60, 200, 60), "red": (255, 60, 60)}
WHITE = (230, 230, 230)
SETS_OF_COLORS = [set_ for n in range(4) for set_ in itertools.combinations(COLORS, n)]
RADII, UNSEEN = ("2.5", "5", "7.5", "10", "12.5", "15"), "10"
LABELS = {"class": [*SHAPES], "labels": [";".join(set_) for set_ in SETS_OF_COLORS], "value": RADII}
"""By task; UNSEEN is not in the training set."""


def _shape(shape: str, random: np.random.Generator) -> Image.Image:
    background = random.integers(0, 128, 3)
    color = background + random.integers(60, 128, 3)  # lighter
    radius = random.uniform(0.22, 0.4) * SIZE
    x, y = random.uniform(radius, SIZE - radius, 2)
    turn = cmath.rect(radius, random.uniform(0, math.tau))

    oversampling = 4  # smooth edges
    image = Image.new("RGB", (SIZE * oversampling, SIZE * oversampling), tuple(background.tolist()))
    corners = [oversampling * (complex(x, y) + turn * corner) for corner in SHAPES[shape]]
    places = [(corner.real, corner.imag) for corner in corners]
    ImageDraw.Draw(image).polygon(places, fill=tuple(color.tolist()))
    pixels = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX), np.float64)
    noise = random.normal(0, random.uniform(0, MAX_NOISE), pixels.shape)
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def draw(task: str, label: str, random: np.random.Generator) -> Image.Image:
    """One image of a task and one of its LABELS: RGB, SIZE x SIZE pixels."""
    if task == "class":
        return _shape(label, random)
    if task == "value":
        discs = [(float(label), WHITE)]
    else:
        discs = [(random.uniform(5, 10), COLORS[name]) for name in label.split(";") if name]
    image = Image.new("RGB", (SIZE, SIZE), tuple(random.integers(0, 120, 3).tolist()))
    for number, (radius, color) in enumerate(discs):
        width = SIZE / len(discs)
        x = random.uniform(radius, width - radius) + number * width
        y = random.uniform(radius, SIZE - radius)
        ImageDraw.Draw(image).ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
    return image


def make(
    folder: str | Path, *, per_class: dict[str, int], seed: int = 0, task: str = "class"
) -> None:
    """Write JPEG files, and some PNG files, in a folder for each split, which must not exist yet.

    `per_class` is the number of images of each of the task's LABELS, by split. A class is a folder;
    for labels or value, there is a CSV for each split.
    """
    folder, random = Path(folder), np.random.default_rng(seed)
    if folder.exists():
        raise UserError(f"{folder} already exists")
    for split, count in per_class.items():
        rows = [("file", task)]
        for label in LABELS[task]:
            for number in range(0 if (split, label) == ("train", UNSEEN) else count):
                name = f"{label}/{label}-{number:04}" if task == "class" else f"{len(rows):04}"
                file = f"{name}.{'jpg' if number % EVERY_NTH_IS_PNG else 'png'}"
                (folder / split / file).parent.mkdir(parents=True, exist_ok=True)
                draw(task, label, random).save(folder / split / file, quality=JPEG_QUALITY)
                rows.append((file, label))
        if task != "class":
            with open(folder / f"{split}.csv", "w", newline="", encoding="utf-8") as opened:
                csv.writer(opened).writerows(rows)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", help="folder to make; it must not exist yet")
    parser.add_argument("--task", choices=(*LABELS,), default="class", help="what is learned")
    flags = parser.parse(sys.argv[1:])
    parser.raise_errors()
    folder, task = flags["folder"], flags["task"]
    make(folder, per_class=PER_CLASS[task], task=task)
    count = len([*Path(folder).glob("*/**/*.*")])
    print(f"{count} images in {folder}, of {', '.join(filter(None, LABELS[task]))}")


if __name__ == "__main__":
    run_main(main)
