"""Duplicates are found, and other images are not taken for them."""

import csv
import io
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import convert
from PIL import Image, ImageDraw

from library.convert import (
    equal_files,
    held_out,
    merge,
    near_duplicates,
    read_checksums,
    write_checksums,
)
from library.images import ShardOptions, canonicalize

OPTIONS = ShardOptions()


def groups_of(data: list[bytes]) -> list[int]:
    seen = [canonicalize(each, OPTIONS).thumbnail for each in data]
    return near_duplicates(np.array([np.frombuffer(each, np.uint8) for each in seen])).tolist()


def photo(seed: int, size: tuple[int, int] = (240, 180)) -> Image.Image:
    """Smooth shapes with some noise, like no other."""
    random = np.random.default_rng(seed)
    pixels = np.zeros([size[1], size[0], 3])
    for cells in (3, 9, 27):
        grid = random.integers(0, 256, [cells, cells, 3], np.uint8)
        layer = Image.fromarray(grid).resize(size, Image.Resampling.BICUBIC)
        pixels += np.asarray(layer, np.float64) / 3
    return Image.fromarray(pixels.astype(np.uint8))


def saved(image: Image.Image, form: str = "JPEG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def versions(image: Image.Image) -> list[bytes]:
    """Of one picture: other qualities, other sizes, another format."""
    half = image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)
    return [
        saved(image, quality=95),
        saved(image, quality=50),
        saved(image, quality=80, comment=b"downloaded"),
        saved(half, quality=90),
        saved(image, "PNG"),
    ]


def rotated(image: Image.Image) -> bytes:
    """A JPEG that a viewer turns upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = image.transpose(Image.Transpose.ROTATE_90)
    return saved(turned, quality=90, exif=exif)


def transparent(image: Image.Image) -> bytes:
    """A PNG that shows the same on white, with other colors where nothing of them is seen."""
    inside = image.convert("RGBA")
    inside.putalpha(255)
    whole = Image.new("RGBA", image.size, (0, 255, 0, 0))
    whole.paste(inside.crop((40, 40, 200, 140)), (40, 40))
    return saved(whole, "PNG")


def on_white(image: Image.Image) -> bytes:
    whole = Image.new("RGB", image.size, "white")
    whole.paste(image.crop((40, 40, 200, 140)), (40, 40))
    return saved(whole, "PNG")


def test_versions_of_an_image_are_together_and_others_apart():
    data = [version for seed in range(40) for version in versions(photo(seed))]
    assert groups_of(data) == [number // 5 * 5 for number in range(200)]


def test_an_image_is_compared_as_a_viewer_shows_it():
    """8 and 16 bit of gray, turned by EXIF, on white where it is transparent."""
    images = [photo(seed).convert("L") for seed in range(12)]
    deep = [Image.fromarray(np.asarray(image).astype(np.uint16) * 257) for image in images]
    data = [
        each
        for image, sixteen in zip(images, deep, strict=True)
        for each in (saved(image, "PNG"), saved(sixteen, "PNG"), rotated(image))
    ]
    assert groups_of(data) == [number // 3 * 3 for number in range(36)]
    data = [each(photo(seed)) for seed in range(12) for each in (transparent, on_white)]
    assert groups_of(data) == [number // 2 * 2 for number in range(24)]


def spots(count: int, size: int = 6) -> list[Image.Image]:
    """Parts with a spot each, which is not where others have it, and the noise of a camera."""
    random = np.random.default_rng(0)
    images = []
    for number in range(count):
        pixels = 180 + random.normal(0, 2, [256, 256])
        y, x = 20 + number // 8 * 28, 20 + number % 8 * 28
        pixels[y : y + size, x : x + size] -= 80
        images.append(Image.fromarray(pixels.astype(np.uint8)))
    return images


def glyphs() -> list[Image.Image]:
    """Black on transparency."""
    images = []
    for letter in "abcdefghijkmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789":
        image = Image.new("RGBA", (64, 64))
        ImageDraw.Draw(image).text((20, 10), letter, fill="black", font_size=36)
        images.append(image)
    return images


def colors() -> list[Image.Image]:
    """Of one brightness."""
    return [Image.new("RGB", (64, 64), color) for color in ((255, 0, 0), (0, 130, 0), (76, 76, 76))]


@pytest.mark.parametrize(
    "images", [spots(50), glyphs(), colors()], ids=["spots", "glyphs", "colors"]
)
def test_images_that_differ_in_a_detail_are_apart(images):
    data = [saved(image, "PNG") for image in images]
    assert groups_of(data) == [*range(len(images))]
    assert groups_of([each for each in data for _ in "ab"]) == [
        n // 2 * 2 for n in range(2 * len(data))
    ]


@pytest.mark.slow
def test_many_at_once():
    thumbnails = np.random.default_rng(0).integers(0, 256, [20_000, 256], np.uint8)
    thumbnails[10_000:] = np.clip(thumbnails[:10_000].astype(int) + 1, 0, 255)
    groups = near_duplicates(thumbnails)
    assert groups.tolist() == [*range(10_000)] * 2
    pale = np.random.default_rng(0).integers(245, 256, [5000, 256], np.uint8)
    assert near_duplicates(pale).tolist() == [*range(5000)], "all are in one bucket"
    assert set(near_duplicates(np.full([5000, 256], 9, np.uint8)).tolist()) == {0}
    assert near_duplicates(np.empty([0, 256], np.uint8)).tolist() == []


def test_groups_that_share_a_file_are_one():
    groups = np.arange(9)
    merge(groups, np.array([[5, 4], [4, 3], [8, 7], [3, 1]]))
    assert groups.tolist() == [0, 1, 2, 1, 1, 1, 6, 7, 7]


def test_a_split_keeps_groups_together_and_stays_when_files_are_added():
    random = np.random.default_rng(0)
    checksums = random.integers(0, 256, [400, 32], np.uint8)
    checksums[300:] = checksums[:100]
    groups = equal_files(checksums)
    assert groups.tolist() == [*range(300), *range(100)]
    held = held_out(groups, checksums, 0.3)
    assert 60 < held[:300].sum() < 120
    assert (held[300:] == held[:100]).all()
    few = slice(0, 150)
    assert (held_out(np.arange(150), checksums[few], 0.3) == held[few]).all()


@pytest.mark.parametrize("count", [2, 3, 4, 10, 49])
def test_few_groups_are_split_as_near_to_the_fraction_as_they_can_be(count):
    random = np.random.default_rng(count)
    checksums = random.integers(0, 256, [1000, 32], np.uint8)
    groups = equal_files(checksums)
    keys = random.integers(count, size=1000)
    merge(groups, np.array([(np.flatnonzero(keys == key)[0], n) for n, key in enumerate(keys)]))
    for fraction in (0.01, 0.1, 0.34, 0.99):
        held = held_out(groups, checksums, fraction, exact_below=50)
        shares = [held[keys == key].mean() for key in range(count)]
        assert 0 < sum(shares) < count
        assert {*shares} == {0, 1}
        nearest = min(max(fraction, 1 / count), 1 - 1 / count)
        assert abs(held.mean() - nearest) < 0.7 / count


def write(folder: Path, data: dict[str, bytes]) -> None:
    for name, content in data.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def rows(table: Path) -> list[dict[str, str]]:
    with open(table, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_leaks_are_found_that_are_not_the_same_bytes(tmp_path):
    train = {f"{'ab'[seed % 2]}/{seed}.jpg": saved(photo(seed)) for seed in range(12)}
    again = {f"{'ab'[seed % 2]}/{seed}.png": saved(photo(seed), "PNG") for seed in range(6)}
    write(tmp_path / "train", train)
    write(tmp_path / "test", again | {"a/copy.jpg": train["a/0.jpg"], "b/0.png": again["a/0.png"]})
    write(tmp_path / "test", {"a/new.jpg": saved(photo(99))})
    convert(tmp_path / "train", tmp_path / "out", "train")
    process = convert(tmp_path / "test", tmp_path / "out", "test")
    assert "8 duplicate files, 7 of them near ones: see" in process.stdout
    assert "leak: 8 test files are also in train\n" in process.stdout
    found = {row["file"]: row for row in rows(tmp_path / "out" / "test.duplicates.csv")}
    assert set(found) == {*again, "a/copy.jpg", "b/0.png"}
    for file, row in found.items():
        number = "0" if "copy" in file else Path(file).stem
        assert Path(row["same as"].split(": ")[1]).stem == number
        assert row["kind"] == ("exact" if "copy" in file else "near")
    process = convert(
        tmp_path / "test", tmp_path / "out", "test", "--overwrite", "--no-near_duplicates"
    )
    assert "2 duplicate files: see" in process.stdout, "by their bytes only"
    (tmp_path / "out" / "train.thumbnails").unlink()  # as it was with older datasets
    process = convert(tmp_path / "test", tmp_path / "out", "test", "--overwrite")
    assert "leak: 1 test file is also in" in process.stdout


def test_a_large_group_is_reported_with_the_remedy(tmp_path):
    noise = {f"a/{n:02}.png": saved(image, "PNG") for n, image in enumerate(spots(40, size=1))}
    write(tmp_path / "in", noise)
    more = ("--validation_fraction", 0.2)
    process = convert(tmp_path / "in", tmp_path / "out", "train", *more, status=2)
    assert "0.2 of 40 images leaves none for" in process.stderr
    line = (
        "40 of 40 images of a are one group of near duplicates, as a/00.png and a/01.png: if they"
    )
    assert f"{line} differ, --no-near_duplicates keeps only equal files together" in process.stderr
    process = convert(tmp_path / "in", tmp_path / "out", "train", *more, "--no-near_duplicates")
    assert "one group" not in process.stdout
    write(tmp_path / "in", {f"b/{n}.png": saved(photo(n), "PNG") for n in range(40)})
    process = convert(tmp_path / "in", tmp_path / "out", "train", *more, "--overwrite")
    assert line in process.stdout


def test_decoders_say_nothing_on_the_terminal(tmp_path):
    palette = photo(0).quantize(64)
    write(tmp_path / "in", {"a/1.png": saved(palette, "PNG", transparency=bytes(range(64)))})
    write(tmp_path / "in", {"a/2.png": saved(photo(1), "PNG")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        process = convert(tmp_path / "in", tmp_path / "out", "train")
    assert process.stderr == ""


def test_checksums_are_read_as_they_are_written(tmp_path):
    names = ["a  b/ä.jpg", "2.jpg", "two\nlines", "\r", "back\\slash", "\u2028", "\\n", "\udcff"]
    used = [(f"{number:02}", name) for number, name in enumerate(names)]
    write_checksums(tmp_path / "x", used)
    assert list(read_checksums(tmp_path / "x")) == used
