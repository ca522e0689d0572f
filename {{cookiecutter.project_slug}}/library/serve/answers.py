"""What exported models answer, and how far that is from what is expected."""

import multiprocessing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from library.data import Target
from library.util import RunError

try:
    from ai_edge_litert.interpreter import Interpreter
except ImportError:  # TensorFlow has it too, for a while
    Interpreter = tf.lite.Interpreter

EXTRA = "assets.extra"
"""The folder of a SavedModel for what TensorFlow itself does not read."""
TFLITE = ("model.tflite", "model.dynamic_range.tflite", "model.int8.tflite")
ONNX = "model.onnx"

Arrays = Mapping[str, Any]
"""NumPy arrays, or what is made into them, by name."""
Request = tuple[str, Arrays]
"""The name of a signature, and its inputs."""


def answer(signature: Callable[..., Mapping[str, tf.Tensor]], inputs: Arrays) -> Arrays:
    """The outputs of a signature of a loaded model."""
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    return {name: value.numpy() for name, value in signature(**tensors).items()}


def device_runner(file: str, model: bytes) -> Callable[[Arrays], Arrays]:
    """A model for devices, TFLite or ONNX, as a function of features, which asks it row by row.

    A feature beside the one that the model takes says which example each row belongs to: the answer
    is the average over the rows of an example.
    """
    if file == ONNX:
        import onnxruntime  # of the extra

        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        (name,), names = ([x.name for x in f()] for f in (session.get_inputs, session.get_outputs))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that tf.lite moves to another package
            signature = Interpreter(model_content=model).get_signature_runner()
        (name,) = signature.get_input_details()

    def ask(row: np.ndarray) -> Arrays:
        inputs = {name: row[np.newaxis]}
        if file == ONNX:
            return dict(zip(names, session.run(None, inputs), strict=True))
        return signature(**inputs)

    def runner(features: Arrays) -> Arrays:
        outputs = joined(map(ask, features[name]))
        for owners in (features[each] for each in features if each != name):
            _, first, counts = np.unique(owners, return_index=True, return_counts=True)
            sums = {each: np.add.reduceat(values, first) for each, values in outputs.items()}
            return {each: (values.T / counts).T for each, values in sums.items()}
        return outputs

    return runner


def joined(batches: Iterable[Arrays]) -> dict[str, np.ndarray]:
    """Batches one after another as a single one."""
    batches = list(batches)
    return {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}


def answers(export: Path, requests: Sequence[Request]) -> dict[str, Arrays]:
    """What the signatures of an export answer, and its models for devices."""
    signatures = tf.saved_model.load(str(export)).signatures
    found: dict[str, list[Arrays]] = {}
    for name, inputs in requests:
        found.setdefault(name, []).append(answer(signatures[name], inputs))
    for file in (*TFLITE, ONNX):
        if (export / EXTRA / file).exists():
            runner = device_runner(file, (export / EXTRA / file).read_bytes())
            found[file] = [runner(dict(requests)["tensors"])]
    return {name: joined(each) for name, each in found.items()}


def answers_in_new_process(export: Path, requests: Sequence[Request]) -> dict[str, Arrays]:
    """`answers` where no model of the project is loaded.

    Raises:
        RunError: the export cannot be used there.
    """
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(answers, export, requests).result()
    except Exception as error:  # whatever it is, the export is at fault
        *_, last = str(error).splitlines() or [type(error).__name__]
        raise RunError(f"the export cannot be used: {last}") from error


def scores(outputs: Arrays) -> dict[str, Any]:
    """The outputs, tensors or arrays, with a number for each class; or else all numbers."""
    numbers = {n: each for n, each in outputs.items() if tf.as_dtype(each.dtype).is_floating}
    return {n: each for n, each in numbers.items() if len(each.shape) > 1} or numbers


def compare(
    title: str, expected: Arrays, found: Mapping[str, Arrays], target: Target
) -> dict[str, dict[str, float]]:
    """Print a table of how far the answers of models are from those expected, and return it.

    A difference is a share: of the larger of the expected number and the target's standard
    deviation, which is 1 for probabilities. Of classes and labels, the table also counts the
    examples that have the same.
    """
    unit, least = target.std or 1.0, np.array(target.thresholds or 0.5)
    decisions: dict[str, Callable[[Any], Any]]
    decisions = {"class": lambda x: x.argmax(-1, keepdims=True), "labels": lambda x: x >= least}
    decide = decisions.get(target.label)
    same = f"same {target.label}" if decide else ""
    print(f"{title}:\n{'':28}{same:>12}  largest difference     mean")
    table: dict[str, dict[str, float]] = {}
    for model, outputs in found.items():
        pairs = [(expected[name], values) for name, values in scores(outputs).items()]
        apart = np.concatenate([np.ravel(abs(b - a) / np.maximum(abs(a), unit)) for a, b in pairs])
        row: dict[str, float] = {"examples": len(pairs[0][0])}
        counted = ""
        if decide:
            alike = [expected[n] == x for n, x in outputs.items() if x.dtype == object]
            alike += [(decide(a) == decide(b)).all(axis=1) for a, b in pairs if a.ndim > 1]
            row[f"same_{target.label}"] = int(np.all(alike, axis=0).sum())
            counted = f"{row[f'same_{target.label}']} of {row['examples']}"
        row |= {"largest_difference": float(apart.max()), "mean_difference": float(apart.mean())}
        print(f"{model:28}{counted:>12}{apart.max():20.1e}{apart.mean():9.1e}")
        table[model] = row
    return table
