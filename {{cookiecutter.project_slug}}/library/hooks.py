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

WARM_UP = 5
"""Steps that are not timed: the first ones allocate memory and fill the input's buffers."""

EARLY_STOP_SECS = 5.0
"""From look to look at what another process has found in its evaluations."""

GET_NEXT = ("IteratorGetNext", "MultiDeviceIteratorGetNextFromShard")
"""What takes the next batch, for one device and for several."""

SessionRunHook = tf.compat.v1.train.SessionRunHook
SessionRunArgs = tf.compat.v1.train.SessionRunArgs


class ProgressHook(SessionRunHook):
    """Prints a line every so many steps, and writes its rates for TensorBoard.

    An iteration is the time that it waits for the input, and that of the training step. The first
    WARM_UP steps of a process, checkpoints and evaluations do not count in the rates; the time
    left has evaluations in it, like the time that has passed.
    """

    def __init__(
        self,
        loss: str,
        checkpoints: "CheckpointHook",
        *,
        every: int,
        steps: int,
        batch_size: int,
        examples: int,
        offset: int,
        summary_dir: str | Path | None,
        shared: bool = False,
    ):
        """
        Args:
            loss: the name of the scalar to show; fetched only at the steps that print.
            checkpoints: the hook whose time is none of the training step's.
            every: number of steps from line to line.
            steps: the step at which the run ends.
            batch_size: examples a step.
            examples: examples an epoch.
            offset: how many more examples the run has seen than steps of this batch size have.
            summary_dir: for `examples_per_sec`, `step_ms` and `input_wait_share`; None: for none.
            shared: whether other processes take steps of the same run.
        """
        self.loss_name, self.checkpoints, self.every, self.steps = loss, checkpoints, every, steps
        self.batch_size, self.examples, self.offset = batch_size, examples, offset
        self.summary_dir, self.shared = summary_dir, shared

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        self.global_step = tf.compat.v1.train.get_global_step()
        self.line = {"loss": graph.get_tensor_by_name(f"{self.loss_name}:0")}
        # The clock is read where a step begins, and where its input is there.
        inputs = [op for op in graph.get_operations() if op.type in GET_NEXT]
        begin = tf.timestamp()
        with tf.control_dependencies(inputs):
            self.each_step = {"waited": tf.timestamp() - begin}
        if self.shared:
            self.each_step |= {"step": self.global_step, **self.line}

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.step = int(session.run(self.global_step))
        self.warm_at = self.step + WARM_UP
        self.warm_time: float | None = None

    def before_run(self, run_context: Any) -> Any:
        due = self._due(self.step, self.step + 1)
        return SessionRunArgs(self.each_step | self.line if due else self.each_step)

    def _due(self, before: int, after: int) -> bool:
        """Whether the way from step to step passes one that prints."""
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
        if self._due(before, self.step):
            print(self._line(float(results["loss"]), now), flush=True)

    def _count_from(self, now: float) -> None:
        self.waited, self.last_step, self.last_time = 0.0, self.step, now
        self.last_pause = self.checkpoints.seconds

    def _line(self, loss: float, now: float) -> str:
        epoch = (self.step * self.batch_size + self.offset) / self.examples
        line = f"step {self.step} of {self.steps}  epoch {epoch:.1f}  loss {loss:.4f}"
        if self.warm_time is None or self.step == self.last_step:
            return line
        seconds = now - self.last_time - (self.checkpoints.seconds - self.last_pause)
        steps = self.step - self.last_step
        rates = {
            "examples_per_sec": steps * self.batch_size / seconds,
            "step_ms": 1e3 * (seconds - self.waited) / steps,
            "input_wait_share": self.waited / seconds,
        }
        if self.summary_dir:
            writer = tf.compat.v1.summary.FileWriterCache.get(str(self.summary_dir))
            values = [tf.compat.v1.Summary.Value(tag=k, simple_value=v) for k, v in rates.items()]
            writer.add_summary(tf.compat.v1.Summary(value=values), self.step)
        per_step = (now - self.warm_time) / (self.step - self.warm_at)
        left = round((self.steps - self.step) * per_step)
        self._count_from(now)
        return (
            f"{line}  {rates['examples_per_sec']:,.0f} examples/s  {rates['step_ms']:.1f} ms a step"
            f"  {100 * rates['input_wait_share']:.0f}% waiting for input"
            f"  {left // 60}:{left % 60:02} left"
        )


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
