"""The option overfit: a sanity check whether the model can overfit a few fixed examples."""

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from library.train.errors import translate_errors
from library.train.plan import Plan
from library.util import RunError, UserError

if TYPE_CHECKING:
    from library.train.run import Run

OVERFIT_LOSS, OVERFIT_STEPS = 1e-3, 1000
"""A loss as good as zero, and the steps in which a model that can learn reaches it."""


def overfit(run: "Run", num_examples: int) -> None:
    """Overfit a few fixed examples, without regularization; nothing is kept.

    Raises:
        RunError: the loss does not come down to OVERFIT_LOSS.
    """
    wanted = run.settings.overfit
    assert wanted is not None, "it is called where the option is given"
    if wanted > num_examples:
        data = run.settings.train_data
        raise UserError(f"overfit: {wanted} is more than the {num_examples} examples of {data}")
    run = run.replace(
        dropout_rate=0.0,
        l2_regularization=0.0,
        xentropy_label_smoothing=0.0,
        learning_rate_schedule="constant",
        warmup_epochs=0.0,
        plan=Plan.without_end(run, wanted),
    )
    batches = math.ceil(wanted / run.settings.train_batch_size)
    reached = StopAtLossHook("batch_loss", bound=OVERFIT_LOSS, steps=batches)
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


class StopAtLossHook(tf.compat.v1.train.SessionRunHook):
    """Ends training when the loss has been under a bound for so many steps in a row."""

    def __init__(self, loss: str, *, bound: float, steps: int):
        """`loss` is the name of the scalar; `steps` are those of an epoch."""
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
