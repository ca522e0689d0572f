"""What a training is about to do: where it stands, how far it goes, and whether that can be."""

import dataclasses
import math
import os
from collections.abc import Iterator

import tensorflow as tf

from library.distribute import Parallel
from library.train import ModelCard, global_step_of, read_best, run_record
from library.util import UserError, check_folder
from project.settings import Hyperparameters, Settings


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where a run stands, and how far it goes."""

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
        """Epochs since the begin of the run."""
        return (step * self.batch_size + self.offset) / self.epoch_examples

    @property
    def evaluation_due(self) -> bool:
        """Whether the latest checkpoint is one that an evaluation comes after."""
        return self.step > 0 and (
            self.step % self.steps_between_evals == 0 or self.step >= self.steps
        )


def plan_of(settings: Settings, model: ModelCard, epoch_examples: int) -> Plan:
    """What is left of a run, in steps of its present batch size."""
    checkpoint, step = _last_checkpoint(settings, model)
    batch_size = settings.train_batch_size
    examples = run_record.examples_before(settings.model_dir, step, batch_size)
    left = max(0, int(settings.train_epochs * epoch_examples) - examples)
    return Plan(
        checkpoint=checkpoint,
        step=step,
        examples=examples,
        epoch_examples=epoch_examples,
        batch_size=batch_size,
        steps=max(1, step + left // batch_size),
        steps_between_evals=math.ceil(settings.epochs_between_evals * epoch_examples / batch_size),
    )


def check_batch(settings: Settings, hyperparameters: Hyperparameters, parallel: Parallel) -> None:
    """Refuse a batch that cannot be divided as it has to be."""
    parts = parallel.batch_parts * hyperparameters.gradient_accumulation
    if settings.train_batch_size % parts:
        raise UserError(
            f"train_batch_size: {settings.train_batch_size} cannot be divided by {parts}: "
            f"{len(parallel.devices)} devices x {parallel.num_sharing} workers that share a batch, "
            f"the chief included, x gradient_accumulation {hyperparameters.gradient_accumulation}"
        )


def check_all_reduce(settings: Settings, hyperparameters: Hyperparameters) -> None:
    """Refuse what workers that average their gradients cannot do."""
    for name in ("early_stopping_evals", "max_minutes"):
        if getattr(settings, name) is not None:
            raise UserError(
                f"{name}: workers without parameter servers would have to stop at the same step: "
                "leave it out"
            )
    if hyperparameters.network == "hub":
        raise UserError(
            "network: hub: the averages of a module's batch norm are not saved by workers without "
            "parameter servers: have these"
        )


def description(settings: Settings, plan: Plan, parallel: Parallel) -> Iterator[str]:
    """What is about to happen, and where."""
    devices, cluster = parallel.devices, parallel.cluster
    where = devices[0] if len(devices) == 1 else f"{len(devices)} devices, {', '.join(devices)}"
    where = "the CPU" if where == "/cpu:0" else where
    yield (
        f"training from step {plan.step} to {plan.steps} on {where}: "
        f"{plan.epoch_examples} examples an epoch"
    )
    if parallel.batch_parts > 1:
        batch_size = settings.train_batch_size
        yield f"each step: {batch_size} examples, {batch_size // parallel.batch_parts} a device"
    if cluster.addresses:
        jobs = ", ".join(f"{len(tasks)} {job}" for job, tasks in cluster.addresses.items())
        yield f"{cluster.name} of a cluster of {jobs}"


def _last_checkpoint(settings: Settings, model: ModelCard) -> tuple[str | None, int]:
    """The checkpoint to go on from, and its step: it has to fit the model."""
    for name in ("model_dir", "best_model_dir"):
        check_folder(name, getattr(settings, name))
    latest = tf.train.latest_checkpoint(str(settings.model_dir))
    records = run_record.load(settings.model_dir) if latest else []
    last = [record["settings"] for record in records[-1:]]
    places = [dataclasses.asdict(settings), *last]  # as seen from model_dir: both may be moved
    places = [os.path.relpath(one["best_model_dir"], one["model_dir"]) for one in places]
    if (not last or places[0] != places[1]) and read_best(settings.best_model_dir):
        reason = f"that of {settings.model_dir} is {places[1]}" if last else "this run is new"
        raise UserError(
            f"best_model_dir: {settings.best_model_dir} holds the best model of another run, since "
            f"{reason}: take another folder, or delete it"
        )
    if not latest:
        return None, 0
    model.must_equal(ModelCard.load(settings.model_dir), settings.model_dir)
    return latest, global_step_of(latest)
