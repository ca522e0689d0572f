"""per_example.csv, what an evaluation says of each example, and intervals by resampling them."""

import csv
from pathlib import Path

import numpy as np

EXAMPLES = "per_example.csv"
"""A row for each example, in the order of the dataset: file, label, predicted, error, ..."""
MEASURES = {"class": "accuracy", "labels": "label_accuracy", "value": "mean_absolute_error"}
"""By kind of label, what the mean of the errors is called; they are shares, but of a value."""
LEVEL = 0.95
"""Of intervals."""
RESAMPLES = 10_000


def read_column(folder: Path, name: str) -> np.ndarray:
    """A number of each example of an evaluation, float64 [examples]; none without the column."""
    if not (folder / EXAMPLES).exists():
        return np.array([])
    with open(folder / EXAMPLES, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return np.array([float(row[name]) for row in csv.DictReader(file) if name in row])


def measure(errors: np.ndarray, label: str) -> list[float]:
    """What MEASURES names, and where its interval begins and ends."""
    low, high = mean_intervals(errors[:, np.newaxis])[:, 0].tolist()
    mean = float(errors.mean())
    return [mean, low, high] if label == "value" else [1 - mean, 1 - high, 1 - low]


def measure_words(measured: list[float], label: str) -> str:
    """The same as a text: `97.3%, 95% interval 95.6% to 98.5%`."""
    value, low, high = (f"{x:.4g}" if label == "value" else f"{x:.1%}" for x in measured)
    return f"{value}, {LEVEL:.0%} interval {low} to {high}"


def mean_intervals(values: np.ndarray, *, level: float = LEVEL, paired: bool = False) -> np.ndarray:
    """Intervals of the means over examples, by the bootstrap: [examples, n] -> [2, n].

    Efron 1979, https://doi.org/10.1214/aos/1176344552; all columns with the same samples of the
    examples. An example of an error of the usual size is added: where few are different, a sample
    of them is too sure (Agresti and Min 2005, https://doi.org/10.1002/sim.1781). The columns may be
    differences of two errors (`paired`): then one of the opposite sign is added, too.
    """
    sizes = np.sqrt((values**2).sum(axis=0) / np.maximum((values != 0).sum(axis=0), 1))
    sizes[sizes == 0] = 1
    padded = np.vstack([values, sizes, -sizes * paired])
    number, random = len(padded), np.random.default_rng(0)
    samples = (random.integers(number, size=number) for _ in range(RESAMPLES))
    means = [np.bincount(each, minlength=number) @ padded / number for each in samples]
    return np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
