"""Some steps of training on data from memory, by the Estimator itself.

As a program, for what needs a process of its own: python tests/training_steps.py '{"devices": 2}'
prints the loss of each step.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

# ruff: noqa: E402, I001  `library` chooses Keras 2 before TensorFlow is imported
from library.estimator import Estimator, RunConfig
from library.distribute import Cluster
from library.distribute import Parallel

import tensorflow as tf

from project import networks
from project.model_fn import model_fn
from project.settings import Hyperparameters

EXAMPLES, BATCH, SIZE = 48, 16, 16

SessionRunArgs = tf.compat.v1.train.SessionRunArgs


def linear(images: tf.Tensor, **options: Any) -> tf.Tensor:
    """A network without batch norm."""
    x = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, SIZE * SIZE * 3])
    return networks.classify(tf.cast(x, options["params"]["compute_dtype"]), **options)


class LossHook(tf.compat.v1.train.SessionRunHook):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def before_run(self, run_context: Any) -> Any:
        return SessionRunArgs(tf.compat.v1.get_default_graph().get_tensor_by_name("batch_loss:0"))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.losses.append(float(run_values.results))


def input_fn(batch_size: int) -> tf.data.Dataset:
    """Pictures that can be learnt: the brightest channel is the class."""
    random = np.random.default_rng(0)
    images = random.uniform(0, 200, [EXAMPLES, SIZE, SIZE, 3]).astype(np.float32)
    labels = np.arange(EXAMPLES) % 3
    for image, label in zip(images, labels, strict=True):
        image[..., label] += 40
    examples = tf.data.Dataset.from_tensor_slices(({"image": images}, labels))
    return examples.repeat().batch(batch_size, drop_remainder=True)


def train(
    *, steps: int, devices: int = 1, model_dir: str | None = None, **changes: Any
) -> tuple[list[float], Estimator]:
    """The losses of some steps, and the Estimator; `changes` are of hyperparameters and params."""
    networks.NETWORKS["linear"] = linear
    parallel = Parallel.of(Cluster(), devices, sync_replicas=False)
    names = {field.name for field in dataclasses.fields(Hyperparameters)}
    hyperparameters = Hyperparameters(
        image_size=SIZE, **{name: changes.pop(name) for name in names & changes.keys()}
    )
    params = dataclasses.asdict(hyperparameters)
    params |= {"class_names": list("abc"), "random_seed": 0, "xla": False, "is_chief": True}
    params |= {"compute_dtype": "float32", "sync_workers": 0}
    params |= {"train_batch_size": BATCH, "num_examples": EXAMPLES, "examples_offset": 0, **changes}
    config = RunConfig(
        model_dir=model_dir or tempfile.mkdtemp(),
        tf_random_seed=0,
        train_distribute=parallel.strategy(),
        session_config=parallel.session_config,
    )
    model, hook = Estimator(model_fn, config=config, params=params), LossHook()
    model.train(lambda: input_fn(BATCH // parallel.batch_parts), max_steps=steps, hooks=[hook])
    return hook.losses, model


if __name__ == "__main__":
    print(json.dumps(train(**json.loads(sys.argv[1]))[0]))
