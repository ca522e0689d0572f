"""Training steps of the shipped network, against Keras 3: python benchmarks/steps.py

    python benchmarks/steps.py [--rounds 5] [--seconds 8] [--image_size 28] [--batch_size 32]

The same network, loss, optimizer and batches from memory: our Estimator with the hooks of run.py,
and Keras' `fit` with one step a call and with many, with XLA and without. Each runs in a process of
its own, in turns; printed are medians of steps/s. What the timing of the steps costs is too little
to be seen so: for that, it is turned on and off in one process.

    python benchmarks/steps.py --system run --image_size 64 [--batch_size 32]

prints of whole trainings, with an evaluation after each epoch of 14 steps, the share of the time
after the first step that is neither steps nor batches of evaluations.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from common import make_dataset, make_jpeg, make_run, output_of, system_name

WARM_UP_STEPS, MANY, CLASSES, EXAMPLES = 100, 50, 10, 2048
WINDOW, WINDOWS = 20, 20
EPOCHS, STEPS, VALIDATED = 20, 14, 170
"""Of a whole training: epochs, steps of each, and examples that are evaluated after it."""
Options = SimpleNamespace


def batches(options: Options) -> Any:
    """Of noise, from memory."""
    import tensorflow as tf

    random, size = np.random.default_rng(0), options.image_size
    images = random.uniform(0, 255, [EXAMPLES, size, size, 3]).astype(np.float32)
    labels = random.integers(0, CLASSES, EXAMPLES)
    examples = tf.data.Dataset.from_tensor_slices(({"image": images}, labels)).repeat()
    return examples.batch(options.batch_size, drop_remainder=True).prefetch(2)


class Clock:
    """Steps in a second, from the end of the warm-up."""

    def __init__(self, options: Options) -> None:
        from library.profile import Meter

        self.meter, self.step = Meter(1, seconds=options.seconds), 0

    def at(self, step: int) -> bool:
        """Whether to go on."""
        if step < WARM_UP_STEPS:
            return True
        passed, self.step = step - max(self.step, WARM_UP_STEPS), step
        going_on = True
        for _ in range(passed):
            going_on = self.meter.count()
        return going_on

    @property
    def steps_per_sec(self) -> float:
        return self.meter.examples_per_sec


def estimator(options: Options) -> float:
    clock = Clock(options)
    _estimator(options, lambda step: clock.at(step))
    return clock.steps_per_sec


def timing_cost(options: Options) -> float:
    """The share of a step's time that its timing takes, by windows of steps with and without."""
    ends: list[float] = []

    def at(step: int) -> bool:
        if step % WINDOW == 0:
            ends.append(time.perf_counter())
        return len(ends) < 2 * WINDOWS + 2

    _estimator(options, at, timed_every_other=WINDOW)
    windows = np.diff(ends)[1:]  # the first one is a warm-up
    return float(np.median(windows[::2] / windows[1::2]) - 1)


def _estimator(
    options: Options, going_on_at: Callable[[int], bool], timed_every_other: int = 0
) -> None:
    """Train as run.py does until it may not go on."""
    import tensorflow as tf
    from library.data import Target
    from library.train import CheckpointHook, GracefulStopHook, ModelCard, Plan, ProgressHook
    from library.util import StatusLine

    class EndHook(tf.compat.v1.train.SessionRunHook):
        steps = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.steps += 1
            if not going_on_at(self.steps):
                run_context.request_stop()

    class SometimesProgressHook(ProgressHook):
        @property
        def left_out(self) -> bool:
            return bool(timed_every_other) and self.step // timed_every_other % 2 == 0

        def before_run(self, run_context: Any) -> Any:
            return None if self.left_out else super().before_run(run_context)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if self.left_out:
                self.step += 1
            else:
                super().after_run(run_context, run_values)

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = make_run(
            model_dir=Path(folder),
            train_batch_size=options.batch_size,
            image_size=options.image_size,
        )
        target = Target("class", tuple(map(str, range(CLASSES))))
        card = ModelCard.of("classification", target, run.hyperparameters)
        run = run.replace(model_card=card, plan=Plan.without_end(run, EXAMPLES))
        save = CheckpointHook(folder, 10**6)
        progress = SometimesProgressHook(
            ["loss", "accuracy"],
            [save],
            every=run.settings.log_steps,
            steps=run.plan.steps,
            batch_size=options.batch_size,
            epoch_of=run.plan.epoch_of,
            summary_dir=folder,
            line=StatusLine(live=False),
        )
        hooks = [progress, save, GracefulStopHook(folder), EndHook()]
        run.estimator().train(lambda: batches(options), hooks=hooks)


def rest_of_run(options: Options) -> float:
    """The share of a training, after its first step, that is neither steps nor evaluation."""
    import tensorflow as tf
    from library.train import start_training, training

    begins, ends, train_and_evaluate = [], [], training.train_and_evaluate
    hook: Any = tf.compat.v1.train.SessionRunHook

    def timed(hooks: Any) -> list[Any]:
        """The same hooks, in a frame that notes begin and end of what the session runs."""
        first, last = hook(), hook()
        last.before_run = lambda context: begins.append(time.perf_counter())
        first.after_run = lambda context, values: ends.append((begins[-1], time.perf_counter()))
        return [first, *hooks, last]

    def with_times(estimator: Any, *specs: Any) -> Any:
        timed_specs = [spec._replace(hooks=timed(spec.hooks)) for spec in specs]
        return train_and_evaluate(estimator, *timed_specs)

    training.train_and_evaluate = with_times
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        data = Path(folder) / "data"
        data.mkdir()
        jpegs = [make_jpeg(seed, 100, 75) for seed in range(34)]
        make_dataset(data / "train", jpegs, copies=-(-STEPS * options.batch_size // 34))
        make_dataset(data / "validation", jpegs, copies=VALIDATED // 34)
        start_training(
            make_run(
                train_data=str(data / "train"),
                validation_data=str(data / "validation"),
                model_dir=Path(folder) / "checkpoints",
                best_model_dir=Path(folder) / "best",
                train_epochs=EPOCHS,
                limit_train_examples=STEPS * options.batch_size,
                train_batch_size=options.batch_size,
                image_size=options.image_size,
                live_progress=False,
            )
        )
        whole = time.perf_counter() - ends[0][1]
    return 1 - sum(end - begin for begin, end in ends[1:]) / whole


def keras_fit(options: Options, *, steps_per_execution: int, jit: bool) -> float:
    import keras
    from project.settings import Hyperparameters

    h, clock = Hyperparameters(), Clock(options)
    l2 = {"kernel_regularizer": keras.regularizers.L2(h.l2_regularization / 2)}
    layers = [keras.Input([options.image_size, options.image_size, 3], name="image")]
    layers.append(keras.layers.Rescaling(1 / 127.5, -1))
    for filters in (32, 64, 128, 256):
        initializer = keras.initializers.HeNormal()
        layers += [
            keras.layers.Conv2D(
                filters, 3, padding="same", use_bias=False, kernel_initializer=initializer, **l2
            ),
            keras.layers.BatchNormalization(momentum=0.95, epsilon=1e-3),
            keras.layers.ReLU(),
            keras.layers.MaxPool2D(2, padding="same"),
        ]
    layers += [
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dropout(h.dropout_rate),
        keras.layers.Dense(CLASSES, **l2),
    ]
    model = keras.Sequential(layers)

    def loss(labels: Any, logits: Any) -> Any:
        targets = keras.ops.one_hot(labels, CLASSES)
        return keras.losses.categorical_crossentropy(
            targets, logits, from_logits=True, label_smoothing=h.xentropy_label_smoothing
        )

    model.compile(
        keras.optimizers.Adam(h.learning_rate, h.adam_beta1, h.adam_beta2, h.adam_epsilon),
        loss,
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
        jit_compile=jit,
    )

    class ClockCallback(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not clock.at(batch + 1):
                raise StopIteration  # which fit takes for the end of the data

    inputs = batches(options).map(lambda features, labels: (features["image"], labels))
    model.fit(inputs, steps_per_epoch=10**6, verbose=0, callbacks=[ClockCallback()])
    return clock.steps_per_sec


OURS, TIMING, RUN = "Estimator, as run.py trains", "timing", "run"
ONE, FASTEST = "Keras fit, one step a call", f"Keras fit, {MANY} steps a call"
SYSTEMS: dict[str, Callable[..., float]] = {
    OURS: estimator,
    ONE: lambda options: keras_fit(options, steps_per_execution=1, jit=False),
    f"{ONE}, XLA": lambda options: keras_fit(options, steps_per_execution=1, jit=True),
    FASTEST: lambda options: keras_fit(options, steps_per_execution=MANY, jit=False),
    f"{FASTEST}, XLA": lambda options: keras_fit(options, steps_per_execution=MANY, jit=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8, help="of each, in a round")
    parser.add_argument("--image_size", type=int, default=28)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument(
        "--system", choices=[*SYSTEMS, TIMING, RUN], help="only this one, here, once"
    )
    options = parser.parse_args()
    if options.system:
        others = {TIMING: timing_cost, RUN: rest_of_run}
        function = others.get(options.system) or SYSTEMS[options.system]
        print(json.dumps(function(options)), flush=True)
        os._exit(0)
    found: dict[str, list[float]] = {name: [] for name in (*SYSTEMS, TIMING)}
    for _ in range(options.rounds):
        for name, values in found.items():
            words = [*sys.argv[1:], "--system", name]
            values.append(output_of(sys.executable, __file__, *words))
    size = options.image_size
    print(f"{system_name()}; images of {size} x {size}, batches of {options.batch_size}")
    ours = statistics.median(found[OURS])
    for name in SYSTEMS:
        speed = statistics.median(found[name])
        print(f"{name:32} {speed:8.1f} steps/s; the Estimator is {ours / speed:.2f} times as fast")
    costs = ", ".join(f"{100 * cost:.2f} %" for cost in sorted(found[TIMING]))
    print(f"the timing takes of each step, in each round: {costs}")


if __name__ == "__main__":
    main()
