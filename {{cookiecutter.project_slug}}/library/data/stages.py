"""Marks in a chain of tf.data, where it can be cut: to time its stages, or to look at an example.

    records.apply(stage("read"))
    .apply(one_call(decode, augment, num_parallel_calls=-1))
    .batch(32)
    .apply(stage("batch"))

has the stages read, decode, augment and batch. Marks add nothing to the dataset.
"""

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

Transformation = Callable[[tf.data.Dataset], tf.data.Dataset]
"""What `tf.data.Dataset.apply` takes."""
Build = Callable[[], tf.data.Dataset]
Visit = Callable[[str, Build], None]

_visit: contextvars.ContextVar[Visit | None] = contextvars.ContextVar("visit", default=None)
"""Called at each mark, with its name and what makes the dataset up to there."""


class _Cut(Exception):  # noqa: N818  it ends the building of a chain, and is no error
    """Carries the dataset as it is at a mark."""


def stage(name: str) -> Transformation:
    """Mark the end of a stage; the dataset stays as it is."""

    def mark(dataset: tf.data.Dataset) -> tf.data.Dataset:
        if visit := _visit.get():
            visit(name, lambda: dataset)
        return dataset

    return mark


def one_call(*functions: Callable, num_parallel_calls: int) -> Transformation:
    """Map functions one after another in a single call, each of them a stage of its name.

    An example that goes from call to call also goes from core to core: one call is faster.

    Args:
        functions: of one example each; what one returns are the arguments of the next.
        num_parallel_calls: examples worked on at the same time; -1: autotune.
    """

    def mapped(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
        def call(*example: Any) -> Any:
            result: Any = example
            for function in functions[:count]:
                result = function(*result) if isinstance(result, tuple) else function(result)
            return result

        return dataset.map(call, num_parallel_calls=num_parallel_calls)

    def transformation(dataset: tf.data.Dataset) -> tf.data.Dataset:
        if visit := _visit.get():
            for count, function in enumerate(functions, start=1):
                visit(function.__name__, functools.partial(mapped, dataset, count))
        return mapped(dataset, len(functions))

    return transformation


def prefetch_to_device(device: str | None) -> Transformation:
    """Copy elements to a device ahead, as "/gpu:0", in the stage "device"; None: do nothing.

    It comes last in a chain: the copy is not ahead of the training step otherwise.
    """

    def transformation(dataset: tf.data.Dataset) -> tf.data.Dataset:
        if device is None:
            return dataset
        return stage("device")(dataset.apply(tf.data.experimental.prefetch_to_device(device)))

    return transformation


def stages_of(build: Build) -> list[str]:
    """The names of the stages of the chain that `build` makes, in their order."""
    names: list[str] = []
    _walk(build, lambda name, dataset: names.append(name))
    return names


def cut_at(name: str, build: Build) -> tf.data.Dataset:
    """The chain that `build` makes, up to the end of a stage; ValueError if there is none.

    example = next(iter(cut_at("decode", lambda: train_input(run))))
    """

    def visit(reached: str, dataset: Build) -> None:
        if reached == name:
            raise _Cut(dataset())

    try:
        _walk(build, visit)
    except _Cut as cut:
        return cut.args[0]
    raise ValueError(f"{name}: must be one of the stages {', '.join(stages_of(build))}")


def _walk(build: Build, visit: Visit) -> None:
    token = _visit.set(visit)
    try:
        build()
    finally:
        _visit.reset(token)
