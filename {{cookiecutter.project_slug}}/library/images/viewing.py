"""Pixels as a viewer shows them: upright, in sRGB, and few enough for the memory."""

import functools
import io
import math
from typing import Any

from PIL import ExifTags, Image, ImageCms, ImageOps

from library.util import BadFileError

MAX_PIXELS = 100_000_000
"""Of an image before it is scaled down: a file of 2 KB can claim more than any memory has."""
MAX_PIXELS_WHOLE = {"WEBP": 25_000_000}
MOST_PIXELS_WHOLE = 50_000_000
"""Of an image that has to be decoded whole: WebP takes 15 bytes a pixel, others up to 7."""
BAND = 64
"""Rows that are made at the same time."""
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def is_as_viewed(image: Image.Image, formats: tuple[str, ...]) -> bool:
    """Whether TensorFlow, if it decodes its bytes, makes the upright image that a viewer shows."""
    return (
        image.format in formats
        and image.mode in ("RGB", "L")
        and "transparency" not in image.info
        and image.getexif().get(ExifTags.Base.Orientation, 1) == 1
        and _to_srgb(image) is None
    )


def _to_srgb(image: Image.Image) -> ImageCms.ImageCmsTransform | None:
    """From the color profile of an image; None where that is sRGB already, or there is none."""
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
    except (OSError, ImageCms.PyCMSError):  # broken, or of another kind of image
        return None


def as_viewed(image: Image.Image) -> Image.Image:
    """The image as a viewer shows it, in RGB: upright, in sRGB, transparent parts on white."""
    transform, mode = _to_srgb(image), _mode_of_profile(image)
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode == "F":
        raise BadFileError("gray of unknown range: neither 8 nor 16 bit")
    if image.mode.startswith("I"):
        image = _eight_bits(image.convert("I"))
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


def _eight_bits(gray: Image.Image) -> Image.Image:
    """16 bits of gray, mode I -> mode L."""
    extrema: Any = gray.getextrema()  # a pair; only several channels have a pair each
    if extrema[1] > 65535:
        raise BadFileError("gray of unknown range: neither 8 nor 16 bit")
    return gray.point(lambda value: value / 256).convert("L")


def scaled(image: Image.Image, pixels: int) -> Image.Image:
    """An image with so many pixels at most, of the same colors; BadFileError where it is too large.

    In bands: all of a large image in another mode takes more memory than the image itself.
    """
    has_drafts = image.format in ("JPEG", "MPO") and "progressive" not in image.info
    limit = (
        MAX_PIXELS if has_drafts else MAX_PIXELS_WHOLE.get(image.format or "", MOST_PIXELS_WHOLE)
    )
    if image.width * image.height > limit:
        raise BadFileError(f"too large: {image.width} x {image.height} pixels, above {limit:,}")
    if image.width * image.height <= pixels:
        return image
    times = math.ceil(math.sqrt(image.width * image.height / pixels))
    image.draft(None, (image.width // times, image.height // times))
    times = math.ceil(math.sqrt(image.width * image.height / pixels))
    mode = image.mode if image.mode in ("L", "RGB", "CMYK", "F") else "RGB"
    if image.mode.startswith("I"):
        mode = "I"
    elif image.has_transparency_data:
        mode = "RGBA"
    small = Image.new(mode, (-(-image.width // times), -(-image.height // times)))
    for top in range(0, small.height, BAND):
        bottom = min((top + BAND) * times, image.height)
        band = image.crop((0, top * times, image.width, bottom))
        small.paste(band.convert(mode).reduce(times), (0, top))
    small.info = {name: each for name, each in image.info.items() if name != "transparency"}
    orientation = ExifTags.Base.Orientation
    small.getexif()[orientation] = image.getexif().get(orientation, 1)
    return small
