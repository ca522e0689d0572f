"""What the Estimator misses in TensorFlow 2.16 and later: looked for, and put in place.

The official package imports one module that connects RunConfig with distribution strategies, three
that only a TPU needs, and an entry in the tables of the export decorator.
"""

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Iterator

OLDEST, NEWEST_TESTED = (2, 15), (2, 22)
"""Versions of TensorFlow; a newer one is tried, with a warning."""

_ADVICE = "install TensorFlow {}.{} to {}.{}, and tf-keras with it".format(*OLDEST, *NEWEST_TESTED)


_TOP = os.path.dirname(str(sys.modules[__name__.partition(".")[0]].__file__)) + os.sep
_INTERNAL = ("/tensorflow/", "/tensorflow_estimator/", "/tf_keras/")
_NOT_THE_USERS = (_TOP, "Use tf.keras instead", *(name.replace("/", os.sep) for name in _INTERNAL))
"""What the deprecation notices have in them that nobody can act on: the Estimator causes many."""


class UnsupportedTensorFlowError(ImportError):
    """This TensorFlow, or the Keras that it has chosen, cannot run the Estimator."""

    def __init__(self, text: str):
        self.lines: tuple[str, ...] = (" ".join(text.split()),)
        super().__init__(self.lines[0])


def prepare(tensorflow: types.ModuleType) -> bool:
    """Check TensorFlow, and put in place what it lacks; returns whether it lacks the Estimator."""
    check(tensorflow)
    logger = logging.getLogger("tensorflow")
    if _concerns_the_user not in logger.filters and _release(tensorflow) > NEWEST_TESTED:
        logger.warning(
            "TensorFlow %s is newer than %d.%d, the newest that the Estimator is tested with",
            *(tensorflow.__version__, *NEWEST_TESTED),
        )
    logger.addFilter(_concerns_the_user)
    if hasattr(tensorflow, "estimator"):
        return False
    _mend()
    return True


def check(tensorflow: types.ModuleType) -> None:
    """Check the version of TensorFlow, the Keras that it has chosen, and the official package."""
    version = tensorflow.__version__
    if _release(tensorflow) < OLDEST:
        raise UnsupportedTensorFlowError(
            f"TensorFlow {version} is not supported: the Estimator needs 2.15 or later; {_ADVICE}"
        )
    if not importlib.util.find_spec("tensorflow_estimator"):
        raise UnsupportedTensorFlowError(
            "The package tensorflow-estimator is missing: pip install tensorflow-estimator==2.15.0"
        )
    try:
        keras = importlib.import_module(tensorflow.keras.Model.__module__.split(".")[0])
    except ImportError as error:
        raise UnsupportedTensorFlowError(f"TensorFlow finds no Keras 2: {error}") from error
    if not keras.__version__.startswith("2."):
        raise UnsupportedTensorFlowError(
            f"TensorFlow has already chosen Keras {keras.__version__}, and the Estimator needs "
            f"Keras 2: install tf-keras=={'.'.join(version.split('.')[:2])}.*, import "
            f"{__package__} before tensorflow, and leave TF_USE_LEGACY_KERAS unset or 1."
        )


@contextlib.contextmanager
def _missing_named() -> Iterator[None]:
    try:
        yield
    except (ImportError, AttributeError) as error:
        version = sys.modules["tensorflow"].__version__
        raise UnsupportedTensorFlowError(
            f"TensorFlow {version} lacks what the Estimator needs: {error}; {_ADVICE}"
        ) from error


@_missing_named()
def load_estimator() -> types.ModuleType:
    """Import the module with the public names, those of `tf.estimator` in TensorFlow 2.15."""
    importlib.import_module("tensorflow")
    return importlib.import_module("tensorflow_estimator._api.v2.estimator")


def _release(tensorflow: types.ModuleType) -> tuple[int, ...]:
    return tuple(map(int, tensorflow.__version__.split(".")[:2]))


def _concerns_the_user(record: logging.LogRecord) -> bool:
    """Whether TensorFlow's logger shows a record: not if it is about a call inside TensorFlow."""
    text = " ".join(map(str, (record.msg, *(record.args or ()))))
    return "is deprecated" not in text or not any(words in text for words in _NOT_THE_USERS)


@_missing_named()
def _mend() -> None:
    from tensorflow.python.util import tf_export

    coordinator = importlib.import_module(f"{__package__}.coordinator")
    _fill_in("distribute.estimator_training", coordinator)
    for name in ("tpu.session_support", "tpu.tpu_embedding", "tpu.tpu_embedding_gradient"):
        _fill_in(name, _TpuOnly(name))
    if not hasattr(tf_export, "ESTIMATOR_API_NAME"):
        # Attribute names of its own: with TensorFlow's, the decorator would rename its hooks.
        tf_export.ESTIMATOR_API_NAME = "estimator"
        for table, version in ((tf_export.API_ATTRS, ""), (tf_export.API_ATTRS_V1, "_v1")):
            names = (f"_estimator_api_{kind}{version}" for kind in ("names", "constants"))
            table["estimator"] = tf_export._Attributes(*names)


def _fill_in(name: str, module: types.ModuleType) -> None:
    """Put `module` where TensorFlow once had one, unless something is there."""
    name = f"tensorflow.python.{name}"
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        parent, _, child = name.rpartition(".")
        sys.modules[name] = module
        setattr(importlib.import_module(parent), child, module)


class _TpuOnly(types.ModuleType):
    """A module whose every name stands for a class that only a TPUEstimator would call."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> None:
            raise NotImplementedError(f"{self.__name__}.{name}: a TPU needs TensorFlow 2.15.")

        return type(name, (), {"__init__": refuse})
