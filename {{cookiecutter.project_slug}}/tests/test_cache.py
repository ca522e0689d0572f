"""Caches: the same training from memory and from a file, a refusal where there is no room."""

import dataclasses
import io
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from conftest import damaged
from PIL import Image
from project.training import train

from library import images
from library.data import Card, Reader, Target, train_records, write_index
from library.images import Jpeg, write_shard
from library.util import UserError
from project.input_fn import train_input
from project.settings import Hyperparameters, Settings


@pytest.fixture
def settings(data, tmp_path) -> Settings:
    return Settings(train_data=str(data / "train"), train_batch_size=8, cache_dir=tmp_path / "kept")


def contents(settings: Settings, to_cache=None) -> list[bytes]:
    """All that training reads, in the order of the ids."""
    records = train_records(settings, to_cache=to_cache)
    count = Card.load(f"{settings.train_data}.json").num_examples
    found = {int(key): record for _, key, record in records.take(count).as_numpy_iterator()}
    return [found[key] for key in range(count)]


def batches(settings: Settings, image_size: int = 16) -> list[tuple[np.ndarray, np.ndarray]]:
    hyperparameters = Hyperparameters(image_size=image_size, min_crop_area=0.2)
    dataset = train_input(settings, hyperparameters, 8).take(30)  # several epochs
    return [(features["image"], labels) for features, labels in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_damaged_record_is_named_when_a_cache_is_filled(data, tmp_path, kind):
    shard = damaged(data, tmp_path)
    settings = Settings(
        train_data=str(tmp_path / "train"),
        validation_data=str(tmp_path / "validation"),
        model_dir=tmp_path / "current",
        best_model_dir=tmp_path / "best",
        cache=kind,
        cache_dir=tmp_path / "kept",
    )
    with pytest.raises(UserError, match=f"{shard.name}: record 0 is damaged"):
        train(settings, Hyperparameters(image_size=16))
    assert not (tmp_path / "current").exists()


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_cache_changes_nothing_of_what_is_seen(settings, kind, decoded):
    size = 64 if decoded else 16  # a smaller one is decoded at a fraction, without the cache
    before = batches(settings, size)
    kept = dataclasses.replace(settings, cache=kind, cache_decoded=decoded)
    for _ in range(2):  # filled, and used again
        after = batches(kept, size)
        for (pixels, labels), (pixels_before, labels_before) in zip(after, before, strict=True):
            assert (labels == labels_before).all()
            difference = np.abs(pixels - pixels_before)
            if decoded:  # what was beside the crop now has a part in the colours at its edge
                assert difference.max() < 32
                difference = difference[:, :, 4:-4]
            assert difference.max() == 0


def test_a_file_is_filled_once_and_read_without_the_original(settings, tmp_path, capsys):
    folder = tmp_path / "data"
    shutil.copytree(os.path.dirname(settings.train_data), folder)
    kept = dataclasses.replace(settings, train_data=str(folder / "train"), cache="file")
    before = batches(kept)
    assert "cache: writing" in capsys.readouterr().out
    for shard in folder.glob("train-*.tfrecord"):
        shard.unlink()
    assert all((a == b).all() for (a, _), (b, _) in zip(before, batches(kept), strict=True))
    assert "cache: writing" not in capsys.readouterr().out


def test_a_file_that_is_not_whole_is_filled_again(settings):
    kept = dataclasses.replace(settings, cache="file")
    before = contents(kept)
    (card,) = settings.cache_dir.glob("*.json")
    card.unlink()  # as after a kill: the card comes last
    next(settings.cache_dir.glob("*-00001-of-*")).write_bytes(b"half")
    original = Reader(settings.train_data)
    assert contents(kept) == before
    assert before == original.read(np.arange(original.num_examples)).tolist()


def test_another_dataset_of_that_name_is_another_cache(settings, data, tmp_path):
    kept = dataclasses.replace(settings, cache="file")
    here = tmp_path / "here"
    for name in ("train", "test"):
        here.mkdir(exist_ok=True)
        for file in data.glob(f"{name}*"):
            shutil.copy(file, here / file.name.replace(name, "train"))
        if name == "test":  # its card names its shards
            text = (here / "train.json").read_text().replace("test-", "train-")
            (here / "train.json").write_text(text)
        reader = Reader(data / name)
        for kind in ("file", "memory"):
            there = dataclasses.replace(kept, train_data=str(here / "train"), cache=kind)
            assert contents(there) == reader.read(np.arange(reader.num_examples)).tolist()


@pytest.fixture
def free(monkeypatch):
    """The machine as it is, except for the memory and the disk that are said to be free."""

    def set_free(size: float) -> None:
        memory = SimpleNamespace(available=size)
        monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=size))

    return set_free


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_cache_without_room_is_refused_with_the_numbers(settings, kind, free):
    free(100_000)
    kept = dataclasses.replace(settings, cache=kind, cache_decoded=True)
    with pytest.raises(
        UserError, match=rf"cache: {kind} has no room for .*train: \d+ examples take"
    ):
        contents(kept, images.decoded_examples)
    assert not list(settings.cache_dir.glob("*.json"))


@pytest.mark.parametrize(("share", "fits"), [(1.3, True), (0.9, False)])
def test_the_expected_size_is_about_the_size(settings, free, share, fits):
    """With a tenth of the memory left free, all of it fits where there is a fifth more."""
    kept = dataclasses.replace(settings, cache="memory", cache_decoded=True)
    total = sum(map(len, contents(kept, images.decoded_examples)))
    elsewhere = dataclasses.replace(kept, cache_dir=settings.cache_dir / "another")
    free(total * share)
    if fits:
        contents(elsewhere, images.decoded_examples)
        return
    with pytest.raises(UserError, match="no room"):
        contents(elsewhere, images.decoded_examples)


def test_memory_that_is_free_is_that_of_the_container(settings, tmp_path, monkeypatch, free):
    free(2**40)
    monkeypatch.setattr("library.data.cache.CONTAINER", tmp_path)
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("5000\n")
    kept = dataclasses.replace(settings, cache="memory")
    with pytest.raises(UserError, match="no room"):
        contents(kept)
    (tmp_path / "memory.max").write_text("max\n")
    assert contents(kept)


def test_an_image_from_elsewhere_is_kept_in_memory(data, tmp_path):
    for file in data.glob("test*"):
        tf.io.gfile.copy(str(file), f"ram://cache/{file.name}", overwrite=True)
    settings = Settings(train_data="ram://cache/test", cache="memory", cache_dir=tmp_path)
    reader = Reader(data / "test")
    assert contents(settings) == reader.read(np.arange(reader.num_examples)).tolist()


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

    kept = contents(settings, images.decoded_examples)
    for record, (name, number, jpeg) in zip(kept, examples, strict=True):
        example = images.parse_example(record, target)
        pixels = images.decode_window(example["encoded"], whole, image_size=16)
        expected = tf.io.decode_image(jpeg.data, channels=3, expand_animations=False)
        assert (pixels.numpy() == expected.numpy()).all()
        assert (example["label"].numpy(), example["key"].numpy()) == (number, name.encode())
