"""The input: every example once an epoch, the same order after a restart, the same pixels."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from library.tfrecord import Card
from project.input_fn import evaluation_input, prediction_input, train_input
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


def test_training_goes_on_where_it_stopped(settings):
    whole = take(train_input(settings, SMALL, 0), 30)
    rest = take(train_input(settings, SMALL, 20), 10)
    for (images, labels), (images_again, labels_again) in zip(whole[20:], rest, strict=True):
        assert images.shape == (8, 16, 16, 3)
        assert (images == images_again).all()
        assert (labels == labels_again).all()


def test_an_epoch_has_every_example_once(settings):
    card = Card.load(f"{settings.train_data}.json")
    one_by_one = dataclasses.replace(settings, train_batch_size=1)
    labels = [
        int(label[0]) for _, label in take(train_input(one_by_one, SMALL, 0), card.num_examples)
    ]
    counts = [labels.count(label) for label in range(len(card.classes))]
    assert counts == list(card.examples_per_class.values())


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


def test_prediction_sees_what_evaluation_sees(settings, pictures, data):
    test_data = str(data / "test")
    evaluated = np.concatenate(
        [i for i, _ in take(evaluation_input(test_data, settings, SMALL), 99)]
    )
    files = list((pictures / "test").rglob("*.jpg"))
    predicted = prediction_input([f.read_bytes() for f in files], settings, SMALL)
    found = np.concatenate([batch["image"] for batch in predicted.as_numpy_iterator()])
    known = {image.tobytes() for image in evaluated}
    assert len(found) == len(files)
    assert all(image.tobytes() in known for image in found), "a JPEG that fits keeps its bytes"
