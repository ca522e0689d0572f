"""The heads that ship, and HEADS, to which you add your own."""

import functools

import numpy as np
import tensorflow as tf

from library import report
from library.heads.base import ClassesHead, Head, Metrics, running_count
from library.util import UserError


class ClassificationHead(ClassesHead):
    """One class an example: softmax. A subclass with other logits overrides `class_logits`."""

    name, label = "classification", "class"
    outputs: tuple[str, ...] = ("class", "probability")
    metric_names: tuple[str, ...] = ("accuracy", "mean_per_class_accuracy", "top_5_accuracy")
    first_rank = 2

    def class_logits(self, logits: tf.Tensor) -> tf.Tensor:
        """float32 [batch, classes], whose softmax are the probabilities."""
        return logits

    def losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Cross entropy with smoothed labels.

        `class_weights` weights classes by the mean over their own number of training examples.
        """
        num_classes = logits.shape[-1]
        smoothing = self.params.xentropy_label_smoothing
        targets = tf.one_hot(labels, num_classes) * (1 - smoothing) + smoothing / num_classes
        losses = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
        if self.params.class_weights == "none":
            return losses
        counts = np.maximum(self.target.examples_per_class, 1)
        return losses * tf.gather(tf.constant(counts.mean() / counts, tf.float32), labels)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.nn.softmax(self.class_logits(logits))
        predicted = tf.argmax(self.class_logits(logits), axis=-1)
        return {
            "class": tf.gather(tf.constant(self.target.classes), predicted),
            "probability": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities,
        }

    def metrics(self, labels: tf.Tensor, logits: tf.Tensor) -> Metrics:
        """Shares of examples, and the mean share of the classes that occur."""
        logits, metrics = self.class_logits(logits), tf.compat.v1.metrics
        predicted, size = tf.argmax(logits, axis=-1), len(self.target.classes)
        correct = tf.cast(tf.equal(labels, predicted), labels.dtype)
        counts, count = running_count("examples_per_class", [2, size], correct, labels)
        wrong, right = tf.unstack(tf.cast(counts, tf.float32))
        mean = tf.reduce_mean(tf.boolean_mask(right / (right + wrong), right + wrong > 0))
        ops = {"accuracy": metrics.accuracy(labels, predicted)}
        ops["mean_per_class_accuracy"] = mean, count
        if size > 5:
            in_top_5 = tf.nn.in_top_k(labels, logits, k=5)
            ops["top_5_accuracy"] = metrics.mean(tf.cast(in_top_5, tf.float32))
        return ops

    def batch_metrics(self, labels: tf.Tensor, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        correct = tf.equal(tf.argmax(self.class_logits(logits), axis=-1), labels)
        return {"accuracy": tf.reduce_mean(tf.cast(correct, tf.float32))}

    def average(self, logits: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        """The logarithm of the mean of the windows' probabilities."""
        return tf.math.log(tf.math.segment_mean(tf.nn.softmax(logits), segment_ids) + 1e-12)

    def stats(self) -> report.ClassificationStats:
        return report.ClassificationStats(self.target.classes)

    def eval_outputs(self, labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, ...]:
        probabilities = tf.nn.softmax(self.class_logits(logits))
        predicted = tf.argmax(probabilities, axis=-1)
        confidence = tf.reduce_max(probabilities, axis=-1)
        badness = tf.where(tf.equal(predicted, labels), -1.0, confidence)
        return labels, predicted, confidence, badness


class MultiLabelHead(ClassesHead):
    """Any number of labels an example: a sigmoid and a threshold for each, 0.5 unless chosen."""

    name, label = "multi_label", "labels"
    outputs: tuple[str, ...] = ("labels",)
    metric_names: tuple[str, ...] = ("f1_micro", "f1_macro", "mean_average_precision")

    def losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Cross entropy with smoothed labels, the mean over the classes.

        The sum would grow with their number, against l2_regularization and clip_gradient_norm.
        """
        smoothing = self.params.xentropy_label_smoothing
        targets = labels * (1 - smoothing) + smoothing / 2
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(targets, logits), axis=-1)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """`labels` are their names, with `;` between them."""
        where = tf.where(self._predicted(logits))  # [number of labels, 2]
        names = tf.gather(tf.constant(self.target.classes), where[:, 1])
        size = tf.shape(logits, out_type=tf.int64)[0]
        labels = tf.strings.unsorted_segment_join(names, where[:, 0], size, separator=";")
        return {"labels": labels, "probabilities": tf.sigmoid(logits)}

    def metrics(self, labels: tf.Tensor, logits: tf.Tensor) -> Metrics:
        """F1 of all labels; the mean over those that occur of F1 and of average precision."""
        size, bins = len(self.target.classes), self._bins(logits)
        each = tf.range(size, dtype=tf.int64) + tf.zeros_like(bins)
        cells = tf.cast(labels, tf.int64), each, bins
        counts, count = running_count("scores", [2, size, report.LOGIT_BINS], *cells)
        value = functools.partial(report.label_metrics, thresholds=self.target.thresholds)
        values = tf.numpy_function(value, [counts], tf.float32)
        values.set_shape([len(self.metric_names)])
        return {name: (values[i], count) for i, name in enumerate(self.metric_names)}

    def batch_metrics(self, labels: tf.Tensor, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        predicted = tf.cast(self._predicted(logits), tf.float32)
        correct, both = tf.reduce_sum(labels * predicted), tf.reduce_sum(labels + predicted)
        return {"f1_micro": tf.math.divide_no_nan(2 * correct, both)}

    def average(self, logits: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        """The logit of the mean of the windows' probabilities."""
        means = (tf.math.segment_mean(tf.sigmoid(each), segment_ids) for each in (logits, -logits))
        yes, no = (tf.math.log(mean + 1e-12) for mean in means)
        return yes - no

    def stats(self) -> report.MultiLabelStats:
        return report.MultiLabelStats(self.target.classes, self.target.thresholds)

    def eval_outputs(self, labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The worst mistakes are those of the highest confidence in one of the labels."""
        wrong = tf.not_equal(self._predicted(logits), labels > 0.5)
        error = tf.where(wrong, abs(labels - tf.sigmoid(logits)), -1.0)
        return tf.cast(labels, tf.int64), self._bins(logits), tf.reduce_max(error, axis=-1)

    def _predicted(self, logits: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(logits) >= tf.constant(self.target.thresholds or 0.5)

    def _bins(self, logits: tf.Tensor) -> tf.Tensor:
        """Scores by which examples are ranked, and counted: int64 [batch, classes]."""
        bins = tf.cast(tf.floor(logits / report.LOGITS_PER_BIN), tf.int64) + report.LOGIT_BINS // 2
        return tf.clip_by_value(bins, 0, report.LOGIT_BINS - 1)


class RegressionHead(Head):
    """A number an example, standardized: an error of a standard deviation is a loss of 1."""

    name, label = "regression", "value"
    outputs: tuple[str, ...] = ("value",)
    metric_names: tuple[str, ...] = ("mean_absolute_error", "root_mean_squared_error", "r_squared")
    logits_dimension = 1

    def standardize(self, labels: tf.Tensor) -> tf.Tensor:
        """What the network learns to give, float32 [batch]."""
        return (labels - self.target.mean) / (self.target.std or 1.0)

    def values(self, logits: tf.Tensor) -> tf.Tensor:
        """Predictions in the unit of the labels, float32 [batch]."""
        return logits[:, 0] * (self.target.std or 1.0) + self.target.mean

    def losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Squared errors, in standard deviations."""
        return (logits[:, 0] - self.standardize(labels)) ** 2

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"value": self.values(logits)}

    def metrics(self, labels: tf.Tensor, logits: tf.Tensor) -> Metrics:
        """In the unit of the labels; r_squared is 0 where all labels are equal."""
        values, metrics = self.values(logits), tf.compat.v1.metrics
        # Of standardized labels: the squares of years, as float32, would differ in no digit.
        labels_, values_ = self.standardize(labels), self.standardize(values)
        residual, update = metrics.mean_squared_error(labels_, values_)
        (mean, add), (square, add_square) = metrics.mean(labels_), metrics.mean(labels_**2)
        variance = square - mean**2
        explained = tf.where(variance > 1e-6, 1 - residual / variance, 0.0)
        return {
            "mean_absolute_error": metrics.mean_absolute_error(labels, values),
            "root_mean_squared_error": metrics.root_mean_squared_error(labels, values),
            "r_squared": (explained, tf.group(update, add, add_square)),
        }

    def batch_metrics(self, labels: tf.Tensor, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"mean_absolute_error": tf.reduce_mean(abs(self.values(logits) - labels))}

    def stats(self) -> report.RegressionStats:
        return report.RegressionStats()

    def eval_outputs(self, labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, ...]:
        values = self.values(logits)
        return labels, values, abs(values - labels)


HEADS: dict[str, type[Head]] = {
    head.name: head for head in (ClassificationHead, MultiLabelHead, RegressionHead)
}


def head_for(label: str) -> str:
    """The name of the head that learns this kind of label."""
    names = [name for name, head in HEADS.items() if head.label == label]
    if not names:
        raise UserError("train_data: its examples have no labels to learn")
    return names[0]
