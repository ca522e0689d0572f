"""Pictures as files: what they hold, and what they become for a data set or a prediction."""

import contextlib
import dataclasses
import functools
import io
import struct
from collections.abc import Iterator
from typing import Any

import simplejpeg
from PIL import ExifTags, Image, ImageCms, ImageOps

from library.util import BadFileError

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP")
"""What is taken, told by the content and not by the name."""
JPEGS = ("JPEG", "MPO")
"""As Pillow calls them; MPO has more pictures behind the first, as those of phones."""
MAX_PIXELS = 100_000_000
"""Of a picture before it is scaled down: a file of 2 KB can claim more than any memory has."""
MAX_ASPECT = 50
"""Longer edge to shorter edge; what is thinner has nothing left when it is scaled down."""
COMMON_FRAMES = (0xC0, 0xC1, 0xC2)
"""JPEG's start-of-frame markers that every decoder knows: Huffman coding, not arithmetic."""
APP0, START_OF_SCAN = 0xE0, 0xDA
"""Markers of a JPEG: the first of 16 for what applications add, and the one before the pixels."""
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))

Image.init()  # all formats: what it knows before is not enough for FORMATS
Image.MAX_IMAGE_PIXELS = None  # MAX_PIXELS is looked at before anything is decoded


@dataclasses.dataclass(frozen=True)
class Jpeg:
    """An encoded picture, decoded once to be sure that it can be."""

    data: bytes
    height: int
    width: int


def standard_jpeg(data: bytes, *, max_edge: int, quality: int) -> Jpeg:
    """The picture of a file as an upright JPEG in sRGB or gray, for a data set.

    A JPEG that is one already, and fits, keeps its bytes. All else is encoded once.

    Args:
        data: the content of a file.
        max_edge: the longer edge in pixels is scaled down to this, antialiased; never up.
        quality: of the JPEG, 1 to 100.

    Raises:
        BadFileError: the file cannot be used.
    """
    with opened(data) as image:
        if max(image.size) <= max_edge and _is_standard(image, data, JPEGS):
            return Jpeg(data, image.height, image.width)
        image.draft(None, (max_edge, max_edge))  # a JPEG at 1/2, 1/4, 1/8, no smaller than this
        image = _standard(image)
        image.thumbnail((max_edge, max_edge), Image.Resampling.HAMMING)  # sharp, and half the time
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        data = buffer.getvalue()
        if not _is_sound_jpeg(data):
            raise BadFileError("what was encoded of it cannot be decoded")
        return Jpeg(data, image.height, image.width)


def standard_bytes(data: bytes, *, checked: bool = True) -> bytes:
    """The picture of a file in bytes that the exported model takes, for a prediction.

    An upright JPEG or PNG in sRGB or gray keeps its bytes; all else becomes a BMP, which takes no
    time to encode.

    Args:
        data: the content of a file.
        checked: whether a JPEG that has nothing special is decoded to see that it is whole.

    Raises:
        BadFileError: the file cannot be used.
    """
    if _is_plain_jpeg(data) and (not checked or _is_sound_jpeg(data)):
        return data
    with opened(data) as image:
        if _is_standard(image, data, (*JPEGS, "PNG")):
            if image.format == "PNG":
                image.load()  # all of it can be decoded, as is known of the JPEG
            return data
        buffer = io.BytesIO()
        _standard(image).save(buffer, "BMP")
        return buffer.getvalue()


def blank_picture() -> bytes:
    """A PNG of one pixel."""
    buffer = io.BytesIO()
    Image.new("RGB", (1, 1)).save(buffer, "PNG")
    return buffer.getvalue()


@contextlib.contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """A picture of a usable size, not decoded yet; what goes wrong with it becomes a reason."""
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
        raise BadFileError("not a picture") from error
    except (OSError, SyntaxError, ValueError, TypeError, EOFError, IndexError) as error:
        raise BadFileError(f"broken picture: {error}") from error
    except (OverflowError, MemoryError, ArithmeticError, KeyError, AttributeError) as error:
        raise BadFileError(f"broken picture: {type(error).__name__}: {error}") from error


def _is_standard(image: Image.Image, data: bytes, formats: tuple[str, ...]) -> bool:
    """Whether TensorFlow decodes these bytes into the upright picture that a viewer shows."""
    return (
        image.format in formats
        and image.mode in ("RGB", "L")
        and "transparency" not in image.info
        and image.getexif().get(ExifTags.Base.Orientation, 1) == 1
        and _to_srgb(image) is None
        and (image.format == "PNG" or _is_sound_jpeg(data))
    )


def _is_sound_jpeg(data: bytes) -> bool:
    """Whether all decoders take it: libjpeg warns of nothing, and its kind is a common one.

    Pillow shows what it can of a damaged JPEG, and TensorFlow refuses it in the middle of an epoch.
    """
    if _start_of_frame(data) not in COMMON_FRAMES:
        return False
    try:  # all of it, but no more pixels than needed
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=8)
    except ValueError:
        return False
    return True


def _is_plain_jpeg(jpeg: bytes) -> bool:
    """Whether it is one of gray or YCbCr, with nothing in it that says how it is to be shown.

    For those there is no need to open them, which takes longer than to decode a small one.
    """
    frame = None
    for marker, position in _segments(jpeg):
        if marker == APP0 and jpeg[position : position + 5] != b"JFIF\0":
            return False
        if marker in range(APP0 + 1, APP0 + 16):  # EXIF, color profiles, Adobe's
            return False
        if marker in COMMON_FRAMES:
            frame = struct.unpack_from(">BHHB", jpeg, position)
    if frame is None or jpeg[3:4] != bytes([APP0]):
        return False
    bits, height, width, colors = frame
    short, long = sorted((height, width))
    return (
        (bits, colors) in ((8, 1), (8, 3))
        and 0 < height * width <= MAX_PIXELS
        and long <= MAX_ASPECT * short
    )


def _start_of_frame(jpeg: bytes) -> int | None:
    """The marker that tells the kind of a JPEG; source: ITU T.81, B.1.1."""
    for marker, _ in _segments(jpeg):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # which are tables
            return marker
    return None


def _segments(jpeg: bytes) -> Iterator[tuple[int, int]]:
    """The markers of a JPEG before its first scan, and where the content of each begins."""
    position = 2
    while position + 12 <= len(jpeg) and jpeg[position] == 0xFF:
        marker = jpeg[position + 1]
        if marker == 0xFF:  # a fill byte
            position += 1
        elif marker == START_OF_SCAN:
            return
        else:
            yield marker, position + 4
            position += 2 + int.from_bytes(jpeg[position + 2 : position + 4], "big")


def _to_srgb(image: Image.Image) -> ImageCms.ImageCmsTransform | None:
    """From the color profile of a picture; None where that is sRGB already, or there is none."""
    profile = image.info.get("icc_profile")
    return _transform(profile, _mode_of_profile(image)) if profile else None


def _mode_of_profile(image: Image.Image) -> str:
    return image.mode if image.mode in ("L", "CMYK") else "RGB"


@functools.lru_cache(maxsize=64)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Profiles are few, and making a transform takes longer than using it."""
    try:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "sRGB" in ImageCms.getProfileDescription(opened):
            return None
        return ImageCms.buildTransform(opened, SRGB, mode, "RGB")
    except (OSError, ImageCms.PyCMSError):  # broken, or of another kind of picture
        return None


def _highest(gray: Image.Image) -> float:
    """The largest value of a picture of one channel."""
    extrema: Any = gray.getextrema()  # a pair; only several channels have a pair each
    return extrema[1]


def _standard(image: Image.Image) -> Image.Image:
    """The picture as a viewer shows it, in RGB: upright, in sRGB, transparent parts on white."""
    transform, mode = _to_srgb(image), _mode_of_profile(image)
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode == "F" or (image.mode == "I" and _highest(image) > 65535):
        raise BadFileError("gray of unknown range: neither 8 nor 16 bit")
    if image.mode.startswith("I"):  # 16 bit of gray
        image = image.point(lambda value: value / 256).convert("L")
    alpha = None
    if image.has_transparency_data:
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
    if transform:
        image = transform.apply(image.convert(mode))
    if image.mode != "RGB":
        image = image.convert("RGB")
    if alpha:
        image = Image.composite(image, Image.new("RGB", image.size, "white"), alpha)
    return image
