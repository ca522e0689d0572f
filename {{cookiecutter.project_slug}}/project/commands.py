"""The commands of run.py: train, evaluate, predict, export, profile."""

import contextlib
import dataclasses
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from library import profiling, run_record
from library.divergence import read_divergence
from library.errors import RunError, UserError
from library.estimator import Estimator, EvalSpec, RunConfig, TrainSpec, train_and_evaluate
from library.exporter import BestCheckpointExporter, find_checkpoint, global_step_of, read_best
from library.files import check_folder, remove_leftovers, replacing
from library.hooks import (
    CheckpointHook,
    EarlyStopHook,
    GracefulStopHook,
    ProgressHook,
    StopAtLossHook,
)
from library.model_card import FILE as MODEL_FILE
from library.model_card import ModelCard
from library.predictions import Pictures, find_files, write_csv
from library.profiling import Speed
from library.tfrecord import Card, Reader, verify
from project.input_fn import (
    evaluation_input,
    keys_of_batch,
    num_train_examples,
    overfit_input,
    prediction_input,
    serving_input,
    train_input,
    train_pipeline,
    train_records,
)
from project.model_fn import model_fn
from project.settings import Hyperparameters, Settings

OVERFIT_LOSS, OVERFIT_STEPS = 1e-3, 1000
"""A cross entropy as good as zero, and the steps in which a model that can learn is there."""


def train(settings: Settings, hyperparameters: Hyperparameters) -> None:
    """Train for `train_epochs` in all, evaluate every `epochs_between_evals`, keep the best."""
    card = _training_data(settings)
    model = ModelCard.of(card.classes, hyperparameters)
    if settings.overfit:
        if settings.overfit > card.num_examples:
            raise UserError(
                f"overfit: {settings.overfit} is more than the {card.num_examples} examples of "
                f"{settings.train_data}"
            )
        _overfit(settings, hyperparameters, model)
        return
    latest, step = _last_checkpoint(settings, model)
    batch_size, n = settings.train_batch_size, num_train_examples(settings, card)
    examples = run_record.examples_before(settings.model_dir, step, batch_size)
    steps = max(1, step + max(0, int(settings.train_epochs * n) - examples) // batch_size)
    every = math.ceil(settings.epochs_between_evals * n / batch_size)

    exporter = BestCheckpointExporter(
        settings.best_model_dir,
        keep=settings.keep_best_max,
        assets=[settings.model_dir / MODEL_FILE],
    )
    early_stop = EarlyStopHook(exporter, settings.early_stopping_evals or math.inf)
    due = step and (step % every == 0 or step >= steps)  # for an evaluation
    evaluated = not due or exporter.evaluated_step == step
    if evaluated and step >= steps:
        print(f"already trained to step {step} of {steps}; a larger train_epochs goes on")
        return
    if evaluated and early_stop.due:
        print(f"already stopped early at step {step}; a larger early_stopping_evals goes on")
        return
    for change in _record_start(settings, hyperparameters, step, examples):
        print(f"changed since the last start: {change}")
    model.save(settings.model_dir)
    for folder in (settings.model_dir, settings.best_model_dir):
        remove_leftovers(folder)

    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus and settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    settings = _without_missing_device(settings)
    print(
        f"training from step {step} to {steps} on {f'{gpus} GPU' if gpus else 'the CPU'}: "
        f"{n} examples an epoch"
    )
    offset = examples - step * batch_size
    save = CheckpointHook(settings.model_dir, every)
    progress = ProgressHook(
        "batch_loss",
        save,
        every=settings.log_steps,
        steps=steps,
        batch_size=batch_size,
        examples=n,
        offset=offset,
        summary_dir=settings.model_dir,
    )
    stop = GracefulStopHook(settings.model_dir, max_time=settings.max_time)
    schedule = {"train_batch_size": batch_size, "num_examples": n, "examples_offset": offset}
    estimator = _estimator(settings, hyperparameters, model, **schedule)
    config = estimator.config
    workers = {
        "num_workers": config.num_worker_replicas or 1,
        "worker": config.global_id_in_cluster or 0,
    }
    train_spec = TrainSpec(
        lambda: train_input(settings, hyperparameters, examples, **workers),
        max_steps=steps,
        hooks=[progress, *[save] * config.is_chief, stop, early_stop],
    )
    eval_spec = EvalSpec(
        lambda: evaluation_input(settings.validation_data, settings, hyperparameters),
        steps=None,  # all of the data set
        start_delay_secs=0,
        throttle_secs=0,  # after every checkpoint
        hooks=[stop.in_evaluation],
        exporters=exporter,
    )
    with _told_in_a_line(settings, step, examples):
        if not evaluated:  # the last start ended between this checkpoint and its evaluation
            metrics = estimator.evaluate(eval_spec.input_fn, checkpoint_path=latest)
            exporter.export(estimator, "", latest, metrics, is_the_final_export=False)
        if step < steps and not early_stop.due:
            train_and_evaluate(estimator, train_spec, eval_spec)
    if early_stop.due:
        print(f"stopped early: {settings.early_stopping_evals} evaluations without a better loss")
    best = read_best(settings.best_model_dir)
    if best:
        where = f"step {best['step']}, in {settings.best_model_dir}"
        print(f"best model: {best['metric']} {best['value']:.4f} at {where}")


def _overfit(settings: Settings, hyperparameters: Hyperparameters, model: ModelCard) -> None:
    """Learn a few fixed examples by heart, without all that is there to prevent it.

    Raises:
        RunError: the loss does not come down to OVERFIT_LOSS.
    """
    free = {"dropout_rate": 0.0, "l2_regularization": 0.0, "xentropy_label_smoothing": 0.0}
    constant = {"learning_rate_schedule": "constant", "warmup_epochs": 0.0}
    hyperparameters = dataclasses.replace(hyperparameters, **free, **constant)
    batches = math.ceil(settings.overfit / settings.train_batch_size)
    learnt = StopAtLossHook("batch_loss", bound=OVERFIT_LOSS, steps=batches)
    schedule = {"train_batch_size": settings.train_batch_size, "num_examples": settings.overfit}
    print(f"overfit: {settings.overfit} examples, at most {OVERFIT_STEPS} steps; nothing is kept")
    with tempfile.TemporaryDirectory() as folder:
        settings = dataclasses.replace(settings, model_dir=Path(folder))
        estimator = _estimator(settings, hyperparameters, model, **schedule, examples_offset=0)
        try:
            estimator.train(
                lambda: overfit_input(settings, hyperparameters),
                hooks=[learnt],
                max_steps=OVERFIT_STEPS,
            )
        except tf.errors.InvalidArgumentError as error:
            if not read_divergence(error):
                raise
            raise RunError(
                f"overfit: diverged after {learnt.step} steps: a smaller learning_rate may help"
            ) from error
    if not learnt.reached:
        raise RunError(
            f"overfit: the loss is still {learnt.loss:.4f} after {learnt.step} steps: this model "
            "cannot learn these examples, whatever the data; look at the network, the loss, the "
            "labels and the learning_rate"
        )
    print(f"overfit: the model can learn: loss {learnt.loss:.4f} after {learnt.step} steps")


def evaluate(settings: Settings, hyperparameters: Hyperparameters, *, split: str) -> None:
    """Print the metrics of `model` on a data set, and write them to model_dir/evaluation."""
    checkpoint, model = _trained_model(settings, hyperparameters)
    path: Path = getattr(settings, f"{split}_data")
    classes = _card(settings, f"{split}_data").classes
    if classes != model.class_names:
        raise UserError(
            f"{split}_data: {path} has the classes {', '.join(classes)}, "
            f"but the model has {', '.join(model.class_names)}"
        )
    with _told_in_a_line(settings):
        metrics = _estimator(settings, hyperparameters, model).evaluate(
            lambda: evaluation_input(path, settings, hyperparameters),
            checkpoint_path=checkpoint,
            name=split,
        )
    numbers = {name: value.item() for name, value in sorted(metrics.items())}
    for name, value in numbers.items():
        print(f"{name}: {value:.6g}")
    file = settings.model_dir / "evaluation" / "metrics.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        report = {"split": split, "data": str(path), "checkpoint": checkpoint, **numbers}
        temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written to {file}")


def predict(
    settings: Settings, hyperparameters: Hyperparameters, *, inputs: Sequence[str], output: str
) -> None:
    """Write the predictions of `model` for files and folders of pictures to a CSV file."""
    if os.path.isdir(output):
        raise UserError(f"--output: {output} is a folder, not a file")
    check_folder("--output", Path(output).absolute().parent)
    checkpoint, model = _trained_model(settings, hyperparameters)
    pictures = Pictures(find_files(inputs))
    predictions = _estimator(settings, hyperparameters, model).predict(
        lambda: prediction_input(pictures, settings, hyperparameters), checkpoint_path=checkpoint
    )
    write_csv(output, pictures, predictions, model.class_names)
    print(f"{len(pictures.files)} predictions written to {output}")
    if pictures.errors:
        print(f"{len(pictures.errors)} files could not be used: see the column error")


def export(settings: Settings, hyperparameters: Hyperparameters, *, export_dir: str) -> None:
    """Write `model` as a SavedModel, in a folder of its own below `export_dir`."""
    check_folder("--export_dir", Path(export_dir).absolute())
    checkpoint, model = _trained_model(settings, hyperparameters)
    path = _estimator(settings, hyperparameters, model).export_saved_model(
        export_dir,
        lambda: serving_input(hyperparameters),
        checkpoint_path=checkpoint,
        assets_extra={MODEL_FILE: os.path.join(os.path.dirname(checkpoint), MODEL_FILE)},
    )
    print(f"exported to {path.decode()}")


def profile(
    settings: Settings, hyperparameters: Hyperparameters, *, seconds: float = 4
) -> dict[str, Any]:
    """Print how fast input and training step are, alone and together, and what holds them up.

    Nothing is kept: the model is trained in a temporary folder.

    Args:
        settings, hyperparameters: of a training; `profile` measures some other values of them.
        seconds: for which each part is measured.

    Returns:
        `bottleneck`, as `library.profiling.bottleneck` names it; `times`, how many times as long as
        the rest it takes; `gains`, a factor for each change that was measured.
    """
    card = _training_data(settings)
    model = ModelCard.of(card.classes, hyperparameters)
    settings = _without_missing_device(settings)
    size = settings.train_batch_size

    def step(settings: Settings, hyperparameters: Hyperparameters, *, one_batch: bool) -> Speed:
        batch_size = settings.train_batch_size

        def input_fn() -> tf.data.Dataset:
            batches = train_input(settings, hyperparameters, 0)
            return batches.take(1).cache().repeat() if one_batch else batches

        meter = profiling.Meter(batch_size, seconds=seconds)
        schedule = {"train_batch_size": batch_size, "num_examples": card.num_examples}
        with tempfile.TemporaryDirectory() as folder:
            there = dataclasses.replace(settings, model_dir=Path(folder))
            estimator = _estimator(there, hyperparameters, model, **schedule, examples_offset=0)
            estimator.train(input_fn, hooks=[profiling.MeterHook(meter)])
        return meter.speed

    def show(name: str, speed: Speed) -> None:
        print(
            f"{name:28}{speed.examples_per_sec:12,.0f}{speed.batch_ms:12.1f}{speed.cpus:8.1f}"
            f"{speed.resident_mb:14,.0f}",
            flush=True,
        )

    print(f"batches of {size} from {settings.train_data}")
    print(f"{'':28}{'examples/s':>12}{'ms a batch':>12}{'cores':>8}{'resident MB':>14}")
    stages = {}
    pipeline = train_pipeline(settings, hyperparameters, 0)
    for name, speed in profiling.measure_stages(pipeline, seconds=seconds):
        stages[name] = speed.batch_ms
        show(f"input up to {name}", speed)
    alone = step(settings, hyperparameters, one_batch=True)
    show("training step alone", alone)
    both = step(settings, hyperparameters, one_batch=False)
    show("both", both)

    found, times = profiling.bottleneck(alone.batch_ms, stages)
    changes = {
        "model": {"xla": True, "train_batch_size": 2 * size},
        "preprocessing": {"antialias": False, "input_dtype": "uint8", "num_parallel_calls": -1},
        "disk": {"shuffle": "stream"},
        "transfer": {"input_dtype": "uint8"},
        "balanced": {},
    }[found]
    gains = {}
    for name, value in changes.items():
        owners = [settings, hyperparameters]
        owners = [
            dataclasses.replace(owner, **{name: value}) if hasattr(owner, name) else owner
            for owner in owners
        ]
        if owners != [settings, hyperparameters]:
            speed = step(*owners, one_batch=False)
            show(f"both, {name} {value}", speed)
            gains[f"--{name} {value}"] = speed.examples_per_sec / both.examples_per_sec
    print(profiling.verdict(found, times, gains))
    return {"bottleneck": found, "times": times, "gains": gains}


# ---- what they share ---------------------------------------------------------------------------


@contextlib.contextmanager
def _told_in_a_line(settings: Settings, step: int = 0, examples: int = 0) -> Iterator[None]:
    """Turn what can go wrong in a session without being our mistake into a line.

    Args:
        settings: of the run.
        step: at which the session began.
        examples: that the run had seen then.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = read_divergence(error)
        if not found:
            raise
        found["keys"] = keys_of_batch(settings, examples, found["step"] - step)
        file = settings.model_dir / "divergence.json"
        with replacing(file) as temporary:
            temporary.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        raise RunError(
            f"diverged after step {found['step']}, loss {found['loss']}: {file} names the "
            "examples and the gradients; the last checkpoint is good. A smaller learning_rate, "
            "or clip_gradient_norm, may help"
        ) from error
    except tf.errors.UnknownError as error:
        damaged = re.search(r"DamagedRecordError: (.*)", error.message)
        if not damaged:
            raise
        raise UserError(damaged[1]) from error
    except tf.errors.DataLossError as error:
        verify(settings.train_data)  # raises a UserError that names the file and the record
        raise error
    except (tf.errors.ResourceExhaustedError, OSError) as error:
        if "No space left" not in str(error):
            raise
        raise RunError(
            f"no space left for {settings.model_dir} or {settings.best_model_dir}: the last "
            "checkpoint is whole, and the run goes on from it when there is room"
        ) from error


def _card(settings: Settings, field: str) -> Card:
    """The card of a data set, or a line that says how to make it."""
    path = getattr(settings, field)
    if not os.path.exists(f"{path}.json"):
        how = "convert_dataset.py makes one"
        if field == "validation_data":
            how += ", with --validation_fraction 0.1; the best model is chosen on it"
        raise UserError(f"{field}: there is no data set {path}: {how}")
    return Card.load(f"{path}.json")


def _training_data(settings: Settings) -> Card:
    """The card of the training data; the validation data has to fit."""
    card, validation = _card(settings, "train_data"), _card(settings, "validation_data")
    if card.classes != validation.classes:
        raise UserError(
            f"validation_data: {settings.validation_data} has the classes "
            f"{', '.join(validation.classes)}, but the training data has {', '.join(card.classes)}"
        )
    train_records(settings, 0), Reader(settings.validation_data)  # all files have to be there
    return card


def _without_missing_device(settings: Settings) -> Settings:
    """A set for a GPU box works without one."""
    device = settings.prefetch_to_device or ""
    if "gpu" not in device.lower() or tf.config.list_physical_devices("GPU"):
        return settings
    print(f"prefetch_to_device: there is no {device} here: left out")
    return dataclasses.replace(settings, prefetch_to_device=None)


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


def _record_start(
    settings: Settings, hyperparameters: Hyperparameters, step: int, examples: int
) -> list[str]:
    """Append to run.yaml; return what has changed since the last start."""
    record = run_record.describe(
        start={"step": step, "examples": examples},
        settings=dataclasses.asdict(settings),
        hyperparameters=dataclasses.asdict(hyperparameters),
        cards={
            name: Path(f"{getattr(settings, name)}.json")
            for name in ("train_data", "validation_data")
        },
        devices=[device.name for device in tf.config.list_physical_devices()],
        root=Path(__file__).parent.parent,
    )
    return run_record.append(settings.model_dir, record)


def _trained_model(settings: Settings, hyperparameters: Hyperparameters) -> tuple[str, ModelCard]:
    """The checkpoint that `model` names, and its card; the hyperparameters have to fit."""
    checkpoint = find_checkpoint(
        settings.model, model_dir=settings.model_dir, best_model_dir=settings.best_model_dir
    )
    folder = os.path.dirname(checkpoint)
    model = ModelCard.load(folder)
    ModelCard.of(model.class_names, hyperparameters).must_equal(model, folder)
    return checkpoint, model


def _estimator(
    settings: Settings,
    hyperparameters: Hyperparameters,
    model: ModelCard,
    **schedule: int,
) -> Estimator:
    config = RunConfig(
        model_dir=str(settings.model_dir),
        tf_random_seed=settings.random_seed,
        keep_checkpoint_max=settings.keep_checkpoint_max,
        save_summary_steps=settings.save_summary_steps,
        log_step_count_steps=None,  # ProgressHook tells more
    )
    params = {
        **dataclasses.asdict(hyperparameters),
        "class_names": model.class_names,
        "random_seed": settings.random_seed,
        "xla": settings.xla,
        **schedule,
    }
    return Estimator(model_fn, config=config, params=params)
