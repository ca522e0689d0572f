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

from library import images
from library.data import Card, Reader, cache, write_index, write_shard
from library.images import Jpeg, to_example
from library.util import UserError
from project.input_fn import train_input, train_source
from project.settings import Hyperparameters, Settings
from project.training import train


@pytest.fixture
def settings(data, tmp_path) -> Settings:
    return Settings(train_data=str(data / "train"), train_batch_size=8, cache_dir=tmp_path / "kept")


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
    assert "is written to" in capsys.readouterr().out
    for shard in folder.glob("train-*.tfrecord"):
        shard.unlink()
    assert all((a == b).all() for (a, _), (b, _) in zip(before, batches(kept), strict=True))
    assert "is written to" not in capsys.readouterr().out


def test_a_file_that_is_not_whole_is_filled_again(settings):
    kept = dataclasses.replace(settings, cache="file")
    train_source(kept)
    (card,) = settings.cache_dir.glob("*.json")
    card.unlink()  # as after a kill: the card comes last
    next(settings.cache_dir.glob("*-00001-of-*")).write_bytes(b"half")
    source = train_source(kept)
    original = Reader(settings.train_data)
    ids = np.arange(original.num_examples)
    assert source.num_examples == original.num_examples
    assert source.read(ids).tolist() == original.read(ids).tolist()


def test_another_data_set_of_that_name_is_another_cache(settings, data, tmp_path):
    kept = dataclasses.replace(settings, cache="file")
    here = tmp_path / "here"
    for name in ("train", "test"):
        here.mkdir(exist_ok=True)
        for file in data.glob(f"{name}*"):
            shutil.copy(file, here / file.name.replace(name, "train"))
        if name == "test":  # its card names its shards
            text = (here / "train.json").read_text().replace("test-", "train-")
            (here / "train.json").write_text(text)
        for kind in ("file", "memory"):
            there = dataclasses.replace(kept, train_data=str(here / "train"), cache=kind)
            assert train_source(there).num_examples == Card.load(data / f"{name}.json").num_examples


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("memory", "library.data.cache.free_memory"),
        ("file", "shutil.disk_usage"),
    ],
)
def test_a_cache_without_room_is_refused_with_the_numbers(settings, kind, where, monkeypatch):
    """The machine is as it is, but for the room that is said to be free."""
    free = 100_000
    monkeypatch.setattr(where, lambda *_: free if kind == "memory" else SimpleNamespace(free=free))
    cache._in_memory.cache_clear()
    kept = dataclasses.replace(settings, cache=kind, cache_decoded=True)
    with pytest.raises(
        UserError, match=rf"cache: {kind} has no room for .*train: \d+ examples take"
    ):
        train_source(kept)
    assert not list(settings.cache_dir.glob("*.json"))


def test_the_expected_size_is_about_the_size(settings, capsys):
    kept = dataclasses.replace(settings, cache="memory", cache_decoded=True)
    cache._in_memory.cache_clear()
    source = train_source(kept)
    total = sum(map(len, source.read(np.arange(source.num_examples))))
    records = cache._records(settings.train_data)
    expected = cache._expect_room(
        "memory", settings.train_data, records, images.decoded_examples, 1e12
    )
    assert expected == pytest.approx(total, rel=0.1)
    assert cache.free_memory() < 2**50


def test_memory_that_is_free_is_that_of_the_container(tmp_path, monkeypatch):
    everywhere = cache.free_memory()
    monkeypatch.setattr(cache, "CONTAINER", tmp_path)
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert cache.free_memory() == pytest.approx(everywhere, rel=0.2)
    (tmp_path / "memory.max").write_text("5000\n")
    assert cache.free_memory() == 4000


def test_a_picture_from_elsewhere_is_kept_in_memory(data):
    for file in data.glob("test*"):
        tf.io.gfile.copy(str(file), f"ram://cache/{file.name}")
    settings = Settings(train_data="ram://cache/test", cache="memory")
    ids = np.arange(5)
    found = train_source(settings).read(ids).tolist()
    assert found == Reader(data / "test").read(ids).tolist()


def test_decoded_pictures_are_those_that_decoding_gives(tmp_path):
    """Odd sizes, gray, and PNG: pixel by pixel; the label and the name stay."""
    random = np.random.default_rng(0)
    forms = [("JPEG", [37, 53, 3]), ("JPEG", [16, 9]), ("PNG", [1, 1, 3]), ("PNG", [24, 7])]
    records = []
    for number, (form, shape) in enumerate(forms):
        buffer = io.BytesIO()
        Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(buffer, form)
        jpeg = Jpeg(buffer.getvalue(), *shape[:2])
        records.append(to_example(jpeg, number, "x", f"{number}.jpg"))
    shard, rows = write_shard(tmp_path / "few.tfrecord", records)
    write_index(tmp_path / "few.index", [rows])
    Card(["x"], {"x": 4}, [shard], {}).save(tmp_path / "few.json")
    kept = cache.cached(str(tmp_path / "few"), "memory", images.decoded_examples, folder=tmp_path)

    def whole(shape: tf.Tensor) -> tf.Tensor:
        return tf.stack([0, 0, shape[0], shape[1]])

    for number, (record, original) in enumerate(zip(kept.read(np.arange(4)), records, strict=True)):
        encoded, label, name = images.parse_example(record)
        pixels = images.decode_window(encoded, whole, image_size=16)
        encoded = images.parse_example(original)[0]
        expected = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        assert (pixels.numpy() == expected.numpy()).all()
        assert (label.numpy(), name.numpy()) == (number, f"{number}.jpg".encode())
