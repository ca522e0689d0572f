"""The model: its losses and metrics against NumPy, and what it gives in each mode."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import make_run, quick_network

from library.data import Target
from library.estimator import Estimator, ModeKeys
from library.train import (
    CheckpointHook,
    ModelCard,
    Plan,
    Run,
    global_step_of,
    read_divergence,
)
from project.model_fn import learning_rate, model_fn
from project.settings import Hyperparameters

NAMES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.uniform(-1, 1, [21, 16, 16, 3]).astype(np.float32)
LABELS = np.arange(21) % 7
KEYS = [f"{number}.jpg" for number in range(21)]


def model_run(folder: Path, classes: list[str] = NAMES, examples_seen: int = 0, **changes) -> Run:
    """A run at its start, 21 examples per epoch in batches of 7."""
    options = {"image_size": 16, "train_batch_size": 7} | changes
    run = make_run(Path("no-data"), folder, **options)
    plan = Plan(None, 0, examples_seen, 21, 7, steps=100, steps_between_evals=100)
    model = ModelCard("classification", Target("class", tuple(classes)), {})
    return run.replace(model_card=model, plan=plan)


def spec_of(run: Run, features, labels, mode: str):
    return model_fn(features, labels, mode, run.hyperparameters, run=run)


def batches(batch_size: int, count: int | None = 1) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(({"image": IMAGES, "key": KEYS}, LABELS))
    return dataset.batch(batch_size).repeat(count)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Estimator:
    run = model_run(tmp_path_factory.mktemp("model"), save_summary_steps=1)
    return run.estimator().train(lambda: batches(7, None), steps=6)


@pytest.fixture(scope="module")
def predictions(model) -> list[dict]:
    return list(model.predict(lambda: batches(8)))


def test_predictions_are_names_and_probabilities(predictions):
    assert len(predictions) == 21
    for row in predictions:
        best = row["probabilities"].argmax()
        assert row["class"] == NAMES[best].encode()
        assert row["probability"] == row["probabilities"][best]
        assert row["probabilities"].sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("keys", [RANDOM.permutation(21), [f"käse {n}" for n in range(21)]])
def test_keys_come_out_beside_the_predictions(model, predictions, keys):
    def input_fn():
        return tf.data.Dataset.from_tensor_slices({"image": IMAGES, "key": keys}).batch(8)

    rows = list(model.predict(input_fn))
    found = [row["key"] for row in rows]
    assert [key.decode() if isinstance(key, bytes) else key for key in found] == list(keys)
    for row, row_before in zip(rows, predictions, strict=True):
        assert (row["probabilities"] == row_before["probabilities"]).all()


@pytest.mark.parametrize("batch_size", [1, 8, 21])
def test_metrics_are_averages_over_examples_whatever_the_batch(model, predictions, batch_size):
    found = model.evaluate(lambda: batches(batch_size))
    p = np.array([row["probabilities"] for row in predictions], np.float64)
    targets = np.eye(7)[LABELS] * 0.9 + 0.1 / 7
    kernels = [
        model.get_variable_value(v)
        for v in model.get_variable_names()
        if v.endswith("kernel/average")
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


def test_top_5_needs_more_than_5_classes(tmp_path):
    with tf.Graph().as_default():
        features = {"image": tf.constant(IMAGES[:5]), "key": tf.constant(KEYS[:5])}
        run = model_run(tmp_path, NAMES[:5])
        spec = spec_of(run, features, tf.constant(LABELS[:5]), ModeKeys.EVAL)
    assert set(spec.eval_metric_ops) == {"accuracy", "mean_per_class_accuracy"}


def test_training_moves_the_averages_of_batch_norm(model):
    assert np.abs(model.get_variable_value("stem/mean")).max() > 1e-3


def train_values(steps: int = 3, trainable: bool = False, **changes) -> list[np.ndarray]:
    """All variables, or the trainable ones, after some steps, the first at the full rate."""
    changes = {"warmup_epochs": 0, **changes}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.train.create_global_step()
        features, labels = tf.compat.v1.data.make_one_shot_iterator(batches(7, None)).get_next()
        spec = spec_of(model_run(Path("unused"), **changes), features, labels, ModeKeys.TRAIN)
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(steps):
            session.run(spec.train_op)
        variables = tf.compat.v1.trainable_variables() if trainable else None
        return session.run(variables or tf.compat.v1.global_variables())


def rates(steps: int, examples_seen: int = 0, **changes) -> list[float]:
    """The learning rate of each step, at 4 steps an epoch and a rate of 2."""
    plan = Plan(None, 0, examples_seen, 28, 7, steps=100, steps_between_evals=100)
    options = {"learning_rate_schedule": "constant", "warmup_epochs": 0, **changes}
    params = Hyperparameters(learning_rate=2.0, **options)
    epochs = [plan.epochs(tf.constant(step, tf.int64)) for step in range(steps)]
    per_step = plan.epochs_per_step
    return [float(learning_rate(each, params, per_step=per_step, last=3)) for each in epochs]


def test_schedules_are_functions_of_the_step():
    assert rates(9) == [2.0] * 9
    assert rates(9, warmup_epochs=1) == [0.5, 1.0, 1.5, 2.0, *[2.0] * 5]
    assert rates(3, warmup_epochs=1, examples_seen=7) == [1.0, 1.5, 2.0]
    assert rates(2, warmup_epochs=None) == [pytest.approx(2 / 1.2), 2.0]  # a tenth of 3 epochs
    step = {"learning_rate_schedule": "step", "decay_epochs": 0.5, "decay_rate": 0.1}
    np.testing.assert_allclose(rates(5, **step), [2, 2, 0.2, 0.2, 0.02], rtol=1e-6)
    exponential = {"learning_rate_schedule": "exponential", "decay_epochs": 1, "decay_rate": 0.5}
    np.testing.assert_allclose(rates(9, **exponential), 2 * 0.5 ** (np.arange(9) / 4), rtol=1e-6)
    cosine = {"learning_rate_schedule": "cosine", "decay_epochs": 2, "warmup_epochs": 1}
    decays = np.clip((np.arange(16) - 4) / 8, 0, 1)
    expected = (1 + np.cos(np.pi * decays)) * np.minimum((np.arange(16) + 1) / 4, 1)
    np.testing.assert_allclose(rates(16, **cosine), expected, atol=1e-6)
    del cosine["decay_epochs"]  # the three epochs of the run, less that of the warm-up
    np.testing.assert_allclose(rates(16, **cosine), expected, atol=1e-6)


@pytest.mark.slow
def test_clipping_limits_the_global_norm(monkeypatch):
    """With a large epsilon, the first step of Adam is sqrt(1 - beta2) times the gradient."""
    quick_network(monkeypatch)
    change = {"adam_epsilon": 1e6, "learning_rate": 1e6, "adam_beta2": 0.75}

    def values(steps: int = 1, **more) -> list[np.ndarray]:
        return train_values(steps, trainable=True, **change, **more)

    before = values(0)

    def norm(**more) -> float:
        pairs = zip(before, values(**more), strict=True)
        return float(np.sqrt(sum(((a - b) ** 2).sum() for a, b in pairs)))

    assert norm(clip_gradient_norm=1e9) == pytest.approx(norm(), rel=1e-4)
    assert norm(clip_gradient_norm=0.01) == pytest.approx(0.5 * 0.01, rel=1e-2)


@pytest.mark.parametrize(
    ("pixel", "l2", "step", "name", "norm"),
    [
        (np.nan, 1e-5, 1, "stem/kernel", "nan"),
        pytest.param(0.0, np.inf, 0, "logits/kernel", "inf", marks=pytest.mark.slow),
    ],
)
def test_what_is_not_finite_stops_before_it_does_harm(tmp_path, pixel, l2, step, name, norm):
    """A gradient that is not a number, under a loss that is one; and a loss that is infinite."""
    images = IMAGES.copy()
    images[10] = pixel  # in the second batch
    run = model_run(tmp_path, l2_regularization=l2)
    model, folder = run.estimator(), run.settings.model_dir
    save = CheckpointHook(folder, every=1)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        model.train(
            lambda: tf.data.Dataset.from_tensor_slices(
                ({"image": images, "key": KEYS}, LABELS)
            ).batch(7),
            hooks=[save],
        )
    found = read_divergence(error.value)
    assert found["step"] == step
    assert found["loss"] == "inf" if l2 == np.inf else 0 < found["loss"] < 9
    assert found["gradient_norms"][name] == norm
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert global_step_of(tf.train.latest_checkpoint(folder)) == step
    for variable in model.get_variable_names():
        assert np.isfinite(model.get_variable_value(variable)).all()


def test_another_error_is_no_divergence():
    error = tf.errors.InvalidArgumentError(None, None, "assertion failed: [other] [1]")
    assert read_divergence(error) is None


@pytest.mark.slow
def test_the_same_settings_give_the_same_weights():
    assert all((a == b).all() for a, b in zip(train_values(), train_values(), strict=True))


@pytest.mark.slow
def test_xla_marks_the_network_for_compilation_but_not_the_export(tmp_path, monkeypatch):
    quick_network(monkeypatch)

    def marked(xla: bool, mode: str) -> int:
        with tf.Graph().as_default() as graph:
            tf.compat.v1.train.create_global_step()
            features = {"image": tf.constant(IMAGES), "key": tf.constant(KEYS)}
            spec_of(model_run(tmp_path, xla=xla), features, tf.constant(LABELS), mode)
            attributes = (op.node_def.attr for op in graph.get_operations())
            return sum("_XlaCompile" in each and each["_XlaCompile"].b for each in attributes)

    for mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
        assert marked(False, mode) == 0
        assert marked(True, mode) > 5
    assert marked(True, ModeKeys.PREDICT) == 0
