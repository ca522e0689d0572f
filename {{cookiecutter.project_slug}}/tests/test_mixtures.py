"""Several datasets trained on as one: their shares, their order, their classes."""

import dataclasses
import shutil

import numpy as np
import pytest
from conftest import make_run, write_records

from library.data import Card, train_records
from library.util import UserError
from project.input_fn import train_input

SIZES = {"train": 50, "more": 30, "few": 7}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Three datasets of records, each with its number in all of them."""
    folder, first = tmp_path_factory.mktemp("parts"), 0
    for name, size in SIZES.items():
        records = [b"%d" % number for number in range(first, first + size)]
        write_records(folder / name, records[: size // 2], records[size // 2 :])
        first += size
    return folder


def settings_of(parts, folder, **options):
    extra = tuple(str(parts / name) for name in SIZES if name != "train")
    options = {"extra_data": extra, "random_seed": 3, "cache_dir": folder, **options}
    return make_run(parts, folder, **options).settings


def taken(settings, count: int, start: int = 0, **share: int) -> np.ndarray:
    """The ids of so many samples, each the number in its record."""
    classes = {"classes_of": lambda source: np.arange(source.num_examples) % 3}
    (found,) = train_records(settings, start, **share, **classes).batch(count).take(1)
    _, ids, contents = (each.numpy() for each in found)
    assert (ids == contents.astype(int)).all()
    return ids


def test_without_weights_each_example_comes_once_an_epoch(parts, tmp_path):
    settings = settings_of(parts, tmp_path)
    epochs = taken(settings, 3 * 87).reshape(3, 87)
    assert (np.sort(epochs) == np.arange(87)).all()
    assert (taken(settings, 50, 100) == epochs.ravel()[100:150]).all()
    of_fold = taken(dataclasses.replace(settings, fold=1), 69)
    assert sorted(of_fold) == [number for number in range(87) if number % 5 != 1]


@pytest.mark.parametrize("sampling", ["natural", "balanced"])
def test_weights_are_shares_and_each_part_has_epochs_of_its_own(parts, tmp_path, sampling):
    options = {"mixture_weights": (5.0, 3.0, 2.0), "sampling": sampling}
    settings = settings_of(parts, tmp_path, **options)
    found, ends = taken(settings, 10_000), np.cumsum([*SIZES.values()])
    numbers = np.searchsorted(ends, found, side="right")
    assert np.abs(np.bincount(numbers) / 10_000 - [0.5, 0.3, 0.2]).max() < 1e-3
    for number, size in enumerate(SIZES.values()):
        drawn, expected = found[numbers == number], np.arange(ends[number] - size, ends[number])
        if sampling == "natural":
            epochs = drawn[: len(drawn) // size * size].reshape(-1, size)
            assert (np.sort(epochs) == expected).all()
        else:
            assert np.abs(np.bincount(drawn % 3) / len(drawn) - 1 / 3).max() < 1e-3


@pytest.mark.slow
def test_a_mixture_starts_anywhere_with_any_workers_and_any_cache(parts, tmp_path):
    weights = (1.0, 1.0, 2.0)
    whole = taken(settings_of(parts, tmp_path, mixture_weights=weights), 60)
    for cache in ("none", "memory", "file"):
        settings = settings_of(parts, tmp_path, mixture_weights=weights, cache=cache)
        shares = [taken(settings, 15, 30, num_workers=2, worker=worker) for worker in (0, 1)]
        assert (np.stack(shares, axis=1).ravel() == whole[30:]).all(), cache


@pytest.mark.parametrize("cache", ["memory", pytest.param("file", marks=pytest.mark.slow)])
def test_the_input_of_a_mixture_is_the_same_from_a_cache(data, tmp_path, cache):
    """Of real examples, and of all parts."""
    options = {"extra_data": (str(data / "test"),), "mixture_weights": (1.0, 2.0)}
    run = make_run(data, tmp_path, train_batch_size=8, cache_dir=tmp_path, **options)
    run = run.for_training()
    sizes = [run.card(name).num_examples for name in ("train_data", "test_data")]
    assert run.train_card.num_examples == sum(sizes)
    assert run.model.target.examples_per_class == tuple(run.train_card.examples_per_class.values())
    keys = run.modality.train_keys(run.settings, 0, 400)
    assert len({*keys}) >= max(sizes)
    cached = run.replace(cache=cache)
    pairs = zip(train_input(run).take(4), train_input(cached).take(4), strict=True)
    for (features, labels), (features_again, labels_again) in pairs:
        assert (labels.numpy() == labels_again.numpy()).all()
        for name in features:
            assert (features[name].numpy() == features_again[name].numpy()).all()


def test_values_of_several_datasets_have_one_mean_and_deviation(parts):
    values = [np.array([1.0, 2.0, 6.0]), np.array([4.0, 8.0])]
    cards = []
    for some in values:
        card = Card.load(parts / "few.json")
        shard = dataclasses.replace(card.shards[0], examples=len(some))
        numbers = {"value_mean": some.mean(), "value_std": some.std()}
        cards.append(dataclasses.replace(card, label="value", shards=[shard], **numbers))
    card, every = cards[0].joined(cards[1:]), np.concatenate(values)
    assert np.allclose([card.value_mean, card.value_std], [every.mean(), every.std()])


def test_datasets_of_other_classes_are_refused(data, tmp_path):
    shutil.copytree(data, tmp_path / "other")
    card = Card.load(data / "test.json")
    dataclasses.replace(card, classes=[*card.classes, "yeti"]).save(tmp_path / "other/test.json")
    run = make_run(data, tmp_path, extra_data=(str(tmp_path / "other/test"),))
    with pytest.raises(UserError, match="^extra_data: .* yeti.* but .*--classes_from") as error:
        run.for_training()
    assert len(error.value.lines) == 1
    with pytest.raises(UserError, match="^extra_data: there is no dataset"):
        make_run(data, tmp_path, extra_data=(str(tmp_path / "none"),)).for_training()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shuffle": "stream"}, "extra_data: needs shuffle: global"),
        ({"limit_train_examples": 9}, "limit_train_examples: takes no extra_data"),
        ({"mixture_weights": (1.0, 2.0)}, "mixture_weights: 2 of them, but .* have 3 datasets"),
    ],
)
def test_what_a_mixture_cannot_do_is_told(parts, tmp_path, options, words):
    with pytest.raises(UserError, match=f"^{words}"):
        settings_of(parts, tmp_path, **options)
