"""What an evaluation finds: counted while it runs, in memory that does not grow with the data."""

import abc
import collections
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from library.report import figures

WORST = 24
"""Examples that are kept to be shown: the worst ones."""

CONFIDENCE_BINS = 10
"""Of the reliability diagram, from 0 to 1."""

LOGIT_BINS, LOGITS_PER_BIN = 1000, 0.02
"""Scores of a label are counted by their logit, from -10 to 10: probabilities of rare labels, which
are all close to 0, are told apart as well as others."""

POINTS = 4000
"""Examples of a regression, sampled at random, that are drawn."""

TABLE_ROWS, VALUE_RANGES = 50, 10
"""Classes in the table of a page, and ranges of a regression's values."""

MATRIX_CELLS = 500
"""Classes of a confusion matrix; of more, neighbors share a cell."""

COLLECTION = "eval_outputs"

SessionRunHook: TypeAlias = tf.compat.v1.train.SessionRunHook


class Example(NamedTuple):
    """One of the worst examples."""

    key: str  # the name of its file
    badness: float
    image: np.ndarray  # uint8 [height, width, 3]
    outputs: list[Any]  # what `count` gets of a batch, of this example


class Drawing(NamedTuple):
    """A figure of a page; also a file beside the page."""

    file: str
    title: str
    note: str
    figure: Figure


class Table(NamedTuple):
    """A table of a page, and all of it as a CSV file."""

    file: str
    title: str
    note: str
    rows: list[dict[str, Any]]
    cells: list[list[str]]  # what the page shows: its columns, then its rows


class EvaluationStats(abc.ABC):
    """Counts of an evaluation, and how a report shows them."""

    worst_title = "Worst mistakes"

    def __init__(self, class_names: Sequence[str] = ()):
        self.class_names = list(class_names)
        self.examples = self.mistakes = 0
        self.worst: list[Example] = []  # the worst one first

    def add(
        self,
        outputs: Sequence[np.ndarray],
        badness: np.ndarray,
        worst: Iterable[int] = (),
        images: Sequence[np.ndarray] = (),
        keys: Sequence[bytes] = (),
    ) -> None:
        """Count a batch; arguments as of `collect_eval_outputs`, `worst` being places in it."""
        self.examples += len(badness)
        self.mistakes += int((badness >= 0).sum())
        self.count(*outputs)
        some = [
            Example(os.fsdecode(key), float(badness[i]), image, [each[i] for each in outputs])
            for i, image, key in zip(worst, images, keys, strict=True)
            if badness[i] >= 0
        ]
        self.worst = sorted([*self.worst, *some], key=lambda one: -one.badness)[:WORST]

    @abc.abstractmethod
    def count(self, *outputs: np.ndarray) -> None:
        """Count the outputs of a batch."""

    @abc.abstractmethod
    def caption(self, example: Example) -> str:
        """What is written below the image, in two lines."""

    @abc.abstractmethod
    def table(self) -> Table: ...

    @abc.abstractmethod
    def drawings(self) -> Iterator[Drawing]:
        """Figures; TensorBoard shows the first one."""

    def tiles(self) -> dict[str, int]:
        """Numbers at the head of the page, beside the metrics."""
        return {"examples": self.examples, "mistakes": self.mistakes}

    def worst_note(self) -> str:
        if not self.mistakes:
            return "No mistakes."
        which = f"{len(self.worst)} of {self.mistakes:,}" if self.mistakes > WORST else "All"
        which += f" {self.mistakes:,}" * (which == "All")
        return f"{which} mistakes, most confident first."


def show(value: Any) -> str:
    """A cell of a table: shares in percent."""
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def class_names(names: Sequence[str], label: Any) -> str:
    """Of a class, or of several: their names in a line."""
    numbers = np.flatnonzero(label).tolist() if np.ndim(label) else [label]
    return ", ".join(names[number] for number in numbers) or "none"


def mistake_caption(label: str, predicted: str, confidence: float) -> str:
    """Of a mistake: the true class, and what it was predicted as."""
    label, predicted = (" ".join(name.splitlines()) for name in (label, predicted))
    return f"{label}\npredicted as {predicted}, {100 * confidence:.0f}%"


class ClassificationStats(EvaluationStats):
    """Outputs: [batch] each, numbers of the true and predicted classes, and confidence."""

    def __init__(self, class_names: Sequence[str]):
        super().__init__(class_names)
        self.pairs: collections.Counter[tuple[int, int]] = collections.Counter()
        """How often a true class was predicted as which: of 10,000 classes, few pairs occur."""
        self.bins = np.zeros([CONFIDENCE_BINS, 3])  # examples, sum of confidence, number correct

    def count(self, *outputs: np.ndarray) -> None:
        labels, predicted, confidence = outputs
        self.pairs.update(zip(labels.tolist(), predicted.tolist(), strict=True))
        correct = labels == predicted
        each = np.stack([np.ones_like(confidence), confidence, correct], axis=1)
        np.add.at(self.bins, _confidence_bins(confidence), each)

    def caption(self, example: Example) -> str:
        label, predicted, confidence = example.outputs
        return mistake_caption(self.class_names[label], self.class_names[predicted], confidence)

    def table(self) -> Table:
        size = len(self.class_names)
        counts = np.array([(*pair, times) for pair, times in self.pairs.items()], int)
        true, predicted, times = counts.reshape(-1, 3).T
        decisions = [
            np.bincount(classes, times * chosen, minlength=size)
            for classes, chosen in ((true, true == predicted), (predicted, 1), (true, 1))
        ]
        others: dict[int, tuple[str, int]] = {}
        for (label, other), count in sorted(self.pairs.items(), key=lambda one: (-one[1], one[0])):
            if label != other:
                others.setdefault(label, (self.class_names[other], count))
        rows = _class_rows(self.class_names, *decisions)
        for label, row in enumerate(rows):
            row["most often predicted as"], row["times"] = others.get(label, ("", 0))
        return _worst_first("per_class.csv", "Classes", rows)

    def drawings(self) -> Iterator[Drawing]:
        step = -(-len(self.class_names) // MATRIX_CELLS)
        names = self.class_names[::step]
        confusion = np.zeros([len(names)] * 2, int)
        for (label, predicted), count in self.pairs.items():
            confusion[label // step, predicted // step] += count
        note = "Each row is a true class, and shows what its examples were predicted as."
        matrix = figures.confusion_matrix(confusion, names)
        yield Drawing("confusion_matrix.png", "Confusion matrix", note, matrix)
        yield _reliability(self.bins, "of the predicted class")


class MultiLabelStats(EvaluationStats):
    """Outputs: int [batch, classes], 1 for each label of an example; int [batch, classes], bins of
    the logits.
    """

    def __init__(self, names: Sequence[str], thresholds: Sequence[float] = ()):
        super().__init__(names)
        self.limits = _limits(thresholds, len(names))
        self.counts = np.zeros([2, len(names), LOGIT_BINS], int)
        """Examples without and with a label, by bin."""

    def count(self, *outputs: np.ndarray) -> None:
        labels, bins = outputs
        np.add.at(self.counts, (labels, np.arange(len(self.class_names)), bins), 1)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Of each label, that of the best F1; 0.5 for a label that no example has."""
        correct, predicted = _above(self.counts)
        f1 = 2 * correct / np.maximum(predicted + correct[:, :1], 1)
        # In the middle of all that are as good: between the examples with a label and the others.
        best = [np.flatnonzero(row >= row.max() - 1e-12).mean() for row in f1]
        return tuple(_probability(np.where(correct[:, 0], np.ceil(best), LOGIT_BINS // 2)).tolist())

    def caption(self, example: Example) -> str:
        labels, bins = example.outputs
        true, predicted = (
            class_names(self.class_names, each) for each in (labels, bins >= self.limits)
        )
        return mistake_caption(true, predicted, example.badness)

    def table(self) -> Table:
        rows = _class_rows(self.class_names, *_decisions(self.counts, self.limits))
        areas = _average_precision(self.counts).tolist()
        thresholds = _probability(self.limits).tolist()
        for row, area, threshold in zip(rows, areas, thresholds, strict=True):
            row |= {"average precision": area, "threshold": threshold}
        return _worst_first("per_label.csv", "Labels", rows)

    def drawings(self) -> Iterator[Drawing]:
        correct, predicted = (each.sum(axis=0) for each in _above(self.counts))
        pairs = np.stack([correct / max(correct[0], 1), correct / np.maximum(predicted, 1)])
        curve = figures.precision_recall(*pairs[:, predicted > 0])
        note = "Of all labels together, at every threshold."
        yield Drawing("precision_recall.png", "Precision and recall", note, curve)
        confidence = _probability(np.arange(LOGIT_BINS) + 0.5)
        negatives, positives = self.counts.sum(axis=1)
        bins = np.zeros([CONFIDENCE_BINS, 3])
        sums = [negatives + positives, (negatives + positives) * confidence, positives]
        np.add.at(bins, _confidence_bins(confidence), np.stack(sums, axis=1))
        yield _reliability(bins, "of a label")


def _probability(bins: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp((LOGIT_BINS // 2 - bins) * LOGITS_PER_BIN))


def _limits(thresholds: Sequence[float], size: int) -> np.ndarray:
    """The first bins at which labels are predicted."""
    p = np.array(thresholds or [0.5] * size)
    return np.round(np.log(p / (1 - p)) / LOGITS_PER_BIN).astype(int) + LOGIT_BINS // 2


def _above(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of thresholds at the begin of each bin: how many are correct, and how many predicted."""
    above = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]
    return above[1], above.sum(axis=0)


def _decisions(counts: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of each label: how many are correct, predicted and true."""
    correct, predicted = _above(counts)
    each = np.arange(len(limits))
    return correct[each, limits], predicted[each, limits], correct[:, 0]


def _average_precision(counts: np.ndarray) -> np.ndarray:
    """Of each label: the mean of the precision at each of its examples; not a number of none."""
    correct, predicted = _above(counts)
    with np.errstate(invalid="ignore"):
        return (counts[1] * correct / np.maximum(predicted, 1)).sum(axis=1) / correct[:, 0]


def label_metrics(counts: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """F1 of all labels; the mean over those that occur of F1 and of average precision."""
    decisions = np.stack(_decisions(counts, _limits(thresholds, counts.shape[1])))
    occurs = decisions[2] > 0
    micro, macro = (
        2 * correct / np.maximum(predicted + true, 1)
        for correct, predicted, true in (decisions.sum(axis=1), decisions[:, occurs])
    )
    return np.array([micro, macro.mean(), _average_precision(counts)[occurs].mean()], np.float32)


class RegressionStats(EvaluationStats):
    """Outputs: float [batch], true values; float [batch], predicted ones."""

    worst_title = "Largest errors"

    def __init__(self) -> None:
        super().__init__()
        self.points = np.zeros([0, 3])  # true value, predicted value, random number
        self.random = np.random.default_rng(0)

    def count(self, *outputs: np.ndarray) -> None:
        some = np.stack([*outputs, self.random.random(len(outputs[0]))], axis=1)
        points = np.concatenate([self.points, some])
        # Those with the least random numbers are a fair sample, whenever they came.
        self.points = points[np.argsort(points[:, 2], kind="stable")[:POINTS]]

    def caption(self, example: Example) -> str:
        true, predicted = example.outputs
        return f"{true:.4g}\npredicted as {predicted:.4g}"

    def tiles(self) -> dict[str, int]:
        return {"examples": self.examples}

    def worst_note(self) -> str:
        return f"{len(self.worst)} of {self.examples:,} examples, largest error first."

    def table(self) -> Table:
        points = self.points[np.argsort(self.points[:, 0], kind="stable")]
        rows = []
        for part in np.array_split(points, VALUE_RANGES):
            if len(part):
                errors = part[:, 1] - part[:, 0]
                numbers = part[0, 0], part[-1, 0], abs(errors).mean(), errors.mean()
                names = ("from", "to", "mean absolute error", "mean error")
                rows.append(dict(zip(names, map(float, numbers), strict=True), examples=len(part)))
        cells = [[f"{value:,.4g}" for value in row.values()] for row in rows]
        note = "By the true value, in ranges of as many examples each."
        return Table("per_range.csv", "Ranges", note, rows, [list(rows[0] if rows else ()), *cells])

    def drawings(self) -> Iterator[Drawing]:
        true, predicted, _ = self.points.T
        note = "On the diagonal, the prediction equals the true value."
        scatter = figures.scatter(true, predicted)
        yield Drawing("predicted_and_true.png", "Predicted and true value", note, scatter)
        note = "Predicted value less true value."
        errors = figures.histogram(predicted - true, "error")
        yield Drawing("errors.png", "Distribution of the error", note, errors)


def _confidence_bins(confidence: np.ndarray) -> np.ndarray:
    return np.minimum((confidence * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)


def _reliability(bins: np.ndarray, what: str) -> Drawing:
    note = "On the diagonal, confidence equals accuracy."
    return Drawing("reliability.png", "Reliability", note, figures.reliability(bins))


def _class_rows(
    names: Sequence[str], correct: np.ndarray, predicted: np.ndarray, examples: np.ndarray
) -> list[dict[str, Any]]:
    """What became of each class; where it has no examples, a share is not a number."""
    with np.errstate(invalid="ignore"):
        shares = correct / examples, correct / predicted, 2 * correct / (examples + predicted)
    counts = (each.astype(int) for each in (examples, correct))
    keys = ("name", "examples", "correct", "recall", "precision", "f1")
    columns = [names, *(each.tolist() for each in (*counts, *shares))]
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]


def _worst_first(file: str, title: str, rows: list[dict[str, Any]]) -> Table:
    """Classes, the page showing those of the lowest F1."""
    note = "Lowest F1 first."
    if rows[TABLE_ROWS:]:
        note = f"Lowest F1 first: {TABLE_ROWS} of {len(rows)}; {file} has all."
    worst = sorted(rows, key=lambda row: (not row["examples"], row["f1"]))[:TABLE_ROWS]
    return Table(
        file, title, note, rows, [list(rows[0]), *(list(map(show, row.values())) for row in worst)]
    )


def collect_eval_outputs(*outputs: tf.Tensor, images: tf.Tensor, keys: tf.Tensor) -> None:
    """Leave in the graph of an evaluation what StatsHook counts.

    Args:
        outputs: [batch, ...], what `EvaluationStats.count` of the head takes; and float32 [batch],
            by which the worst examples are chosen: below 0, it is no mistake.
        images: uint8 [batch, height, width, 3]: what is shown of the examples.
        keys: string [batch], the names of their files.
    """
    # The worst are chosen in the graph: images are large.
    badness = outputs[-1]
    worst = tf.math.top_k(badness, tf.minimum(WORST, tf.size(badness))).indices
    shown = tf.gather(images, worst), tf.gather(keys, worst)
    for tensor in (*outputs, worst, *shown):
        tf.compat.v1.add_to_collection(COLLECTION, tensor)


class Counted(Protocol):
    """What the hooks need of a head."""

    def stats(self) -> EvaluationStats | None: ...
    def caption(self, label: Any) -> str: ...


class StatsHook(SessionRunHook):
    """Counts an evaluation in `stats`, of the batches that it has anyway.

        hook = StatsHook(head)
        estimator.evaluate(input_fn, hooks=[hook])
        hook.stats

    `stats` is None where the model has not called `head.collect`.
    """

    def __init__(self, head: Counted):
        self.head = head
        self.stats: EvaluationStats | None = None

    def begin(self) -> None:
        self.tensors = tf.compat.v1.get_collection(COLLECTION)
        self.stats = self.head.stats() if self.tensors else None

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self.tensors)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self.stats:
            *outputs, badness, worst, images, keys = run_values.results
            self.stats.add(outputs, badness, worst, images, keys)
