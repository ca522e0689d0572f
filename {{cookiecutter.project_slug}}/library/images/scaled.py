"""Large images in fewer pixels, in little more memory than they take themselves."""

import math

from PIL import ExifTags, Image

from library.util import BadFileError

MAX_PIXELS = 100_000_000
"""Of an image before it is scaled down: a file of 2 KB can claim more than any memory has."""
MAX_PIXELS_WHOLE = {"WEBP": 25_000_000}
MOST_PIXELS_WHOLE = 50_000_000
"""Of an image that has to be decoded whole: WebP takes 15 bytes a pixel, others up to 7."""
BAND = 64
"""Rows that are made at the same time."""


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
