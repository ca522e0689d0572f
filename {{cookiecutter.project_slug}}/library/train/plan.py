"""What a training is about to do: where it stands and how far it goes."""

import dataclasses
import math
import os
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from library.config import PROJECT
from library.train import run_record
from library.train.checkpoints import newest_checkpoint
from library.train.exporter import global_step_of, read_best
from library.train.model_card import ModelCard
from library.util import UserError, refuse

if TYPE_CHECKING:
    from library.train.run import Run


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where a training stands, and how far it goes."""

    checkpoint: str | None  # the latest one
    step: int  # of it
    examples: int  # that the run has seen by then
    epoch_examples: int
    batch_size: int
    steps: int  # at which the run ends
    steps_between_evals: int

    @property
    def offset(self) -> int:
        """How many more examples the run has seen than steps of this batch size have."""
        return self.examples - self.step * self.batch_size

    def epoch_of(self, step: int) -> float:
        """Epochs since the beginning of the run."""
        return (step * self.batch_size + self.offset) / self.epoch_examples

    def epochs(self, step: tf.Tensor) -> tf.Tensor:
        """The same in a graph: int64 scalar -> float32 scalar."""
        examples = step * self.batch_size + self.offset
        return tf.cast(examples, tf.float32) / self.epoch_examples

    @property
    def epochs_per_step(self) -> float:
        return self.batch_size / self.epoch_examples

    @property
    def evaluation_due(self) -> bool:
        """Whether the latest checkpoint is one that an evaluation comes after."""
        return self.step > 0 and (
            self.step % self.steps_between_evals == 0 or self.step >= self.steps
        )

    @classmethod
    def of(cls, run: "Run", epoch_examples: int) -> "Plan":
        """What is left of a run, in steps of its present batch size."""
        settings, batch_size = run.settings, run.settings.train_batch_size
        checkpoint, step = _last_checkpoint(run)
        examples = run_record.examples_before(settings.model_dir, step, batch_size)
        # Rounded: 0.7 x 90 is 62.99999999999999, and 1.1 x 400 / 8 is more than 55.
        left = max(0, int(round(settings.train_epochs * epoch_examples, 6)) - examples)
        if not step and left < batch_size:
            raise UserError(
                f"train_batch_size: {batch_size} is more than the {left} examples of "
                f"{settings.train_epochs:g} epochs: use smaller batches, or more epochs"
            )
        return cls(
            checkpoint=checkpoint,
            step=step,
            examples=examples,
            epoch_examples=epoch_examples,
            batch_size=batch_size,
            steps=step + left // batch_size,
            steps_between_evals=max(
                1, math.ceil(round(settings.epochs_between_evals * epoch_examples / batch_size, 6))
            ),
        )

    @classmethod
    def without_end(cls, run: "Run", epoch_examples: int) -> "Plan":
        """Steps from the first on, of which nothing is kept."""
        size = run.settings.train_batch_size
        return cls(None, 0, 0, epoch_examples, size, steps=2**31, steps_between_evals=2**31)


def check_batch(run: "Run") -> None:
    """Refuse a batch that cannot be divided as it has to be."""
    settings, params = run.settings, run.hyperparameters
    parallel, cluster = run.parallel, run.cluster
    parts = parallel.batch_parts * params.gradient_accumulation
    without_servers = "workers without parameter servers"
    same_step = f"{without_servers} would have to stop at the same step: leave it out"
    refuse(
        {
            f"train_batch_size: {settings.train_batch_size} cannot be divided by {parts}: "
            f"{len(parallel.devices)} devices x {parallel.num_sharing} workers that share a batch, "
            f"the chief included, x gradient_accumulation {params.gradient_accumulation}": (
                settings.train_batch_size % parts
            ),
            "network: efficientnet_lite0: parameter servers cannot read its weights: "
            "leave them out": cluster.has_servers and params.network == "efficientnet_lite0",
            f"network: hub: {without_servers} do not save the averages of a module's batch norm: "
            "use parameter servers": cluster.all_reduce and params.network == "hub",
            "overfit: needs one process, without TF_CONFIG": (
                sum(map(len, cluster.addresses.values())) > 1 and settings.overfit
            ),
            f"max_minutes: {same_step}": cluster.all_reduce and settings.max_minutes,
            f"early_stopping_evals: {same_step}": (
                cluster.all_reduce and settings.early_stopping_evals
            ),
        }
    )


def description(run: "Run", plan: Plan) -> Iterator[str]:
    """What is about to happen, and where."""
    parallel, cluster = run.parallel, run.cluster
    devices = parallel.devices
    where = devices[0] if len(devices) == 1 else f"{len(devices)} devices, {', '.join(devices)}"
    where = "the CPU" if where == "/cpu:0" else where
    yield (
        f"training from step {plan.step} to {plan.steps} on {where}: "
        f"{plan.epoch_examples} examples per epoch"
    )
    if plan.batch_size > plan.epoch_examples:
        yield (
            f"a step takes {plan.batch_size} examples, {plan.epochs_per_step:.3g} epochs of the "
            "dataset: some of them more than once"
        )
    if parallel.batch_parts > 1:
        yield f"each step: {plan.batch_size} examples, {run.batch_size} per device"
    if cluster.addresses:
        jobs = ", ".join(f"{len(tasks)} {job}" for job, tasks in cluster.addresses.items())
        yield f"{cluster.name} of a cluster of {jobs}"


def _last_checkpoint(run: "Run") -> tuple[str | None, int]:
    """The checkpoint to go on from, and its step: it has to fit the model."""
    settings = run.settings
    latest = newest_checkpoint("model_dir", settings.model_dir)
    records = run_record.load(settings.model_dir) if latest else []
    before = best_place(records[-1]["settings"]) if records else None
    if read_best(settings.best_model_dir) and before != best_place(dataclasses.asdict(settings)):
        reason = f"{settings.model_dir} has no run.yaml" if latest else "this run is new"
        reason = f"that of {settings.model_dir} is {before}" if records else reason
        raise UserError(
            f"best_model_dir: {settings.best_model_dir} holds the best model of another run, since "
            f"{reason}: start a run of its own with --run NAME, or delete it"
        )
    if not latest:
        return None, 0
    run.model.must_equal(ModelCard.load(settings.model_dir), settings.model_dir)
    return latest, global_step_of(latest)


def best_place(settings: dict[str, Any], path: ModuleType = os.path) -> str:
    """best_model_dir as seen from model_dir: both may be moved."""
    places = (settings.get(name) for name in ("best_model_dir", "model_dir"))
    best, model = (path.join(PROJECT, str(place)) for place in places)
    try:
        return path.relpath(best, model)
    except ValueError:  # Windows has no way from one drive to another
        return best
