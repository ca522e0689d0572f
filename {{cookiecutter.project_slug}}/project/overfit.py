"""The option overfit: only whether the model can learn a few fixed examples by heart."""

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from library.train import ModelCard
from library.util import RunError, UserError
from project.input_fn import overfit_input
from project.sessions import estimator_of, told_in_a_line
from project.settings import Hyperparameters, Settings

OVERFIT_LOSS, OVERFIT_STEPS = 1e-3, 1000
"""A cross entropy as good as zero, and the steps in which a model that can learn is there."""


def overfit(
    settings: Settings, hyperparameters: Hyperparameters, model: ModelCard, num_examples: int
) -> None:
    """Learn a few fixed examples by heart, without all that is there to prevent it.

    Raises:
        RunError: the loss does not come down to OVERFIT_LOSS.
    """
    wanted = settings.overfit
    assert wanted is not None, "it is called where the option is given"
    if wanted > num_examples:
        raise UserError(
            f"overfit: {wanted} is more than the {num_examples} examples of {settings.train_data}"
        )
    hyperparameters = dataclasses.replace(
        hyperparameters,
        dropout_rate=0.0,
        l2_regularization=0.0,
        xentropy_label_smoothing=0.0,
        learning_rate_schedule="constant",
        warmup_epochs=0.0,
    )
    batches = math.ceil(wanted / settings.train_batch_size)
    learnt = StopAtLossHook("batch_loss", bound=OVERFIT_LOSS, steps=batches)
    print(f"overfit: {wanted} examples, at most {OVERFIT_STEPS} steps; nothing is kept")
    with tempfile.TemporaryDirectory() as folder:
        settings = dataclasses.replace(settings, model_dir=Path(folder))
        estimator = estimator_of(
            settings,
            hyperparameters,
            model,
            train_batch_size=settings.train_batch_size,
            num_examples=wanted,
            examples_offset=0,
        )
        with told_in_a_line(settings, settings.train_data):
            estimator.train(
                lambda: overfit_input(settings, hyperparameters),
                hooks=[learnt],
                max_steps=OVERFIT_STEPS,
            )
    if not learnt.reached:
        raise RunError(
            f"overfit: the loss is still {learnt.loss:.4f} after {learnt.step} steps: this model "
            "cannot learn these examples, whatever the data; look at the network, the loss, the "
            "labels and the learning_rate"
        )
    print(f"overfit: the model can learn: loss {learnt.loss:.4f} after {learnt.step} steps")


class StopAtLossHook(tf.compat.v1.train.SessionRunHook):
    """Ends training when the loss has been under a bound for so many steps in a row."""

    def __init__(self, loss: str, *, bound: float, steps: int):
        """
        Args:
            loss: the name of the scalar.
            bound: that it has to be under.
            steps: for how long, as for all batches of an epoch.
        """
        self.loss_name, self.bound, self.needed = loss, bound, steps
        self.under, self.step, self.loss = 0, 0, math.inf

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        self.tensor = graph.get_tensor_by_name(f"{self.loss_name}:0")

    @property
    def reached(self) -> bool:
        return self.under >= self.needed

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self.tensor)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.loss, self.step = float(run_values.results), self.step + 1
        self.under = self.under + 1 if self.loss < self.bound else 0
        if self.reached:
            run_context.request_stop()
