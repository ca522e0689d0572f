"""The Estimator API of TensorFlow 2.15 on every TensorFlow from 2.15 on.

    from library.estimator import Estimator, EstimatorSpec, RunConfig, train_and_evaluate

The official `tensorflow-estimator` 2.15.0 package runs on TensorFlow 2.16 and later once the few
modules that it misses are in place: `seam` sees to it. Its 76 public names are offered here.
`install()` brings back `tf.estimator` for code that nobody edits, and so does the command

    python -m library.estimator script.py ARGS

The Estimator needs Keras 2, which TensorFlow chooses when it is imported: import this before.
"""

import importlib.util
import os
import sys
from typing import Any

if "tensorflow" not in sys.modules and importlib.util.find_spec("tf_keras"):
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # TensorFlow 2.15 needs no tf_keras

from .doors import install, watch
from .seam import UnsupportedTensorFlowError, load_estimator

__all__ = ["UnsupportedTensorFlowError", "install"]  # and the public names: see `__getattr__`

watch()
if os.environ.get("TF_USE_LEGACY_KERAS", "1") not in ("1", "true", "True"):
    import tensorflow  # noqa: F401  which refuses Keras 3 at once


def __getattr__(name: str) -> Any:  # a public name; the first one imports TensorFlow
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(load_estimator(), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for name in dir(load_estimator()) if name[0] != "_")})
