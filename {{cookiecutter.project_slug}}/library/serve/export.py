"""The command export: a model for servers and devices, which gets its name when it is complete."""

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from library.estimator import export as estimator_export
from library.serve.answers import (
    EXTRA,
    Arrays,
    Request,
    answer,
    answers_in_new_process,
    compare,
    joined,
    tflite_runner,
)
from library.serve.artifacts import TFLITE, name_signatures, tflite_models, write_requests
from library.train import Run, translate_errors
from library.util import RunError, check_folder, write_json, write_text

CHECKED_EXAMPLES = 16
"""Examples on which an export is compared with its checkpoint."""
TOLERANCE = 1e-5
"""Largest difference between the answers of both."""


def export_model(run: Run) -> None:
    """Write `model` as a SavedModel, in a folder of its own below `export_dir`.

    Raises:
        RunError: TFLite lacks what the network needs, and there is only the SavedModel; or it
            differs from the checkpoint, and there is nothing.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # both sides of a comparison compute on the CPU
    settings = run.settings
    parent = settings.export_dir or run.dir / "export"
    check_folder("--export_dir", parent.absolute())
    run, checkpoint = run.trained()
    data = _test_data(run) if settings.tflite or settings.check else ""
    estimator = run.estimator()

    def save(folder: str, receiver: Callable[[Run], estimator_export.ServingInputReceiver]) -> Path:
        with translate_errors(run):
            made = estimator.export_saved_model(
                folder, lambda: receiver(run), checkpoint_path=checkpoint
            )
        return Path(os.fsdecode(made))

    def predict(contents: list[bytes]) -> Arrays:
        options = {"checkpoint_path": checkpoint, "yield_single_examples": False}
        (batch,) = estimator.predict(lambda: _one_batch(run, contents), **options)
        return batch

    lacking = None
    with _made(parent), tempfile.TemporaryDirectory(prefix="temp-", dir=parent) as temporary:
        export = save(temporary, run.inputs.serving_input)
        name_signatures(export)
        run.model.save(export / EXTRA)
        write_requests(export / EXTRA, _requests(run, [run.inputs.blank(run.hyperparameters)]))
        if settings.tflite:
            try:
                models = tflite_models(save(f"{temporary}/device", run.inputs.device_input))
                _write_tflite(run, export, models, data)
            except RunError as error:
                lacking = error
        if settings.check:
            _check(run, export, data, predict)
        print(f"exported to {export.rename(parent / str(_number(export, parent)))}")
    if lacking:
        raise RunError(f"--tflite: {lacking}; the SavedModel is complete") from lacking


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder that is there for a while, and stays if something is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _number(export: Path, parent: Path) -> int:
    """The time in seconds, above all numbers there: a server takes the highest one."""
    numbers = [int(each.name) for each in parent.iterdir() if each.name.isdecimal()]
    return max(int(export.name), 1 + max(numbers, default=0))


def _test_data(run: Run) -> str:
    """The dataset that an export is tried on: the test set, or validation where there is none."""
    there = tf.io.gfile.exists(f"{run.settings.test_data}.json")
    field = "test_data" if there else "validation_data"
    run.expect_target(run.card(field), field, "model")
    return str(getattr(run.settings, field))


def _one_batch(run: Run, contents: Sequence[bytes]) -> tf.data.Dataset:
    one_batch = run.replace(eval_batch_size=len(contents))
    return run.inputs.prediction_input(one_batch, [(b"", content) for content in contents])


def _requests(run: Run, contents: Sequence[bytes]) -> list[Request]:
    """The same encoded files for each signature."""
    with tf.Graph().as_default():
        (name,) = run.inputs.serving_input(run).receiver_tensors
    (features,) = _one_batch(run, contents).as_numpy_iterator()
    del features["key"]
    single = [("single", {name: content}) for content in contents]
    return [("serving_default", {name: list(contents)}), *single, ("tensors", features)]


def _write_tflite(run: Run, export: Path, models: dict[str, bytes], data: str) -> None:
    """Write models for devices, and how far they are from the SavedModel."""
    extra, target = export / EXTRA, run.head.target
    if target.classes:
        write_text(extra / "labels.txt", "\n".join(target.classes))
    for file, model in models.items():
        (extra / file).write_bytes(model)
    signature = tf.saved_model.load(str(export)).signatures["tensors"]
    runners: list[Callable[[Arrays], Arrays]] = [functools.partial(answer, signature)]
    runners += map(tflite_runner, models.values())
    batches: list[list[Arrays]] = []
    with translate_errors(run, data):
        for features, _ in run.inputs.evaluation_input(run, data).as_numpy_iterator():
            features.pop("key", None)
            batches.append([runner(features) for runner in runners])
    expected, *found = map(joined, zip(*batches, strict=True))
    title = f"TFLite and the SavedModel on {data}"
    table = compare(title, expected, dict(zip(models, found, strict=True)), target)
    write_json(extra / "tflite.json", {"data": data, **table})


def _check(run: Run, export: Path, data: str, predict: Callable[[list[bytes]], Arrays]) -> None:
    """Refuse an export that answers otherwise than its checkpoint."""
    with translate_errors(run, data):
        contents = run.modality.encoded_examples(data, CHECKED_EXAMPLES)
    expected = predict(contents)
    found = answers_in_new_process(export, _requests(run, contents))
    table = compare(f"the export and the checkpoint on {data}", expected, found, run.head.target)
    worst = np.max([table[name]["largest_difference"] for name in table.keys() - TFLITE])
    if not worst <= TOLERANCE:  # nor is NaN
        raise RunError(
            f"--check: the SavedModel is {worst:.1e} from the checkpoint, which is more than "
            f"{TOLERANCE:g}: nothing is exported"
        )
