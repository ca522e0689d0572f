"""What the changes of docs/make_it_yours.md do, in the folder of a project that has them.

python changed_project.py DATA NAME AMOUNT

DATA has train and validation; NAME is the hyperparameter of the augmentation, AMOUNT its value.
"""

import dataclasses
import os
import sys
from typing import Any

import numpy as np

sys.path.insert(0, os.getcwd())
from library.config import Settings  # noqa: E402
from library.data import Target  # noqa: E402
from library.estimator import ModeKeys  # noqa: E402
from library.train import Plan, Run  # noqa: E402
from project import input_fn, networks  # noqa: E402
from project.model_fn import HEADS, model_fn  # noqa: E402
from project.settings import Hyperparameters, modality  # noqa: E402

import tensorflow as tf  # noqa: E402  isort: skip  after the library, which chooses Keras 2

BATCH_SIZE = 8
v1 = tf.compat.v1


def main(data: str, name: str, amount: float) -> None:
    options = Hyperparameters(network="plain", head="focal", optimizer="rmsprop")
    run = Run(
        settings=Settings(
            train_data=f"{data}/train",
            validation_data=f"{data}/validation",
            train_batch_size=BATCH_SIZE,
        ),
        hyperparameters=options,
        modality=modality,
        inputs=input_fn,
        networks=networks,
        model_fn=model_fn,
        heads=HEADS,
    ).for_training()
    run = run.replace(plan=Plan.without_end(run, 96))
    check_model(run)
    check_head(dataclasses.replace(options, xentropy_label_smoothing=0.0))
    check_augmentation(run, name, amount)
    print("all is so")


def check_model(run: Any) -> None:
    """A step of the network, the head and the optimizer."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.get_or_create_global_step()
        batch = v1.data.make_one_shot_iterator(input_fn.train_input(run)).get_next()
        spec = model_fn(*batch, ModeKeys.TRAIN, run.hyperparameters, run=run)
        session.run(v1.global_variables_initializer())
        session.run(spec.train_op)
        assert np.isfinite(session.run(spec.loss))
        layers = {variable.name.split("/")[0] for variable in v1.trainable_variables()}
        assert layers == {"layer0", "layer1", "layer2", "logits"}
        assert [v.name for v in v1.global_variables() if "RMSProp" in v.name]


def check_head(options: Any) -> None:
    """Its loss and its metric against NumPy."""
    logits = np.array([[3, 1, 0], [0, 1, 2], [0, 5, 0]], np.float32)
    labels = np.array([0, 1, 1])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    of_label = p[range(3), labels]
    with tf.Graph().as_default(), v1.Session() as session:
        head = HEADS["focal"](Target("class", ("a", "b", "c")), options)
        losses = session.run(head.losses(tf.constant(labels), tf.constant(logits)))
        expected = (1 - of_label) ** options.focal_gamma * -np.log(of_label)
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        value, update = head.metrics(tf.constant(labels), tf.constant(logits))["brier_score"]
        session.run(v1.local_variables_initializer())
        session.run(update)
        expected = ((p - np.eye(3)[labels]) ** 2).sum(1).mean()
        np.testing.assert_allclose(session.run(value), expected, rtol=1e-5)


def check_augmentation(run: Any, name: str, amount: float) -> None:
    """The same twice, and none with 0."""

    def batch(amount: float) -> np.ndarray:
        params = dataclasses.replace(run.hyperparameters, **{name: amount})
        features, _ = next(iter(input_fn.train_input(run.replace(hyperparameters=params))))
        return next(iter(features.values())).numpy()

    with_it, again, without = batch(amount), batch(amount), batch(0)
    np.testing.assert_array_equal(with_it, again)
    difference = (with_it - without).reshape(BATCH_SIZE, -1)
    if name == "echo":
        for row, clip in zip(difference, without, strict=True):
            delayed = (np.pad(clip, [delay, 0])[: len(clip)] for delay in range(len(clip) // 10))
            assert any(np.allclose(row, amount * each, atol=1e-5) for each in delayed)
        return
    inside = ((with_it > 0) & (with_it < 255)).reshape(BATCH_SIZE, -1)
    moved = [row[ok] for row, ok in zip(difference, inside, strict=True)]
    assert max(row.std() for row in moved) < 1e-3, "all pixels of an image move alike"
    means = np.array([row.mean() for row in moved])
    assert np.abs(means).max() <= amount, means
    assert means.std() > 1, means


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
