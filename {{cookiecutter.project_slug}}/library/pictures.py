"""Pictures as files: which there are, and what they become for a data set or a prediction."""

import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path

from PIL import ExifTags, Image, ImageOps

JUNK = ("Thumbs.db", "desktop.ini", "__MACOSX")


class BadPictureError(Exception):
    """A file that holds no picture that can be used; the text says why."""


def is_junk(path: Path) -> bool:
    """Whether a file or folder is hidden, or one of those that file managers leave behind."""
    return path.name.startswith(".") or path.name in JUNK


def files_below(folder: Path) -> Iterator[Path]:
    """All files in a folder and its folders, in a fixed order, without junk."""
    for path in sorted(folder.iterdir()):
        if not is_junk(path):
            if path.is_dir():
                yield from files_below(path)
            elif path.is_file():
                yield path


def _open(data: bytes) -> Image.Image:
    if not data:
        raise BadPictureError("empty file")
    try:
        return Image.open(io.BytesIO(data))
    except Image.UnidentifiedImageError as error:
        raise BadPictureError("not a picture") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadPictureError(f"broken picture: {error}") from error


def _is_plain(image: Image.Image, formats: tuple[str, ...]) -> bool:
    """Whether TensorFlow decodes these bytes into the upright picture that a viewer shows."""
    return (
        image.format in formats
        and image.mode in ("RGB", "L")
        and "transparency" not in image.info
        and image.getexif().get(ExifTags.Base.Orientation, 1) == 1
    )


def _upright_rgb(image: Image.Image) -> Image.Image:
    """The picture as a viewer shows it: turned upright, transparent parts on white."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bit of gray
        image = image.point(lambda value: value / 256).convert("L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


@dataclasses.dataclass(frozen=True)
class Jpeg:
    """An encoded picture, decoded once to be sure that it can be."""

    data: bytes
    height: int
    width: int


def standard_jpeg(data: bytes, *, max_edge: int, quality: int) -> Jpeg:
    """The picture of a file as an upright JPEG in RGB or gray, for a data set.

    A JPEG that is one already, and fits, keeps its bytes. All else is encoded once.

    Args:
        data: the content of a file.
        max_edge: the longer edge in pixels is scaled down to this, antialiased; never up.
        quality: of the JPEG, 1 to 100.

    Raises:
        BadPictureError: the file cannot be used.
    """
    with _open(data) as image:
        try:
            if _is_plain(image, ("JPEG",)) and max(image.size) <= max_edge:
                image.load()
            else:
                image.draft(None, (2 * max_edge, 2 * max_edge))  # a JPEG at 1/2, 1/4, 1/8: enough
                image = _upright_rgb(image)
                image.thumbnail((max_edge, max_edge))
                buffer = io.BytesIO()
                image.save(buffer, "JPEG", quality=quality)
                data = buffer.getvalue()
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise BadPictureError(f"broken picture: {error}") from error
        return Jpeg(data, image.height, image.width)


def standard_bytes(data: bytes) -> bytes:
    """The picture of a file in bytes that the exported model takes, for a prediction.

    An upright JPEG or PNG without transparency keeps its bytes; all else becomes a PNG.

    Raises:
        BadPictureError: the file cannot be used.
    """
    with _open(data) as image:
        try:
            if _is_plain(image, ("JPEG", "PNG")):
                image.load()
                return data
            buffer = io.BytesIO()
            _upright_rgb(image).save(buffer, "PNG")
            return buffer.getvalue()
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise BadPictureError(f"broken picture: {error}") from error
