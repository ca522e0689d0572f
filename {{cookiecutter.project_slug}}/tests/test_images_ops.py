"""Pictures as examples and tensors: what a network gets."""

import io

import numpy as np
import pytest
import tensorflow as tf
from made_images import IMAGE, encoded
from PIL import Image

from library.data import Target
from library.images import (
    ShardOptions,
    canonicalize,
    central_crop,
    decode_window,
    normalize,
    parse_example,
    random_window,
    resize,
    to_example,
)


def test_an_example_has_the_keys_of_tensorflows_models():
    target = Target("class", ("a", "b", "c", "Käse"))
    jpeg = canonicalize(encoded(IMAGE), ShardOptions())
    record = to_example(jpeg, 3, "Käse/one two.png", target)
    features = tf.train.Example.FromString(record).features.feature
    found = {
        key: list(feature.bytes_list.value or feature.int64_list.value)
        for key, feature in features.items()
        if key != "image/encoded"
    }
    assert found == {
        "image/format": [b"jpeg"],
        "image/height": [60],
        "image/width": [80],
        "image/class/label": [3],
        "image/class/text": ["Käse".encode()],
        "image/filename": ["Käse/one two.png".encode()],
    }
    example = parse_example(record, target)
    assert example["encoded"].numpy() == jpeg.data
    assert (example["label"].dtype, example["label"].numpy()) == (tf.int64, 3)
    assert example["key"].numpy().decode() == "Käse/one two.png"


def crop(data: bytes, *seed: int, min_area: float = 0.5) -> np.ndarray:
    def window_of(shape: tf.Tensor) -> tf.Tensor:
        return random_window(shape, min_area=min_area, seed=tf.constant(seed, tf.int64))

    image = decode_window(tf.constant(data), window_of, image_size=24)
    return resize(image, image_size=24, antialias=True).numpy()


def test_a_random_crop_follows_from_its_seed():
    data = encoded(IMAGE, "JPEG")
    assert crop(data, 1, 2).shape == (24, 24, 3)
    assert (crop(data, 1, 2) == crop(data, 1, 2)).all()
    assert (crop(data, 1, 2) != crop(data, 1, 3)).any()


def test_a_crop_has_at_least_the_area_asked_for():
    # Red goes from 0 to 237 over the width, green from 0 to 236 over the height.
    data = encoded(IMAGE, "JPEG", quality=95)
    for number in range(50):
        values = crop(data, 0, number, min_area=0.6)
        width = (values[:, -1, 0] - values[:, 0, 0]).mean() * 24 / 23 / 3
        height = (values[-1, :, 1] - values[0, :, 1]).mean() * 24 / 23 / 4
        assert 0.55 * 80 * 60 < width * height < 1.05 * 80 * 60


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "GIF"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("share", "box"), [(1, (10, 0, 70, 60)), (0.67, (20, 10, 60, 50))])
def test_a_central_crop_is_the_middle_square(form, mode, share, box):
    data = encoded(IMAGE.convert(mode), form)
    expected = Image.open(io.BytesIO(data)).convert("RGB").crop(box).resize((20, 20), Image.BOX)
    found = central_crop(data, image_size=20, share=share).numpy()
    # TensorFlow and Pillow round a JPEG's cosines differently.
    assert np.abs(found - np.asarray(expected)).max() < (5 if form == "JPEG" else 1.5)


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (3, 3)])
def test_of_the_smallest_images_something_is_left(size):
    data = encoded(Image.new("RGB", size, (10, 20, 30)), "PNG")
    found = central_crop(data, image_size=16, share=0.875).numpy()
    assert (found == [10, 20, 30]).all()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "GIF"])
def test_all_formats_go_through_the_same_door(form):
    data = encoded(IMAGE, form)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[5:45, 7:67]
    found = decode_window(data, lambda shape: tf.constant([5, 7, 40, 60]), image_size=24).numpy()
    assert found.shape == expected.shape
    assert np.abs(found - expected.astype(int)).max() < (25 if form == "JPEG" else 1)


@pytest.fixture(scope="module")
def photo() -> bytes:
    """A JPEG of 2000 x 1500 pixels with details of all sizes."""
    random, pixels = np.random.default_rng(0), np.zeros([1500, 2000, 3])
    for cells in (4, 16, 64, 256, 1024):
        grid = random.integers(0, 256, [cells * 3 // 4, cells, 3], np.uint8)
        layer = Image.fromarray(grid).resize((2000, 1500), Image.Resampling.BICUBIC)
        pixels += (np.asarray(layer) - 128.0) * 1.2 / np.log2(cells)
    return encoded(Image.fromarray(np.clip(pixels + 128, 0, 255).astype(np.uint8)), "JPEG")


@pytest.mark.parametrize(
    ("window", "fraction"),
    [
        ((11, 13, 400, 419), 1),
        ((11, 13, 500, 619), 2),
        ((333, 7, 905, 1201), 4),
        ((5, 3, 1490, 1991), 4),
        ((3, 6, 1493, 1990), 8),
    ],
)
def test_a_window_decoded_smaller_is_the_same_picture(photo, window, fraction):
    image_size = min(window[2:]) // fraction
    small = decode_window(photo, lambda shape: tf.constant(window), image_size=image_size)
    snapped = np.array(window) // fraction * fraction
    assert small.shape[:2] == tuple(snapped[2:] // fraction)

    exact = tf.image.decode_and_crop_jpeg(photo, snapped, channels=3)
    exact = tf.image.resize(exact, [image_size, image_size], antialias=True).numpy()
    found = resize(small, image_size=image_size, antialias=True).numpy()
    assert 10 * np.log10(255**2 / np.mean((found - exact) ** 2)) > 38
    if fraction > 1:
        points = tf.image.decode_and_crop_jpeg(photo, snapped, channels=3)
        points = resize(points, image_size=image_size, antialias=False).numpy()
        assert np.mean((found - exact) ** 2) < np.mean((points - exact) ** 2)


def test_bytes_are_rounded_and_floats_are_not():
    data = encoded(IMAGE, "PNG")
    floats = central_crop(data, image_size=24).numpy()
    whole = central_crop(data, image_size=24, dtype="uint8").numpy()
    assert (floats.dtype, whole.dtype) == (np.float32, np.uint8)
    assert (floats != np.round(floats)).any()
    assert (whole == np.round(floats)).all()


def test_a_network_gets_values_around_zero():
    for dtype in (tf.uint8, tf.float32):
        assert normalize(tf.constant([0, 51, 255], dtype)).numpy().tolist() == pytest.approx(
            [-1, -0.6, 1]
        )


def test_the_crops_are_the_same_inside_a_dataset():
    data = encoded(IMAGE, "JPEG")

    def window_of(shape: tf.Tensor) -> tf.Tensor:
        return random_window(shape, min_area=0.5, seed=tf.constant([3, 4], tf.int64))

    def both(record: tf.Tensor):
        random = decode_window(record, window_of, image_size=24)
        random = resize(random, image_size=24, antialias=True)
        return random, central_crop(record, image_size=24)

    ((random, central),) = tf.data.Dataset.from_tensors(data).map(both).as_numpy_iterator()
    assert (random == crop(data, 3, 4)).all()
    assert (central == central_crop(data, image_size=24).numpy()).all()
