"""The command export: a model for servers and devices, which gets its name when it is complete."""

import base64
import contextlib
import functools
import importlib.util
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from library.data import Card
from library.estimator import export as estimator_export
from library.serve import answers
from library.serve.answers import EXTRA, ONNX, TFLITE, Arrays, Request, device_runner, joined
from library.train import HUB_CARD, Run, hub_card, translate_errors
from library.util import RunError, UserError, check_folder, write_json, write_text

CHECKED_EXAMPLES = 16
"""Examples on which an export is compared with its checkpoint."""
TOLERANCE, POINT = 1e-5, 0.01
"""Largest difference between the answers of both; of accuracies, a larger one is printed."""
CALIBRATED = 256
"""Training examples whose range of values an int8 model covers."""


def export_model(run: Run) -> None:
    """Write `model` as a SavedModel, in a folder of its own below `export_dir`.

    Raises:
        RunError: TFLite or ONNX lacks what the network needs, and there is only the SavedModel; or
            it differs from the checkpoint, and there is nothing.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # both sides of a comparison compute on the CPU
    parent = run.settings.export_dir or run.dir / "export"
    check_folder("--export_dir", parent.absolute())
    run, checkpoint = run.trained()
    settings = run.settings
    if settings.onnx and not all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime"))):
        raise UserError("--onnx: needs pip install tf2onnx onnxruntime")
    data = _test_data(run) if settings.tflite or settings.onnx or settings.check else ""
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="temp-", dir=parent) as temporary:
            _export(run, checkpoint, data, parent, temporary)
    finally:
        with contextlib.suppress(OSError):  # it stays if something is in it
            parent.rmdir()


def _test_data(run: Run) -> str:
    """The dataset that an export is tried on: the test set, or validation where there is none."""
    there = tf.io.gfile.exists(f"{run.settings.test_data}.json")
    field = "test_data" if there else "validation_data"
    run.expect_target(run.card(field), field, "model")
    return str(getattr(run.settings, field))


def _export(run: Run, checkpoint: str, data: str, parent: Path, temporary: str) -> None:
    estimator, lacking = run.estimator(), None

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

    export = save(temporary, run.inputs.serving_input)
    name_signatures(export)
    run.model.save(export / EXTRA)
    write_text(export / HUB_CARD, hub_card(run, checkpoint))
    _write_requests(export / EXTRA, _requests(run, [run.inputs.blank(run.hyperparameters)]))
    if run.settings.tflite or run.settings.onnx:
        try:
            models = _device_models(run, save(f"{temporary}/device", run.inputs.device_input))
            _write_models(run, export, models, data)
        except RunError as error:
            lacking = error
    if run.settings.check:
        _check(run, export, data, predict)
    # A server takes the highest number: the time in seconds, above all that are there.
    numbers = [int(each.name) for each in parent.iterdir() if each.name.isdecimal()]
    number = max(int(export.name), 1 + max(numbers, default=0))
    print(f"exported to {export.rename(parent / str(number))}")
    if lacking:
        raise RunError(f"{lacking}; the SavedModel is complete") from lacking


def _check(run: Run, export: Path, data: str, predict: Callable[[list[bytes]], Arrays]) -> None:
    """Refuse an export that answers otherwise than its checkpoint."""
    with translate_errors(run, data):
        contents = _some_examples(run, data, CHECKED_EXAMPLES)
    expected = predict(contents)
    found = answers.answers_in_new_process(export, _requests(run, contents))
    title, target = f"the export and the checkpoint on {data}", run.head.target
    table = answers.compare(title, expected, found, target)
    devices = {*TFLITE, ONNX}
    worst = np.max([table[name]["largest_difference"] for name in table.keys() - devices])
    if not worst <= TOLERANCE:  # nor is NaN
        raise RunError(
            f"--check: the SavedModel is {worst:.1e} from the checkpoint, which is more than "
            f"{TOLERANCE:g}: nothing is exported"
        )


def _some_examples(run: Run, data: str, count: int) -> list[bytes]:
    return run.modality.encoded_examples(data, Card.load(f"{data}.json").spread(count))


# ---- for servers -------------------------------------------------------------------------------


def name_signatures(export: Path) -> None:
    """Call the signatures `single` that the Estimator has called `single:serving_default`."""
    file = export / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    signatures = model.meta_graphs[0].signature_def
    for name in list(signatures):
        short, _, output = name.partition(":")
        if output == "serving_default":
            signatures[short].CopyFrom(signatures.pop(name))
    file.write_bytes(model.SerializeToString(deterministic=True))


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


def _write_requests(folder: Path, requests: Sequence[Request]) -> None:
    """Write what TensorFlow Serving warms up with, and the first request for its REST interface.

    Formats: https://www.tensorflow.org/tfx/serving/saved_model_warmup (TFRecords of PredictionLog)
    and https://www.tensorflow.org/tfx/serving/api_rest.
    """
    with tf.io.TFRecordWriter(str(folder / "tf_serving_warmup_requests")) as file:
        for signature, inputs in requests:
            log = PredictionLog()
            log.predict_log.request.model_spec.signature_name = signature
            for name, value in inputs.items():
                log.predict_log.request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            file.write(log.SerializeToString())
    signature, inputs = requests[0]
    instance = {name: {"b64": base64.b64encode(each).decode()} for name, (each,) in inputs.items()}
    write_json(folder / "request.json", {"signature_name": signature, "instances": [instance]})


# ---- for devices -------------------------------------------------------------------------------


def _device_models(run: Run, export: Path) -> dict[str, bytes]:
    """Models for devices by the name of their file, of a SavedModel for one example.

    Raises:
        RunError: TFLite or ONNX lacks something that the network needs.
    """
    module = tf.Module()
    module.model = tf.saved_model.load(str(export))
    signature = module.model.signatures["serving_default"]
    ((name, spec),) = signature.structured_input_signature[1].items()
    rows: Sequence[np.ndarray] = ()
    if run.settings.tflite and tf.io.gfile.exists(f"{run.settings.train_data}.json"):
        contents = _some_examples(run, run.settings.train_data, CALIBRATED)
        (rows,) = (features[name] for features in _one_batch(run, contents).as_numpy_iterator())

    def tflite(file: str) -> bytes:
        function = tf.function(lambda **inputs: answers.scores(signature(**inputs)))
        concrete = function.get_concrete_function(**{name: spec})
        converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
        if file != TFLITE[0]:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if file == TFLITE[2]:
            converter.representative_dataset = lambda: ([row[np.newaxis]] for row in rows)
            if run.modality.FLOAT_OPS:  # only TFLite's debugger can leave something in float32
                lite, ops = tf.lite.experimental, run.modality.FLOAT_OPS.split()
                debugger = lite.QuantizationDebugger(
                    converter=converter,
                    debug_dataset=converter.representative_dataset,
                    debug_options=lite.QuantizationDebugOptions(denylisted_ops=ops),
                )
                return bytes(debugger.get_nondebug_quantized_model())
        return converter.convert()

    def onnx(file: str) -> bytes:
        import tf2onnx  # of the extra

        function = tf.function(lambda x: answers.scores(signature(**{name: x})))
        return tf2onnx.convert.from_function(function, [spec])[0].SerializeToString()

    models = {}
    wanted = TFLITE[: 3 if len(rows) else 2] if run.settings.tflite else ()
    if len(wanted) == 2:
        print(f"no {TFLITE[2]}: there is no {run.settings.train_data} to take its ranges from")
    for file in (*wanted, *([ONNX] if run.settings.onnx else [])):
        try:
            models[file] = onnx(file) if file == ONNX else tflite(file)
            device_runner(file, models[file])
        except Exception as error:  # that of the converter has no public name
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            named = [line for line in lines if re.match(r"[A-Z]\w* ops: ", line)]
            reason = [*named, *lines, type(error).__name__][0]
            kind = "--onnx: ONNX" if file == ONNX else "--tflite: TFLite"
            raise RunError(f"{kind} lacks what this network needs: {reason}") from error
    return models


def _write_models(run: Run, export: Path, models: dict[str, bytes], data: str) -> None:
    """Write models for devices, and how far they are from the SavedModel."""
    extra, target = export / EXTRA, run.head.target
    if target.classes:
        write_text(extra / "labels.txt", "\n".join(target.classes))
    for file, model in models.items():
        (extra / file).write_bytes(model)
    signature = tf.saved_model.load(str(export)).signatures["tensors"]
    runners: list[Callable[[Arrays], Arrays]] = [functools.partial(answers.answer, signature)]
    runners += map(device_runner, models, models.values())
    batches: list[list[Arrays]] = []
    with translate_errors(run, data):
        for features, labels in run.inputs.evaluation_input(run, data).as_numpy_iterator():
            features.pop("key", None)
            batches.append([{"label": labels}, *(runner(features) for runner in runners)])
    true, expected, *found = map(joined, zip(*batches, strict=True))
    outputs = dict(zip(models, found, strict=True))
    title = f"models for devices and the SavedModel on {data}"
    table = answers.compare(title, expected, outputs, target)
    for file, each in outputs.items() if target.label == "class" else ():
        right = [np.mean(x["probabilities"].argmax(-1) == true["label"]) for x in (each, expected)]
        table[file]["accuracy"] = float(right[0])
        if abs(right[0] - right[1]) > POINT:
            print(f"{file}: an accuracy of {right[0]:.1%}, and the SavedModel has {right[1]:.1%}")
    write_json(extra / "tflite.json", {"data": data, **table})
