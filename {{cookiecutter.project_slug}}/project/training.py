"""The command train: all of a run, or only a few examples by heart."""

import contextlib
import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from library import run_record
from library.cluster import Cluster
from library.errors import RunError, UserError
from library.estimator import EvalSpec, ModeKeys, TrainSpec, train_and_evaluate
from library.exporter import BestCheckpointExporter, find_checkpoint, global_step_of, read_best
from library.files import check_folder, remove_leftovers, replacing
from library.hooks import (
    CheckpointHook,
    EarlyStopHook,
    GracefulStopHook,
    ProgressHook,
    StopAtLossHook,
    XlaHook,
)
from library.model_card import FILE as MODEL_FILE
from library.model_card import ModelCard
from library.parallel import Parallel
from library.tasks import WatchHook, evaluate_checkpoints, serve
from library.warm_start import WarmStart
from project.input_fn import (
    evaluation_input,
    keys_of_batch,
    num_train_examples,
    overfit_input,
    train_input,
    train_pipeline,
)
from project.model_fn import model_fn
from project.networks import prepared
from project.sessions import (
    DivergedError,
    estimator_of,
    told_in_a_line,
    training_data,
    without_missing_device,
)
from project.settings import Hyperparameters, Settings

OVERFIT_LOSS, OVERFIT_STEPS = 1e-3, 1000
"""A cross entropy as good as zero, and the steps in which a model that can learn is there."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where a run stands, and how far it goes."""

    checkpoint: str | None  # the latest one
    step: int  # of it
    examples: int  # that the run has seen by then
    epoch_examples: int
    steps: int  # at which the run ends
    steps_between_evals: int

    @property
    def evaluation_due(self) -> bool:
        """Whether the latest checkpoint is one that an evaluation comes after."""
        return self.step > 0 and (
            self.step % self.steps_between_evals == 0 or self.step >= self.steps
        )


def train(settings: Settings, hyperparameters: Hyperparameters) -> None:
    """Train for `train_epochs` in all, evaluate every `epochs_between_evals`, keep the best.

    With TF_CONFIG, this process does its part of that.
    """
    cluster = Cluster.from_environment()
    if cluster.job == "ps":
        serve(cluster)
        return
    parallel = Parallel.of(cluster, settings.devices, sync_replicas=settings.sync_replicas)
    _check_batch(settings, hyperparameters, parallel)
    if cluster.all_reduce:
        _check_all_reduce(settings, hyperparameters)
    card = training_data(settings)
    strategy = parallel.strategy()
    hyperparameters = prepared(settings, hyperparameters)
    model = ModelCard.of(card.classes, hyperparameters)
    if settings.overfit:
        _overfit(settings, hyperparameters, model, card.num_examples)
        return
    plan = _plan(settings, model, num_train_examples(settings, card))
    step, steps = plan.step, plan.steps
    exporter = BestCheckpointExporter(
        settings.best_model_dir,
        keep=settings.keep_best_max,
        assets=[settings.model_dir / MODEL_FILE],
    )
    early_stop = EarlyStopHook(exporter, settings.early_stopping_evals or math.inf)
    evaluated = not plan.evaluation_due or exporter.evaluated_step == step
    if evaluated and step >= steps:
        print(f"already trained to step {step} of {steps}; a larger train_epochs goes on")
        return
    if evaluated and early_stop.due:
        print(f"already stopped early at step {step}; a larger early_stopping_evals goes on")
        return
    with told_in_a_line(settings, settings.train_data):
        # Opened, or brought to a cache, before anything is written.
        train_pipeline(settings, hyperparameters, 0)
    warm_start = _warm_start(settings, hyperparameters, model, plan)
    if cluster.is_chief:
        for change in _record_start(settings, hyperparameters, plan):
            print(f"changed since the last start: {change}")
        model.save(settings.model_dir)
        remove_leftovers(settings.model_dir)
        if warm_start:
            warm_start.save(settings.model_dir)
    if cluster.is_evaluator or not cluster.addresses:
        remove_leftovers(settings.best_model_dir)

    if settings.deterministic and tf.config.list_physical_devices("GPU"):
        tf.config.experimental.enable_op_determinism()
    settings = without_missing_device(settings)
    if strategy and settings.prefetch_to_device:
        print("prefetch_to_device: left out: with several devices, each has its own prefetch")
        settings = dataclasses.replace(settings, prefetch_to_device=None)
    for line in _description(settings, plan, parallel):
        print(line)
    schedule = {
        "train_batch_size": settings.train_batch_size,
        "num_examples": plan.epoch_examples,
        "examples_offset": plan.examples - step * settings.train_batch_size,
    }
    estimator = estimator_of(
        settings,
        hyperparameters,
        model,
        parallel=parallel,
        strategy=strategy,
        warm_start=warm_start,
        **schedule,
    )
    train_spec, eval_spec = _specs(
        settings, hyperparameters, plan, parallel, exporter=exporter, early_stop=early_stop
    )
    with (
        _divergence_on_file(settings, plan),
        told_in_a_line(settings, settings.train_data, settings.validation_data),
    ):
        if cluster.is_evaluator:
            evaluate_checkpoints(estimator, eval_spec, steps=steps, early_stop=early_stop)
        else:
            if not evaluated and not cluster.addresses:
                # The last start ended between this checkpoint and its evaluation.
                metrics = estimator.evaluate(eval_spec.input_fn, checkpoint_path=plan.checkpoint)
                exporter.export(estimator, "", plan.checkpoint, metrics, is_the_final_export=False)
            if step < steps and not early_stop.due:
                train_and_evaluate(estimator, train_spec, eval_spec)
    if cluster.addresses and not cluster.is_evaluator:
        print(f"done: {cluster.name}")
        return
    if early_stop.due:
        print(f"stopped early: {settings.early_stopping_evals} evaluations without a better loss")
    best = read_best(settings.best_model_dir)
    if best:
        where = f"step {best['step']}, in {settings.best_model_dir}"
        print(f"best model: {best['metric']} {best['value']:.4f} at {where}")


def _check_batch(settings: Settings, hyperparameters: Hyperparameters, parallel: Parallel) -> None:
    """Refuse a batch that cannot be divided as it has to be."""
    parts = parallel.batch_parts * hyperparameters.gradient_accumulation
    if settings.train_batch_size % parts:
        raise UserError(
            f"train_batch_size: {settings.train_batch_size} cannot be divided by {parts}: "
            f"{len(parallel.devices)} devices x {parallel.num_sharing} workers that share a batch, "
            f"the chief included, x gradient_accumulation {hyperparameters.gradient_accumulation}"
        )


def _check_all_reduce(settings: Settings, hyperparameters: Hyperparameters) -> None:
    """Refuse what workers that average their gradients cannot do."""
    for name in ("early_stopping_evals", "max_time"):
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


def _description(settings: Settings, plan: Plan, parallel: Parallel) -> Iterator[str]:
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


def _warm_start(
    settings: Settings, hyperparameters: Hyperparameters, model: ModelCard, plan: Plan
) -> WarmStart | None:
    """What a new run takes of another one; told, too."""
    if not settings.warm_start_from:
        return None
    if plan.checkpoint:
        print(f"warm_start_from: left out: the run goes on from {plan.checkpoint}")
        return None
    checkpoint = find_checkpoint(
        settings.warm_start_from,
        model_dir=settings.model_dir,
        best_model_dir=settings.best_model_dir,
        option="warm_start_from",
    )

    def build() -> None:
        dataset = evaluation_input(settings.validation_data, settings, hyperparameters)
        features, labels = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        model_fn(features, labels, ModeKeys.EVAL, estimator.params)

    estimator = estimator_of(settings, hyperparameters, model)
    warm_start = WarmStart.of(checkpoint, build)
    for line in warm_start.lines:
        print(line)
    return warm_start


def _plan(settings: Settings, model: ModelCard, epoch_examples: int) -> Plan:
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
        steps=max(1, step + left // batch_size),
        steps_between_evals=math.ceil(settings.epochs_between_evals * epoch_examples / batch_size),
    )


def _specs(
    settings: Settings,
    hyperparameters: Hyperparameters,
    plan: Plan,
    parallel: Parallel,
    *,
    exporter: BestCheckpointExporter,
    early_stop: EarlyStopHook,
) -> tuple[TrainSpec, EvalSpec]:
    """What is trained on and evaluated, and what happens beside the steps."""
    cluster = parallel.cluster
    save = CheckpointHook(settings.model_dir, plan.steps_between_evals)
    stop = GracefulStopHook(settings.model_dir, max_time=settings.max_time, saves=cluster.is_chief)
    progress = ProgressHook(
        "batch_loss",
        save,
        every=settings.log_steps,
        steps=plan.steps,
        batch_size=settings.train_batch_size,
        examples=plan.epoch_examples,
        offset=plan.examples - plan.step * settings.train_batch_size,
        summary_dir=settings.model_dir if cluster.is_chief else None,
        shared=cluster.has_servers,
    )
    watch = WatchHook(
        cluster.needed,
        f"start all tasks again, and they go on from the last checkpoint, in {settings.model_dir}",
        finished=lambda: _last_step(settings) >= plan.steps,
    )
    share = {
        "num_workers": cluster.num_workers,
        "worker": cluster.worker,
        "batch_parts": parallel.batch_parts,
    }
    train_spec = TrainSpec(
        lambda: train_input(settings, hyperparameters, plan.examples, **share),
        max_steps=plan.steps,
        hooks=[
            *[watch] * bool(cluster.needed),
            *[XlaHook()] * settings.xla,
            progress,
            *[save] * cluster.is_chief,
            stop,
            early_stop,
        ],
    )
    eval_spec = EvalSpec(
        lambda: evaluation_input(settings.validation_data, settings, hyperparameters),
        steps=None,  # all of the data set
        start_delay_secs=0,
        throttle_secs=0,  # after every checkpoint
        hooks=[stop.in_evaluation],
        exporters=exporter,
    )
    return train_spec, eval_spec


def _overfit(
    settings: Settings, hyperparameters: Hyperparameters, model: ModelCard, num_examples: int
) -> None:
    """Learn a few fixed examples by heart, without all that is there to prevent it.

    Raises:
        RunError: the loss does not come down to OVERFIT_LOSS.
    """
    if settings.overfit > num_examples:
        raise UserError(
            f"overfit: {settings.overfit} is more than the {num_examples} examples of "
            f"{settings.train_data}"
        )
    free = {"dropout_rate": 0.0, "l2_regularization": 0.0, "xentropy_label_smoothing": 0.0}
    constant = {"learning_rate_schedule": "constant", "warmup_epochs": 0.0}
    hyperparameters = dataclasses.replace(hyperparameters, **free, **constant)
    batches = math.ceil(settings.overfit / settings.train_batch_size)
    learnt = StopAtLossHook("batch_loss", bound=OVERFIT_LOSS, steps=batches)
    schedule = {"train_batch_size": settings.train_batch_size, "num_examples": settings.overfit}
    print(f"overfit: {settings.overfit} examples, at most {OVERFIT_STEPS} steps; nothing is kept")
    with tempfile.TemporaryDirectory() as folder:
        settings = dataclasses.replace(settings, model_dir=Path(folder))
        estimator = estimator_of(settings, hyperparameters, model, **schedule, examples_offset=0)
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


@contextlib.contextmanager
def _divergence_on_file(settings: Settings, plan: Plan) -> Iterator[None]:
    """Write what is known of a divergence to model_dir."""
    try:
        yield
    except DivergedError as error:
        keys = keys_of_batch(settings, plan.examples, error.found["step"] - plan.step)
        file = settings.model_dir / "divergence.json"
        with replacing(file) as temporary:
            text = json.dumps({**error.found, "keys": keys}, indent=2)
            temporary.write_text(text + "\n", encoding="utf-8")
        raise RunError(
            f"{error}. {file} names the examples and the gradients; the last checkpoint is good"
        ) from error


def _last_step(settings: Settings) -> int:
    latest = tf.train.latest_checkpoint(str(settings.model_dir))
    return global_step_of(latest) if latest else 0


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


def _record_start(settings: Settings, hyperparameters: Hyperparameters, plan: Plan) -> list[str]:
    """Append to run.yaml; return what has changed since the last start."""
    record = run_record.describe(
        start={"step": plan.step, "examples": plan.examples},
        settings=dataclasses.asdict(settings),
        hyperparameters=dataclasses.asdict(hyperparameters),
        cards={
            name: f"{getattr(settings, name)}.json" for name in ("train_data", "validation_data")
        },
        devices=[device.name for device in tf.config.list_physical_devices()],
        root=Path(__file__).parent.parent,
    )
    return run_record.append(settings.model_dir, record)
