"""What happens beside the training steps: the progress line, stopping well, stopping early."""

import math
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf

from library.exporter import BestCheckpointExporter

SessionRunHook = tf.compat.v1.train.SessionRunHook
SessionRunArgs = tf.compat.v1.train.SessionRunArgs


class ProgressHook(SessionRunHook):
    """Prints a line every so many steps: step, epoch, loss, examples/s, time left."""

    def __init__(
        self, loss: str, *, every: int, steps: int, batch_size: int, examples: int, offset: int
    ):
        """
        Args:
            loss: the name of the scalar to show; fetched only at the steps that print.
            every: number of steps from line to line.
            steps: the step at which the run ends.
            batch_size: examples a step.
            examples: examples an epoch.
            offset: how many more examples the run has seen than steps of this batch size have.
        """
        self.loss_name, self.every, self.steps = loss, every, steps
        self.batch_size, self.examples, self.offset = batch_size, examples, offset

    def begin(self) -> None:
        self.loss = tf.compat.v1.get_default_graph().get_tensor_by_name(f"{self.loss_name}:0")
        self.global_step = tf.compat.v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.step = int(session.run(self.global_step))
        self.last_step, self.last_time = self.step, time.monotonic()

    def before_run(self, run_context: Any) -> Any:
        due = (self.step + 1) % self.every == 0 or self.step + 1 == self.steps
        return SessionRunArgs(self.loss if due else None)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.step += 1
        if run_values.results is None:
            return
        now = time.monotonic()
        rate = (self.step - self.last_step) / max(now - self.last_time, 1e-9)
        left = round((self.steps - self.step) / rate)
        print(
            f"step {self.step} of {self.steps}"
            f"  epoch {(self.step * self.batch_size + self.offset) / self.examples:.1f}"
            f"  loss {float(run_values.results):.4f}"
            f"  {rate * self.batch_size:,.0f} examples/s"
            f"  {left // 60}:{left % 60:02} left",
            flush=True,
        )
        self.last_step, self.last_time = self.step, now


class GracefulStopHook(SessionRunHook):
    """Ctrl-C, SIGTERM and the end of `max_time` save a checkpoint and raise KeyboardInterrupt.

        stop = GracefulStopHook(model_dir)
        TrainSpec(..., hooks=[stop])
        EvalSpec(..., hooks=[stop.in_evaluation])

    The step is finished first. A second signal ends the process at once, with status 130; what was
    saved before stays whole. The handlers that were there come back with the end of the training.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, model_dir: str | Path, *, max_time: float | None = None):
        """
        Args:
            model_dir: where the checkpoint is saved.
            max_time: minutes from now; None: no limit.
        """
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


class _Multiples(tf.compat.v1.train.SecondOrStepTimer):
    def __init__(self, every_steps: int):
        super().__init__(every_steps=every_steps)
        self.every = every_steps

    def should_trigger_for_step(self, step: int) -> bool:
        # Passed, and not only met: the hook asks with a step that may be read one too late first.
        return step // self.every > (self.last_triggered_step() or 0) // self.every


class EarlyStopHook(SessionRunHook):
    """Ends training after so many evaluations in a row without a better one."""

    def __init__(self, exporter: BestCheckpointExporter, evaluations: int):
        self.exporter, self.evaluations = exporter, evaluations

    @property
    def due(self) -> bool:
        return self.exporter.evaluations_without_improvement >= self.evaluations

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self.due:
            run_context.request_stop()
