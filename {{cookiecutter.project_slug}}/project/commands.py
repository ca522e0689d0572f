"""The commands of run.py: train, evaluate, predict, export."""

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from library import run_record
from library.errors import UserError
from library.estimator import (
    Estimator,
    EvalSpec,
    RunConfig,
    TrainSpec,
    train_and_evaluate,
)
from library.exporter import BestCheckpointExporter, find_checkpoint, global_step_of, read_best
from library.files import replacing
from library.hooks import GracefulStopHook, ProgressHook
from library.model_card import FILE as MODEL_FILE
from library.model_card import ModelCard
from library.predictions import Pictures, find_files, write_csv
from library.tfrecord import Card
from project.input_fn import evaluation_input, prediction_input, serving_input, train_input
from project.model_fn import model_fn
from project.settings import Hyperparameters, Settings


def train(settings: Settings, hyperparameters: Hyperparameters) -> None:
    """Train for `train_epochs` in all, evaluate every `epochs_between_evals`, keep the best."""
    card, steps_per_epoch = _training_data(settings)
    model = ModelCard.of(card.classes, hyperparameters)
    latest = tf.train.latest_checkpoint(str(settings.model_dir))
    if latest:
        model.must_equal(ModelCard.load(settings.model_dir), settings.model_dir)
    elif read_best(settings.best_model_dir):
        raise UserError(
            f"best_model_dir: {settings.best_model_dir} holds the best model of another run, since "
            f"{settings.model_dir} has no checkpoint: take another folder, or delete it"
        )
    step = global_step_of(latest) if latest else 0
    steps = max(1, int(settings.train_epochs * steps_per_epoch))
    if step >= steps:
        print(f"already trained to step {step} of {steps}; a larger train_epochs goes on")
        return
    for change in _record_start(settings, hyperparameters):
        print(f"changed since the last start: {change}")
    gpus = len(tf.config.list_physical_devices("GPU"))
    print(
        f"training from step {step} to {steps} on {f'{gpus} GPU' if gpus else 'the CPU'}: "
        f"{card.num_examples} examples an epoch"
    )

    exporter = BestCheckpointExporter(
        settings.best_model_dir, assets=[model.save(settings.model_dir)]
    )
    progress = ProgressHook(
        "batch_loss",
        every=settings.log_steps,
        steps=steps,
        batch_size=settings.train_batch_size,
        examples=card.num_examples,
    )
    train_and_evaluate(
        _estimator(settings, hyperparameters, model, steps_per_epoch),
        TrainSpec(
            lambda: train_input(settings, hyperparameters, step),
            max_steps=steps,
            hooks=[progress, GracefulStopHook(settings.model_dir)],
        ),
        EvalSpec(
            lambda: evaluation_input(settings.validation_data, settings, hyperparameters),
            steps=None,  # all of the data set
            start_delay_secs=0,
            throttle_secs=0,  # after every checkpoint
            exporters=exporter,
        ),
    )
    best = read_best(settings.best_model_dir)
    if best:
        where = f"step {best['step']}, in {settings.best_model_dir}"
        print(f"best model: {best['metric']} {best['value']:.4f} at {where}")


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
    checkpoint, model = _trained_model(settings, hyperparameters)
    path = _estimator(settings, hyperparameters, model).export_saved_model(
        export_dir,
        lambda: serving_input(hyperparameters),
        checkpoint_path=checkpoint,
        assets_extra={MODEL_FILE: os.path.join(os.path.dirname(checkpoint), MODEL_FILE)},
    )
    print(f"exported to {path.decode()}")


# ---- what they share ---------------------------------------------------------------------------


def _card(settings: Settings, field: str) -> Card:
    """The card of a data set, or a line that says how to make it."""
    path = getattr(settings, field)
    if not os.path.exists(f"{path}.json"):
        how = "convert_dataset.py makes one"
        if field == "validation_data":
            how += ", with --validation_fraction 0.1; the best model is chosen on it"
        raise UserError(f"{field}: there is no data set {path}: {how}")
    return Card.load(f"{path}.json")


def _training_data(settings: Settings) -> tuple[Card, float]:
    """The card of the training data and its epoch in steps; the validation data has to fit."""
    card, validation = _card(settings, "train_data"), _card(settings, "validation_data")
    if card.classes != validation.classes:
        raise UserError(
            f"validation_data: {settings.validation_data} has the classes "
            f"{', '.join(validation.classes)}, but the training data has {', '.join(card.classes)}"
        )
    return card, card.num_examples / settings.train_batch_size


def _record_start(settings: Settings, hyperparameters: Hyperparameters) -> list[str]:
    """Append to run.yaml; return what has changed since the last start."""
    data = (settings.train_data, settings.validation_data)
    record = run_record.describe(
        settings=dataclasses.asdict(settings),
        hyperparameters=dataclasses.asdict(hyperparameters),
        cards=[Path(f"{path}.json") for path in data],
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
    steps_per_epoch: float = 1,
) -> Estimator:
    config = RunConfig(
        model_dir=str(settings.model_dir),
        tf_random_seed=settings.random_seed,
        save_checkpoints_steps=math.ceil(settings.epochs_between_evals * steps_per_epoch),
        keep_checkpoint_max=settings.keep_checkpoint_max,
        save_summary_steps=settings.save_summary_steps,
    )
    params = {
        **dataclasses.asdict(hyperparameters),
        "class_names": model.class_names,
        "random_seed": settings.random_seed,
        "xla": settings.xla,
    }
    return Estimator(model_fn, config=config, params=params)
