"""Nearly the same pictures are found, and others are not taken for them."""

import io

import numpy as np
import pytest
from PIL import Image
from test_images_kinds import REJECTED

from library.convert import (
    HashedFile,
    LabeledFile,
    exact_duplicates,
    near_duplicates,
    read_checksums,
    sha256_of,
    split_by_content,
    write_checksums,
)
from library.images import thumbnail
from library.util import BadFileError


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


def test_versions_of_a_picture_are_together_and_others_apart():
    data = [version for seed in range(60) for version in versions(photo(seed))]
    thumbnails = np.array([np.frombuffer(thumbnail(each), np.uint8) for each in data])
    groups = near_duplicates(thumbnails)
    assert groups.tolist() == [number // 5 * 5 for number in range(300)]


@pytest.mark.parametrize("kind", [kind for kind in REJECTED if kind != "floating-point gray"])
def test_what_cannot_be_decoded_has_no_thumbnail(kind):
    """A bomb above all: it is refused before it is decoded."""
    with pytest.raises(BadFileError):
        thumbnail(REJECTED[kind][0]())


def test_many_at_once():
    thumbnails = np.random.default_rng(0).integers(0, 256, [20_000, 256], np.uint8)
    thumbnails[10_000:] = np.clip(thumbnails[:10_000].astype(int) + 1, 0, 255)
    groups = near_duplicates(thumbnails)
    assert groups.tolist() == [*range(10_000)] * 2


def test_a_split_keeps_versions_together_and_stays_when_files_are_added():
    data = {
        f"{seed}-{number}": version
        for seed in range(80)
        for number, version in enumerate(versions(photo(seed)))
    }
    scanned = {name: (sha256_of(each), thumbnail(each).hex()) for name, each in data.items()}
    scanned["broken"] = ("00", "")
    files = [LabeledFile(name, 0) for name in [*data, "broken", "unreadable"]]
    train, validation = split_by_content(files, 0.3, scanned)
    assert sorted(train + validation) == sorted(files)
    seeds = [{found.name.split("-")[0] for found in part} for part in (train, validation)]
    assert not seeds[0] & seeds[1]
    assert 10 < len(seeds[1]) < 40
    few = [found for found in files if not found.name.startswith(("1", "7"))]
    assert set(split_by_content(few, 0.3, scanned)[1]) == set(validation) & set(few)


def test_exact_duplicates_and_label_conflicts():
    sets = {
        "train": [HashedFile("aa", "cat/1.jpg"), HashedFile("bb", "dog/1.jpg")],
        "test": [
            HashedFile("aa", "cat/9.jpg", 0),
            HashedFile("cc", "x", 0),
            HashedFile("cc", "y", 1),
        ],
    }
    assert exact_duplicates(sets) == [
        ("test", "cat/9.jpg", "train: cat/1.jpg", None),
        ("test", "y", "test: x", 0),
    ]


def test_checksums_are_read_as_they_are_written(tmp_path):
    names = ["a  b/ä.jpg", "2.jpg", "two\nlines", "\r", "back\\slash", "\u2028", "\\n", "\udcff"]
    used = [HashedFile(f"{number:02}", name) for number, name in enumerate(names)]
    write_checksums(tmp_path / "x.sha256", used)
    assert read_checksums(tmp_path / "x.sha256") == used
