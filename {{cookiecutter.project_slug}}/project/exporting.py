"""The command export: a model for servers and devices, which gets its name when it is whole."""

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from library.serve import EXTRA, TFLITE, Agreement, Request, serving
from library.train import MODEL_FILE
from library.util import RunError, check_folder
from project.input_fn import (
    blank,
    device_input,
    encoded_examples,
    evaluation_input,
    prediction_input,
    serving_input,
)
from project.networks import prepared
from project.sessions import card_of, estimator_of, told_in_a_line, trained_model
from project.settings import Hyperparameters, Settings

CHECKED = 16
"""Examples that an export is compared with the checkpoint on."""
TOLERANCE = 1e-5
"""Between the probabilities of both."""


def export(
    settings: Settings,
    hyperparameters: Hyperparameters,
    *,
    export_dir: str,
    tflite: bool = False,
    check: bool = False,
) -> None:
    """Write `model` as a SavedModel, in a folder of its own below `export_dir`.

    Args:
        settings, hyperparameters: of the run.
        export_dir: the folder there is named by the time in seconds: a server takes the newest.
        tflite: write models for devices too, and how far they are from the SavedModel.
        check: compare all that is written with the checkpoint.

    Raises:
        RunError: TFLite lacks what the network needs, and there is only the SavedModel; or it
            differs from the checkpoint, and there is nothing.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # what is compared is computed alike: on the CPU
    parent = Path(export_dir)
    check_folder("--export_dir", parent.absolute())
    options = settings, prepared(settings, hyperparameters)
    checkpoint, model = trained_model(*options)
    data = _test_data(settings) if tflite or check else ""
    estimator = estimator_of(*options, model)
    card = os.path.join(os.path.dirname(checkpoint), MODEL_FILE)

    def save(folder: str, input_fn: Callable[[Hyperparameters], Any]) -> Path:
        path = estimator.export_saved_model(
            folder,
            lambda: input_fn(options[1]),
            assets_extra={MODEL_FILE: card},
            checkpoint_path=checkpoint,
        )
        return Path(os.fsdecode(path))

    def predict(contents: Sequence[bytes]) -> dict[str, np.ndarray]:
        inputs = [(b"", content) for content in contents]
        predictions = list(
            estimator.predict(
                lambda: prediction_input(inputs, *options), checkpoint_path=checkpoint
            )
        )
        names = predictions[0].keys() - {"key"}
        return {name: np.stack([each[name] for each in predictions]) for name in names}

    lacking = None
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="temp-", dir=parent) as temporary:
        made = save(temporary, serving_input)
        serving.name_signatures(made)
        serving.write_examples(made / EXTRA, _requests([blank(options[1])], *options))
        if tflite:
            try:
                models = serving.tflite_models(save(f"{temporary}/device", device_input))
            except RunError as error:
                lacking = error
            else:
                labels = "".join(f"{name}\n" for name in model.class_names)
                (made / EXTRA / "labels.txt").write_text(labels, encoding="utf-8")
                for file, content in models.items():
                    (made / EXTRA / file).write_bytes(content)
                _tell_tflite(made, data, *options)
        if check:
            with told_in_a_line(settings, data):
                contents = encoded_examples(data, CHECKED, options[1])
            requests = Path(temporary, "requests")
            serving.write_requests(requests, _requests(contents, *options, known=predict(contents)))
            _tell_check(serving.check_in_new_process(made, requests), data)
        number = int(made.name)
        while (parent / str(number)).exists():
            number += 1
        print(f"exported to {made.rename(parent / str(number))}")
    if lacking:
        raise RunError(f"--tflite: {lacking}; the SavedModel is whole") from lacking


def _test_data(settings: Settings) -> str:
    """The data set that an export is tried on: the test set, or validation where there is none."""
    tested = tf.io.gfile.exists(f"{settings.test_data}.json")
    field = "test_data" if tested else "validation_data"
    card_of(settings, field)
    return getattr(settings, field)


def _requests(
    contents: Sequence[bytes],
    settings: Settings,
    hyperparameters: Hyperparameters,
    *,
    known: dict[str, np.ndarray] | None = None,
) -> list[Request]:
    """The same encoded files for each signature, with what is known to be answered."""
    with tf.Graph().as_default():
        (name,) = serving_input(hyperparameters).receiver_tensors
    one_batch = dataclasses.replace(settings, eval_batch_size=len(contents))
    inputs = [(b"", content) for content in contents]
    (features,) = prediction_input(inputs, one_batch, hyperparameters).as_numpy_iterator()
    del features["key"]
    known = known or {}
    return [
        Request(serving.DEFAULT, {name: list(contents)}, known),
        *(
            Request("single", {name: content}, {n: each[i : i + 1] for n, each in known.items()})
            for i, content in enumerate(contents)
        ),
        Request("tensors", features, known),
    ]


def _tell_tflite(
    export: Path, data: str, settings: Settings, hyperparameters: Hyperparameters
) -> None:
    """Print, and write beside the models for devices, how far they are from the SavedModel."""
    signature = tf.saved_model.load(str(export)).signatures["tensors"]
    runners = [serving.tflite_runner((export / EXTRA / file).read_bytes()) for file in TFLITE]
    found: list[tuple[Any, ...]] = []
    with told_in_a_line(settings, data):
        dataset = evaluation_input(data, settings, hyperparameters)
        for features, _ in dataset.as_numpy_iterator():
            features.pop("key", None)
            expected = serving.answers(signature, features)
            found.append(tuple((expected, runner(features)) for runner in runners))
    agreements = {
        file: Agreement.of(pairs)
        for file, pairs in zip(TFLITE, zip(*found, strict=True), strict=True)
    }
    serving.print_table(f"TFLite and the SavedModel on {data}", agreements)
    report = {file: dataclasses.asdict(each) for file, each in agreements.items()}
    text = json.dumps({"data": data, **report}, indent=2)
    (export / EXTRA / "tflite.json").write_text(text + "\n", encoding="utf-8")


def _tell_check(agreements: dict[str, Agreement], data: str) -> None:
    serving.print_table(f"the export and the checkpoint on {data}", agreements)
    signatures = agreements.keys() - TFLITE
    worst = np.max([agreements[name].largest_difference for name in signatures])
    if not worst <= TOLERANCE:  # nor is NaN
        raise RunError(
            f"--check: the SavedModel is {worst:.1e} from the checkpoint, which is more than "
            f"{TOLERANCE:g}: nothing is exported"
        )
