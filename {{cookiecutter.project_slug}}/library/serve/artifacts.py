"""The parts of an export beside the SavedModel: names, requests, models for devices."""

import base64
import re
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from library.serve.answers import Request, scores, tflite_runner
from library.util import RunError, write_json

TFLITE = {"model.tflite": [], "model.dynamic_range.tflite": [tf.lite.Optimize.DEFAULT]}
"""The models for devices, and their optimizations: none, or weights in 8 bits."""


def name_signatures(export: Path) -> None:
    """Call the signatures `single` that the Estimator has called `single:serving_default`."""
    file = export / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    signatures = model.meta_graphs[0].signature_def
    for name in list(signatures):
        short, _, output = name.partition(":")
        if output == "serving_default":
            signatures[short].CopyFrom(signatures[name])
            del signatures[name]
    file.write_bytes(model.SerializeToString(deterministic=True))


def write_requests(folder: Path, requests: Sequence[Request]) -> None:
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


def tflite_models(export: Path) -> dict[str, bytes]:
    """Models for devices by the name of their file, of a SavedModel for one example.

    Raises:
        RunError: TFLite lacks something that the network needs.
    """
    module = tf.Module()
    module.model = tf.saved_model.load(str(export))
    signature = module.model.signatures["serving_default"]
    function = tf.function(lambda **inputs: scores(signature(**inputs)))
    concrete = function.get_concrete_function(**signature.structured_input_signature[1])
    models = {}
    for name, optimizations in TFLITE.items():
        converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
        converter.optimizations = optimizations
        try:
            models[name] = converter.convert()
            tflite_runner(models[name])
        except Exception as error:  # that of the converter has no public name
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            named = [line for line in lines if re.match(r"[A-Z]\w* ops: ", line)]
            reason = [*named, *lines, type(error).__name__][0]
            raise RunError(f"TFLite lacks what this network needs: {reason}") from error
    return models
