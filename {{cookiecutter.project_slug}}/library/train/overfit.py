"""The option overfit: a sanity check whether the model can overfit a few fixed examples."""

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from library.train.errors import translate_errors
from library.train.plan import Plan
from library.train.run import Run
from library.util import RunError, UserError

OVERFIT_LOSS, OVERFIT_STEPS = 1e-3, 1000
"""A loss as good as zero, and the steps in which a model that can learn reaches it."""


def overfit(run: Run, num_examples: int) -> None:
    """Overfit a few fixed examples, without regularization, to OVERFIT_LOSS; nothing is kept."""
    wanted = run.settings.overfit or 0
    if wanted > num_examples:
        data = run.settings.train_data
        raise UserError(f"overfit: {wanted} is more than the {num_examples} examples of {data}")
    run = run.replace(
        dropout_rate=0.0,
        l2_regularization=0.0,
        weight_decay=0.0,
        xentropy_label_smoothing=0.0,
        learning_rate_schedule="constant",
        warmup_epochs=0.0,
        extra_data=(),
        mixture_weights=(),
        plan=Plan.without_end(run, wanted),
    )
    reached = StopAtLossHook(needed=math.ceil(wanted / run.settings.train_batch_size))
    print(f"overfit: {wanted} examples, at most {OVERFIT_STEPS} steps; nothing is kept")
    with tempfile.TemporaryDirectory() as folder:
        there = run.replace(model_dir=Path(folder))
        with translate_errors(run, run.settings.train_data):
            there.estimator().train(
                lambda: run.inputs.overfit_input(run), hooks=[reached], max_steps=OVERFIT_STEPS
            )
    if not reached.reached:
        raise RunError(
            f"overfit: the loss is still {reached.loss:.4f} after {reached.step} steps: this model "
            "cannot learn these examples, whatever the data; look at the network, the loss, the "
            "labels and the learning_rate"
        )
    print(f"overfit: the model can learn: loss {reached.loss:.4f} after {reached.step} steps")


@dataclasses.dataclass(eq=False)
class StopAtLossHook(tf.compat.v1.train.SessionRunHook):
    """Ends training when the loss has been under OVERFIT_LOSS for so many steps in a row."""

    needed: int  # steps of an epoch
    under: int = 0
    step: int = 0
    loss: float = math.inf

    @property
    def reached(self) -> bool:
        return self.under >= self.needed

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs("batch_loss:0")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.loss, self.step = float(run_values.results), self.step + 1
        self.under = self.under + 1 if self.loss < OVERFIT_LOSS else 0
        if self.reached:
            run_context.request_stop()
