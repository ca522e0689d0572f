"""Numbers, pictures and texts for TensorBoard."""

import io
import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from library.config import word_of
from library.report.figures import confusion_matrix, picture_grid, png
from library.report.tally import TallyHook

INPUTS = 16
"""Pictures of a batch that are shown."""

KERNELS, KERNELS_A_ROW, PIXELS = 64, 16, 8
"""Kernels of the first layer that are shown, how many side by side, and pixels of a weight."""

COLLECTION = "inputs_shown"

Value = tf.compat.v1.Summary.Value


def add_scalars(folder: str | Path, scalars: Mapping[str, float], step: int) -> None:
    """Write scalars by tag."""
    _add(folder, [Value(tag=tag, simple_value=value) for tag, value in scalars.items()], step)


def add_picture(folder: str | Path, tag: str, encoded: bytes, step: int) -> None:
    """Write a picture, encoded as PNG."""
    width, height = struct.unpack(">2I", encoded[16:24])  # of its IHDR, the first chunk
    image = tf.compat.v1.Summary.Image(
        height=height, width=width, colorspace=3, encoded_image_string=encoded
    )
    _add(folder, [Value(tag=tag, image=image)], step)


def add_table(folder: str | Path, tag: str, values: Mapping[str, Any], step: int) -> None:
    """Write names and values as a text, which is a table in Markdown."""
    rows = [f"| {name} | {word_of(value)} |" for name, value in values.items()]
    markdown = "\n".join([f"| {tag} | value |", "| --- | --- |", *rows])
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="text")
    )
    tensor = tf.make_tensor_proto(markdown, dtype=tf.string)
    _add(folder, [Value(tag=tag, metadata=metadata, tensor=tensor)], step)


def _add(folder: str | Path, values: Sequence[Any], step: int) -> None:
    with tf.Graph().as_default():  # which a FileWriter asks for, and does not use
        writer = tf.compat.v1.summary.FileWriterCache.get(str(folder))
    writer.add_summary(tf.compat.v1.Summary(value=values), step)


def show_inputs(pictures: tf.Tensor, labels: tf.Tensor) -> None:
    """Leave in the graph of a training what PicturesHook shows: the first INPUTS of a batch.

    Args:
        pictures: uint8 [batch, height, width, 3].
        labels: int64 [batch], numbers of classes; or other numbers, float32 [batch].
    """
    for tensor in (pictures[:INPUTS], labels[:INPUTS]):
        tf.compat.v1.add_to_collection(COLLECTION, tensor)


class PicturesHook(tf.compat.v1.train.SessionRunHook):
    """Shows the input of a training as the network sees it, and the kernels of its first layer.

    `inputs` has the labels below; `kernels` is there where the first layer has pictures of them.
    """

    def __init__(self, folder: str | Path, class_names: Sequence[str], *, every: int):
        """
        Args:
            folder: of TensorBoard's events.
            class_names: in the order of the labels.
            every: number of steps from one to the next; the first one is that of the first step.
        """
        self.folder, self.class_names, self.every = folder, class_names, every
        self.seconds = 0.0
        """Time spent in drawing."""

    def begin(self) -> None:
        self.global_step = tf.compat.v1.train.get_global_step()
        names = ("step", "pictures", "labels")
        shown = [self.global_step, *tf.compat.v1.get_collection(COLLECTION)]
        self.tensors = dict(zip(names, shown, strict=False))
        for variable in tf.compat.v1.trainable_variables():
            if len(variable.shape) == 4 and variable.shape[2] in (1, 3):
                self.tensors["kernels"] = variable.read_value()
                break

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.step = int(session.run(self.global_step))
        self.due = True

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self.tensors) if self.due else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.step += 1
        if self.due:
            begin, found = time.monotonic(), run_values.results
            self.step = max(self.step, int(found["step"]))  # others may take steps, too
            if "pictures" in found:
                labels = found["labels"]
                of_classes = np.issubdtype(labels.dtype, np.integer)
                captions = [self.class_names[i] if of_classes else f"{i:g}" for i in labels]
                grid = png(picture_grid(list(found["pictures"]), captions))
                add_picture(self.folder, "inputs", grid, self.step)
            if "kernels" in found:
                buffer = io.BytesIO()
                Image.fromarray(kernel_mosaic(found["kernels"])).save(buffer, "png")
                add_picture(self.folder, "kernels", buffer.getvalue(), self.step)
            self.seconds += time.monotonic() - begin
        self.due = (self.step + 1) % self.every == 0


def kernel_mosaic(kernels: np.ndarray) -> np.ndarray:
    """Kernels side by side, each from its least to its greatest weight.

    Args:
        kernels: float [height, width, 1 or 3, number].

    Returns:
        uint8 [height, width, 3], of squares of PIXELS a weight.
    """
    low, high = kernels.min(axis=(0, 1, 2)), kernels.max(axis=(0, 1, 2))
    pixels = (255 * (kernels - low) / np.maximum(high - low, 1e-12)).astype(np.uint8)
    pixels = np.repeat(pixels, 3 // pixels.shape[2], axis=2)
    number = min(pixels.shape[3], KERNELS)
    rows = math.ceil(number / KERNELS_A_ROW)
    height, width = pixels.shape[0] + 1, pixels.shape[1] + 1  # with a gap
    mosaic = np.full([rows * height + 1, KERNELS_A_ROW * width + 1, 3], 255, np.uint8)
    for i in range(number):
        top, left = i // KERNELS_A_ROW * height + 1, i % KERNELS_A_ROW * width + 1
        mosaic[top : top + height - 1, left : left + width - 1] = pixels[..., i]
    return mosaic.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)


class EvaluationPicturesHook(TallyHook):
    """Shows the confusion matrix of an evaluation, and the mistakes that were the most certain."""

    def __init__(
        self, folder: str | Path, class_names: Sequence[str], *, due: Callable[[int], bool]
    ):
        """
        Args:
            folder: of TensorBoard's events.
            class_names: in the order of the labels.
            due: whether the evaluation of this step is shown.
        """
        super().__init__(class_names)
        self.folder, self.due = folder, due

    def begin(self) -> None:
        super().begin()
        self.global_step = tf.compat.v1.train.get_global_step()

    def end(self, session: Any) -> None:
        step = int(session.run(self.global_step))
        if not self.tally or not self.due(step):
            return
        matrix = png(confusion_matrix(self.tally.confusion, self.class_names))
        add_picture(self.folder, "confusion_matrix", matrix, step)
        mistakes = self.tally.mistakes
        captions = [mistake.caption(self.class_names) for mistake in mistakes]
        grid = png(picture_grid([mistake.picture for mistake in mistakes], captions))
        add_picture(self.folder, "mistakes", grid, step)
