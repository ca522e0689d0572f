"""Files of images: what they hold, and what they become for a dataset or a prediction.

A file that cannot be used raises a BadFileError everywhere.
"""

import contextlib
import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from library.config import option
from library.data import EDGE
from library.images.viewing import MAX_PIXELS, as_viewed, is_as_viewed, scaled
from library.util import BadFileError, Budget

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP")
"""Formats that are read, detected from the content and not from the name."""
JPEGS = ("JPEG", "MPO")
"""JPEG in Pillow's words; MPO has more images behind the first, as those of phones."""
KEPT_BYTES, KEPT_PIXELS, SCALED_PIXELS = 3_000_000, 2_000_000, 1_000_000
"""What is predicted as it is; other images are scaled down, as many wait for the model at once."""
PREVIEW_EDGE = 150
DECODING, BYTES_PER_PIXEL = Budget(500 * 2**20), 6
WRONG = (ValueError, TypeError, EOFError, AttributeError)
"""What Pillow also raises for files that are not as they say."""
MAX_ASPECT = 50
"""Longer edge to shorter edge; a thinner image has nothing left when it is scaled down."""
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""JPEG's start-of-frame markers, which tell its kind; the others here are tables."""
COMMON_FRAMES = (0xC0, 0xC1, 0xC2)
"""Those that every decoder knows: Huffman coding, not arithmetic."""
START_OF_SCAN = 0xDA
"""The marker before the pixels."""
SPECIAL = {"exif", "icc_profile", "adobe"}
"""What says how a JPEG is to be shown."""
CONTRAST = 50.0

Image.init()  # all formats: what it knows before is not enough for FORMATS
Image.MAX_IMAGE_PIXELS = None  # MAX_PIXELS is looked at before anything is decoded


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """Images"""

    max_edge: int = option(384, "longer edge that images are scaled down to, in pixels", minimum=16)
    jpeg_quality: int = option(95, "quality of images that are encoded", minimum=1, maximum=100)


def resolve_options(options: ShardOptions, some: object, known: object) -> ShardOptions:
    """The options as they are: they leave nothing to the files."""
    return options


@dataclasses.dataclass(frozen=True)
class Jpeg:
    """An encoded image, decoded once to be sure that it can be."""

    data: bytes
    height: int
    width: int
    thumbnail: bytes = b""  # see _thumbnail


def canonicalize(data: bytes, options: ShardOptions) -> Jpeg:
    """The content of a file as an upright JPEG in sRGB or gray, for a dataset.

    A JPEG that is one already, and fits, keeps its bytes. All else is scaled down, antialiased, and
    encoded once.
    """
    edges = options.max_edge, options.max_edge
    with _opened(data) as image:
        keeps = max(image.size) <= options.max_edge and is_as_viewed(image, JPEGS)
        pixels = _pixels(data) if keeps else None
        if pixels is None:
            image.draft(None, edges)  # a JPEG at 1/2, 1/4, 1/8, no smaller than this
            image = as_viewed(image)
            image.thumbnail(edges, Image.Resampling.HAMMING)  # sharp, and half the time
            data = _encoded(image, "JPEG", quality=options.jpeg_quality)
        small = image if pixels is None else Image.fromarray(pixels)
        return Jpeg(data, image.height, image.width, _thumbnail(small))


def measures(path: Path) -> dict[str, float]:
    """Sizes in pixels, as they are stored: see `library.data.Modality`."""
    try:
        with path.open("rb") as file, Image.open(file, formats=FORMATS) as image:
            width, height = image.size
    except (OSError, BadFileError, SyntaxError, *WRONG):
        return {}
    return {"width": width, "height": height, "width / height": width / height}


def preview(data: bytes) -> tuple[str, bytes]:
    """An upright JPEG of PREVIEW_EDGE pixels at most: see `library.data.Modality`."""
    options = ShardOptions(max_edge=PREVIEW_EDGE, jpeg_quality=80)
    return "image/jpeg", canonicalize(data, options).data


def canonical_bytes(data: bytes, *, scaled_for: int) -> bytes:
    """The content of a file as the exported model takes it, for a prediction.

    An upright JPEG or PNG in sRGB or gray keeps its bytes; all else becomes a BMP, which takes no
    time to encode. A JPEG with nothing special is not decoded to see that it is whole. An image
    that is much larger than `scaled_for`, the edge of the network's input, is scaled down, though
    not below twice that, and few are decoded at the same time.
    """
    with _opened(data) as image, DECODING.taken(BYTES_PER_PIXEL * image.width * image.height):
        small = len(data) <= KEPT_BYTES and image.width * image.height <= KEPT_PIXELS
        if small and is_as_viewed(image, (*JPEGS, "PNG")):
            if image.format == "PNG":
                image.load()  # all of it can be decoded
                return data
            plain = image.format == "JPEG" and not image.info.keys() & SPECIAL
            if (plain and _is_common(data)) or _pixels(data) is not None:
                return data
        image = scaled(image, max(SCALED_PIXELS, (2 * scaled_for) ** 2))
        return _encoded(as_viewed(image), "BMP")


def _thumbnail(image: Image.Image) -> bytes:
    """What is seen of an image, in levels of 0 to 255.

    Returns:
        EDGE x EDGE of brightness and as many of contrast, CONTRAST levels for each factor of e, and
        a quarter of them for each of two colors, three times as strong.
    """
    size = 4 * EDGE
    image = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2)
    brightness, *others = image.convert("YCbCr").split()
    parts = np.asarray(brightness, np.float32).reshape(EDGE, 4, EDGE, 4)
    contrast = CONTRAST * np.log1p(parts.swapaxes(1, 2).reshape(-1, 16).std(axis=1))
    colors = [np.asarray(each.reduce(8), np.float32) for each in others]
    planes = (np.asarray(brightness.reduce(4)), contrast, 128 + 3 * (np.array(colors) - 128))
    return np.rint(np.concatenate([*map(np.ravel, planes)])).clip(0, 255).astype(np.uint8).tobytes()


def blank_image() -> bytes:
    """A PNG of one pixel."""
    return _encoded(Image.new("RGB", (1, 1)), "PNG")


def _encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@contextlib.contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    """An image of a usable size, not decoded yet; what goes wrong with it becomes a reason."""
    if not data:
        raise BadFileError("empty file")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise BadFileError(
                    f"too large: {width} x {height} pixels, more than {MAX_PIXELS:,}"
                )
            if max(width, height) > MAX_ASPECT * min(width, height):
                raise BadFileError(f"too thin: {width} x {height} pixels")
            yield image
    except Image.UnidentifiedImageError as error:
        raise BadFileError("not an image") from error
    except (OSError, SyntaxError, MemoryError, ArithmeticError, LookupError, *WRONG) as error:
        raise BadFileError(f"broken image: {error or type(error).__name__}") from error


def _is_common(jpeg: bytes) -> bool:
    """Whether the kind of a JPEG, told by its markers, is one of COMMON_FRAMES.

    Source: ITU T.81, B.1.1.
    """
    position = 2
    while position + 12 <= len(jpeg) and jpeg[position] == 0xFF:
        marker = jpeg[position + 1]
        if marker in FRAMES or marker == START_OF_SCAN:
            return marker in COMMON_FRAMES
        fill_byte = marker == 0xFF
        size = int.from_bytes(jpeg[position + 2 : position + 4], "big")
        position += 1 if fill_byte else 2 + size
    return False


def _pixels(jpeg: bytes) -> np.ndarray | None:
    """A JPEG in RGB, no larger than a thumbnail needs; None where a decoder may not take it.

    Its kind is a common one, and libjpeg warns of nothing: Pillow shows what it can of a damaged
    JPEG, and TensorFlow refuses it in the middle of an epoch.
    """
    edges = {"min_height": 8 * EDGE, "min_width": 8 * EDGE}
    with contextlib.suppress(ValueError):
        if _is_common(jpeg):
            return simplejpeg.decode_jpeg(jpeg, "RGB", fastdct=True, fastupsample=True, **edges)
    return None
