"""What every project calls; nothing in here imports from `project`."""

import importlib.util
import os
import sys

# TensorFlow reads these when it is imported, so they are set before any module of ours does that.
if "tensorflow" not in sys.modules:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors: of the rest, we tell what matters
    if importlib.util.find_spec("tf_keras"):  # Keras 2 for the Estimator; TensorFlow 2.15 has it
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
