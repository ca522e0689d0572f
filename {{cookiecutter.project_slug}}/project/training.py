"""The command train: all of a run, or only a few examples by heart."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from library.distribute import Cluster, Parallel
from library.estimator import EvalSpec, ModeKeys, TrainSpec, train_and_evaluate
from library.report import EvaluationPicturesHook, PicturesHook, add_table
from library.train import (
    MODEL_FILE,
    BestCheckpointExporter,
    CheckpointHook,
    EarlyStopHook,
    EvaluationTable,
    GracefulStopHook,
    ModelCard,
    ProgressHook,
    WarmStart,
    WatchHook,
    XlaHook,
    end_unless_there,
    evaluate_checkpoint,
    evaluate_checkpoints,
    find_checkpoint,
    global_step_of,
    read_best,
    run_record,
    serve,
)
from library.util import RunError, StatusLine, remove_leftovers, replacing
from project.input_fn import (
    evaluation_input,
    keys_of_batch,
    num_train_examples,
    train_input,
)
from project.model_fn import model_fn
from project.networks import prepared
from project.overfit import overfit
from project.plan import Plan, check_all_reduce, check_batch, description, plan_of
from project.sessions import (
    DivergedError,
    estimator_of,
    params_of,
    told_in_a_line,
    training_data,
    without_missing_device,
)
from project.settings import Hyperparameters, Settings


def train(settings: Settings, hyperparameters: Hyperparameters) -> None:
    """Train for `train_epochs` in all, evaluate every `epochs_between_evals`, keep the best.

    With TF_CONFIG, this process does its part of that.
    """
    cluster = Cluster.from_environment()
    if cluster.job == "ps":
        serve(cluster)
        return
    parallel = Parallel.of(cluster, settings.devices, sync_replicas=settings.sync_replicas)
    check_batch(settings, hyperparameters, parallel)
    if cluster.all_reduce:
        check_all_reduce(settings, hyperparameters)
    card = training_data(settings)
    if cluster.all_reduce and not cluster.is_evaluator:
        end_unless_there(cluster.needed)
    strategy = parallel.strategy()
    hyperparameters = prepared(settings, hyperparameters)
    model = ModelCard.of("classification", card.target, hyperparameters)
    if settings.overfit:
        overfit(settings, hyperparameters, model, card.num_examples)
        return
    plan = plan_of(settings, model, num_train_examples(settings, card))
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
        train_input(settings, hyperparameters, 0)
    warm_start = _warm_start(settings, hyperparameters, model, plan)
    _write_start(settings, hyperparameters, plan, model, cluster, warm_start)
    if settings.deterministic and tf.config.list_physical_devices("GPU"):
        tf.config.experimental.enable_op_determinism()
    settings = without_missing_device(settings)
    if strategy and settings.prefetch_to_device:
        print("prefetch_to_device: left out: with several devices, each has its own prefetch")
        settings = dataclasses.replace(settings, prefetch_to_device=None)
    for text in description(settings, plan, parallel):
        print(text)
    schedule = {
        "train_batch_size": settings.train_batch_size,
        "num_examples": plan.epoch_examples,
        "examples_offset": plan.offset,
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
    line = StatusLine(live=settings.live_progress)
    train_spec, eval_spec = _specs(
        settings, hyperparameters, plan, parallel, model, early_stop=early_stop, line=line
    )
    with (
        _divergence_on_file(settings, plan),
        told_in_a_line(settings, settings.train_data, settings.validation_data),
        line,
    ):
        if cluster.is_evaluator:
            evaluate_checkpoints(estimator, eval_spec, steps=steps, early_stop=early_stop)
        else:
            if plan.checkpoint and not evaluated and not cluster.addresses:
                # The last start ended between this checkpoint and its evaluation.
                evaluate_checkpoint(estimator, eval_spec, plan.checkpoint)
            if step < steps and not early_stop.due:
                train_and_evaluate(estimator, train_spec, eval_spec)
    if cluster.addresses and not cluster.is_evaluator:
        print(f"done: {cluster.name}")
    else:
        _tell_end(settings, early_stop)


def _write_start(
    settings: Settings,
    hyperparameters: Hyperparameters,
    plan: Plan,
    model: ModelCard,
    cluster: Cluster,
    warm_start: WarmStart | None,
) -> None:
    """Bring the folders up to this start, each by the process that writes there."""
    if cluster.is_chief:
        for change in _record_start(settings, hyperparameters, plan):
            print(f"changed since the last start: {change}")
        model.save(settings.model_dir)
        remove_leftovers(settings.model_dir)
        for name, options in (("settings", settings), ("hyperparameters", hyperparameters)):
            add_table(settings.model_dir, name, dataclasses.asdict(options), plan.step)
        if warm_start:
            warm_start.save(settings.model_dir)
    if cluster.is_evaluator or not cluster.addresses:
        remove_leftovers(settings.best_model_dir)


def _tell_end(settings: Settings, early_stop: EarlyStopHook) -> None:
    if early_stop.due:
        evaluations = f"{settings.early_stopping_evals} evaluations"
        print(f"stopped early: {evaluations} without a better {early_stop.exporter.metric}")
    best = read_best(settings.best_model_dir)
    if best:
        where = f"step {best['step']}, in {settings.best_model_dir}"
        print(f"best model: {best['metric']} {best['value']:.4f} at {where}")


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
        model_fn(features, labels, ModeKeys.EVAL, params_of(settings, hyperparameters, model))

    warm_start = WarmStart.of(checkpoint, build)
    for line in warm_start.lines:
        print(line)
    return warm_start


def _specs(
    settings: Settings,
    hyperparameters: Hyperparameters,
    plan: Plan,
    parallel: Parallel,
    model: ModelCard,
    *,
    early_stop: EarlyStopHook,
    line: StatusLine,
) -> tuple[TrainSpec, EvalSpec]:
    """What is trained on and evaluated, and what happens beside the steps."""
    cluster, exporter = parallel.cluster, early_stop.exporter
    save = CheckpointHook(settings.model_dir, plan.steps_between_evals)
    stop = GracefulStopHook(
        settings.model_dir, max_time=settings.max_minutes, saves=cluster.is_chief
    )
    # Drawing takes longer than a short evaluation: not more often than summaries are asked for.
    between = plan.steps_between_evals
    every = between * math.ceil(settings.save_summary_steps / between)
    pictures = PicturesHook(settings.model_dir, model.class_names, every=every)
    evaluation_pictures = EvaluationPicturesHook(
        settings.model_dir / "eval",
        model.class_names,
        due=lambda step: step % every == 0 or step >= plan.steps,
    )
    progress = ProgressHook(
        ("loss", "accuracy"),
        [save, pictures],
        every=settings.log_steps,
        steps=plan.steps,
        batch_size=settings.train_batch_size,
        epoch_of=plan.epoch_of,
        summary_dir=settings.model_dir if cluster.is_chief else None,
        line=line,
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
            *[pictures, save] * cluster.is_chief,
            stop,
            *[early_stop] * bool(settings.early_stopping_evals),
        ],
    )
    eval_spec = EvalSpec(
        lambda: evaluation_input(settings.validation_data, settings, hyperparameters),
        steps=None,  # all of the data set
        start_delay_secs=0,
        throttle_secs=0,  # after every checkpoint
        hooks=[*[stop.in_evaluation] * (not cluster.is_evaluator), evaluation_pictures],
        exporters=[exporter, EvaluationTable(exporter, line, epoch_of=plan.epoch_of)],
    )
    return train_spec, eval_spec


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
