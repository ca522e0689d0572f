"""The averages of the weights: what they are, and that they are what is used."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from library.nn import averages_scaffold, batch_norm, dense, update_averages
from library.train import WarmStart

DECAY = 0.8


def build(training: bool) -> None:
    """A layer, and its batch norm, whose statistics are no trainable variables."""
    tf.compat.v1.train.get_or_create_global_step()
    x = dense(tf.constant([[1.0, 2.0, 3.0]]), 4, seed=0)
    batch_norm(tf.reshape(x, [1, 1, 1, 4]), training=training)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[np.ndarray]]:
    """A checkpoint after some steps that changed a kernel, and its value after each."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        build(training=True)
        step = tf.compat.v1.train.get_global_step()
        kernel = next(v for v in tf.compat.v1.trainable_variables() if v.op.name == "kernel")
        change = kernel.assign(kernel * 3 - 1)
        with tf.control_dependencies([change, *tf.compat.v1.get_collection("update_ops")]):
            average = update_averages(DECAY, step)
        with tf.control_dependencies([average]):
            end = step.assign_add(1)
        session.run(tf.compat.v1.global_variables_initializer())
        values = []
        for _ in range(60):
            session.run(end)
            values.append(session.run(kernel))
            if not np.isfinite(3 * values[-1]).all():
                break
        path = str(tmp_path_factory.mktemp("averages") / "model.ckpt")
        return tf.compat.v1.train.Saver().save(session, path), values


def test_an_average_begins_at_the_weights_and_decays_as_it_is_told(steps):
    path, values = steps
    expected = values[0]
    for number, value in enumerate(values[1:], start=1):
        decay = min(DECAY, number / (number + 9))
        expected = decay * expected + (1 - decay) * value
    np.testing.assert_allclose(tf.train.load_variable(path, "kernel/average"), expected, rtol=1e-5)


def test_a_model_that_does_not_train_has_the_averages_of_weights_and_statistics(steps):
    path, _ = steps
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        build(training=False)
        averages_scaffold().saver.restore(session, path)
        for variable in tf.compat.v1.global_variables():
            name = variable.op.name
            saved = name if name == "global_step" else f"{name}/average"
            assert (session.run(variable) == tf.train.load_variable(path, saved)).all(), name


def test_a_warm_start_takes_the_averages(steps):
    path, _ = steps
    found = WarmStart.of(path, lambda: build(training=False))
    names = ["bias", "kernel", "mean", "offset", "scale", "variance"]
    assert sorted(found.taken) == names
    assert found.left == []
    before = found.settings.var_name_to_prev_var_name
    assert before == {name: f"{name}/average" for name in names}


def test_the_best_checkpoint_is_evaluated_by_its_averages(trained, tmp_path):
    """With averages of 0, all classes are equally likely."""
    run, checkpoint = trained.trained()
    reader = tf.train.load_checkpoint(checkpoint)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name in reader.get_variable_to_shape_map():
            value = reader.get_tensor(name)
            value = np.zeros_like(value) if name.endswith("/average") else value
            tf.compat.v1.get_variable(name, initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        path = tf.compat.v1.train.Saver().save(session, str(Path(tmp_path, "model.ckpt-1")))
    metrics = run.estimator().evaluate(
        lambda: run.inputs.evaluation_input(run, run.settings.test_data),
        checkpoint_path=path,
        name="of_zeros",  # beside the evaluations of the run, which other tests read
    )
    assert metrics["loss"] == pytest.approx(np.log(len(run.model.target.classes)), rel=1e-3)
