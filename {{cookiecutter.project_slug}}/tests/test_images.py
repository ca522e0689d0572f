"""Pictures as examples and tensors: what a network gets."""

import io

import numpy as np
import pytest
import tensorflow as tf
from conftest import encoded
from PIL import Image

from library.images import central_crop, parse_example, random_crop, to_example
from library.pictures import standard_jpeg


def test_an_example_has_the_keys_of_tensorflows_models(picture):
    record = to_example(
        standard_jpeg(encoded(picture), max_edge=384, quality=95), 3, "Käse", "Käse/one two.png"
    )
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
    encoded_again, label, key = parse_example(record)
    assert encoded_again.numpy()[:2] == b"\xff\xd8"
    assert label.numpy() == 3
    assert key.numpy().decode() == "Käse/one two.png"


def crop(data: bytes, *seed: int, min_area: float = 0.5, flip: bool = True) -> np.ndarray:
    seed = tf.constant(seed, tf.int64)
    return random_crop(data, image_size=24, min_area=min_area, flip=flip, seed=seed).numpy()


def test_a_random_crop_follows_from_its_seed(picture):
    data = encoded(picture, "JPEG")
    assert crop(data, 1, 2).shape == (24, 24, 3)
    assert (crop(data, 1, 2) == crop(data, 1, 2)).all()
    assert (crop(data, 1, 2) != crop(data, 1, 3)).any()
    values = np.stack([crop(data, 1, number) for number in range(20)])
    assert -1 <= values.min() < -0.9
    assert 0.8 < values.max() <= 1


def test_a_crop_has_at_least_the_area_asked_for(picture):
    # Red goes from 0 to 237 over the width, green from 0 to 236 over the height.
    data = encoded(picture, "JPEG", quality=95)
    for number in range(50):
        values = crop(data, 0, number, min_area=0.6, flip=False) * 127.5 + 127.5
        width = (values[:, -1, 0] - values[:, 0, 0]).mean() * 24 / 23 / 3
        height = (values[-1, :, 1] - values[0, :, 1]).mean() * 24 / 23 / 4
        assert 0.55 * 80 * 60 < width * height < 1.05 * 80 * 60


def test_about_half_of_the_crops_are_mirrored_when_asked_for(picture):
    data = encoded(picture, "JPEG")
    mirrored = [(c[:, -1, 0] < c[:, 0, 0]).all() for c in (crop(data, 0, n) for n in range(60))]
    assert 15 < sum(mirrored) < 45
    # Whether it is mirrored has nothing to do with where the crop lies.
    left = [
        min(c[:, 0, 0].mean(), c[:, -1, 0].mean()) for c in (crop(data, 0, n) for n in range(60))
    ]
    assert abs(np.corrcoef(mirrored, left)[0, 1]) < 0.3
    assert not any(
        (c[:, -1, 0] < c[:, 0, 0]).any() for c in (crop(data, 0, n, flip=False) for n in range(20))
    )


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "GIF"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_central_crop_is_the_middle_square(picture, form, mode):
    data = encoded(picture.convert(mode), form)
    box = (10, 0, 70, 60)
    expected = Image.open(io.BytesIO(data)).convert("RGB").crop(box).resize((20, 20), Image.BOX)
    found = central_crop(data, image_size=20).numpy() * 127.5 + 127.5
    # TensorFlow and Pillow round a JPEG's cosines differently.
    assert np.abs(found - np.asarray(expected)).max() < (4 if form == "JPEG" else 1.5)


def test_the_crops_are_the_same_inside_a_dataset(picture):
    data = encoded(picture, "JPEG")
    seed = tf.constant([3, 4], tf.int64)

    def both(record: tf.Tensor):
        options = {"image_size": 24, "min_area": 0.5, "flip": True, "seed": seed}
        return random_crop(record, **options), central_crop(record, image_size=24)

    ((random, central),) = tf.data.Dataset.from_tensors(data).map(both).as_numpy_iterator()
    assert (random == crop(data, 3, 4)).all()
    assert (central == central_crop(data, image_size=24).numpy()).all()
