"""Pretrained networks: SavedModels of TensorFlow 2, from TensorFlow Hub or from a folder.

A module is any SavedModel that maps a batch of images to a tensor [batch, features], as
https://www.tensorflow.org/hub/common_signatures/images describes; fine-tuning needs one that also
takes `training`, as https://www.tensorflow.org/hub/reusable_saved_models does.
"""

import functools
import hashlib
import importlib
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from library.config import URL
from library.nn.optimizers import set_rate_factor
from library.util import UserError

RANGES = {"0..1": (0.0, 1.0), "-1..1": (-1.0, 1.0), "0..255": (0.0, 255.0)}
"""Pixel ranges that modules take; those of TensorFlow Hub take the first."""

UNREADABLE = (OSError, RuntimeError, ValueError, tf.errors.OpError)


class HubInput(NamedTuple):
    """The images that a module takes."""

    size: tuple[int | None, int | None]  # height and width in pixels; None: any
    dtype: tf.DType
    takes_training: bool  # whether it can be fine-tuned


@functools.cache
def hub_input(handle: str) -> HubInput:
    """Fetch a module, from a URL of TensorFlow Hub or a folder, and read what it takes."""
    with tf.Graph().as_default():
        function = _callable(_load(handle), handle)
        concrete = getattr(function.__call__, "concrete_functions", None) or [function]
        specs = tf.nest.flatten(concrete[0].structured_input_signature)
        spec = next((spec for spec in specs if isinstance(spec, tf.TensorSpec)), None)
        if spec is None or spec.shape.rank != 4 or spec.shape[-1] != 3:
            raise UserError(
                f"hub_module: {handle} takes {spec}, and not images [batch, height, width, 3]"
            )
        outputs = _only(function(tf.compat.v1.placeholder(spec.dtype, spec.shape)))
    if not isinstance(outputs, tf.Tensor) or outputs.shape.rank != 2 or not outputs.shape[1]:
        raise UserError(f"hub_module: {handle} gives {outputs}, and not [batch, features]")
    written = getattr(getattr(function.__call__, "function_spec", None), "fullargspec", None)
    takes_training = written is not None and "training" in written.args + written.kwonlyargs
    return HubInput((spec.shape[1], spec.shape[2]), spec.dtype, takes_training)


def hub_features(
    images: tf.Tensor, handle: str, *, input_range: str, training: bool, rate_factor: float | None
) -> tf.Tensor:
    """The features that a module computes from images.

    Its variables begin with their pretrained values. Only with a `rate_factor` are they trainable.

    Args:
        images: [batch, height, width, 3] in [0, 255], of any type.
        handle: a URL of TensorFlow Hub, or a folder.
        input_range: a key of RANGES; modules that take uint8 get [0, 255].
        training: whether the averages of its batch norm move.
        rate_factor: multiplies the learning rate of its variables; None: they do not learn.
    """
    module = _module_of_graph(handle, rate_factor)
    takes = hub_input(handle)
    pixels = tf.cast(images, tf.float32)
    if takes.dtype == tf.uint8:
        pixels = tf.round(pixels)
    else:
        low, high = RANGES[input_range]
        pixels = low + pixels * ((high - low) / 255.0)
    options = {"training": training} if takes.takes_training or training else {}
    outputs = _callable(module, handle)(tf.cast(pixels, takes.dtype), **options)
    return tf.cast(_only(outputs), tf.float32)


def _module_of_graph(handle: str, rate_factor: float | None) -> Any:
    """The module, loaded once per graph; its variables are trainable if they have a rate."""
    loaded = tf.compat.v1.get_collection_ref(("modules", handle))
    before = {id(variable) for variable in tf.compat.v1.global_variables()}
    module = loaded[0] if loaded else _load(handle)
    if loaded:  # by now: the replicas of a strategy load together
        return module
    loaded.append(module)
    new = [each for each in tf.compat.v1.global_variables() if id(each) not in before]
    trainable = getattr(module, "trainable_variables", [each for each in new if each.trainable])
    # A strategy lists the copies of a variable beside it, and calls all of them trainable.
    keys, variables = tf.compat.v1.GraphKeys, tf.compat.v1.global_variables()
    copies = [copy for each in variables for copy in getattr(each, "values", ())]
    _remove(keys.GLOBAL_VARIABLES, copies)
    _remove(keys.TRAINABLE_VARIABLES, [*copies, *trainable])
    if rate_factor is not None:
        known = {id(each) for each in (*copies, *trainable)}
        # Statistics of batch norm are averaged like the weights: see `averages`.
        others = [each for each in new if id(each) not in known and each.dtype.is_floating]
        tf.compat.v1.get_collection_ref(keys.TRAINABLE_VARIABLES).extend(trainable)
        tf.compat.v1.get_collection_ref(keys.MOVING_AVERAGE_VARIABLES).extend(others)
        set_rate_factor(trainable, rate_factor)
    return module


def _remove(collection: str, variables: list[tf.Variable]) -> None:
    found, gone = tf.compat.v1.get_collection_ref(collection), {id(each) for each in variables}
    found[:] = [each for each in found if id(each) not in gone]


def _load(handle: str) -> Any:
    if not URL.match(handle) and not os.path.isdir(handle):
        raise UserError(f"hub_module: there is no folder {handle}")
    try:
        path = _tensorflow_hub().resolve(handle) if URL.match(handle) else handle
    except UNREADABLE as error:
        cache = os.environ.get("TFHUB_CACHE_DIR", Path(tempfile.gettempdir(), "tfhub_modules"))
        place = Path(cache) / hashlib.sha1(handle.encode()).hexdigest()
        raise UserError(
            f"hub_module: {handle} cannot be reached: {error}; where there is a network, set "
            "TFHUB_CACHE_DIR to a folder that keeps it; or unpack its .tar.gz by hand in "
            f"{place}, or in any folder that hub_module names"
        ) from error
    try:
        return tf.saved_model.load(path)
    except UNREADABLE as error:
        what = f"{handle} is no SavedModel of TensorFlow 2: {error}"
        raise UserError(f"hub_module: {what}") from error


def _tensorflow_hub() -> Any:
    """Import tensorflow-hub 0.16, with all that it takes from the pkg_resources of old setuptools.

    It compares TensorFlow's version with 1.15.
    """
    pkg_resources: Any = types.ModuleType("pkg_resources")
    pkg_resources.parse_version = lambda version: [int(n) for n in version.split(".")[:2]]
    in_use = sys.modules.setdefault("pkg_resources", pkg_resources)
    try:
        return importlib.import_module("tensorflow_hub")
    finally:
        if in_use is pkg_resources:
            del sys.modules["pkg_resources"]


def _callable(module: Any, handle: str) -> Any:
    """The function of a module: its __call__, or else its serving_default."""
    if callable(module):
        return module
    signatures = getattr(module, "signatures", {})
    if "serving_default" not in signatures:
        raise UserError(f"hub_module: {handle} cannot be called, and has no serving_default")
    return signatures["serving_default"]


def _only(outputs: Any) -> Any:
    """The one tensor that a signature gives by its name."""
    named = isinstance(outputs, dict) and len(outputs) == 1
    return next(iter(outputs.values())) if named else outputs
