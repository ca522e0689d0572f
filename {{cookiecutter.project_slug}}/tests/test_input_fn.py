"""The input: every example once an epoch, the same order after a restart, the same pixels."""

import collections
import dataclasses
import os

import numpy as np
import pytest
import tensorflow as tf

from library.data import Card, cut_at, stages_of
from library.images import central_square
from library.images import parse_example as parse
from project.input_fn import (
    evaluation_input,
    keys_of_batch,
    overfit_input,
    prediction_input,
    serving_input,
    target_of,
    train_input,
    train_records,
)
from project.settings import Hyperparameters, Settings

SMALL = Hyperparameters(image_size=16)


@pytest.fixture
def settings(data) -> Settings:
    return Settings(
        train_data=str(data / "train"),
        validation_data=str(data / "validation"),
        train_batch_size=8,
        eval_batch_size=10,
    )


def take(dataset: tf.data.Dataset, batches: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(f["image"], labels) for f, labels in dataset.take(batches).as_numpy_iterator()]


def take_in_a_graph(make, batches: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same, as the Estimator does it: in a graph, `==` between tensors is another thing."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(make())
        features, labels = iterator.get_next()
        session.run(iterator.initializer)
        return [session.run((features["image"], labels)) for _ in range(batches)]


@pytest.mark.parametrize("step", [1, 7, 20])
def test_training_goes_on_where_it_stopped(settings, step):
    whole = take(train_input(settings, SMALL, 0), 30)
    rest = take(train_input(settings, SMALL, 8 * step), 30 - step)
    in_a_graph = take_in_a_graph(lambda: train_input(settings, SMALL, 8 * step), 30 - step)
    for (images, labels), *others in zip(whole[step:], rest, in_a_graph, strict=True):
        assert images.shape == (8, 16, 16, 3)
        for images_again, labels_again in others:
            assert (images == images_again).all()
            assert (labels == labels_again).all()


def keys(settings: Settings, *args: int, count: int) -> list[str]:
    """The names of the first records."""
    records = train_records(settings, *args).take(count).as_numpy_iterator()
    target = target_of(settings.train_data)
    return [parse(record, target)["key"].numpy().decode() for *_, record in records]


@pytest.mark.parametrize("shuffle", ["global", "stream"])
def test_an_epoch_has_every_example_once(settings, shuffle):
    settings = dataclasses.replace(settings, shuffle=shuffle, shuffle_buffer_mb=0.05)
    n = Card.load(f"{settings.train_data}.json").num_examples
    seen = keys(settings, 0, count=3 * n)
    epochs = [seen[:n], seen[n : 2 * n], seen[2 * n :]]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len(set(epochs[0])) == n
    assert epochs[0] != epochs[1] != epochs[2]
    assert seen == keys(settings, 0, count=3 * n), "the order follows from the seed"


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_every_example_is_seen_once_an_epoch_whatever_interrupts(settings, num_workers):
    """Starts at random steps, by so many workers: over three epochs, three times each."""
    size, random = settings.train_batch_size, np.random.default_rng(num_workers)
    n = Card.load(f"{settings.train_data}.json").num_examples
    whole = keys(settings, 0, count=3 * n)
    seen, step, last = [""] * (3 * n // size * size), 0, 3 * n // size
    while step < last:
        end = min(step + int(random.integers(1, 7)), last)
        for worker in range(num_workers):
            places = range(step * size + worker, end * size, num_workers)
            share = keys(settings, step * size, num_workers, worker, count=len(places))
            for place, key in zip(places, share, strict=True):
                seen[place] = key
        step = end
    assert seen == whole[: last * size]
    assert set(collections.Counter(whole).values()) == {3}


def test_the_keys_of_a_batch_are_those_of_its_pictures(settings):
    size = settings.train_batch_size
    assert keys_of_batch(settings, 0, 5) == keys(settings, 0, count=6 * size)[-size:]
    assert keys_of_batch(settings, 3 * size, 2) == keys_of_batch(settings, 0, 5)


def test_without_an_order_there_are_the_same_pictures(settings):
    n = Card.load(f"{settings.train_data}.json").num_examples
    one_by_one = dataclasses.replace(settings, train_batch_size=1)
    either = dataclasses.replace(one_by_one, deterministic=False)
    found = [
        sorted(image.tobytes() for image, _ in take(train_input(each, SMALL, 0).take(n), n))
        for each in (one_by_one, either)
    ]
    assert len(found[1]) == n
    assert len(set(found[0]) & set(found[1])) > n - 20  # the last ones may be of the next epoch


def test_crops_differ_from_epoch_to_epoch(settings):
    card = Card.load(f"{settings.train_data}.json")
    one_by_one = dataclasses.replace(settings, train_batch_size=1)
    images = [image for image, _ in take(train_input(one_by_one, SMALL, 0), 2 * card.num_examples)]
    assert len({image.tobytes() for image in images}) == len(images)


@pytest.mark.parametrize(
    ("settings_change", "hyperparameters_change"),
    [
        ({"random_seed": 1}, {}),
        ({}, {"min_crop_area": 0.2}),
        ({}, {"random_flip": False}),
        ({}, {"antialias": False}),
        ({}, {"input_dtype": "uint8"}),
    ],
)
def test_what_is_set_changes_the_pictures(settings, settings_change, hyperparameters_change):
    ((before, _),) = take(train_input(settings, SMALL, 0), 1)
    changed = dataclasses.replace(settings, **settings_change)
    hyperparameters = dataclasses.replace(SMALL, **hyperparameters_change)
    ((after, _),) = take(train_input(changed, hyperparameters, 0), 1)
    assert (before != after).any()


def test_parallel_calls_change_nothing_but_the_speed(settings):
    one = dataclasses.replace(settings, num_parallel_calls=1, prefetch_size=1)
    for a, b in zip(
        take(train_input(settings, SMALL, 0), 5), take(train_input(one, SMALL, 0), 5), strict=True
    ):
        assert (a[0] == b[0]).all()


def test_evaluation_has_every_example_with_the_last_partial_batch(settings):
    batches = take(evaluation_input(settings.validation_data, settings, SMALL), 99)
    card = Card.load(f"{settings.validation_data}.json")
    assert [len(labels) for _, labels in batches[:-1]] == [10] * (len(batches) - 1)
    assert sum(len(labels) for _, labels in batches) == card.num_examples


def test_prediction_sees_what_evaluation_sees(settings, samples, data):
    test_data = str(data / "test")
    evaluated = np.concatenate(
        [i for i, _ in take(evaluation_input(test_data, settings, SMALL), 99)]
    )
    files = list((samples / "test").rglob("*.jpg"))
    encoded = [(os.fsencode(f), f.read_bytes()) for f in files]
    predicted = prediction_input(encoded, settings, SMALL)
    found = np.concatenate([batch["image"] for batch in predicted.as_numpy_iterator()])
    known = {image.tobytes() for image in evaluated}
    assert len(found) == len(files)
    assert all(image.tobytes() in known for image in found), "a JPEG that fits keeps its bytes"


def test_about_half_of_the_pictures_are_mirrored(settings):
    as_it_is = dataclasses.replace(SMALL, random_flip=False)
    either, never = (
        np.concatenate([images for images, _ in take(train_input(settings, each, 0), 8)])
        for each in (SMALL, as_it_is)
    )
    same = (either == never).all(axis=(1, 2, 3))
    mirrored = (either == never[:, :, ::-1]).all(axis=(1, 2, 3))
    assert (same | mirrored).all()
    assert 20 < mirrored.sum() < 44


def test_the_stages_of_the_pipeline_lead_to_its_batches(settings):
    def build() -> tf.data.Dataset:
        return train_input(settings, SMALL, 0)

    def first(stage: str) -> tuple:
        return next(cut_at(stage, build).as_numpy_iterator())

    assert stages_of(build) == ["read", "decode", "augment", "batch"]
    number, _, record = first("read")
    assert (number, type(record)) == (0, bytes)
    _, window, label = first("decode")
    assert (window.dtype, window.shape[2]) == (np.uint8, 3)
    features, _ = first("augment")
    ((images, labels),) = take(build(), 1)
    ((cut, _),) = take(cut_at("batch", build), 1)
    assert (cut == images).all()
    assert (features["image"] == images[0]).all()
    assert label == labels[0] == parse(record, target_of(settings.train_data))["label"].numpy()


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_training_evaluation_and_serving_agree_where_nothing_is_by_lot(settings, data, dtype):
    """A crop of the whole of a square picture, unmirrored, is what all others see of it."""
    hyperparameters = dataclasses.replace(SMALL, input_dtype=dtype, random_flip=False)
    evaluated = take(evaluation_input(data / "test", settings, hyperparameters), 99)
    evaluated = np.concatenate([images for images, _ in evaluated])
    records = [
        record
        for file in sorted(data.glob("test-*.tfrecord"))
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator()
    ]
    target = target_of(str(data / "test"))
    encoded = [parse(record, target)["encoded"] for record in records]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        receiver = serving_input(hyperparameters)
        served = session.run(
            receiver.features["image"],
            {receiver.receiver_tensors["image_bytes"]: [each.numpy() for each in encoded]},
        )
    assert served.dtype == evaluated.dtype == dtype
    assert (served == evaluated).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("library.images.random_window", lambda shape, **_: central_square(shape))
        test = dataclasses.replace(settings, train_data=data / "test", train_batch_size=1)
        trained = take(train_input(test, hyperparameters, 0), len(encoded))
    assert {image.tobytes() for image, _ in trained} == {image.tobytes() for image in evaluated}


def test_a_quick_look_has_the_same_few_examples_in_every_epoch(settings):
    few = dataclasses.replace(settings, limit_train_examples=10)
    seen = keys(few, 0, count=30)
    assert len(set(seen)) == 10
    assert sorted(seen[:10]) == sorted(seen[10:20]) == sorted(seen[20:])
    assert keys(few, 7, count=5) == seen[7:12]


def test_what_is_learnt_by_heart_stays_the_same(settings):
    few = dataclasses.replace(settings, overfit=12)
    first, second, *again = take(overfit_input(few, SMALL), 4)
    assert (len(first[1]), len(second[1])) == (8, 4)
    for (images, labels), (images_again, labels_again) in zip((first, second), again, strict=True):
        assert (images == images_again).all()
        assert (labels == labels_again).all()
