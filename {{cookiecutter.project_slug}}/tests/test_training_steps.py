"""Splits of a batch, several devices, lower precision and XLA: the same training."""

import functools
import json
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf
from conftest import LIMIT_SECS, quick_network
from training_steps import train

from library.nn import with_loss_scale
from library.train import assert_finite, read_divergence

pytestmark = pytest.mark.slow  # many steps, on several devices

PROGRAM = Path(__file__).parent / "training_steps.py"


def losses_of(folder: Path, environment: dict[str, str], **options: Any) -> list[float]:
    """The losses in a process of its own."""
    out, err = folder / "out", folder / "err"
    process = forked.start([str(PROGRAM), json.dumps(options)], folder, environment, [out, err])
    assert process.wait(LIMIT_SECS) == 0, err.read_text()[-3000:]
    return json.loads(out.read_text().splitlines()[-1])


def weights(model: Any) -> dict[str, np.ndarray]:
    return {name: model.get_variable_value(name) for name in model.get_variable_names()}


@pytest.mark.parametrize("parts", [2, 8])
def test_splits_of_a_batch_give_the_gradient_of_the_batch(parts):
    """Dropout and clipping, too; a network without batch norm, which sees one split at a time."""
    options = {"steps": 10, "network": "linear", "clip_gradient_norm": 0.5}
    whole, model = train(**options)
    accumulated, parted = train(**options, gradient_accumulation=parts)
    np.testing.assert_allclose(accumulated, whole, rtol=1e-5)
    before, after = weights(model), weights(parted)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, atol=1e-5, err_msg=name)


def test_splits_of_a_batch_move_the_averages_of_batch_norm_one_after_the_other(monkeypatch):
    quick_network(monkeypatch)
    _, model = train(steps=1, gradient_accumulation=4)
    _, again = train(steps=1, gradient_accumulation=4)
    first, second = weights(model), weights(again)
    _, model = train(steps=1)
    whole, moved = weights(model), (1 - 0.95**4) / (1 - 0.95)  # by four updates, and by one
    np.testing.assert_allclose(first["stem/mean"], moved * whole["stem/mean"], rtol=0.3, atol=1e-3)
    assert np.abs(first["stem/mean"]).max() > 0.01
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "optimizer", "rate"),
    [("cnn", "adam", 3e-4), ("linear", "adam", 3e-4), ("cnn", "sgd", 1e-2)],
)
def test_two_devices_give_the_loss_of_one_for_the_same_batch(tmp_path, network, optimizer, rate):
    """With dropout, batch norm and clipping; roundings that differ grow from step to step."""
    options = {"network": network, "optimizer": optimizer, "learning_rate": rate}
    options["clip_gradient_norm"] = 10.0
    one, _ = train(steps=50, **options)
    two = losses_of(tmp_path, {}, devices=2, steps=50, **options)
    assert len(one) == 50
    assert one[-1] < 0.8 * one[0]
    difference = np.abs(np.array(one) - two)
    assert difference[:20].max() < 1e-4
    assert difference.max() < 1e-2


@functools.cache
def exact_losses() -> list[float]:
    return train(steps=40)[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_keeps_to_the_loss_curve(dtype):
    """Within 0.5 at each of 40 steps, and within 0.05 on average."""
    exact = exact_losses()
    found, model = train(steps=40, compute_dtype=dtype)
    difference = np.abs(np.array(found) - exact)
    assert exact[-1] < 0.8 * exact[0]
    assert 0 < difference.max() < 0.5
    assert difference.mean() < 0.05
    reader = tf.train.load_checkpoint(model.model_dir)
    types = {name: reader.get_variable_to_dtype_map()[name] for name in weights(model)}
    assert {types.pop("global_step")} == {tf.int64}
    assert set(types.values()) <= {tf.float32, tf.int64}
    assert types["stem/kernel"] == types["stem/kernel/Adam"] == tf.float32
    graph = (Path(model.model_dir) / "graph.pbtxt").read_text()
    assert f"DT_{'BFLOAT16' if dtype == 'bfloat16' else 'HALF'}" in graph


def test_an_overflow_in_float16_changes_nothing_but_the_scale():
    """The loss scale begins at 2 ** 15; float16 ends at 65,504."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.train.create_global_step()
        factor = tf.compat.v1.placeholder(tf.float32, [])
        weight = tf.compat.v1.get_variable("weight", initializer=1.0)
        optimizer, overflow_allowed = with_loss_scale(
            tf.compat.v1.train.GradientDescentOptimizer(0.125)
        )
        loss = tf.cast(tf.cast(weight, tf.float16) * tf.cast(factor, tf.float16), tf.float32)
        ((gradient, _),) = optimizer.compute_gradients(loss, [weight])
        assertion = assert_finite(loss, [gradient], [weight], overflow_allowed=overflow_allowed)
        with tf.control_dependencies([assertion]):
            step = optimizer.apply_gradients([(gradient, weight)])
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step, {factor: 1.0})
        assert session.run(weight) == 0.875
        for _ in range(15):
            session.run(step, {factor: 60000.0})  # 2 ** k x 60,000, down to k = 1
            assert session.run(weight) == 0.875
        with pytest.raises(tf.errors.InvalidArgumentError) as error:  # no scale can mend that
            session.run(step, {factor: np.inf})
        assert read_divergence(error.value)["gradient_norms"] != {"weight": 0}
        session.run(step, {factor: 60000.0})
        assert session.run(weight) == 0.875 - 0.125 * 60000


@pytest.mark.slow
def test_xla_compiles_and_gives_the_same_numbers(tmp_path):
    dumped, none = tmp_path / "dumped", tmp_path / "none"
    options = {"steps": 5, "learning_rate": 3e-4}
    compiled = losses_of(tmp_path, {"XLA_FLAGS": f"--xla_dump_to={dumped}"}, **options, xla=True)
    assert len(list(dumped.glob("*before_optimizations.txt"))) > 5
    plain = losses_of(tmp_path, {"XLA_FLAGS": f"--xla_dump_to={none}"}, **options)
    assert not list(none.glob("*"))
    np.testing.assert_allclose(compiled, plain, rtol=1e-4)
