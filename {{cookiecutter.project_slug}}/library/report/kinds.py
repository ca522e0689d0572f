"""The stats of the heads that ship."""

import collections
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from library import report  # whose figures import matplotlib when one is drawn
from library.report.stats import EvaluationStats, Example

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIDENCE_BINS = 10
"""Of the reliability diagram, from 0 to 1."""
MATRIX_CELLS = 500
"""Rows of a confusion matrix; of more classes, neighbors share one."""
LOGIT_BINS, LOGITS_PER_BIN = 1000, 0.02
"""Scores of labels are counted by their logit, from -10 to 10; by probability, the rare labels'
would all be in the first bin."""
POINTS = 4000
"""Examples of a regression that are drawn, sampled at random."""


def class_names(names: Sequence[str], label: Any) -> str:
    """Of a class by its number, or of several by flags: their names, in a line."""
    numbers = np.flatnonzero(label).tolist() if np.ndim(label) else [label]
    return " ".join(", ".join(names[number] for number in numbers).splitlines()) or "none"


def mistake_caption(label: str, predicted: str, confidence: float) -> str:
    """Below a mistake: the true class, and what it was predicted as."""
    label, predicted = (" ".join(name.splitlines()) for name in (label, predicted))
    return f"{label}\npredicted as {predicted}, {100 * confidence:.0f}%"


def _class_rows(
    names: Sequence[str], correct: np.ndarray, predicted: np.ndarray, examples: np.ndarray
) -> list[dict[str, Any]]:
    """What became of each class; where it has no examples, a share is not a number."""
    with np.errstate(invalid="ignore"):
        shares = [correct / examples, correct / predicted, 2 * correct / (examples + predicted)]
    keys = ("name", "examples", "correct", "recall", "precision", "f1")
    columns = [each.tolist() for each in (examples.astype(int), correct.astype(int), *shares)]
    return [dict(zip(keys, row, strict=True)) for row in zip(names, *columns, strict=True)]


class ClassificationStats(EvaluationStats):
    """Counts, [batch] each: numbers of the true and predicted classes, and confidence."""

    kind = "classification"

    def __init__(self, names: Sequence[str]):
        super().__init__()
        self.names = names
        self.pairs: collections.Counter[tuple[int, int]] = collections.Counter()
        """By true and predicted class: of 10,000 classes, few of the pairs occur."""
        self.bins = np.zeros([CONFIDENCE_BINS, 3])  # examples, sum of confidence, number correct

    def count(self, *outputs: np.ndarray) -> None:
        labels, predicted, confidence = outputs
        confidence = np.nan_to_num(confidence)  # of a network that overflows
        self.pairs.update(zip(labels.tolist(), predicted.tolist(), strict=True))
        bins = np.minimum((confidence * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
        terms = [np.ones_like(confidence), confidence, labels == predicted]
        np.add.at(self.bins, bins, np.stack(terms, axis=1))

    def columns(self, *outputs: np.ndarray) -> dict[str, Sequence[Any]]:
        labels, predicted, confidence = outputs
        label, class_ = ([self.names[i] for i in each] for each in (labels, predicted))
        error = (labels != predicted).astype(int)
        return {"label": label, "predicted": class_, "confidence": confidence, "error": error}

    def caption(self, example: Example) -> str:
        label, predicted, confidence = example.outputs
        return mistake_caption(self.names[label], self.names[predicted], confidence)

    def rows(self) -> list[dict[str, Any]]:
        totals = np.zeros([3, len(self.names)])  # correct, predicted, examples
        others: dict[int, tuple[str, int]] = {}
        for (label, predicted), times in sorted(self.pairs.items(), key=lambda x: (-x[1], x[0])):
            totals[1, predicted] += times
            totals[2, label] += times
            if label == predicted:
                totals[0, label] = times
            else:
                others.setdefault(label, (self.names[predicted], times))
        rows = _class_rows(self.names, *totals)
        for label, row in enumerate(rows):
            row["most often predicted as"], row["times"] = others.get(label, ("", 0))
        return rows

    def figures(self) -> Iterator[tuple[str, "Figure"]]:
        step = math.ceil(len(self.names) / MATRIX_CELLS)
        names = self.names[::step]
        confusion = np.zeros([len(names)] * 2, int)
        for (label, predicted), times in self.pairs.items():
            confusion[label // step, predicted // step] += times
        yield "confusion_matrix", report.figures.confusion_matrix(confusion, names)
        yield "reliability", report.figures.reliability(self.bins)


class MultiLabelStats(EvaluationStats):
    """Counts [batch, classes] each: 1 for each label of an example, and the bins of the logits."""

    kind = "multi_label"

    def __init__(self, names: Sequence[str], thresholds: Sequence[float] = ()):
        super().__init__()
        self.names, self.limits = names, _limits(thresholds, len(names))
        self.counts = np.zeros([2, len(names), LOGIT_BINS], int)  # without the label, with it

    def count(self, *outputs: np.ndarray) -> None:
        labels, bins = outputs
        np.add.at(self.counts, (labels, np.arange(len(self.names)), bins), 1)

    def columns(self, *outputs: np.ndarray) -> dict[str, Sequence[Any]]:
        """The error is the share of labels that are wrong."""
        labels, predicted = outputs[0], outputs[1] >= self.limits
        true, found = ([class_names(self.names, i) for i in each] for each in (labels, predicted))
        return {"label": true, "predicted": found, "error": (labels != predicted).mean(axis=1)}

    def caption(self, example: Example) -> str:
        labels, bins = example.outputs
        true, predicted = (class_names(self.names, each) for each in (labels, bins >= self.limits))
        return mistake_caption(true, predicted, example.badness)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Of each label, that of the best F1; 0.5 for a label that no example has."""
        correct, predicted = _above(self.counts)
        f1 = 2 * correct / np.maximum(predicted + correct[:, :1], 1)
        # In the middle of all that are as good: between the examples with a label and the others.
        best = [np.ceil(np.flatnonzero(row >= row.max() - 1e-12).mean()) for row in f1]
        return _probabilities(np.where(correct[:, 0], best, LOGIT_BINS // 2))

    def rows(self) -> list[dict[str, Any]]:
        rows = _class_rows(self.names, *_decisions(self.counts, self.limits))
        columns = _average_precision(self.counts).tolist(), _probabilities(self.limits)
        for row, *values in zip(rows, *columns, strict=True):
            row |= zip(("average precision", "threshold"), values, strict=True)
        return rows


def label_metrics(counts: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """F1 of all labels; the mean over those that occur of F1 and of average precision.

    `counts` are [2, classes, LOGIT_BINS]: examples without and with a label.
    """
    decisions = np.stack(_decisions(counts, _limits(thresholds, counts.shape[1])))
    occurs = decisions[2] > 0
    micro, macro = (
        2 * correct / np.maximum(predicted + true, 1)
        for correct, predicted, true in (decisions.sum(axis=1), decisions[:, occurs])
    )
    return np.array([micro, macro.mean(), _average_precision(counts)[occurs].mean()], np.float32)


def _probabilities(bins: np.ndarray) -> tuple[float, ...]:
    return tuple((1 / (1 + np.exp((LOGIT_BINS // 2 - bins) * LOGITS_PER_BIN))).tolist())


def _limits(thresholds: Sequence[float], size: int) -> np.ndarray:
    """The first bins that are predicted."""
    p = np.clip(thresholds or [0.5] * size, 1e-9, 1 - 1e-9)
    bins = np.round(np.log(p / (1 - p)) / LOGITS_PER_BIN).astype(int) + LOGIT_BINS // 2
    return np.clip(bins, 0, LOGIT_BINS - 1)


def _above(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many are correct, and how many predicted, for a threshold below each bin."""
    above = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]
    return above[1], above.sum(axis=0)


def _decisions(counts: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of each label: how many are correct, predicted and true."""
    (correct, predicted), each = _above(counts), np.arange(len(limits))
    return correct[each, limits], predicted[each, limits], correct[:, 0]


def _average_precision(counts: np.ndarray) -> np.ndarray:
    """Of each label: the mean of the precision at each example that has it."""
    correct, predicted = _above(counts)
    with np.errstate(invalid="ignore"):
        return (counts[1] * correct / np.maximum(predicted, 1)).sum(axis=1) / correct[:, 0]


class RegressionStats(EvaluationStats):
    """Counts float [batch] each: true and predicted values."""

    kind = "regression"

    def __init__(self) -> None:
        super().__init__()
        self.points = np.zeros([0, 3])  # true value, predicted value, random number
        self.random = np.random.default_rng(0)

    def count(self, *outputs: np.ndarray) -> None:
        some = np.stack([*outputs, self.random.random(len(outputs[0]))], axis=1)
        points = np.concatenate([self.points, some[np.isfinite(some).all(axis=1)]])
        # Those of the least random numbers are a fair sample, whenever they came.
        self.points = points[np.argsort(points[:, 2])[:POINTS]]

    def columns(self, *outputs: np.ndarray) -> dict[str, Sequence[Any]]:
        true, predicted = outputs
        return {"label": true, "predicted": predicted, "error": abs(predicted - true)}

    def caption(self, example: Example) -> str:
        true, predicted = example.outputs
        return f"{true:.4g}\npredicted as {predicted:.4g}"

    def figures(self) -> Iterator[tuple[str, "Figure"]]:
        true, predicted, _ = self.points.T
        yield "predictions", report.figures.scatter(true, predicted)
        yield "errors", report.figures.histogram(predicted - true)
