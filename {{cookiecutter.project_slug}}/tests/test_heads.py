"""Heads: losses, metrics and predictions against NumPy, and a head of one's own."""

import dataclasses
import inspect

import numpy as np
import pytest
import tensorflow as tf

from library.data import Target
from library.heads import HEADS, ClassificationHead, Head, RegressionHead, head_for
from library.report import StatsHook
from library.util import UserError

RANDOM = np.random.default_rng(0)
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
SIZE = 21
LOGITS = RANDOM.normal(size=[SIZE, 7]).astype(np.float32) * 2
CLASSES = np.arange(SIZE) % 6  # there is no gnu
LABELS = (RANDOM.random([SIZE, 7]) < 0.4).astype(np.float32) * (np.arange(7) < 6)
VALUES = RANDOM.normal(1990, 30, SIZE).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Params:
    xentropy_label_smoothing: float = 0.1
    class_weights: str = "none"


def head_of(name: str, **changes) -> Head:
    target = Target(HEADS[name].label, NAMES, 1990.0, 30.0)
    return HEADS[name](dataclasses.replace(target, **changes), Params())


def now(build, *arrays):
    """What a graph of these arrays gives."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(build(*map(tf.constant, arrays)))


def evaluated(head: Head, labels, logits, *, batch_size: int = 5, images=None):
    """The metrics of an evaluation in batches, and the hook's stats."""
    keys = [f"{i}.jpg" for i in range(len(labels))]
    images = np.zeros([len(labels), 4, 4, 3], np.uint8)
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.from_tensor_slices((labels, logits, images, keys))
        batch = tf.compat.v1.data.make_one_shot_iterator(dataset.batch(batch_size)).get_next()
        head.collect(*batch)
        ops = head.metrics(*batch[:2])
        values = {name: value for name, (value, _) in ops.items()}
        hooks = [StatsHook(head), tf.compat.v1.train.FinalOpsHook(values)]
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run([update for _, update in ops.values()])
    return hooks[1].final_ops_values, hooks[0].stats


def sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def softmax(x):
    e = np.exp(x.astype(np.float64))
    return e / e.sum(axis=-1, keepdims=True)


def test_classification_is_smoothed_cross_entropy():
    targets = np.eye(7)[CLASSES] * 0.9 + 0.1 / 7
    losses = now(head_of("classification").losses, CLASSES, LOGITS)
    np.testing.assert_allclose(losses, -(targets * np.log(softmax(LOGITS))).sum(1), rtol=1e-5)


def test_balanced_classes_have_the_same_share_of_the_loss():
    counts = (10, 20, 30, 40, 50, 60, 0)
    target = Target("class", NAMES, examples_per_class=counts)
    head = ClassificationHead(target, Params(class_weights="balanced"))
    plain = now(head_of("classification").losses, CLASSES, LOGITS)
    expected = plain * (np.mean(np.maximum(counts, 1)) / np.maximum(counts, 1))[CLASSES]
    np.testing.assert_allclose(now(head.losses, CLASSES, LOGITS), expected, rtol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_weights_need_classes_that_are_counted(name):
    with pytest.raises(UserError, match="class_weights: balanced needs classes"):
        HEADS[name](Target(HEADS[name].label, NAMES), Params(class_weights="balanced"))


def test_several_labels_are_the_mean_of_their_smoothed_cross_entropies():
    targets, p = LABELS * 0.9 + 0.05, sigmoid(LOGITS)
    expected = -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean(axis=1)
    np.testing.assert_allclose(
        now(head_of("multi_label").losses, LABELS, LOGITS), expected, rtol=1e-5
    )


def test_regression_is_the_squared_error_in_standard_deviations():
    losses = now(head_of("regression").losses, VALUES, LOGITS[:, :1])
    expected = (LOGITS[:, 0] - (VALUES - 1990) / 30) ** 2
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_predictions_are_names_probabilities_and_values():
    found = now(head_of("classification").predictions, LOGITS)
    best = LOGITS.argmax(axis=1)
    assert found["class"].tolist() == [NAMES[i].encode() for i in best]
    assert (found["probability"] == found["probabilities"].max(axis=1)).all()
    np.testing.assert_allclose(found["probabilities"], softmax(LOGITS), rtol=1e-5)
    value = now(head_of("regression").predictions, LOGITS[:, :1])["value"]
    np.testing.assert_allclose(value, LOGITS[:, 0] * 30 + 1990, rtol=1e-6)


@pytest.mark.parametrize("thresholds", [(), (0.9, 0.1, 0.5, 0.5, 0.5, 0.5, 0.99)])
def test_labels_are_those_above_their_thresholds(thresholds):
    found = now(head_of("multi_label", thresholds=thresholds).predictions, LOGITS)
    np.testing.assert_allclose(found["probabilities"], sigmoid(LOGITS), rtol=1e-5)
    predicted = found["probabilities"] >= np.array(thresholds or [0.5] * 7)
    names = [";".join(np.array(NAMES)[row]).encode() for row in predicted]
    assert found["labels"].tolist() == names
    none = now(head_of("multi_label").predictions, np.full([2, 7], -9, np.float32))
    assert none["labels"].tolist() == [b"", b""]


@pytest.mark.parametrize("batch_size", [1, 5, 20, 21])
def test_metrics_of_classes_are_over_examples_and_classes_that_occur(batch_size):
    found, stats = evaluated(head_of("classification"), CLASSES, LOGITS, batch_size=batch_size)
    correct = LOGITS.argmax(axis=1) == CLASSES
    assert found["accuracy"] == pytest.approx(correct.mean())
    classes = [correct[label == CLASSES].mean() for label in range(6)]
    assert found["mean_per_class_accuracy"] == pytest.approx(np.mean(classes))
    top_5 = [label in row.argsort()[-5:] for label, row in zip(CLASSES, LOGITS, strict=True)]
    assert found["top_5_accuracy"] == pytest.approx(np.mean(top_5))
    assert (stats.examples, stats.mistakes) == (SIZE, (~correct).sum())
    assert sum(row["correct"] for row in stats.rows()) == correct.sum()
    confidence = sorted(softmax(LOGITS).max(axis=1)[~correct], reverse=True)
    assert [example.badness for example in stats.worst] == pytest.approx(confidence)
    key, label = stats.worst[0].key, stats.worst[0].outputs[0]
    assert CLASSES[int(key.removesuffix(".jpg"))] == label
    assert stats.caption(stats.worst[0]).startswith(f"{NAMES[label]}\npredicted as ")


def test_top_5_needs_more_than_5_classes():
    head = head_of("classification", classes=NAMES[:5])
    found, _ = evaluated(head, CLASSES % 5, LOGITS[:, :5])
    assert set(found) == {"accuracy", "mean_per_class_accuracy"}
    assert set(found) <= set(head.metric_names)


def average_precision(labels, scores) -> float:
    hits = labels[np.argsort(-scores, kind="stable")]
    return ((np.cumsum(hits) / np.arange(1, len(hits) + 1)) * hits).sum() / hits.sum()


@pytest.mark.parametrize("batch_size", [4, 21])
@pytest.mark.parametrize("thresholds", [(), (0.9, 0.1, 0.5, 0.5, 0.5, 0.5, 0.99)])
def test_metrics_of_labels_are_f1_and_average_precision(batch_size, thresholds):
    head = head_of("multi_label", thresholds=thresholds)
    found, stats = evaluated(head, LABELS, LOGITS, batch_size=batch_size)
    predicted = sigmoid(LOGITS) >= np.array(thresholds or [0.5] * 7)

    def f1(true, predicted):
        return 2 * (true * predicted).sum() / (true.sum() + predicted.sum())

    assert found["f1_micro"] == pytest.approx(f1(LABELS, predicted))
    each = [f1(LABELS[:, i], predicted[:, i]) for i in range(6)]  # no example has the last one
    assert found["f1_macro"] == pytest.approx(np.mean(each))
    each = [average_precision(LABELS[:, i], LOGITS[:, i]) for i in range(6)]
    assert found["mean_average_precision"] == pytest.approx(np.mean(each), abs=0.01)
    assert stats.mistakes == (predicted != LABELS).any(axis=1).sum()
    rows = [row["f1"] for row in stats.rows()][:6]
    assert np.mean(rows) == pytest.approx(found["f1_macro"])
    batch = now(head.batch_metrics, LABELS, LOGITS)
    assert batch["f1_micro"] == pytest.approx(found["f1_micro"])


def test_thresholds_of_the_stats_have_a_better_f1():
    before, stats = evaluated(head_of("multi_label"), LABELS, LOGITS)
    head = head_of("multi_label", thresholds=stats.thresholds)
    after, again = evaluated(head, LABELS, LOGITS)
    assert after["f1_macro"] > before["f1_macro"]
    assert after["mean_average_precision"] == before["mean_average_precision"]
    assert again.thresholds == stats.thresholds


def test_metrics_of_many_classes_are_counted():
    names, random = tuple(map(str, range(10_000))), np.random.default_rng(0)
    labels = (random.random([4, 10_000]) < 0.5).astype(np.float32)
    logits = random.normal(size=[4, 10_000]).astype(np.float32) + 4 * labels - 2
    some = head_of("multi_label", classes=names[:2000])
    found, _ = evaluated(some, labels[:, :2000], logits[:, :2000])
    assert 0.9 < found["f1_micro"] < 1
    classes = labels.argmax(axis=1)
    found, stats = evaluated(head_of("classification", classes=names), classes, logits)
    assert stats.examples == 4
    assert 0 <= found["mean_per_class_accuracy"] <= 1


@pytest.mark.parametrize("batch_size", [4, 21])
def test_metrics_of_values_are_in_their_unit(batch_size):
    logits = ((VALUES - 1990) / 30)[:, np.newaxis] + LOGITS[:, :1] / 10
    found, stats = evaluated(head_of("regression"), VALUES, logits, batch_size=batch_size)
    errors = logits[:, 0] * 30 + 1990 - VALUES
    assert found["mean_absolute_error"] == pytest.approx(abs(errors).mean(), rel=1e-3)
    assert found["root_mean_squared_error"] == pytest.approx((errors**2).mean() ** 0.5, rel=1e-3)
    spread = ((VALUES - VALUES.mean()) ** 2).sum()
    assert found["r_squared"] == pytest.approx(1 - (errors**2).sum() / spread, abs=1e-4)
    assert stats.worst[0].badness == pytest.approx(abs(errors).max(), rel=1e-3)
    assert stats.mistakes == stats.examples == SIZE


def test_r_squared_of_equal_values_is_0():
    same = np.full(5, 1990, np.float32)
    found, _ = evaluated(head_of("regression", std=0.0), same, np.zeros([5, 1], np.float32))
    assert (found["r_squared"], found["mean_absolute_error"]) == (0, 0)


def test_windows_are_averaged_as_probabilities():
    ids = np.repeat([0, 1, 2], 7)
    logits = LOGITS.reshape(3, 7, 7)
    averages = {
        "classification": np.log(softmax(logits).mean(axis=1) + 1e-12),
        "regression": logits.mean(axis=1),
    }
    for name, expected in averages.items():
        found = now(head_of(name).average, LOGITS, ids)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    found = now(head_of("multi_label").average, LOGITS, ids)
    np.testing.assert_allclose(sigmoid(found), sigmoid(logits).mean(axis=1), rtol=1e-4)


def row_of(head: Head, top_k: int | None, logits=LOGITS) -> dict:
    predictions = now(head.predictions, logits)
    row = head.row({name: values[0] for name, values in predictions.items()}, top_k)
    assert ["file", *row][1:] == [
        name for name in head.columns(top_k) if name not in ("file", "error")
    ]
    return row


def test_rows_have_the_columns_of_their_head():
    head = head_of("classification")
    assert head.columns(2) == ["file", "class", "probability", "error", "class 2", "probability 2"]
    assert len(head.columns(99)) == 4 + 2 * 6
    row = row_of(head, None)
    assert row["class"] == "gnu"
    assert row["probability"] == row["probability of gnu"]
    assert sum(row[f"probability of {name}"] for name in NAMES) == pytest.approx(1)
    assert row_of(head, 1) == {"class": "gnu", "probability": row["probability"]}
    assert row_of(head, 3)["class 2"] == "cat"
    labels = head_of("multi_label")
    assert labels.columns(1) == ["file", "labels", "error", "class 1", "probability 1"]
    row = row_of(labels, 99)
    assert row["labels"] == "ant;cat;dog;fox;gnu"
    assert row["class 1"] == "gnu"
    assert row["probability 1"] > row["probability 7"]
    assert row_of(labels, None)["probability of gnu"] == row["probability 1"]
    assert head_of("regression").columns(None) == ["file", "value", "error"]
    assert isinstance(row_of(head_of("regression"), 3, LOGITS[:, :1])["value"], float)


def test_captions_are_labels():
    assert head_of("classification").caption(CLASSES[1]) == "bee"
    assert head_of("multi_label").caption(LABELS[0]) == "ant, bee, cat, eel"
    assert head_of("multi_label").caption(LABELS[0] * 0) == "none"
    assert head_of("regression").caption(VALUES[0]) == f"{VALUES[0]:g}"


def test_the_head_follows_from_the_kind_of_label():
    assert [head_for(label) for label in ("class", "labels", "value")] == list(HEADS)
    with pytest.raises(UserError, match="no labels"):
        head_for("none")


class OrdinalHead(ClassificationHead):
    """Classes in an order, from a logit for each step up: https://arxiv.org/abs/1901.07884."""

    name = "ordinal"
    average = Head.average

    @property
    def logits_dimension(self) -> int:
        return len(self.target.classes) - 1

    def losses(self, labels, logits):
        above = tf.cast(
            labels[:, tf.newaxis] > tf.range(logits.shape[1], dtype=tf.int64), tf.float32
        )
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(above, logits), axis=1)

    def class_logits(self, logits):
        above = tf.math.cumprod(tf.sigmoid(logits), axis=1)
        edges = tf.pad(tf.pad(above, [[0, 0], [1, 0]], constant_values=1.0), [[0, 0], [0, 1]])
        return tf.math.log(edges[:, :-1] - edges[:, 1:] + 1e-12)


class PoissonHead(Head):
    """Counts, such as animals in an image; from nothing but the base class."""

    name, label, outputs, logits_dimension = "poisson", "value", ("count",), 1
    metric_names = ("mean_absolute_error",)

    def losses(self, labels, logits):
        return tf.nn.log_poisson_loss(labels, logits[:, 0])

    def predictions(self, logits):
        return {"count": tf.exp(logits[:, 0])}

    def metrics(self, labels, logits):
        error = tf.compat.v1.metrics.mean_absolute_error(labels, tf.exp(logits[:, 0]))
        return {"mean_absolute_error": error}


class HuberHead(RegressionHead):
    name = "huber"

    def losses(self, labels, logits):
        error = abs(logits[:, 0] - self.standardize(labels))
        return tf.where(error < 1, error**2 / 2, error - 0.5)


@pytest.mark.parametrize("head", [OrdinalHead, PoissonHead, HuberHead])
def test_a_head_of_ones_own_is_short(head):
    assert len(inspect.getsource(head).splitlines()) < 30


def test_a_head_of_ones_own_does_all_that_others_do():
    head = OrdinalHead(Target("class", NAMES), Params())
    logits = np.where(np.arange(6) < CLASSES[:, np.newaxis], 5, -5).astype(np.float32)
    found, stats = evaluated(head, CLASSES, logits)
    assert found["accuracy"] == 1
    assert stats.mistakes == 0
    assert now(head.predictions, logits)["class"].tolist() == [NAMES[i].encode() for i in CLASSES]
    assert (now(head.losses, CLASSES, logits) < 0.01).all()
    assert row_of(head, 2, logits)["class"] == "ant"

    head = PoissonHead(Target("value"), Params())
    found, stats = evaluated(head, VALUES - VALUES + 3, np.full([SIZE, 1], np.log(4), np.float32))
    assert found["mean_absolute_error"] == pytest.approx(1)
    assert stats is None
    assert head.columns(3) == ["file", "count", "error"]
    assert row_of(head, 3, np.zeros([1, 1], np.float32)) == {"count": 1.0}

    head = HuberHead(Target("value", (), 1990.0, 30.0), Params())
    losses = now(head.losses, np.float32([1990, 2080]), np.zeros([2, 1], np.float32))
    assert losses.tolist() == [0, 2.5]
