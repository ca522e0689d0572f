"""The order of examples: a permutation each epoch, a pure function of (seed, epoch, position)."""

import numpy as np
import pytest
import tensorflow as tf

from library.data import mix_and_repeat, random_shard, shuffle_and_repeat


def ids(*args, **kwargs) -> np.ndarray:
    batches = shuffle_and_repeat(*args, **kwargs).batch(4096).as_numpy_iterator()
    return np.concatenate([np.empty(0, np.int64), *batches])


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, 4097])
def test_each_epoch_has_every_id_once(n):
    epochs = ids(n, seed=5, epochs=3).reshape(3, n)
    assert (np.sort(epochs) == np.arange(n)).all()


@pytest.mark.parametrize("start", [0, 1, 9, 10, 11, 25, 30])
def test_it_starts_anywhere(start):
    assert (
        ids(10, seed=5, start=start, epochs=3).tolist()
        == ids(10, seed=5, epochs=3).tolist()[start:]
    )


def test_it_starts_anywhere_in_a_graph_too():
    """As in the Estimator's: `==` between tensors is another thing there."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = shuffle_and_repeat(10, seed=5, start=13, epochs=3)
        step = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        found = [int(session.run(step)) for _ in range(17)]
    assert found == ids(10, seed=5, epochs=3).tolist()[13:]


N, EPOCHS = 1000, 40


@pytest.fixture(scope="module")
def epochs() -> np.ndarray:
    return ids(N, seed=5, epochs=EPOCHS).reshape(EPOCHS, N)


# Limits are five standard deviations from what independent permutations give.


def test_few_ids_keep_their_place(epochs):
    """Fixed points, and places in common: 1 on average each, with a variance of 1."""
    fixed = [(epoch == np.arange(N)).sum() for epoch in epochs]
    common = [(a == b).sum() for a, b in zip(epochs, epochs[1:], strict=False)]
    for counts in (fixed, common):
        assert abs(np.mean(counts) - 1) < 5 / np.sqrt(len(counts))


@pytest.mark.parametrize("apart", [1, 2, 3])
def test_epochs_are_not_correlated(epochs, apart):
    found = [np.corrcoef(a, b)[0, 1] for a, b in zip(epochs, epochs[apart:], strict=False)]
    assert np.abs(found).max() < 5 / np.sqrt(N)
    assert abs(np.mean(found)) < 5 / np.sqrt(N * len(found))


def test_neighbours_do_not_stay_neighbours(epochs):
    found = [np.corrcoef(epoch[:-1], epoch[1:])[0, 1] for epoch in epochs]
    assert abs(np.mean(found)) < 5 / np.sqrt(N * len(found))


def test_every_id_comes_everywhere(epochs):
    """Chi-square of ids (in tens) against places (in tens), summed over all epochs."""
    places = np.argsort(epochs, axis=1)  # of each id
    table = np.zeros((10, 10))
    for epoch in places:
        table += np.histogram2d(np.arange(N), epoch, bins=10)[0]
    expected = N * EPOCHS / 100
    chi_square = ((table - expected) ** 2 / expected).sum()
    freedom = 81  # rows and columns add up by themselves
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


def test_seeds_are_independent(epochs):
    assert (ids(N, seed=6, epochs=1) == epochs[0]).sum() < 10
    assert abs(np.corrcoef(ids(N, seed=6, epochs=1), epochs[0])[0, 1]) < 5 / np.sqrt(N)


@pytest.mark.parametrize(("shard_size", "n"), [(10, 100), (7, 100), (200, 100), (1, 5)])
def test_random_shards_are_blocks_in_another_order(shard_size, n):
    dataset = tf.data.Dataset.range(n).apply(random_shard(shard_size, n, seed=1))
    passes = [list(dataset.as_numpy_iterator()) for _ in range(2)]
    for found in passes:
        assert sorted(found) == list(range(n))
        begins = [at for at, one in enumerate(found) if at == 0 or one != found[at - 1] + 1]
        assert all(found[at] % shard_size == 0 for at in begins)
    if shard_size == 10:
        assert passes[0] != passes[1]
        again = tf.data.Dataset.range(n).apply(random_shard(shard_size, n, seed=1))
        assert list(again.as_numpy_iterator()) == passes[0]


def test_without_epochs_it_has_no_end():
    assert len(list(shuffle_and_repeat(3, seed=1).take(100))) == 100


@pytest.mark.parametrize(("n", "start"), [(0, 0), (5, -1)])
def test_nonsense_is_refused(n, start):
    with pytest.raises(ValueError, match="num_examples must be at least 1"):
        shuffle_and_repeat(n, seed=1, start=start)


# ---- mixtures ----------------------------------------------------------------------------------

PARTS = [np.arange(700), np.arange(700, 735), np.array([800]), np.arange(1000, 1290)]


def mixed(weights: list[float], count: int, start: int = 0) -> np.ndarray:
    ids = mix_and_repeat(PARTS, weights, 5, start).batch(count).take(1)
    return next(iter(ids.as_numpy_iterator()))


@pytest.mark.parametrize(
    ("weights", "count"),
    [
        ([1, 1, 1, 1], 20_000),
        ([26.5, 5.9, 0.1, 17.0], 100_000),
        ([0.7, 0.2, 0.001, 0.099], 100_000),
    ],
)
def test_each_part_has_its_share_and_each_of_its_ids_once_per_epoch(weights, count):
    found = mixed(weights, count)
    for part, weight in zip(PARTS, weights, strict=True):
        drawn = found[np.isin(found, part)]
        assert abs(len(drawn) / count - weight / sum(weights)) < 1e-3
        epochs = drawn[: len(drawn) // len(part) * len(part)].reshape(-1, len(part))
        assert (np.sort(epochs) == part).all()
        assert len(part) == 1 or (epochs[0] != epochs[1]).any()


def test_a_mixture_starts_anywhere():
    weights = [4.0, 2.0, 0.01, 3.0]
    whole = mixed(weights, 12_000)
    for start in (1, 9_999, 10_000, 10_765):
        assert (mixed(weights, 1_000, start) == whole[start : start + 1_000]).all()
    far = 10**9
    assert (mixed(weights, 99, far + 1)[:-1] == mixed(weights, 99, far)[1:]).all()
