"""What you edit: settings, networks, the input and the model."""

import library  # noqa: F401  chooses Keras 2 before any module in here imports TensorFlow
