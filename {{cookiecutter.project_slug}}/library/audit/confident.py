"""Which labels are suspicious: confident learning, and a linear layer on frozen features."""

from typing import NamedTuple

import numpy as np

from library.config import FOLDS

L2, STEPS = 1e-4, 300
"""Of the linear layer: weight of half its squared weights; steps of its training."""


class Issues(NamedTuple):
    """What confident learning says of each example: arrays [n]."""

    scores: np.ndarray  # float, the probability of the label: the lower, the more suspicious
    suggested: np.ndarray  # int: the likeliest class
    suspicious: np.ndarray  # bool


def label_issues(labels: np.ndarray, probabilities: np.ndarray) -> Issues:
    """Confident learning, Northcutt et al. 2021, https://arxiv.org/abs/1911.00068.

    The threshold of a class is the mean of its probability where it is the label. An example counts
    as the likeliest class that reaches its own: so each label has a share of other classes. As many
    examples as that makes of all are suspicious: those whose label has the lowest probability.

    Args:
        labels: int [n].
        probabilities: float [n, classes], by models that were not trained on the example.
    """
    of_label = probabilities[np.arange(len(labels)), labels]
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, of_label, len(counts))
    thresholds = np.where(counts, sums / np.maximum(counts, 1), np.inf)
    confident = np.where(probabilities >= thresholds, probabilities, -1.0)
    counted = confident.max(1) >= 0
    others = counted & (confident.argmax(1) != labels)
    other, every = (np.bincount(labels[each], minlength=len(counts)) for each in (others, counted))
    shares = other / np.maximum(every, 1)
    suspicious, suggested = np.zeros(len(labels), bool), probabilities.argmax(1)
    suspicious[np.argsort(of_label, kind="stable")[: round(float(shares @ counts))]] = True
    return Issues(of_label, suggested, suspicious & (suggested != labels))


def cross_validate(features: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Probabilities of each example by a linear layer that is trained on the other folds.

    Args:
        features: float32 [n, size], from a network that does not know the labels.
        labels: int [n].

    Returns:
        float32 [n, classes]; the fold of an example is its number modulo FOLDS.
    """
    x = features - features.mean(0)
    x /= np.maximum(x.std(0), 1e-6) * np.sqrt(x.shape[1])  # the squares of a row sum to 1, about
    x = np.hstack([x, np.ones_like(x[:, :1])])
    folds, probabilities = np.arange(len(x)) % FOLDS, np.zeros([len(x), classes], np.float32)
    targets = np.eye(classes, dtype=np.float32)[labels]
    for fold in range(FOLDS):
        inside = folds != fold
        weights = _trained(x[inside], targets[inside])
        probabilities[~inside] = _softmax(x[~inside] @ weights)
    return probabilities


def _trained(x: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Softmax regression by accelerated gradients, Nesterov 1983: [n, size] -> [size, classes]."""
    weights = ahead = np.zeros([x.shape[1], targets.shape[1]], np.float32)
    rate = 1 / (0.5 * np.linalg.eigvalsh(x.T @ x / len(x))[-1] + L2)  # 1 / Lipschitz constant
    for step in range(STEPS):
        gradient = x.T @ (_softmax(x @ ahead) - targets) / len(x) + L2 * ahead
        weights, last = ahead - rate * gradient, weights
        ahead = weights + step / (step + 3) * (weights - last)
    return weights


def _softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)
