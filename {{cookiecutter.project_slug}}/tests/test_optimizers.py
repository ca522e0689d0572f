"""Optimizers against NumPy, the factor of their rate, and the gradients of a batch in splits."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

# ruff: noqa: E402  `library` chooses Keras 2 before TensorFlow is imported
from library import estimator  # isort: skip
import forked
import tensorflow as tf
from conftest import LIMIT_SECS

from library.distribute import Cluster, Parallel, average_over_replicas
from library.nn import (
    SGD,
    Adam,
    AdamW,
    accumulate_gradients,
    batch_norm,
    clip_gradients,
    set_rate_factor,
    with_loss_scale,
)

RATE = 0.1
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adam": lambda rate=RATE: Adam(rate, epsilon=1e-3),
    "adamw": lambda rate=RATE: AdamW(rate, weight_decay=0.2, epsilon=1e-3),
    "sgd": lambda rate=RATE: SGD(rate, momentum=0.8),
}


def by_numpy(name: str, value: np.ndarray, steps: int, *, rate: float, decay: float) -> np.ndarray:
    """The loss is the sum of squares, whose gradient is twice the value."""
    m = v = np.zeros_like(value)
    for step in range(1, steps + 1):
        gradient = 2 * value
        if name == "sgd":
            m = 0.8 * m + gradient
            value = value - rate * (gradient + 0.8 * m)
            continue
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        corrected = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        value = value * (1 - rate * decay) - corrected * m / (np.sqrt(v) + 1e-3)
    return value


def trained(optimizer: Any, steps: int, *, factor: float | None = None) -> dict[str, np.ndarray]:
    """Two kernels and a bias after some steps; the factor is of `body`."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.train.create_global_step()
        names = ("body/kernel", "logits/kernel", "logits/bias")
        values = [tf.compat.v1.get_variable(name, initializer=[1.0, -3.0]) for name in names]
        if factor is not None:
            set_rate_factor(values[:1], factor)
        loss = tf.add_n([tf.reduce_sum(value**2) for value in values])
        train_op = optimizer().minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(steps):
            session.run(train_op)
        return dict(zip(names, session.run(values), strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_its_formula(name):
    found = trained(OPTIMIZERS[name], 5)
    for variable, value in found.items():
        decay = 0.2 if name == "adamw" and variable.endswith("kernel") else 0.0
        expected = by_numpy(name, np.array([1.0, -3.0]), 5, rate=RATE, decay=decay)
        np.testing.assert_allclose(value, expected, rtol=1e-5, err_msg=variable)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_heeds_the_factor_of_a_rate(name):
    whole = trained(OPTIMIZERS[name], 5)
    for factor in (0.0, 0.25, 3.0):
        scaled = trained(lambda factor=factor: OPTIMIZERS[name](RATE * factor), 5)
        mixed = trained(OPTIMIZERS[name], 5, factor=factor)
        np.testing.assert_array_equal(mixed["body/kernel"], scaled["body/kernel"])
        for other in ("logits/kernel", "logits/bias"):
            np.testing.assert_array_equal(mixed[other], whole[other])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loss_scale_changes_neither_steps_nor_factors(name):
    plain = trained(OPTIMIZERS[name], 3, factor=0.5)
    scaled = trained(lambda: with_loss_scale(OPTIMIZERS[name]())[0], 3, factor=0.5)
    for variable, value in plain.items():
        np.testing.assert_array_equal(scaled[variable], value)


def test_adam_is_that_of_tensorflow_to_the_last_digit():
    ours = trained(lambda: Adam(RATE), 5)
    for variable, value in trained(lambda: tf.compat.v1.train.AdamOptimizer(RATE), 5).items():
        assert ours[variable].tobytes() == value.tobytes(), variable


def test_a_schedule_reaches_every_optimizer():
    for make in OPTIMIZERS.values():
        late = trained(lambda make=make: make(tf.constant(RATE) * 0.5), 3, factor=0.5)
        same = trained(lambda make=make: make(RATE * 0.5), 3, factor=0.5)
        for variable, value in late.items():
            np.testing.assert_allclose(value, same[variable], rtol=1e-6)


def test_clipping_limits_the_global_norm():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        gradients = [tf.constant([3.0, 0.0]), tf.constant([[0.0], [4.0]])]
        clipped, same = session.run([clip_gradients(gradients, norm) for norm in (1.0, 9.0)])
    np.testing.assert_allclose(clipped[0], [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], [[0.0], [0.8]], rtol=1e-6)
    np.testing.assert_allclose(same[0], [3.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("num_splits", [1, 2, 8])
def test_splits_of_a_batch_give_the_gradient_of_the_batch(num_splits):
    random = np.random.default_rng(0)
    x = random.normal(size=[8, 3]).astype(np.float32)
    labels = random.normal(size=8).astype(np.float32)
    weights = random.normal(size=3).astype(np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:

        def compute(features: dict, labels: tf.Tensor) -> dict:
            kernel = tf.compat.v1.get_variable("kernel", initializer=tf.constant(weights))
            errors = tf.linalg.matvec(features["x"], kernel) - labels
            loss = tf.reduce_mean(errors**2)
            return {"loss": loss, "gradients": tf.gradients(loss, [kernel])}

        batch = {"x": tf.constant(x)}, tf.constant(labels)
        means = accumulate_gradients(compute, batch, num_splits=num_splits)
        assert len(tf.compat.v1.trainable_variables()) == 1
        session.run(tf.compat.v1.global_variables_initializer())
        found = session.run(means)
    errors = x @ weights - labels
    assert found["loss"] == pytest.approx((errors**2).mean(), rel=1e-5)
    np.testing.assert_allclose(found["gradients"][0], 2 * x.T @ errors / 8, rtol=1e-5)


def test_splits_move_the_averages_of_batch_norm_one_after_the_other():
    x = np.random.default_rng(0).normal(size=[8, 2, 2, 3]).astype(np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        outputs = accumulate_gradients(
            lambda x: tf.reduce_sum(batch_norm(x, training=True)), [tf.constant(x)], num_splits=4
        )
        updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
        assert len(updates) == 8
        session.run(tf.compat.v1.global_variables_initializer())
        session.run([outputs, updates])
        mean = session.run(tf.compat.v1.global_variables("mean")[0])
    expected = np.zeros(3)
    for split in np.split(x, 4):
        expected += 0.05 * (split.mean((0, 1, 2)) - expected)
    np.testing.assert_allclose(mean, expected, rtol=1e-4)


def weights_of(name: str, devices: int) -> list[list[float]]:
    """The variables after 4 steps on devices that share each batch."""
    parallel = Parallel.of(Cluster(), devices, sync_replicas=False)

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> Any:
        kernels = [tf.compat.v1.get_variable(f"{n}/kernel", [3, 1]) for n in ("body", "logits")]
        set_rate_factor(kernels[:1], 0.5)
        loss = tf.reduce_mean((features @ (kernels[0] + kernels[1] * 2) - labels) ** 2)
        optimizer = OPTIMIZERS[name]()
        pairs = optimizer.compute_gradients(loss, kernels)
        gradients = average_over_replicas([gradient for gradient, _ in pairs])
        step = tf.compat.v1.train.get_global_step()
        train_op = optimizer.apply_gradients(zip(gradients, kernels, strict=True), step)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn() -> tf.data.Dataset:
        x = np.random.default_rng(0).normal(size=[8, 3]).astype(np.float32)
        examples = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        return examples.repeat().batch(8 // devices)

    config = estimator.RunConfig(
        model_dir=tempfile.mkdtemp(),
        tf_random_seed=0,
        train_distribute=parallel.strategy(),
        session_config=parallel.session_config,
    )
    model = estimator.Estimator(model_fn, config=config).train(input_fn, max_steps=4)
    return [model.get_variable_value(f"{n}/kernel").tolist() for n in ("body", "logits")]


@pytest.mark.slow
def test_factor_and_decay_are_the_same_on_two_devices(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    process = forked.start([__file__], tmp_path, {}, [out, err])
    one = {name: weights_of(name, 1) for name in OPTIMIZERS}
    assert process.wait(LIMIT_SECS) == 0, err.read_text()[-3000:]
    two = json.loads(out.read_text().splitlines()[-1])
    for name, (body, logits) in one.items():
        assert body != logits
        np.testing.assert_allclose([body, logits], two[name], rtol=1e-4, err_msg=name)


if __name__ == "__main__":  # two devices take a process of their own
    print(json.dumps({name: weights_of(name, 2) for name in OPTIMIZERS}))
