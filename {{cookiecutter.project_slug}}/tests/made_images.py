"""Pictures for tests, and what is done to them."""

import io

import numpy as np
from PIL import Image

Y, X = np.mgrid[0:60, 0:80]
IMAGE = Image.fromarray(np.stack([X * 3, Y * 4, 255 - X - Y], -1).astype(np.uint8))
"""RGB, 80 x 60, smooth, with other colours in each corner."""


def encoded(image: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.float64)
