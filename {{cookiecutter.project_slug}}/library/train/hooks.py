"""What happens beside the training steps: the line of progress, stopping well, stopping early."""

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

from library.report import add_scalars
from library.train.exporter import BestCheckpointExporter
from library.util import StatusLine

WARM_UP = 5
"""Steps that are not timed: the first ones allocate memory and fill the input's buffers."""

EARLY_STOP_SECS = 5.0
"""From look to look at what another process has found in its evaluations."""

GET_NEXT = ("IteratorGetNext", "MultiDeviceIteratorGetNextFromShard")
"""What takes the next batch, for one device and for several."""

SessionRunHook: TypeAlias = tf.compat.v1.train.SessionRunHook
SessionRunArgs = tf.compat.v1.train.SessionRunArgs


class _Pausing(Protocol):
    seconds: float


class ProgressHook(SessionRunHook):
    """Says how far the training is, every so many steps, and writes its rates for TensorBoard.

    An iteration is the time that it waits for the input, and that of the training step. The first
    WARM_UP steps of a process, checkpoints and evaluations do not count in the rates; the time
    left has evaluations in it, like the time that has passed.
    """

    def __init__(
        self,
        shown: Sequence[str],
        pauses: Sequence[_Pausing],
        *,
        every: int,
        steps: int,
        batch_size: int,
        epoch_of: Callable[[int], float],
        summary_dir: str | Path | None,
        line: StatusLine,
        shared: bool = False,
    ):
        """
        Args:
            shown: scalars to show, such as "loss", whose tensors are named `batch_loss`; of those
                that the graph has. They are fetched only at the steps that show them.
            pauses: hooks whose `seconds` are none of the training step's.
            every: number of steps from line to line.
            steps: the step at which the run ends.
            batch_size: examples a step.
            epoch_of: step -> epochs since the begin of the run.
            summary_dir: for `examples_per_sec`, `step_ms` and `input_wait_share`; None: for none.
            line: where it is said; a live one is written anew several times a second.
            shared: whether other processes take steps of the same run.
        """
        self.shown, self.pauses, self.every, self.steps = shown, pauses, every, steps
        self.batch_size, self.epoch_of = batch_size, epoch_of
        self.summary_dir, self.line, self.shared = summary_dir, line, shared

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        self.global_step = tf.compat.v1.train.get_global_step()
        names = {op.name for op in graph.get_operations()}
        self.scalars = {
            name: graph.get_tensor_by_name(f"batch_{name}:0")
            for name in self.shown
            if f"batch_{name}" in names
        }
        # The clock is read where a step begins, and where its input is there.
        inputs = [op for op in graph.get_operations() if op.type in GET_NEXT]
        begin = tf.timestamp()
        with tf.control_dependencies(inputs):
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
        """Whether the way from step to step passes one that shows."""
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

    @property
    def _paused(self) -> float:
        return sum(hook.seconds for hook in self.pauses)

    def _count_from(self, now: float) -> None:
        self.waited, self.last_step, self.last_time = 0.0, self.step, now
        self.last_pause = self._paused

    def _measure(self, now: float) -> None:
        """Bring the rates up to date, from those of the steps since the last time."""
        if self.warm_time is None or self.step == self.last_step:
            return
        seconds = now - self.last_time - (self._paused - self.last_pause)
        steps = self.step - self.last_step
        self.rates = {
            "examples_per_sec": steps * self.batch_size / seconds,
            "step_ms": 1e3 * (seconds - self.waited) / steps,
            "input_wait_share": self.waited / seconds,
        }
        if self.summary_dir:
            add_scalars(self.summary_dir, self.rates, self.step)
        self._count_from(now)

    def _left(self, now: float) -> str:
        """The time left, as [h:]mm:ss."""
        assert self.warm_time is not None, "there are rates"
        per_step = (now - self.warm_time) / (self.step - self.warm_at)
        minutes, seconds = divmod(round((self.steps - self.step) * per_step), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

    def _text(self, scalars: dict[str, float], now: float) -> str:
        """A line of a log; or a short one, for a terminal of 80 columns."""
        short = self.line.live
        parts = [f"{self.step}/{self.steps}" if short else f"step {self.step} of {self.steps}"]
        parts.append(f"epoch {self.epoch_of(self.step):.1f}")
        parts += [f"{name} {value:.{3 if short else 4}f}" for name, value in scalars.items()]
        if self.rates:
            rate = f"{self.rates['examples_per_sec']:,.0f}"
            waiting = f"{100 * self.rates['input_wait_share']:.0f}%"
            if short:
                parts += [f"{rate}/s", f"{waiting} input"]
            else:
                step_ms = f"{self.rates['step_ms']:.1f} ms a step"
                parts += [f"{rate} examples/s", step_ms, f"{waiting} waiting for input"]
            parts.append(f"{self._left(now)} left")
        if short and len("  ".join(parts)) > self.line.width:
            del parts[1]
        return "  ".join(parts)


class GracefulStopHook(SessionRunHook):
    """Ctrl-C, SIGTERM and the end of `max_time` save a checkpoint and raise KeyboardInterrupt.

        stop = GracefulStopHook(model_dir)
        TrainSpec(..., hooks=[stop])
        EvalSpec(..., hooks=[stop.in_evaluation])

    The step is finished first. A second signal ends the process at once, with status 130; what was
    saved before stays whole. The handlers that were there come back with the end of the training.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, model_dir: str | Path, *, max_time: float | None = None, saves: bool = True):
        """
        Args:
            model_dir: where the checkpoint is saved.
            max_time: minutes from now; None: no limit.
            saves: whether this process is the one that saves.
        """
        self.saves = saves
        self.checkpoint = str(Path(model_dir) / "model.ckpt")
        self.deadline = math.inf if max_time is None else time.monotonic() + 60 * max_time
        self.asked = False
        self.in_evaluation = _StopInEvaluationHook(self)

    @property
    def due(self) -> bool:
        return self.asked or time.monotonic() >= self.deadline

    def begin(self) -> None:
        self.global_step = tf.compat.v1.train.get_global_step()
        self.before = {number: signal.signal(number, self._ask) for number in self.SIGNALS}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(130)
        self.asked = True

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self.due:
            session = run_context.session
            step = int(session.run(self.global_step))
            if not self.saves:
                raise KeyboardInterrupt(f"at step {step}; what the chief saved is whole")
            saver = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVERS)[0]
            saver.save(session, self.checkpoint, global_step=step)
            raise _saved_at(step)

    def end(self, session: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


class _StopInEvaluationHook(SessionRunHook):
    """Ends an evaluation within training, which comes right after a checkpoint."""

    def __init__(self, stop: GracefulStopHook):
        self.stop = stop

    def begin(self) -> None:
        self.global_step = tf.compat.v1.train.get_global_step()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self.stop.due:
            raise _saved_at(int(run_context.session.run(self.global_step)))


def _saved_at(step: int) -> KeyboardInterrupt:
    return KeyboardInterrupt(f"saved at step {step}; the same command goes on from there")


class CheckpointHook(tf.compat.v1.train.CheckpointSaverHook):
    """Saves at every step that is a multiple of `every`, wherever training began.

    TensorFlow's own counts from the step at which the process began, so that a run that was
    interrupted would be evaluated at other steps than one that was not.
    """

    def __init__(self, model_dir: str | Path, every: int):
        super().__init__(str(model_dir), save_steps=every)
        self._timer = _Multiples(every_steps=every)
        self.seconds = 0.0
        """Time spent in checkpoints, and in the evaluations that come after them."""

    def _save(self, session: Any, step: int) -> Any:
        begin = time.monotonic()
        should_stop = super()._save(session, step)
        self.seconds += time.monotonic() - begin
        return should_stop


class _Multiples(tf.compat.v1.train.SecondOrStepTimer):
    def __init__(self, every_steps: int):
        super().__init__(every_steps=every_steps)
        self.every = every_steps

    def should_trigger_for_step(self, step: int) -> bool:
        # Passed, and not only met: the hook asks with a step that may be read one too late first.
        return step // self.every > (self.last_triggered_step() or 0) // self.every


class EarlyStopHook(SessionRunHook):
    """Ends training after so many evaluations in a row without a better one.

    Another process may evaluate: what it writes down is looked at every EARLY_STOP_SECS.
    """

    def __init__(self, exporter: BestCheckpointExporter, evaluations: float):
        self.exporter, self.evaluations = exporter, evaluations
        self.looked = time.monotonic()

    @property
    def due(self) -> bool:
        return self.exporter.evaluations_without_improvement >= self.evaluations

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if time.monotonic() - self.looked > EARLY_STOP_SECS:
            self.looked = time.monotonic()
            self.exporter.read_patience()
        if self.due:
            run_context.request_stop()


class XlaHook(SessionRunHook):
    """Tells after the first step of how many parts of it XLA has made machine code."""

    def begin(self) -> None:
        self.told = False

    def before_run(self, run_context: Any) -> Any:
        graphs = tf.compat.v1.RunOptions(output_partition_graphs=True)
        return None if self.told else SessionRunArgs([], options=graphs)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self.told:
            self.told = True
            graphs = run_values.run_metadata.partition_graphs
            parts = sum(node.op == "_XlaRun" for graph in graphs for node in graph.node)
            what = f"{parts} parts of the step are compiled" if parts else "nothing was compiled"
            print(f"xla: {what}", flush=True)
