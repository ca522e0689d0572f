"""Some steps of training on data from memory, by the Estimator itself.

As a program, for what needs a process of its own: python tests/training_steps.py '{"devices": 2}'
prints the loss of each step.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

# ruff: noqa: E402, I001  `library` chooses Keras 2 before TensorFlow is imported
from library.estimator import Estimator, SessionRunArgs, SessionRunHook
from library.data import Target
from library.distribute import Cluster, Parallel

import tensorflow as tf
from conftest import make_run

from library.train import ModelCard, Plan, Run
from project import networks

EXAMPLES, BATCH, SIZE = 48, 16, 16


def linear(images: tf.Tensor, *, dtype: str, **_: Any) -> tf.Tensor:
    """A network without batch norm."""
    x = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, SIZE * SIZE * 3])
    return tf.cast(x, dtype)


class LossHook(SessionRunHook):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def before_run(self, run_context: Any) -> Any:
        return SessionRunArgs(tf.compat.v1.get_default_graph().get_tensor_by_name("batch_loss:0"))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.losses.append(float(run_values.results))


def input_fn(batch_size: int) -> tf.data.Dataset:
    """Images that can be learned: the brightest channel is the class."""
    random = np.random.default_rng(0)
    images = random.uniform(0, 200, [EXAMPLES, SIZE, SIZE, 3]).astype(np.float32)
    labels = np.arange(EXAMPLES) % 3
    for image, label in zip(images, labels, strict=True):
        image[..., label] += 40
    examples = tf.data.Dataset.from_tensor_slices(({"image": images}, labels))
    return examples.repeat().batch(batch_size, drop_remainder=True)


def train(
    *, steps: int, devices: int = 1, compute_dtype: str = "float32", **changes: Any
) -> tuple[list[float], Estimator]:
    """The losses of some steps, and the Estimator; `changes` are options."""
    networks.NETWORKS["linear"] = linear
    parallel = Parallel.of(Cluster(), devices, sync_replicas=False)
    strategy = parallel.strategy()
    folder = Path(tempfile.mkdtemp())
    options = {"image_size": SIZE, "train_batch_size": BATCH, **changes}
    run = make_run(Path("no-data"), folder, **options)
    run = run.replace(
        model_card=ModelCard("classification", Target("class", tuple("abc")), {}),
        plan=Plan.without_end(run, EXAMPLES),
        parallel=parallel,
    )
    model, hook = run.estimator(strategy=strategy), LossHook()
    with mock.patch.object(Run, "compute_dtype", compute_dtype):
        model.train(lambda: input_fn(run.batch_size), max_steps=steps, hooks=[hook])
    return hook.losses, model


if __name__ == "__main__":
    print(json.dumps(train(**json.loads(sys.argv[1]))[0]))
