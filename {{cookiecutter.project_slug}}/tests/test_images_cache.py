"""Caches of images: the same training from memory and from a file, encoded or decoded."""

import io

import numpy as np
import pytest
import tensorflow as tf
from conftest import damaged, make_run
from PIL import Image

from library import images
from library.config import Settings
from library.data import Card, Target, train_records, write_index
from library.images import Jpeg, write_shard
from library.train import start_training
from library.util import UserError
from project.input_fn import train_input


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_damaged_record_is_named_when_a_cache_is_filled(data, tmp_path, kind):
    (tmp_path / "data").mkdir()
    shard = damaged(data, tmp_path / "data")
    run = make_run(tmp_path / "data", tmp_path, cache=kind, cache_dir=tmp_path / "kept")
    with pytest.raises(UserError, match=f"{shard.name}: record 0 is damaged"):
        start_training(run)
    assert not run.settings.model_dir.exists()


@pytest.mark.parametrize("decoded", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_cache_changes_nothing_of_what_is_seen(data, tmp_path, decoded):
    size = 64 if decoded else 16  # a smaller one is decoded at a fraction, without the cache
    options = {"image_size": size, "min_crop_area": 0.2, "train_batch_size": 8}
    run = make_run(data, tmp_path, **options, cache_dir=tmp_path / "kept").for_training()

    def batches(**changes: object) -> list[tuple[np.ndarray, np.ndarray]]:
        found = train_input(run.replace(**changes)).take(30).as_numpy_iterator()  # several epochs
        return [(features["image"], labels) for features, labels in found]

    before = batches()
    for kind in ("memory", "memory", "file", "file"):  # filled, and used again
        after = batches(cache=kind, cache_decoded=decoded)
        for (pixels, labels), (pixels_before, labels_before) in zip(after, before, strict=True):
            assert (labels == labels_before).all()
            difference = np.abs(pixels - pixels_before)
            if decoded:  # what was beside the crop now has a part in the colors at its edge
                assert difference.max() < 32
                difference = difference[:, :, 4:-4]
            assert difference.max() == 0


def test_decoded_images_are_those_that_decoding_gives(tmp_path):
    """Odd sizes, gray, and PNG: pixel by pixel; the label and the name stay."""
    random = np.random.default_rng(0)
    forms = [("JPEG", [37, 53, 3]), ("JPEG", [16, 9]), ("PNG", [1, 1, 3]), ("PNG", [24, 7])]
    examples, target = [], Target("class", tuple("abcd"))
    for number, (form, shape) in enumerate(forms):
        buffer = io.BytesIO()
        Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(buffer, form)
        examples.append((f"{number}.jpg", number, Jpeg(buffer.getvalue(), *shape[:2])))
    shard, rows = write_shard(tmp_path / "few.tfrecord", examples, target)
    write_index(tmp_path / "few", [rows])
    Card([*"abcd"], dict.fromkeys("abcd", 1), [shard], {}).save(tmp_path / "few.json")
    settings = Settings(train_data=str(tmp_path / "few"), cache="memory", cache_dir=tmp_path)

    def whole(shape: tf.Tensor) -> tf.Tensor:
        return tf.stack([0, 0, shape[0], shape[1]])

    records = train_records(settings, to_cache=images.decoded_examples).take(4)
    kept = [record for _, _, record in sorted(records.as_numpy_iterator(), key=lambda r: r[1])]
    for record, (name, number, jpeg) in zip(kept, examples, strict=True):
        example = images.parse_example(record, target)
        pixels = images.decode_window(example["encoded"], whole, image_size=16)
        expected = tf.io.decode_image(jpeg.data, channels=3, expand_animations=False)
        assert (pixels.numpy() == expected.numpy()).all()
        assert (example["label"].numpy(), example["key"].numpy()) == (number, name.encode())
