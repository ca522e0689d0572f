"""Hooks of a training: checkpoints, stopping gracefully, stopping early, XLA, thresholds."""

import dataclasses
import math
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf

from library.estimator import SessionRunArgs, SessionRunHook
from library.report import StatsHook
from library.train.checkpoints import SafeSaver
from library.train.exporter import BestCheckpointExporter
from library.train.run import Run

EARLY_STOP_SECS = 5.0
"""Seconds between looks at the evaluations of another process."""


class GracefulStopHook(SessionRunHook):
    """Ctrl-C, SIGTERM and the end of `max_minutes` save a checkpoint and raise KeyboardInterrupt.

        stop = GracefulStopHook(model_dir)
        TrainSpec(..., hooks=[stop])
        EvalSpec(..., hooks=[stop.in_evaluation])

    The step is finished first. A second signal ends the process at once, with status 130; what was
    saved before stays whole. The previous handlers come back at the end of the training.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(
        self, model_dir: str | Path, *, max_minutes: float | None = None, saves: bool = True
    ):
        """`saves` says whether this process is the one that saves."""
        self.checkpoint, self.saves = str(Path(model_dir) / "model.ckpt"), saves
        self.deadline = math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes
        self.asked = self.stepped = False
        self.before: dict[int, Any] = {}
        self.in_evaluation = _StopInEvaluationHook(self)

    @property
    def due(self) -> bool:
        # Not before a step: each start makes progress, however long it takes to get there.
        return self.asked or (self.stepped and time.monotonic() >= self.deadline)

    def begin(self) -> None:
        self.global_step = tf.compat.v1.train.get_global_step()
        self.before = {number: signal.signal(number, self._ask) for number in self.SIGNALS}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(130)
        self.asked = True

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.stepped = True
        if not self.due:
            return
        session = run_context.session
        step = int(session.run(self.global_step))
        if not self.saves:
            raise KeyboardInterrupt(f"at step {step}; the chief's last checkpoint is complete")
        saver = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVERS)[0]
        saver.save(session, self.checkpoint, global_step=step)
        raise _saved_at(step)

    def end(self, session: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


@dataclasses.dataclass(eq=False)
class _StopInEvaluationHook(SessionRunHook):
    """Ends an evaluation within training, which comes right after a checkpoint."""

    stop: GracefulStopHook

    def begin(self) -> None:
        self.global_step = tf.compat.v1.train.get_global_step()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self.stop.due:
            raise _saved_at(int(run_context.session.run(self.global_step)))


def _saved_at(step: int) -> KeyboardInterrupt:
    return KeyboardInterrupt(f"saved at step {step}; run the same command to resume")


class CheckpointHook(tf.compat.v1.train.CheckpointSaverHook):
    """Saves at every step that is a multiple of `every`, wherever training began.

    TensorFlow's own counts from the step at which the process began, so that a run that was
    interrupted would be evaluated at other steps than one that was not.
    """

    def __init__(self, model_dir: str | Path, every: int, *, keep: int = 5):
        # The graph is in TensorBoard's events; as text, it takes long to write, and is not read.
        super().__init__(str(model_dir), save_steps=every, save_graph_def=False)
        self.keep = keep
        self._timer = _Multiples(every_steps=every)
        self.seconds = 0.0
        """Time spent in checkpoints, and in the evaluations that come after them."""

    def begin(self) -> None:
        super().begin()
        savers = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.SAVERS)
        savers[:] = [SafeSaver(max_to_keep=self.keep)]  # in the place of the Estimator's own

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

    Another process may evaluate: its findings are read every EARLY_STOP_SECS.
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
    """Prints after the first step how many parts of it XLA has compiled."""

    done = False

    def before_run(self, run_context: Any) -> Any:
        graphs = tf.compat.v1.RunOptions(output_partition_graphs=True)
        return None if self.done else SessionRunArgs([], options=graphs)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self.done:
            self.done = True
            graphs = run_values.run_metadata.partition_graphs
            parts = sum(node.op == "_XlaRun" for graph in graphs for node in graph.node)
            what = f"{parts} parts of the step are compiled" if parts else "nothing was compiled"
            print(f"xla: {what}", flush=True)


@dataclasses.dataclass(eq=False)
class ThresholdsHook(SessionRunHook):
    """Keeps the thresholds that an evaluation has chosen in model.json, for the best checkpoint."""

    run: Run
    evaluation: StatsHook

    def end(self, session: tf.compat.v1.Session) -> None:
        thresholds = getattr(self.evaluation.stats, "thresholds", ())
        if thresholds:
            model = self.run.model
            target = dataclasses.replace(model.target, thresholds=tuple(thresholds))
            dataclasses.replace(model, target=target).save(self.run.settings.model_dir)
