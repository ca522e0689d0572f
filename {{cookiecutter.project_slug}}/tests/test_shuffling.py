"""The order of examples: a permutation each epoch, a pure function of (seed, epoch, position)."""

import numpy as np
import pytest

from library.shuffling import POSITIONS_PER_CALL, shuffle_and_repeat


def ids(*args, **kwargs) -> np.ndarray:
    return np.array(list(shuffle_and_repeat(*args, **kwargs).as_numpy_iterator()))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, POSITIONS_PER_CALL + 1])
def test_each_epoch_has_every_id_once(n):
    epochs = ids(n, seed=5, epochs=3).reshape(3, n)
    assert (np.sort(epochs) == np.arange(n)).all()


@pytest.mark.parametrize("start", [0, 1, 9, 10, 11, 25, 30])
def test_it_starts_anywhere(start):
    assert (
        ids(10, seed=5, start=start, epochs=3).tolist()
        == ids(10, seed=5, epochs=3).tolist()[start:]
    )


def test_seeds_and_neighbouring_epochs_are_independent():
    epochs = ids(1000, seed=5, epochs=50).reshape(50, 1000)
    # Two independent permutations agree in one position on average, with a variance of one.
    same = [(a == b).sum() for a, b in zip(epochs, epochs[1:], strict=False)]
    assert np.mean(same) < 2
    assert np.mean([(epoch == np.arange(1000)).sum() for epoch in epochs]) < 2
    assert (ids(1000, seed=6, epochs=1) == epochs[0]).sum() < 10


def test_without_epochs_it_has_no_end():
    assert len(list(shuffle_and_repeat(3, seed=1).take(100))) == 100


@pytest.mark.parametrize(("n", "start"), [(0, 0), (5, -1)])
def test_nonsense_is_refused(n, start):
    with pytest.raises(ValueError, match="num_examples must be at least 1"):
        shuffle_and_repeat(n, seed=1, start=start)
