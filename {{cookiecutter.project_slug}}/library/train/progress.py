"""The line of progress of a training: where it stands, how fast it is, what it waits for."""

import dataclasses
import datetime
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from library.estimator import SessionRunArgs, SessionRunHook
from library.report import add_scalars
from library.util import StatusLine

WARM_UP = 5
"""Steps that are not timed: the first ones allocate memory and fill the input's buffers."""

GET_NEXT = ("IteratorGetNext", "MultiDeviceIteratorGetNextFromShard")
"""The ops that take the next batch, for one device and for several."""


@dataclasses.dataclass(eq=False)
class ProgressHook(SessionRunHook):
    """Shows the progress every so many steps, and writes the rates for TensorBoard.

    The first WARM_UP steps of a process, checkpoints and evaluations do not count in the rates;
    the time left includes evaluations, like the time that has passed.
    """

    shown: Sequence[str]  # scalars, where the graph has them: "loss" is the tensor `batch_loss`
    pauses: Sequence[Any]  # hooks whose `seconds` are none of the training step's
    _: dataclasses.KW_ONLY
    every: int  # steps from line to line
    steps: int  # at which the run ends
    batch_size: int  # examples per step
    epoch_of: Callable[[int], float]  # step -> epochs since the begin of the run
    summary_dir: str | Path | None  # for `examples_per_sec`, `step_ms`, `input_wait_share`
    line: StatusLine  # where it is shown; a live one is overwritten several times a second
    shared: bool = False  # whether other processes take steps of the same run

    def begin(self) -> None:
        operations = tf.compat.v1.get_default_graph().get_operations()
        tensors = {op.name: op.outputs[0] for op in operations if op.name.startswith("batch_")}
        found = {name: tensors.get(f"batch_{name}") for name in self.shown}
        self.scalars = {name: tensor for name, tensor in found.items() if tensor is not None}
        self.global_step = tf.compat.v1.train.get_global_step()
        # The clock is read where a step begins, and where its input is there.
        begin = tf.timestamp()
        with tf.control_dependencies([op for op in operations if op.type in GET_NEXT]):
            self.each_step = {"waited": tf.timestamp() - begin}
        if self.shared:
            self.each_step |= {"step": self.global_step, **self.scalars}

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.step = int(session.run(self.global_step))
        self.warm_at = self.step + WARM_UP
        self.warm_time: float | None = None
        self.rates: dict[str, float] = {}

    def before_run(self, run_context: Any) -> Any:
        showing = self._due(self.step, self.step + 1) or self.line.due
        return SessionRunArgs(self.each_step | self.scalars if showing else self.each_step)

    def _due(self, before: int, after: int) -> bool:
        """Whether the way from step to step passes one that is shown."""
        return before // self.every < after // self.every or before < self.steps <= after

    def after_run(self, run_context: Any, run_values: Any) -> None:
        results, before = run_values.results, self.step
        self.step = max(before, int(results["step"])) if self.shared else before + 1
        now = time.monotonic()
        if self.warm_time is not None:
            self.waited += max(0.0, float(results["waited"]))
        elif self.step >= self.warm_at:
            self.warm_at, self.warm_time = self.step, now
            self._count_from(now)
        scalars = {name: float(results[name]) for name in self.scalars if name in results}
        due = self._due(before, self.step)
        if due or (scalars and self.line.due):
            if due or not self.rates:
                self._measure(now)
            self.line.update(self._text(scalars, now))

    def _count_from(self, now: float) -> None:
        self.waited, self.last_step, self.last_time = 0.0, self.step, now
        self.last_pause = sum(hook.seconds for hook in self.pauses)

    def _measure(self, now: float) -> None:
        """Update the rates from the steps since the last time."""
        if self.warm_time is None or self.step == self.last_step:
            return
        before, steps = self.last_time - self.last_pause, self.step - self.last_step
        waited = self.waited
        self._count_from(now)
        seconds = max(now - self.last_pause - before, 1e-6)  # clocks may be coarse
        self.rates = {
            "examples_per_sec": steps * self.batch_size / seconds,
            "step_ms": 1e3 * (seconds - waited) / steps,
            "input_wait_share": waited / seconds,
        }
        if self.summary_dir:
            add_scalars(self.summary_dir, self.rates, self.step)

    def _text(self, scalars: dict[str, float], now: float) -> str:
        """A line of a log; or a short one, for a terminal of 80 columns."""
        short = self.line.live
        parts = [f"{self.step}/{self.steps}" if short else f"step {self.step} of {self.steps}"]
        parts.append(f"epoch {self.epoch_of(self.step):.1f}")
        parts += [f"{name} {value:.{3 if short else 4}f}" for name, value in scalars.items()]
        if self.rates and self.warm_time is not None:
            rate, step_ms, share = self.rates.values()
            wait = f"{100 * share:.0f}% input"
            long = (f"{rate:,.0f} examples/s", f"{step_ms:.1f} ms/step", f"{wait} wait")
            parts += [f"{rate:,.0f}/s", wait] if short else long
            per_step = (now - self.warm_time) / (self.step - self.warm_at)
            steps = max(0, self.steps - self.step)  # other workers may go further
            left = datetime.timedelta(seconds=round(steps * per_step))
            parts.append(f"{str(left).removeprefix('0:').removeprefix('0')} left")
        if short and len("  ".join(parts)) > self.line.width:
            del parts[1]
        return "  ".join(parts)
