"""What every project calls; nothing in here imports from `project`."""

import gc
import importlib.util
import os
import sys

# TensorFlow and its graphs are millions of objects that stay: looking for garbage among them takes
# an eighth of a short training (Python looks after every 700 or 2000 objects).
gc.set_threshold(50_000)
# TensorFlow reads these when it is imported, so they are set before any module of ours does that.
if "tensorflow" not in sys.modules:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors: of the rest, we tell what matters
    if importlib.util.find_spec("tf_keras"):  # Keras 2 for the Estimator; TensorFlow 2.15 has it
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
