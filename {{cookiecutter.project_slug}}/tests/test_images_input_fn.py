"""The input: every example once an epoch, the same order after a restart, the same pixels."""

import collections
import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from conftest import make_run

from library.data import Card, Reader, stages_of, train_records
from library.images import central_square, classes_of, train_keys
from library.images import parse_example as parse
from library.train import Plan, Run
from library.util import UserError
from project.input_fn import (
    evaluation_input,
    overfit_input,
    prediction_input,
    serving_input,
    train_input,
)


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Run:
    return small_run(data, tmp_path)


def small_run(data: Path, folder: Path) -> Run:
    sizes = {"image_size": 16, "train_batch_size": 8, "eval_batch_size": 10}
    return make_run(data, folder, **sizes).for_training()


def at(run: Run, start: int, **shared: int) -> Run:
    """The run after so many examples."""
    plan = Plan(None, 0, start, 72, 8, steps=100, steps_between_evals=100)
    return run.replace(plan=plan, **shared)


def num_examples(run: Run, field: str = "train_data") -> int:
    return Card.load(f"{getattr(run.settings, field)}.json").num_examples


def taken(dataset: tf.data.Dataset, count: int) -> list[Any]:
    return [*dataset.take(count).as_numpy_iterator()]


def take(dataset: tf.data.Dataset, batches: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(features["image"], labels) for features, labels in taken(dataset, batches)]


def take_in_a_graph(make, batches: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same, as the Estimator does it: in a graph, `==` between tensors is another thing."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(make())
        features, labels = iterator.get_next()
        session.run(iterator.initializer)
        return [session.run((features["image"], labels)) for _ in range(batches)]


@pytest.mark.parametrize(
    ("steps", "order"),
    [((1, 7, 20), {}), ((7,), {"shuffle": "stream"}), ((7,), {"sampling": "balanced"})],
)
def test_training_goes_on_where_it_stopped(run, steps, order):
    run = run.replace(**order)
    whole = take_in_a_graph(lambda: train_input(run), 30)
    for step in steps:
        rest = take(train_input(at(run, 8 * step)), 30 - step)
        for (images, labels), again in zip(whole[step:], rest, strict=True):
            assert images.shape == (8, 16, 16, 3)
            assert (images == again[0]).all()
            assert (labels == again[1]).all()


def keys(run: Run, start: int = 0, num_workers: int = 1, worker: int = 0, *, count: int):
    """The names of the first records."""
    share = {"num_workers": num_workers, "worker": worker}
    records = train_records(run.settings, start, **share, classes_of=classes_of)
    target = run.model.target
    names = records.map(lambda *record: parse(record[-1], target)["key"])
    return [name.decode() for name in taken(names, count)]


@pytest.mark.parametrize("shuffle", ["global", "stream"])
def test_an_epoch_has_every_example_once(run, shuffle):
    run, n = run.replace(shuffle=shuffle, shuffle_buffer_mb=0.05), num_examples(run)
    seen = keys(run, count=3 * n)
    epochs = [seen[:n], seen[n : 2 * n], seen[2 * n :]]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len(set(epochs[0])) == n
    assert epochs[0] != epochs[1] != epochs[2]
    assert seen[:n] == keys(run, count=n), "the order follows from the seed"


@pytest.mark.parametrize("cache", ["none", pytest.param("memory", marks=pytest.mark.slow)])
def test_sampling_has_each_class_in_its_share(run, cache):
    run = run.replace(sampling="balanced", cache=cache)
    card = run.card("train_data")
    source = Reader(run.settings.train_data)
    expected = [
        parse(each, card.target)["label"].numpy()
        for each in source.read(np.arange(source.num_examples))
    ]
    assert classes_of(source).tolist() == expected
    labels = np.concatenate([labels for _, labels in take(train_input(run), 300)])
    shares = np.bincount(labels) / len(labels)
    np.testing.assert_allclose(shares, 1 / len(card.classes), atol=0.05)


def test_sampling_needs_one_class_per_file(run, data, tmp_path):
    shutil.copytree(data, tmp_path / "values")
    card = Card.load(data / "train.json")
    dataclasses.replace(card, label="value", classes=[]).save(tmp_path / "values" / "train.json")
    changed = run.replace(train_data=str(tmp_path / "values" / "train"), sampling="sqrt")
    with pytest.raises(UserError, match="sampling: sqrt needs one class per file, but .* values"):
        changed.for_training()


@pytest.mark.parametrize("num_workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_every_example_is_seen_once_an_epoch_whatever_interrupts(run, num_workers):
    """Starts at random steps, by so many workers: over three epochs, three times each."""
    size, random = 8, np.random.default_rng(num_workers)
    n = num_examples(run)
    whole = keys(run, count=3 * n)
    seen, step, last = [""] * (3 * n // size * size), 0, 3 * n // size
    while step < last:
        end = min(step + int(random.integers(1, 7)), last)
        for worker in range(num_workers):
            places = range(step * size + worker, end * size, num_workers)
            share = keys(run, step * size, num_workers, worker, count=len(places))
            for place, key in zip(places, share, strict=True):
                seen[place] = key
        step = end
    assert seen == whole[: last * size]
    assert set(collections.Counter(whole).values()) == {3}


@pytest.mark.parametrize("order", [{}, {"shuffle": "stream"}, {"sampling": "sqrt"}])
def test_the_keys_of_a_batch_are_those_of_its_images(run, order):
    run = run.replace(**order)
    assert train_keys(run.settings, 40, 8) == keys(run, count=48)[-8:]


def test_without_an_order_there_are_the_same_images(run):
    """Groups of them overtake each other, also into the next epoch: all are there, some later."""
    known, found = (
        [image.tobytes() for images, _ in take(train_input(each), count) for image in images]
        for each, count in ((run, 200), (run.replace(deterministic=False), 20))
    )
    assert set(found) <= set(known)
    assert len(set(found)) == len(found) == 160


def test_crops_differ_from_epoch_to_epoch(run):
    count = 2 * num_examples(run)
    images = [image for image, _ in take(train_input(run.replace(train_batch_size=1)), count)]
    assert len({image.tobytes() for image in images}) == len(images)


def test_what_is_set_changes_the_images(run):
    changes = {"random_seed": 1, "min_crop_area": 0.2, "random_flip": False, "antialias": False}
    ((before, _),) = take(train_input(run), 1)
    for name, value in {**changes, "input_dtype": "uint8"}.items():
        ((after, _),) = take(train_input(run.replace(**{name: value})), 1)
        assert (before != after).any(), name


def test_parallel_calls_change_nothing_but_the_speed(run):
    one = run.replace(num_parallel_calls=1, prefetch_size=1)
    for a, b in zip(take(train_input(run), 5), take(train_input(one), 5), strict=True):
        assert (a[0] == b[0]).all()


def test_evaluation_has_every_example_with_the_last_partial_batch(run):
    batches = take(evaluation_input(run, run.settings.validation_data), 99)
    assert [len(labels) for _, labels in batches[:-1]] == [10] * (len(batches) - 1)
    assert sum(len(labels) for _, labels in batches) == num_examples(run, "validation_data")


def evaluated_images(run: Run) -> np.ndarray:
    return np.concatenate([i for i, _ in take(evaluation_input(run, run.settings.test_data), 99)])


def test_prediction_sees_what_evaluation_sees(run, samples):
    files = list((samples / "test").rglob("*.jpg"))
    encoded = [(os.fsencode(f), f.read_bytes()) for f in files]
    predicted = prediction_input(run, encoded)
    found = np.concatenate([batch["image"] for batch in predicted.as_numpy_iterator()])
    known = {image.tobytes() for image in evaluated_images(run)}
    assert len(found) == len(files)
    assert all(image.tobytes() in known for image in found), "a JPEG that fits keeps its bytes"


def test_about_half_of_the_images_are_flipped(run):
    either, never = (
        np.concatenate([images for images, _ in take(train_input(each), 8)])
        for each in (run, run.replace(random_flip=False))
    )
    same = (either == never).all(axis=(1, 2, 3))
    flipped = (either == never[:, :, ::-1]).all(axis=(1, 2, 3))
    assert (same | flipped).all()
    assert 20 < flipped.sum() < 44


def test_the_stages_of_the_chain_lead_to_its_batches(run):
    def build() -> tf.data.Dataset:
        return train_input(run)

    def first(stage: str) -> tuple:
        return next(stages_of(build)[stage].as_numpy_iterator())

    assert [*stages_of(build)] == ["read", "decode", "augment", "batch"]
    number, _, record = first("read")
    assert (number, type(record)) == (0, bytes)
    _, window, label = first("decode")
    assert (window.dtype, window.shape[2]) == (np.uint8, 3)
    features, _ = first("augment")
    ((images, labels),) = take(build(), 1)
    ((cut, _),) = take(stages_of(build)["batch"], 1)
    assert (cut == images).all()
    assert (features["image"] == images[0]).all()
    assert label == labels[0] == parse(record, run.model.target)["label"].numpy()


@pytest.mark.parametrize(
    ("dtype", "area", "share"),
    [("float32", 1, 1), ("uint8", 0.8, 0.8**0.5), ("float32", 0.08, 7 / 8)],
)
def test_training_evaluation_and_serving_agree_where_nothing_is_random(
    run, data, dtype, area, share
):
    """The smallest crop of training that is not flipped, in the center, is what all others see."""
    run = run.replace(input_dtype=dtype, min_crop_area=area, random_flip=False)
    evaluated = evaluated_images(run)
    records = [
        record
        for file in sorted(data.glob("test-*.tfrecord"))
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator()
    ]
    encoded = [parse(record, run.model.target)["encoded"] for record in records]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        receiver = serving_input(run)
        served = session.run(
            receiver.features["image"],
            {receiver.receiver_tensors["image_bytes"]: [each.numpy() for each in encoded]},
        )
    assert served.dtype == evaluated.dtype == dtype
    assert (served == evaluated).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "library.images.random_window", lambda shape, **_: central_square(shape, share)
        )
        test = run.replace(train_data=str(data / "test"), train_batch_size=1)
        trained = take(train_input(test), len(encoded))
    assert {image.tobytes() for image, _ in trained} == {image.tobytes() for image in evaluated}


def test_a_quick_test_has_the_same_few_examples_in_every_epoch(run):
    few = run.replace(limit_train_examples=10)
    seen = keys(few, count=30)
    assert len(set(seen)) == 10
    assert sorted(seen[:10]) == sorted(seen[10:20]) == sorted(seen[20:])
    assert keys(few, 7, count=5) == seen[7:12]


def test_the_batches_to_overfit_stay_the_same(run):
    first, second, *again = take(overfit_input(run.replace(overfit=12)), 4)
    assert (len(first[1]), len(second[1])) == (8, 4)
    for (images, labels), (images_again, labels_again) in zip((first, second), again, strict=True):
        assert (images == images_again).all()
        assert (labels == labels_again).all()


def test_a_model_is_evaluated_with_the_pixels_that_it_was_trained_on(data, tmp_path):
    """Whatever the next command line says, or leaves out."""
    changes = {"image_size": 24, "antialias": False, "min_crop_area": 0.5}
    trained = make_run(data, tmp_path, **changes).for_training()
    usual = make_run(data, tmp_path)
    params = trained.model.applied_to(usual.hyperparameters, (), tmp_path)
    one, other = (
        next(run.inputs.evaluation_input(run, run.settings.test_data).as_numpy_iterator())[0]
        for run in (trained, usual.replace(hyperparameters=params, model_card=trained.model))
    )
    np.testing.assert_array_equal(one["image"], other["image"])
