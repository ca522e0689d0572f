"""Pages that need nothing beside them: templates that extend report.html, and its filters."""

import base64
import io
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from PIL import Image

from library.config import word_of

SMALL = 64 * 64
"""Pixels of an image that is enlarged without blur, and stored without loss."""
COLD = (0, 60, 110, 190)
"""RGBA of what the network did not look at."""
DPI, CSS_DPI = 144, 96
"""Of the figures, and of what the pages of a browser are measured in."""
JPEG_QUALITY = 90


def render(template: Path, **values: Any) -> bytes:
    """A page by a template; one that extends report.html looks like a report.

    Filters: `word`, a value as YAML has it; `data`, the address of an image or file; `width` of a
    figure; `cover`, what hides the cold parts of a heat map.
    """
    folders = [template.parent, Path(__file__).parent]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"word": word_of, "data": _data, "width": _width, "cover": _cover}
    page = environment.get_template(template.name).render(small=SMALL, **values)
    return page.encode("utf-8", "replace")  # the name of a file may be no Unicode


def _cover(heat: np.ndarray) -> bytes:
    """A PNG that covers what is cold, to be stretched over an image."""
    pixels = np.empty([*heat.shape, 4], np.uint8)
    pixels[...] = COLD
    pixels[..., 3] = COLD[3] * (1 - heat / heat.max())
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def _width(png: bytes) -> int:
    """Of a figure as large as it was drawn for, in pixels of a page."""
    return int.from_bytes(png[16:20], "big") * CSS_DPI // DPI


def _data(content: bytes | np.ndarray, kind: str = "image/png") -> str:
    """A file of this kind, or the pixels of an image, as an address."""
    if isinstance(content, np.ndarray):
        form, buffer = "png" if content.size <= 3 * SMALL else "jpeg", io.BytesIO()
        Image.fromarray(content).save(buffer, form, quality=JPEG_QUALITY)
        kind, content = f"image/{form}", buffer.getvalue()
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
