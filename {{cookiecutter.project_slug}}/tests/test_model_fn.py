"""The model: its losses and metrics against NumPy, and what it gives in each mode."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from library.estimator import Estimator, ModeKeys, RunConfig
from project.model_fn import model_fn
from project.settings import Hyperparameters

NAMES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.uniform(-1, 1, [21, 16, 16, 3]).astype(np.float32)
LABELS = np.arange(21) % 7


def params(**changes) -> dict:
    hyperparameters = dataclasses.asdict(Hyperparameters(image_size=16))
    return {**hyperparameters, "class_names": NAMES, "random_seed": 0, "xla": False, **changes}


def batches(batch_size: int, count: int | None = 1) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(({"image": IMAGES}, LABELS))
    return dataset.batch(batch_size).repeat(count)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Estimator:
    config = RunConfig(model_dir=str(tmp_path_factory.mktemp("model")), save_summary_steps=1)
    model = Estimator(model_fn, config=config, params=params())
    return model.train(lambda: batches(7, None), steps=6)


def test_predictions_are_names_and_probabilities(trained):
    rows = list(trained.predict(lambda: batches(8)))
    assert len(rows) == 21
    for row in rows:
        best = row["probabilities"].argmax()
        assert row["class"] == NAMES[best].encode()
        assert row["probability"] == row["probabilities"][best]
        assert row["probabilities"].sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("batch_size", [1, 5, 8, 20, 21])
def test_metrics_are_averages_over_examples_whatever_the_batch(trained, batch_size):
    found = trained.evaluate(lambda: batches(batch_size))
    p = np.array([row["probabilities"] for row in trained.predict(lambda: batches(21))], np.float64)
    targets = np.eye(7)[LABELS] * 0.9 + 0.1 / 7
    kernels = [
        trained.get_variable_value(v) for v in trained.get_variable_names() if v.endswith("kernel")
    ]
    l2 = 1e-5 * sum((kernel.astype(np.float64) ** 2).sum() / 2 for kernel in kernels)
    right = p.argmax(1) == LABELS
    assert 0 < right.sum() < 21
    top_5 = [label in row.argsort()[-5:] for label, row in zip(LABELS, p, strict=True)]
    assert found["loss"] == pytest.approx(-(targets * np.log(p)).sum(1).mean() + l2, abs=1e-5)
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["top_5_accuracy"] == pytest.approx(np.mean(top_5))
    classes = [right[label == LABELS].mean() for label in range(7)]
    assert found["mean_per_class_accuracy"] == pytest.approx(np.mean(classes))


def test_top_5_needs_more_than_5_classes():
    with tf.Graph().as_default():
        features = {"image": tf.constant(IMAGES[:5])}
        spec = model_fn(
            features, tf.constant(LABELS[:5]), ModeKeys.EVAL, params(class_names=NAMES[:5])
        )
    assert set(spec.eval_metric_ops) == {"accuracy", "mean_per_class_accuracy"}


def test_training_moves_the_averages_of_batch_norm(trained):
    assert np.abs(trained.get_variable_value("block0/mean")).max() > 1e-3


def train_values(**changes) -> list[np.ndarray]:
    """All variables after three steps."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.train.create_global_step()
        features, labels = tf.compat.v1.data.make_one_shot_iterator(batches(7, None)).get_next()
        spec = model_fn(features, labels, ModeKeys.TRAIN, params(**changes))
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(3):
            session.run(spec.train_op)
        return session.run(tf.compat.v1.global_variables())


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 1e-2},
        {"adam_beta1": 0.5},
        {"adam_beta2": 0.9},
        {"adam_epsilon": 0.1},
        {"dropout_rate": 0.9},
        {"l2_regularization": 0.1},
        {"xentropy_label_smoothing": 0.5},
        {"random_seed": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_hyperparameter_reaches_the_weights(change):
    before, after = train_values(), train_values(**change)
    assert any((a != b).any() for a, b in zip(before, after, strict=True))


def test_the_same_settings_give_the_same_weights():
    assert all((a == b).all() for a, b in zip(train_values(), train_values(), strict=True))


def test_xla_marks_the_network_for_compilation():
    def marked(xla: bool) -> int:
        with tf.Graph().as_default() as graph:
            model_fn({"image": tf.constant(IMAGES)}, None, ModeKeys.PREDICT, params(xla=xla))
            return sum(
                "_XlaCompile" in op.node_def.attr
                for op in graph.get_operations()
                if op.node_def.attr["_XlaCompile"].b
            )

    assert marked(False) == 0
    assert marked(True) > 20
