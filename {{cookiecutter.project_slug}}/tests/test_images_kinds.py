"""Pictures as they are found: what each kind becomes, pixel by pixel, or why it is rejected."""

import contextlib
import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from made_images import decoded, encoded
from PIL import Image, ImageCms, ImageOps

from library.images import ShardOptions, canonical_bytes, canonicalize, decode_window
from library.util import BadFileError

Y, X = np.mgrid[0:60, 0:80]
RGB = Image.fromarray(np.stack([X * 3, Y * 4, 255 - X - Y], -1).astype(np.uint8))
ALPHA = Image.fromarray((X * 3).astype(np.uint8))
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def with_alpha(mode: str) -> Image.Image:
    image = RGB.convert("RGBA")
    image.putalpha(ALPHA)
    return image.convert(mode)


def transparent_palette(form: str) -> bytes:
    image = RGB.quantize(64)
    return encoded(image, form, transparency=image.getpixel((5, 5)))


def other_colors() -> bytes:
    """A color profile like sRGB, but for its red and green, which are each other's."""
    profile = SRGB.tobytes()
    swapped = profile.replace(b"rXYZ", b"_XYZ").replace(b"gXYZ", b"rXYZ").replace(b"_XYZ", b"gXYZ")
    return swapped.replace("sRGB".encode("utf-16-be"), "test".encode("utf-16-be"))


def oriented(form: str, orientation: int, **options) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(RGB, form, exif=exif, **options)


def ycck() -> bytes:
    """A CMYK JPEG whose Adobe marker says that its colors are YCCK."""
    data = encoded(RGB.convert("CMYK"), "JPEG", quality=95)
    position = data.index(b"Adobe") + 11
    return data[:position] + b"\2" + data[position + 1 :]


def png_chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png(width: int, height: int, depth: int, color: int, content: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            png_chunk(b"IHDR", header),
            png_chunk(b"IDAT", zlib.compress(content)),
            png_chunk(b"IEND", b""),
        )
    )


def png_48_bit() -> bytes:
    rows = [
        b"\0" + np.repeat(np.asarray(RGB)[row], 2, axis=-1).tobytes() for row in range(60)
    ]  # each byte twice: 257 times the value
    return png(80, 60, 16, 2, b"".join(rows))


def animated(form: str, **options) -> bytes:
    return encoded(RGB, form, save_all=True, append_images=[ImageOps.invert(RGB)], **options)


def sixteen_bits(form: str) -> bytes:
    return encoded(Image.fromarray((X * 800).astype(np.uint16)), form)


def big_endian_tiff() -> bytes:
    """As microscopes and scanners write it; Pillow writes the other order of bytes only."""
    pixels = (X * 800).astype(">u2").tobytes()
    tags = [(256, 3, 80), (257, 3, 60), (258, 3, 16), (259, 3, 1), (262, 3, 1)]
    tags += [(273, 4, 8), (277, 3, 1), (278, 3, 60), (279, 4, len(pixels))]
    entries = b"".join(
        struct.pack(">HHI", tag, kind, 1) + struct.pack({3: ">Hxx", 4: ">I"}[kind], value)
        for tag, kind, value in tags
    )
    end = struct.pack(">H", len(tags)) + entries + bytes(4)
    return b"MM\0*" + struct.pack(">I", 8 + len(pixels)) + pixels + end


JPEG = encoded(RGB, "JPEG", quality=95)
NOISY = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80), np.uint8)))
KEPT: dict[str, bytes] = {
    "JPEG": JPEG,
    "progressive JPEG": encoded(RGB, "JPEG", progressive=True),
    "optimized JPEG": encoded(RGB, "JPEG", optimize=True, quality=30),
    "JPEG, colors at full size": encoded(RGB, "JPEG", subsampling=0),
    "gray JPEG": encoded(RGB.convert("L"), "JPEG"),
    "JPEG with restart markers": encoded(RGB, "JPEG", restart_marker_rows=1),
    "JPEG in sRGB": encoded(RGB, "JPEG", icc_profile=SRGB.tobytes()),
    "JPEG with more behind it": JPEG + b"more of something else",
    "JPEG with a comment": encoded(RGB, "JPEG", comment=b"\xff\xc9 no marker"),
    "JPEG of two pictures": animated("MPO"),
    "upright JPEG": oriented("JPEG", 1),
}
ENCODED: dict[str, bytes] = {
    "PNG": encoded(RGB),
    "PNG, gray": encoded(RGB.convert("L")),
    "PNG, black and white": encoded(RGB.convert("1")),
    "PNG, palette": encoded(RGB.quantize(64)),
    "PNG, palette with a transparent color": transparent_palette("PNG"),
    "PNG, alpha": encoded(with_alpha("RGBA")),
    "PNG, gray and alpha": encoded(with_alpha("LA")),
    "PNG, 16 bit of gray": sixteen_bits("PNG"),
    "PNG, 48 bit": png_48_bit(),
    "PNG of other colors": encoded(RGB, icc_profile=other_colors()),
    "PNG, alpha and other colors": encoded(with_alpha("RGBA"), icc_profile=other_colors()),
    "JPEG, CMYK": encoded(RGB.convert("CMYK"), "JPEG", quality=95),
    "JPEG, YCCK": ycck(),
    "JPEG of other colors": encoded(RGB, "JPEG", quality=95, icc_profile=other_colors()),
    "GIF": encoded(RGB, "GIF"),
    "GIF, animated": animated("GIF"),
    "GIF, transparent": transparent_palette("GIF"),
    "BMP": encoded(RGB, "BMP"),
    "TIFF": encoded(RGB, "TIFF"),
    "TIFF, LZW": encoded(RGB, "TIFF", compression="tiff_lzw"),
    "TIFF, CMYK": encoded(RGB.convert("CMYK"), "TIFF"),
    "TIFF, 16 bit of gray": sixteen_bits("TIFF"),
    "TIFF, 16 bit of gray, big-endian": big_endian_tiff(),
    "WebP": encoded(RGB, "WEBP"),
    "WebP, lossless with alpha": encoded(with_alpha("RGBA"), "WEBP", lossless=True),
    **{f"JPEG, orientation {n}": oriented("JPEG", n, quality=95) for n in range(2, 9)},
    "PNG, orientation 6": oriented("PNG", 6),
}
REJECTED: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "empty file"),
    "text": (lambda: b"<html>404 not found</html>", "not an image"),
    "PDF": (lambda: encoded(RGB, "PDF"), "not an image"),
    "EPS": (lambda: encoded(RGB, "EPS"), "not an image"),
    "half a JPEG": (lambda: JPEG[: len(JPEG) // 2], "broken image: .*truncated"),
    "half a PNG": (lambda: NOISY[: len(NOISY) // 2], "broken image"),
    "half a TIFF": (lambda: encoded(RGB, "TIFF")[:5000], "broken image"),
    "half a WebP": (lambda: encoded(RGB, "WEBP")[:200], "broken image|not an image"),
    "zeros at the end": (lambda: NOISY[: len(NOISY) // 2] + bytes(5000), "broken image"),
    "zeros in all": (lambda: bytes(10_000), "not an image"),
    "a bomb": (
        lambda: png(60_000, 60_000, 8, 0, bytes(1_000_000)),
        "too large: 60000 x 60000 pixels, more than 100,000,000",
    ),
    "a bomb that is a BMP": (
        lambda: (
            b"BM" + struct.pack("<IIIIiiHHI", 54, 0, 54, 40, 60_000, 60_000, 1, 24, 0) + bytes(20)
        ),
        "too large: 60000 x 60000 pixels",
    ),
    "floating-point gray": (
        lambda: encoded(Image.fromarray((X / 80).astype(np.float32)), "TIFF"),
        "gray of unknown range",
    ),
    "a thread": (lambda: encoded(Image.new("L", (5000, 9))), "too thin: 5000 x 9 pixels"),
}


def predicted(data: bytes) -> bytes:
    return canonical_bytes(data, scaled_for=64)


def reference(data: bytes) -> np.ndarray:
    """What a viewer shows, by Pillow's own means."""
    image = Image.open(io.BytesIO(data))
    profile = image.info.get("icc_profile")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) / 256).astype(np.uint8))
    image = ImageOps.exif_transpose(image)
    if profile:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        alpha = image.getchannel("A") if image.mode == "RGBA" else None
        image = ImageCms.profileToProfile(image.convert("RGB"), opened, SRGB, outputMode="RGB")
        if alpha:
            image.putalpha(alpha)
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return np.asarray(Image.alpha_composite(white, image).convert("RGB"), np.float64)


@pytest.mark.parametrize("kind", KEPT)
def test_what_needs_no_change_keeps_its_bytes(kind):
    data = KEPT[kind]
    jpeg = canonicalize(data, ShardOptions(max_edge=80))
    assert (jpeg.data, jpeg.height, jpeg.width) == (data, 60, 80)
    assert predicted(data) == data
    assert_that_tensorflow_agrees(data)


@pytest.mark.parametrize("kind", ENCODED)
def test_what_has_to_be_encoded_shows_what_a_viewer_shows(kind):
    data = ENCODED[kind]
    expected = reference(data)
    jpeg = canonicalize(data, ShardOptions(max_edge=80))
    assert jpeg.data != data
    assert expected.shape == (jpeg.height, jpeg.width, 3)
    rough = (
        8 if "palette" in kind or "GIF" in kind or "white" in kind or "transparent" in kind else 2.5
    )
    assert np.abs(decoded(jpeg.data) - expected).mean() < rough
    assert np.abs(decoded(predicted(data)) - expected).max() <= 1
    assert_that_tensorflow_agrees(jpeg.data)


def assert_that_tensorflow_agrees(data: bytes) -> None:
    """The whole picture, as training decodes it."""
    whole = decode_window(
        tf.constant(data), lambda shape: tf.stack([0, 0, shape[0], shape[1]]), image_size=64
    )
    assert np.abs(whole.numpy() - decoded(data)).mean() < 2


@pytest.mark.parametrize("kind", REJECTED)
def test_what_cannot_be_used_is_rejected_with_a_reason(kind):
    make, reason = REJECTED[kind]
    data = make()
    with pytest.raises(BadFileError, match=reason):
        canonicalize(data, ShardOptions(max_edge=80))
    if kind != "half a JPEG":  # not all of a JPEG is looked at for a prediction
        with pytest.raises(BadFileError, match=reason):
            predicted(data)


def test_there_are_enough_kinds():
    assert len(KEPT) + len(ENCODED) + len(REJECTED) >= 25
    assert len(REJECTED["a bomb"][0]()) < 2048


def test_a_jpeg_that_not_every_decoder_knows_does_not_keep_its_bytes():
    """Arithmetic coding, or lossless: told by the marker of the frame."""
    position = JPEG.index(b"\xff\xc0")
    for marker in (0xC3, 0xC9, 0xCA):
        data = JPEG[: position + 1] + bytes([marker]) + JPEG[position + 2 :]
        with contextlib.suppress(BadFileError):  # Pillow may not know it either
            assert canonicalize(data, ShardOptions(max_edge=80)).data != data


@pytest.mark.parametrize("kind", ["JPEG", "PNG, 16 bit of gray", "JPEG, orientation 6", "TIFF"])
def test_large_ones_shrink_to_what_a_viewer_shows(kind):
    data = (KEPT | ENCODED)[kind]
    jpeg = canonicalize(data, ShardOptions(max_edge=40))
    assert max(jpeg.height, jpeg.width) == 40
    small = Image.fromarray(reference(data).astype(np.uint8)).resize(
        (jpeg.width, jpeg.height), Image.Resampling.BOX
    )
    assert np.abs(decoded(jpeg.data) - np.asarray(small, np.float64)).mean() < 4
