"""Pictures of drawn shapes, to try a project out.

python -m library.images.sample_data pictures      makes pictures/train and pictures/test

Six classes that differ in shape alone: size, place, angle, colours and noise are drawn by lot.
The same arguments give the same pictures.
"""

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

PER_CLASS = {"train": 200, "test": 50}


def _polar(turn: float, radius: float = 1.0) -> tuple[float, float]:
    return radius * math.cos(2 * math.pi * turn), radius * math.sin(2 * math.pi * turn)


SHAPES: dict[str, list[tuple[float, float]]] = {
    "bar": [(-1, -0.25), (1, -0.25), (1, 0.25), (-1, 0.25)],
    "circle": [_polar(corner / 48, 0.9) for corner in range(48)],
    "cross": [
        *[(-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3)],
        *[(0.3, 1), (-0.3, 1), (-0.3, 0.3), (-1, 0.3), (-1, -0.3), (-0.3, -0.3)],
    ],
    "square": [_polar(corner / 4) for corner in range(4)],
    "star": [_polar(corner / 10, 0.45 if corner % 2 else 1.1) for corner in range(10)],
    "triangle": [_polar(corner / 3, 1.1) for corner in range(3)],
}
"""The corners of each shape, in a square of -1 to 1."""


def draw(shape: str, random: np.random.Generator) -> Image.Image:
    """One picture of a shape: RGB, SIZE x SIZE pixels."""
    background = random.integers(0, 128, 3)
    colour = background + random.integers(60, 128, 3)  # lighter
    radius = random.uniform(0.22, 0.4) * SIZE
    x, y = random.uniform(radius, SIZE - radius, 2)
    angle = random.uniform(0, 2 * math.pi)
    cosine, sine = radius * math.cos(angle), radius * math.sin(angle)

    oversampling = 4  # smooth edges
    image = Image.new("RGB", (SIZE * oversampling, SIZE * oversampling), tuple(background.tolist()))
    ImageDraw.Draw(image).polygon(
        [
            (oversampling * (x + a * cosine - b * sine), oversampling * (y + a * sine + b * cosine))
            for a, b in SHAPES[shape]
        ],
        fill=tuple(colour.tolist()),
    )
    pixels = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX), np.float64)
    noise = random.normal(0, random.uniform(0, MAX_NOISE), pixels.shape)
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def make(folder: str | Path, *, per_class: dict[str, int], seed: int = 0) -> None:
    """Write a folder per split, and in it a folder per class, of JPEG and PNG files.

    Args:
        folder: where; it must not be there yet.
        per_class: number of pictures of each class, by split.
        seed: other seeds give other pictures.

    Raises:
        UserError: the folder is there already.
    """
    folder = Path(folder)
    if folder.exists():
        raise UserError(f"{folder} is there already")
    random = np.random.default_rng(seed)
    for split, count in per_class.items():
        for shape in SHAPES:
            (folder / split / shape).mkdir(parents=True)
            for number in range(count):
                image = draw(shape, random)
                name = folder / split / shape / f"{shape}-{number:04}"
                if number % EVERY_NTH_IS_PNG == 0:
                    image.save(name.with_suffix(".png"))
                else:
                    image.save(name.with_suffix(".jpg"), quality=JPEG_QUALITY)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", help="folder to make; it must not be there yet")
    folder = parser.parse(sys.argv[1:])["folder"]
    parser.raise_errors()
    make(folder, per_class=PER_CLASS)
    print(f"{len(SHAPES) * sum(PER_CLASS.values())} pictures of {', '.join(SHAPES)} in {folder}")


if __name__ == "__main__":
    run_main(main)
