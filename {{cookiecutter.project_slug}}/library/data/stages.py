"""Marks in a chain of tf.data, where it can be cut: to time its stages, or to look at an example.

    records.apply(stage("read"))
    .apply(one_call(decode, augment, num_parallel_calls=-1))
    .batch(32)
    .apply(stage("batch"))

has the stages read, decode, augment and batch. Marks add nothing to the dataset.
"""

import contextvars
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

Transformation = Callable[[tf.data.Dataset], tf.data.Dataset]
"""What `tf.data.Dataset.apply` takes."""
Stages = dict[str, tf.data.Dataset]

_stages: contextvars.ContextVar[Stages | None] = contextvars.ContextVar("stages", default=None)
"""Where each mark leaves the dataset up to there."""


def stage(name: str) -> Transformation:
    """Mark the end of a stage; the dataset stays as it is."""

    def mark(dataset: tf.data.Dataset) -> tf.data.Dataset:
        if (stages := _stages.get()) is not None:
            stages[name] = dataset
        return dataset

    return mark


def without_autotuner(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Let -1 parallel calls be one for each core, in this dataset and in all that is made of it.

    The thread of tf.data's autotuner sleeps twice as long each time, up to a minute, and the end of
    an iterator waits for it. It may miss the wake-up, which comes before the flag that it looks at
    (OptimizeLoop in TensorFlow's model.cc): on two cores, 5 of 30 times.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    if hasattr(options.autotune, "initial_parallelism"):  # 2.15: at most 16
        options.autotune.initial_parallelism = os.cpu_count() or 1
    return dataset.with_options(options)


def one_call(*functions: Callable, num_parallel_calls: int) -> Transformation:
    """Map functions of an example, one after another in a single call, each a stage of its name.

    An example that goes from call to call also goes from core to core: one call is faster. What one
    function returns are the arguments of the next. -1 parallel calls: see `without_autotuner`.
    """

    def transformation(dataset: tf.data.Dataset) -> tf.data.Dataset:
        def mapped(count: int) -> tf.data.Dataset:
            def call(*example: Any) -> Any:
                result: Any = example
                for function in functions[:count]:
                    result = function(*result) if isinstance(result, tuple) else function(result)
                return result

            return dataset.map(call, num_parallel_calls=num_parallel_calls)

        if (stages := _stages.get()) is not None:
            stages |= {each.__name__: mapped(count) for count, each in enumerate(functions, 1)}
        return mapped(len(functions))

    return transformation


def prefetch_to_device(device: str | None) -> Transformation:
    """Copy elements to a device ahead, as "/gpu:0", in the stage "device"; None: do nothing.

    It comes last in a chain: the copy is not ahead of the training step otherwise.
    """
    if device is None:
        return lambda dataset: dataset
    copy = tf.data.experimental.prefetch_to_device(device)
    return lambda dataset: stage("device")(dataset.apply(copy))


def stages_of(build: Callable[[], tf.data.Dataset]) -> Stages:
    """The chain that `build` makes up to the end of each of its stages, by name, in their order.

    example = next(iter(stages_of(lambda: train_input(run))["decode"]))
    """
    stages: Stages = {}

    def collect() -> None:
        _stages.set(stages)
        build()

    contextvars.copy_context().run(collect)
    return stages
