"""What an evaluation finds, class by class: counted while it runs, in memory that does not grow."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

MISTAKES = 24
"""Mistakes that are kept: those of which the model was most certain."""

BINS = 10
"""Of the reliability diagram: shares of certainty from 0 to 1."""

COLLECTION = "tally"

SessionRunHook: TypeAlias = tf.compat.v1.train.SessionRunHook


@dataclasses.dataclass(frozen=True)
class Mistake:
    """An example that the model took for another class."""

    key: str  # the name of its file
    label: int  # number of the true class
    predicted: int
    probability: float  # of the predicted class
    picture: np.ndarray  # uint8 [height, width, 3]

    def caption(self, class_names: Sequence[str]) -> str:
        """What is written below the picture, in two lines."""
        return caption_of(class_names[self.label], class_names[self.predicted], self.probability)


def caption_of(label: str, predicted: str, probability: float) -> str:
    """Of a mistake: the true class, and what it was taken for."""
    label, predicted = (" ".join(name.splitlines()) for name in (label, predicted))
    return f"{label}\ntaken for {predicted}, {100 * probability:.0f}%"


class Tally:
    """Counts of an evaluation.

    tally = Tally(["cat", "dog"])
    tally.add(labels, predicted, probabilities)
    tally.confusion, tally.bins, tally.mistakes
    """

    def __init__(self, class_names: Sequence[str]):
        """
        Args:
            class_names: in the order of the labels.
        """
        self.class_names = list(class_names)
        size = len(self.class_names)
        self.confusion = np.zeros([size, size], np.int64)  # [true class, predicted class]
        self.bins = np.zeros([BINS, 3])  # of each: examples, sum of probabilities, number right
        self.mistakes: list[Mistake] = []  # the worst one first

    def add(
        self,
        labels: np.ndarray,
        predicted: np.ndarray,
        probabilities: np.ndarray,
        mistakes: Sequence[Mistake] = (),
    ) -> None:
        """Count a batch.

        Args:
            labels: int [batch], numbers of the true classes.
            predicted: int [batch], numbers of the most probable classes.
            probabilities: float [batch], of the predicted classes.
            mistakes: of the batch; the worst of them all are kept.
        """
        np.add.at(self.confusion, (labels, predicted), 1)
        bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
        right = labels == predicted
        np.add.at(self.bins, bins, np.stack([np.ones_like(right), probabilities, right], axis=1))
        ranked = sorted([*self.mistakes, *mistakes], key=lambda one: -one.probability)
        self.mistakes = ranked[:MISTAKES]


def tell(
    *, labels: tf.Tensor, probabilities: tf.Tensor, pictures: tf.Tensor, keys: tf.Tensor
) -> None:
    """Leave in the graph of an evaluation what TallyHook counts.

    Args:
        labels: int64 [batch].
        probabilities: float32 [batch, classes].
        pictures: uint8 [batch, height, width, 3]: what is shown of the examples.
        keys: string [batch], the names of their files.
    """
    predicted = tf.argmax(probabilities, axis=-1)
    certainty = tf.reduce_max(probabilities, axis=-1)
    # The worst are chosen in the graph: pictures are large.
    rank = tf.where(tf.equal(predicted, labels), -1.0, certainty)
    worst = tf.math.top_k(rank, tf.minimum(MISTAKES, tf.size(rank))).indices
    shown = tf.gather(pictures, worst), tf.gather(keys, worst)
    for tensor in (labels, predicted, certainty, worst, *shown):
        tf.compat.v1.add_to_collection(COLLECTION, tensor)


class TallyHook(SessionRunHook):
    """Counts an evaluation in `tally`, of the batches that it has anyway.

        hook = TallyHook(class_names)
        estimator.evaluate(input_fn, hooks=[hook])
        hook.tally

    `tally` is None where the model has not called `tell`.
    """

    def __init__(self, class_names: Sequence[str]):
        self.class_names = class_names
        self.tally: Tally | None = None

    def begin(self) -> None:
        self.tensors = tf.compat.v1.get_collection(COLLECTION)
        self.tally = Tally(self.class_names) if self.tensors else None

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self.tensors)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self.tally is None:
            return
        labels, predicted, certainty, worst, pictures, keys = run_values.results
        mistakes = [
            Mistake(os.fsdecode(key), labels[i], predicted[i], float(certainty[i]), picture)
            for i, picture, key in zip(worst, pictures, keys, strict=True)
            if labels[i] != predicted[i]
        ]
        self.tally.add(labels, predicted, certainty, mistakes)
