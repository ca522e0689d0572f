"""Commands of run.py on a trained model: evaluate, predict, export."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from library.errors import UserError
from library.files import check_folder, replacing
from library.model_card import FILE as MODEL_FILE
from library.predictions import Inputs, find_files, write_csv
from project.input_fn import blank, evaluation_input, prediction_input, serving_input, standard
from project.networks import prepared
from project.sessions import card_of, estimator_of, told_in_a_line, trained_model
from project.settings import Hyperparameters, Settings


def evaluate(settings: Settings, hyperparameters: Hyperparameters, *, split: str) -> None:
    """Print the metrics of `model` on a data set, and write them to model_dir/evaluation."""
    hyperparameters = prepared(settings, hyperparameters)
    checkpoint, model = trained_model(settings, hyperparameters)
    path: str = getattr(settings, f"{split}_data")
    classes = card_of(settings, f"{split}_data").classes
    if classes != model.class_names:
        raise UserError(
            f"{split}_data: {path} has the classes {', '.join(classes)}, "
            f"but the model has {', '.join(model.class_names)}"
        )
    with told_in_a_line(settings, path):
        metrics = estimator_of(settings, hyperparameters, model).evaluate(
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
        report = {"split": split, "data": path, "checkpoint": checkpoint, **numbers}
        temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written to {file}")


def predict(
    settings: Settings, hyperparameters: Hyperparameters, *, inputs: Sequence[str], output: str
) -> None:
    """Write the predictions of `model` for files and folders to a CSV file."""
    if os.path.isdir(output):
        raise UserError(f"--output: {output} is a folder, not a file")
    check_folder("--output", Path(output).absolute().parent)
    hyperparameters = prepared(settings, hyperparameters)
    checkpoint, model = trained_model(settings, hyperparameters)
    contents = Inputs(
        find_files(inputs), lambda data: standard(data, hyperparameters), blank(hyperparameters)
    )
    predictions = estimator_of(settings, hyperparameters, model).predict(
        lambda: prediction_input(contents, settings, hyperparameters), checkpoint_path=checkpoint
    )
    write_csv(output, predictions, model.class_names, contents.errors)
    failed = len(contents.errors)
    if failed == len(contents.files):
        raise UserError(f"--input: none of {failed} files could be used: see {output}")
    print(f"{len(contents.files) - failed} predictions written to {output}")
    if failed:
        print(f"{failed} files could not be used: see the column error")


def export(settings: Settings, hyperparameters: Hyperparameters, *, export_dir: str) -> None:
    """Write `model` as a SavedModel, in a folder of its own below `export_dir`."""
    check_folder("--export_dir", Path(export_dir).absolute())
    hyperparameters = prepared(settings, hyperparameters)
    checkpoint, model = trained_model(settings, hyperparameters)
    path = estimator_of(settings, hyperparameters, model).export_saved_model(
        export_dir,
        lambda: serving_input(hyperparameters),
        checkpoint_path=checkpoint,
        assets_extra={MODEL_FILE: os.path.join(os.path.dirname(checkpoint), MODEL_FILE)},
    )
    print(f"exported to {path.decode()}")
