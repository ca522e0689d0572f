"""The base classes of heads."""

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from library.data import Target
from library.report import EVAL_OUTPUTS, WORST, EvaluationStats, class_names
from library.util import UserError

Metrics = dict[str, tuple[tf.Tensor, Any]]
"""By name: the value of a metric, and its update with a batch."""


class Head(abc.ABC):
    """Turns the outputs of a network into a loss, metrics and predictions. Yours is a subclass.

    `logits` are float32 [batch, logits_dimension]. `labels` depend on the kind: of "class", int64
    [batch]; of "labels", float32 [batch, classes], 1 for each class that an example has; of
    "value", float32 [batch], in the unit of the dataset.
    """

    name: str
    label: str
    """The kind of label that it learns, as Target.label."""
    metric_names: tuple[str, ...] = ()
    """Metrics whose curves a report draws. What a search improves is the first: of values an error,
    else a share."""
    outputs: tuple[str, ...] = ()
    """Predictions that are one number or text an example: columns of predictions.csv."""

    def __init__(self, target: Target, params: Any):
        """`target` is what the dataset says of its labels, `params` the hyperparameters."""
        self.target, self.params = target, params
        counted = self.label == "class" and any(target.examples_per_class)
        if params.class_weights != "none" and not counted:
            raise UserError(
                f"class_weights: {params.class_weights} needs classes, and their counts"
            )

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int: ...

    @abc.abstractmethod
    def losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """The loss of each example: float32 [batch]."""

    @abc.abstractmethod
    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """By name, what is predicted of each example; the outputs of the SavedModel."""

    @abc.abstractmethod
    def metrics(self, labels: tf.Tensor, logits: tf.Tensor) -> Metrics:
        """The `eval_metric_ops` of an evaluation."""

    def batch_metrics(self, labels: tf.Tensor, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Scalars that training shows beside the loss."""
        return {}

    def average(self, logits: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        """The logits of audio clips from those of their windows.

        `segment_ids`, int64 [windows], are the numbers of the clips, rising.
        """
        return tf.math.segment_mean(logits, segment_ids)

    def columns(self, top_k: int | None) -> list[str]:
        """The columns of predictions.csv, with so many of the classes; None: with all."""
        return ["file", *self.outputs, "error"]

    def row(self, prediction: dict[str, Any], top_k: int | None) -> dict[str, Any]:
        """The cells of one example's prediction, by column."""
        cells = {name: np.asarray(prediction[name]).item() for name in self.outputs}
        return {k: cell.decode() if isinstance(cell, bytes) else cell for k, cell in cells.items()}

    def caption(self, label: Any) -> str:
        """What is written below a training image."""
        return f"{label:g}"

    def stats(self) -> EvaluationStats | None:
        """What counts an evaluation for the report; None: the report shows metrics only."""
        return None

    def eval_outputs(self, labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """What `count` of `stats` takes of a batch, [batch, ...] each, and how bad each example is.

        That is float32 [batch], below 0 for no mistake.
        """
        return ()

    def collect(
        self,
        labels: tf.Tensor,
        logits: tf.Tensor,
        images: tf.Tensor,
        keys: tf.Tensor,
        maps: tf.Tensor | None = None,
    ) -> None:
        """Leave in the graph of an evaluation what StatsHook counts, and what a report shows.

        That is images, uint8 [batch, height, width, 3], keys, string [batch], and heat maps,
        float32 [batch, h, w], if there are some.
        """
        if outputs := self.eval_outputs(labels, logits):
            # The worst are chosen in the graph: images are large.
            worst = tf.math.top_k(outputs[-1], tf.minimum(WORST, tf.size(outputs[-1]))).indices
            if maps is None:
                maps = tf.zeros([tf.size(keys), 0, 0])
            shown = (tf.gather(each, worst) for each in (images, maps))
            for tensor in (*outputs, worst, *shown, keys):
                tf.compat.v1.add_to_collection(EVAL_OUTPUTS, tensor)


class ClassesHead(Head):
    """Base of heads that predict `probabilities` of classes, which are columns, too."""

    first_rank = 1
    """With top_k, the columns are `class 1`, `probability 1` and so on, from this rank."""

    @property
    def logits_dimension(self) -> int:
        return len(self.target.classes)

    def columns(self, top_k: int | None) -> list[str]:
        columns, names = super().columns(top_k), self.target.classes
        if top_k is None:
            return columns + [f"probability of {name}" for name in names]
        ranks = range(self.first_rank, min(top_k, len(names)) + 1)
        return columns + [f"{word} {rank}" for rank in ranks for word in ("class", "probability")]

    def row(self, prediction: dict[str, Any], top_k: int | None) -> dict[str, Any]:
        probabilities, names = np.asarray(prediction["probabilities"]), self.target.classes
        cells = probabilities.tolist()
        if top_k is not None:
            best = np.argsort(-probabilities)[self.first_rank - 1 : top_k]
            cells = [cell for i in best for cell in (names[i], cells[i])]
        columns = self.columns(top_k)[len(super().columns(top_k)) :]
        return super().row(prediction, top_k) | dict(zip(columns, cells, strict=True))

    def caption(self, label: Any) -> str:
        return class_names(self.target.classes, label)


def running_count(name: str, shape: list[int], *indices: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """How often each combination of indices occurred: a metric, float64 of this shape."""
    with tf.device("/cpu:0"):  # where it is deterministic
        zeros = tf.zeros_initializer()
        total = tf.compat.v1.get_local_variable(
            name, shape, tf.float64, zeros, collections=[], use_resource=True
        )
        ones = tf.ones_like(indices[0], tf.float64)
        return total.read_value(), tf.group(total.scatter_nd_add(tf.stack(indices, -1), ones))
