"""Files of pictures: which there are, and what becomes of each."""

import io

import numpy as np
import pytest
from made_images import IMAGE, decoded, encoded
from PIL import ExifTags, Image, ImageOps

from library.images import ShardOptions, canonical_bytes, canonicalize
from library.util import BadFileError, files_below


def jpeg_of(data: bytes, max_edge: int = 384):
    return canonicalize(data, ShardOptions(max_edge=max_edge))


def predicted(data: bytes) -> bytes:
    return canonical_bytes(data, scaled_for=64)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_jpeg_that_fits_keeps_its_bytes(mode):
    data = encoded(IMAGE.convert(mode), "JPEG")
    jpeg = jpeg_of(data)
    assert (jpeg.data, jpeg.height, jpeg.width) == (data, 60, 80)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "WEBP"])
def test_the_longer_edge_is_scaled_down(form):
    jpeg = jpeg_of(encoded(IMAGE, form), max_edge=40)
    assert (jpeg.height, jpeg.width) == (30, 40)
    assert np.abs(decoded(jpeg.data) - np.asarray(IMAGE.resize((40, 30)))).mean() < 4


def test_scaling_averages_and_leaves_no_aliases():
    fine = Image.fromarray((np.indices((256, 256)).sum(0) % 2 * 255).astype(np.uint8))
    for image in (fine, fine.convert("P"), fine.convert("1")):
        assert np.abs(decoded(jpeg_of(encoded(image), max_edge=32).data) - 127.5).max() < 8


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_pictures_are_turned_upright(orientation, form):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(IMAGE, form, exif=exif, **({"quality": 95} if form == "JPEG" else {}))
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), np.float64)
    jpeg = jpeg_of(data)
    assert (jpeg.height, jpeg.width) == upright.shape[:2]
    assert np.abs(decoded(jpeg.data) - upright).mean() < 4
    assert np.abs(decoded(predicted(data)) - upright).max() == 0


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_become_white(mode):
    image = Image.new("RGBA", (40, 20), (255, 0, 0, 0)).convert(mode)
    options = {"transparency": image.getpixel((0, 0))} if mode == "P" else {}
    for data in (
        jpeg_of(encoded(image, **options)).data,
        predicted(encoded(image, **options)),
    ):
        assert decoded(data).min() > 250


def test_16_bits_of_gray_keep_their_brightness():
    image = Image.fromarray(np.full((20, 20), 32768, np.uint16))
    assert np.abs(decoded(jpeg_of(encoded(image)).data) - 128).max() < 3


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"", "empty file"),
        (lambda data: b"not an image at all", "not an image"),
        (lambda data: data[: len(data) // 2], "broken image"),
    ],
)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_what_cannot_be_used_has_a_reason(form, damage, reason):
    data = damage(encoded(IMAGE, form))
    with pytest.raises(BadFileError, match=reason):
        jpeg_of(data)
    if form == "PNG" or len(data) < 100:  # not all of a JPEG is looked at for a prediction
        with pytest.raises(BadFileError, match=reason):
            predicted(data)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_plain_pictures_keep_their_bytes_for_a_prediction(form):
    data = encoded(IMAGE, form)
    assert predicted(data) == data


def test_hidden_files_are_left_out(tmp_path):
    for name in (
        "b/2.png",
        "b/1.png",
        "a.png",
        ".hidden.png",
        ".git/x",
        "__MACOSX/y",
        "b/Thumbs.db",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [path.relative_to(tmp_path).as_posix() for path, _ in files_below(tmp_path)]
    assert names == ["a.png", "b/1.png", "b/2.png"]


@pytest.mark.parametrize(
    ("mode", "form", "options"),
    [
        ("RGB", "JPEG", {"quality": 95}),
        ("RGB", "JPEG", {"quality": 95, "progressive": True, "subsampling": 0}),
        ("CMYK", "JPEG", {"quality": 95}),
        ("RGB", "PNG", {}),
        ("RGBA", "PNG", {}),
        ("LA", "PNG", {}),
        ("I;16", "PNG", {}),
        ("P", "GIF", {}),
        ("RGB", "WEBP", {"quality": 95}),
        ("RGB", "TIFF", {}),
    ],
)
def test_a_large_image_is_predicted_in_fewer_pixels_of_the_same_colors(mode, form, options):
    y, x = np.mgrid[0:1500, 0:2000] / 8
    image = Image.fromarray(np.stack([x, y, (x + y) / 2], axis=-1).astype(np.uint8))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L"), np.uint16) * 257)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    turned = {"exif": exif} if form == "JPEG" else {}
    data = encoded(image if mode == "I;16" else image.convert(mode), form, **options, **turned)
    small, large = (
        Image.open(io.BytesIO(canonical_bytes(data, scaled_for=size))) for size in (64, 4000)
    )
    assert (small.width, small.height) == ((750, 1000) if turned else (1000, 750))
    expected = large.resize(small.size, Image.Resampling.BOX)
    assert np.abs(np.int16(small) - np.int16(expected)).mean() < 0.5


def test_a_format_that_takes_much_memory_is_predicted_up_to_a_size():
    data = encoded(Image.new("RGB", (6000, 4200)), "WEBP")
    with pytest.raises(BadFileError, match="too large: 6000 x 4200 pixels, above 25,000,000"):
        canonical_bytes(data, scaled_for=64)
