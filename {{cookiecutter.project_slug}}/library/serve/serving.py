"""What an export is served and checked with: requests, models for devices, and their agreement.

python -m library.serve.serving EXPORT REQUESTS     how far an export is from what is known
"""

import base64
import dataclasses
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.lite.python.convert_phase import ConverterError
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from library.util import RunError, run_main

EXTRA = "assets.extra"
"""The folder of a SavedModel for what TensorFlow itself does not read."""
DEFAULT = "serving_default"
TFLITE = {"model.tflite": [], "model.dynamic_range.tflite": [tf.lite.Optimize.DEFAULT]}
"""The files there for devices, and their optimizations: none, or weights in 8 bits."""

Arrays = Mapping[str, Any]
"""NumPy arrays, or what is made into them, by name."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What a signature is asked, and its answer where that is known."""

    signature: str
    inputs: Arrays
    outputs: Arrays = dataclasses.field(default_factory=dict)


def name_signatures(export: Path) -> None:
    """Call the signatures `single` that the Estimator has called `single:serving_default`."""
    file = export / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    signatures = model.meta_graphs[0].signature_def
    for name in list(signatures):
        short, _, output = name.partition(":")
        if output == DEFAULT:
            signatures[short].CopyFrom(signatures[name])
            del signatures[name]
    file.write_bytes(model.SerializeToString(deterministic=True))


def write_requests(path: Path, requests: Iterable[Request]) -> None:
    """Write TFRecords of PredictionLog, as https://www.tensorflow.org/tfx/serving/saved_model_warmup
    has them.
    """
    with tf.io.TFRecordWriter(str(path)) as file:
        for each in requests:
            log = PredictionLog()
            asked, answered = log.predict_log.request, log.predict_log.response
            asked.model_spec.signature_name = each.signature
            for arrays, protos in ((each.inputs, asked.inputs), (each.outputs, answered.outputs)):
                for name, value in arrays.items():
                    protos[name].CopyFrom(tf.make_tensor_proto(value))
            file.write(log.SerializeToString())


def read_requests(path: Path) -> Iterator[Request]:
    """The inverse of `write_requests`."""
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        log = PredictionLog.FromString(record).predict_log
        inputs, outputs = (
            {name: tf.make_ndarray(proto) for name, proto in protos.items()}
            for protos in (log.request.inputs, log.response.outputs)
        )
        yield Request(log.request.model_spec.signature_name, inputs, outputs)


def write_examples(folder: Path, requests: Iterable[Request]) -> None:
    """Write what TensorFlow Serving warms up with, and the first request for its REST interface.

    Bytes are in JSON as https://www.tensorflow.org/tfx/serving/api_rest has them.
    """
    first, *_ = requests = list(requests)
    write_requests(folder / "tf_serving_warmup_requests", requests)
    ((name, (content,)),) = first.inputs.items()
    instance = {
        name: {"b64": base64.b64encode(content).decode()},
    }
    body = {"signature_name": first.signature, "instances": [instance]}
    (folder / "request.json").write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


def answers(signature: Callable[..., Mapping[str, tf.Tensor]], inputs: Arrays) -> Arrays:
    """What a signature of a loaded model gives."""
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    return {name: value.numpy() for name, value in signature(**tensors).items()}


# ---- models for devices ------------------------------------------------------------------------


def tflite_models(export: Path) -> dict[str, bytes]:
    """Models for devices by the name of their file, of a SavedModel for one example.

    Raises:
        RunError: TFLite lacks something that the network needs.
    """
    module = tf.Module()
    module.model = tf.saved_model.load(str(export))
    signature = module.model.signatures[DEFAULT]
    function = tf.function(lambda **inputs: scores(signature(**inputs)))
    models = {}
    try:
        concrete = function.get_concrete_function(**signature.structured_input_signature[1])
        for name, optimizations in TFLITE.items():
            converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
            converter.optimizations = optimizations
            models[name] = converter.convert()
            tflite_runner(models[name])
    except (ConverterError, RuntimeError, ValueError, tf.errors.OpError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        named = [line for line in lines if re.match(r"[A-Z]\w* ops: ", line)]
        reason = [*named, *lines, type(error).__name__][0]
        raise RunError(f"TFLite lacks what this network needs: {reason}") from error
    return models


def tflite_runner(model: bytes) -> Callable[[Arrays], Arrays]:
    """A model for devices as a function of features: a row after the other.

    The answer for rows that the feature `recording` says to be of one example is their average.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it moves to another package
        signature = tf.lite.Interpreter(model_content=model).get_signature_runner()
    (name,) = signature.get_input_details()

    def runner(features: Arrays) -> Arrays:
        rows = [signature(**{name: row[np.newaxis]}) for row in features[name]]
        owners = features.get("recording", np.arange(len(rows)))
        groups = [np.flatnonzero(owners == each) for each in np.unique(owners)]
        return {
            each: np.stack([np.mean([rows[i][each][0] for i in group], axis=0) for group in groups])
            for each in rows[0]
        }

    return runner


# ---- agreement ---------------------------------------------------------------------------------


def scores(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs, tensors or arrays, with a number for each class; or else all numbers."""
    numbers = {n: each for n, each in outputs.items() if tf.as_dtype(each.dtype).is_floating}
    return {n: each for n, each in numbers.items() if len(each.shape) > 1} or numbers


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far the answers of two models are from each other."""

    examples: int
    same_class: int  # of the examples
    largest_difference: float  # of probabilities; of numbers above 1, as a share
    mean_difference: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[Arrays, Arrays]]) -> "Agreement":
        """Of what was expected and what was found, batch by batch."""
        same, differences = [], []
        for expected, found in pairs:
            compared = {name: (expected[name], values) for name, values in scores(found).items()}
            differences += [abs(a - b) / np.maximum(1, abs(a)) for a, b in compared.values()]
            wide = [a.argmax(-1) == b.argmax(-1) for a, b in compared.values() if a.ndim > 1]
            named = [expected[n] == each for n, each in found.items() if each.dtype == object]
            same.append(np.all([np.full(len(differences[-1]), True), *wide, *named], axis=0))
        agreed, apart = np.concatenate(same), np.concatenate(differences)
        return cls(len(agreed), int(agreed.sum()), float(apart.max()), float(apart.mean()))


def print_table(title: str, agreements: Mapping[str, Agreement]) -> None:
    """A line for each, below what the columns are."""
    print(f"{title}:\n{'':28}  same class  largest difference     mean")
    for name, each in agreements.items():
        same = f"{each.same_class} of {each.examples}"
        print(f"{name:28}{same:>12}{each.largest_difference:20.1e}{each.mean_difference:9.1e}")


def check(export: Path, requests: Path) -> dict[str, Agreement]:
    """Ask each signature of an export what it is known to answer, and models for devices too."""
    signatures = tf.saved_model.load(str(export)).signatures
    files = [export / EXTRA / name for name in TFLITE]
    runners = {f.name: tflite_runner(f.read_bytes()) for f in files if f.exists()}
    pairs: dict[str, list[tuple[Arrays, Arrays]]] = {}
    for each in read_requests(requests):
        found = {each.signature: answers(signatures[each.signature], each.inputs)}
        if each.signature == "tensors":
            found |= {name: runner(each.inputs) for name, runner in runners.items()}
        for name, outputs in found.items():
            pairs.setdefault(name, []).append((each.outputs, outputs))
    return {name: Agreement.of(each) for name, each in pairs.items()}


def check_in_new_process(export: Path, requests: Path) -> dict[str, Agreement]:
    """`check` where nothing of the project is loaded.

    Raises:
        RunError: the export cannot be used there.
    """
    process = subprocess.run(
        [sys.executable, "-m", "library.serve.serving", export.absolute(), requests.absolute()],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if process.returncode:
        *_, last = process.stderr.splitlines() or [f"status {process.returncode}"]
        raise RunError(f"the export cannot be used: {last}")
    *_, found = process.stdout.splitlines()
    return {name: Agreement(**each) for name, each in json.loads(found).items()}


def main() -> None:
    found = check(*map(Path, sys.argv[1:]))
    print(json.dumps({name: dataclasses.asdict(each) for name, each in found.items()}))


if __name__ == "__main__":
    run_main(main)
