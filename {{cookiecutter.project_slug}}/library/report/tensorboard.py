"""Numbers, images and texts for TensorBoard."""

import io
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from library import report  # whose figures import matplotlib when one is drawn
from library.config import word_of
from library.report.stats import Counted, StatsHook

DPI = 100  # drawing takes time from training
INPUTS = 16  # images of a batch that are shown
KERNELS, KERNELS_PER_ROW, PIXELS = 64, 16, 8
"""Kernels of the first layer that are shown, how many side by side, and pixels of a weight."""
COLLECTION = "inputs_shown"
MEAN = "mean_"
"""Before the name of a training's scalar: its mean since the step that was written before."""

Value = tf.compat.v1.Summary.Value


def add_scalars(folder: str | Path, scalars: Mapping[str, float], step: int) -> None:
    """Write scalars by tag."""
    _add(folder, [Value(tag=tag, simple_value=value) for tag, value in scalars.items()], step)


def add_image(folder: str | Path, tag: str, encoded: bytes, step: int) -> None:
    """Write an image, encoded as PNG."""
    width, height = (int.from_bytes(encoded[i : i + 4], "big") for i in (16, 20))
    image = tf.compat.v1.Summary.Image(
        height=height, width=width, colorspace=3, encoded_image_string=encoded
    )
    _add(folder, [Value(tag=tag, image=image)], step)


def add_table(folder: str | Path, tag: str, values: Mapping[str, Any], step: int) -> None:
    """Write names and values as a text, which is a table in Markdown."""
    rows = [f"| {name} | {word_of(value)} |" for name, value in values.items()]
    markdown = "\n".join([f"| {tag} | value |", "| --- | --- |", *rows])
    metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "text"})
    tensor = tf.make_tensor_proto(markdown, dtype=tf.string)
    _add(folder, [Value(tag=tag, metadata=metadata, tensor=tensor)], step)


def _add(folder: str | Path, values: Sequence[Any], step: int) -> None:
    with tf.Graph().as_default():  # which a FileWriter asks for, and does not use
        writer = tf.compat.v1.summary.FileWriterCache.get(str(folder))
    writer.add_summary(tf.compat.v1.Summary(value=values), step)


def show_inputs(images: tf.Tensor, labels: tf.Tensor) -> None:
    """Leave in the graph of a training what InputImagesHook shows: the first ones of a batch."""
    for tensor in (images[:INPUTS], labels[:INPUTS]):
        tf.compat.v1.add_to_collection(COLLECTION, tensor)


class InputImagesHook(tf.compat.v1.train.SessionRunHook):
    """Shows the input of a training as the network sees it, and the kernels of its first layer.

    The first step, and then each `every`; kernels, where the first layer takes 1 or 3 channels.
    """

    def __init__(self, folder: str | Path, head: Counted, *, every: int):
        self.folder, self.head, self.every = folder, head, every
        self.seconds = 0.0  # spent in drawing

    def begin(self) -> None:
        self.global_step = tf.compat.v1.train.get_global_step()
        shown = [self.global_step, *tf.compat.v1.get_collection(COLLECTION)]
        self.tensors = dict(zip(("step", "images", "labels"), shown, strict=False))
        for variable in reversed(tf.compat.v1.trainable_variables()):  # the first one stays
            if len(variable.shape) == 4 and variable.shape[2] in (1, 3):
                self.tensors["kernels"] = variable.read_value()

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
            if "images" in found:
                captions = [self.head.caption(label) for label in found["labels"]]
                grid = report.image_grid(list(found["images"]), captions)
                add_image(self.folder, "inputs", report.png(grid, dpi=DPI), self.step)
            if "kernels" in found:
                add_image(self.folder, "kernels", kernel_mosaic(found["kernels"]), self.step)
            self.seconds += time.monotonic() - begin
        self.due = (self.step + 1) % self.every == 0


class MeansHook(tf.compat.v1.train.SessionRunHook):
    """Writes the means of a training's scalars over each `every` steps, as MEAN and their name.

    A scalar is the tensor `batch_NAME` of the graph.
    """

    def __init__(self, folder: str | Path, names: Sequence[str], *, every: int):
        self.folder, self.names, self.every = folder, names, every

    def begin(self) -> None:
        operations = tf.compat.v1.get_default_graph().get_operations()
        tensors = {op.name: op.outputs[0] for op in operations if op.name.startswith("batch_")}
        self.global_step = tf.compat.v1.train.get_global_step()
        self.tensors = {n: tensors[f"batch_{n}"] for n in self.names if f"batch_{n}" in tensors}

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.step = int(session.run(self.global_step))
        self.values: list[dict[str, float]] = []

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs({"step": self.global_step, **self.tensors})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.step = max(self.step + 1, int(run_values.results["step"]))  # others take steps, too
        self.values.append(run_values.results)
        if len(self.values) >= self.every:
            means = {n: float(np.mean([each[n] for each in self.values])) for n in self.tensors}
            add_scalars(self.folder, {f"{MEAN}{n}": mean for n, mean in means.items()}, self.step)
            self.values = []


def kernel_mosaic(kernels: np.ndarray) -> bytes:
    """Kernels, [height, width, 1 or 3, number], each from its least to its greatest weight."""
    low, high = kernels.min(axis=(0, 1, 2)), kernels.max(axis=(0, 1, 2))
    pixels = (255 * (kernels - low) / np.maximum(high - low, 1e-12))[..., :KERNELS]
    missing = -pixels.shape[3] % KERNELS_PER_ROW
    # A white line above and left of each, and white tiles that fill the last row.
    tiles = np.pad(pixels, [(1, 0), (1, 0), (0, 0), (0, missing)], constant_values=255)
    height, width, channels, number = tiles.shape
    rows = tiles.transpose(3, 0, 1, 2).reshape(-1, KERNELS_PER_ROW, height, width, channels)
    mosaic = rows.swapaxes(1, 2).reshape(-1, KERNELS_PER_ROW * width, channels)
    mosaic = np.pad(mosaic, [(0, 1), (0, 1), (0, 0)], constant_values=255).astype(np.uint8)
    mosaic = mosaic.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1).repeat(3 // channels, axis=2)
    buffer = io.BytesIO()
    Image.fromarray(mosaic).save(buffer, "png")
    return buffer.getvalue()


class EvaluationImagesHook(StatsHook):
    """Shows the first figure and the mistakes of an evaluation whose step is due."""

    def __init__(self, folder: str | Path, head: Counted, *, due: Callable[[int], bool]):
        super().__init__(head)
        self.folder, self.due = folder, due

    def begin(self) -> None:
        super().begin()
        self.global_step = tf.compat.v1.train.get_global_step()

    def end(self, session: Any) -> None:
        step = int(session.run(self.global_step))
        if self.stats and self.due(step):
            shown = dict(itertools.islice(self.stats.figures(), 1))
            for name, figure in {**shown, "mistakes": self.stats.mistakes_figure()}.items():
                add_image(self.folder, name, report.png(figure, dpi=DPI), step)
