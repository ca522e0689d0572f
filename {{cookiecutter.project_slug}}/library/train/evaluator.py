"""Evaluate checkpoints that training has saved: one after a restart, or each as they come."""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from library.estimator import Estimator, EvalSpec, Exporter
from library.train.exporter import BestCheckpointExporter, global_step_of
from library.train.hooks import EarlyStopHook
from library.util import StatusLine

official: Any = importlib.import_module("tensorflow_estimator.python.estimator.estimator")

Hooks = Sequence[tf.compat.v1.train.SessionRunHook]
WIDTH = 80
"""Columns of the table: metrics that do not fit are in TensorBoard."""


@dataclasses.dataclass(eq=False)
class KeptEvaluation(tf.compat.v1.train.SessionCreator):
    """`Estimator.evaluate` for one checkpoint after another: graph, session and input stay.

        estimator.evaluate = KeptEvaluation(estimator)

    The first evaluation makes them, and counts the batches. Each later one loads the variables,
    resets the metrics, takes as many batches of the repeated input and calls the same hooks: it
    finds, writes and returns the same. After one that fails or stops early, the next is a first.
    """

    estimator: Estimator
    made_for: Any = None  # what the graph evaluates: input and hooks
    session: Any = None
    starts: Sequence[Any] = ()  # the next ones of the input; after them it goes on
    batches: int | None = None  # of the input; None: not known yet

    def __call__(
        self,
        input_fn: Callable[[], tf.data.Dataset],
        steps: None = None,  # all of the input
        hooks: Hooks = (),
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        asked, made_for, self.made_for = (input_fn, *hooks), self.made_for, None
        if asked != made_for:
            self._make(input_fn, hooks)
        self.checkpoint, taken, whole = checkpoint_path, 0, True
        final = tf.compat.v1.train.FinalOpsHook(self.metrics)
        with self.graph.as_default():
            with tf.compat.v1.train.MonitoredSession(self, [*self.hooks, final]) as session:
                while not session.should_stop() and taken != self.batches:
                    session.run(self.update)
                    taken += 1
                whole = taken == self.batches  # not reached at the end of the first input
            metrics: dict[str, Any] = final.final_ops_values
            folder, step = self.estimator.eval_dir(name), metrics["global_step"]
            official._write_dict_to_summary(folder, metrics, step)
            official._write_checkpoint_path_to_summary(folder, checkpoint_path, step)
        self.batches, self.starts, self.made_for = taken, self.starts[1:], asked if whole else None
        return metrics

    def _make(self, input_fn: Callable[[], tf.data.Dataset], hooks: Hooks) -> None:
        def batch() -> Any:
            dataset = input_fn()
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            options = tf.data.Options()
            options.experimental_optimization.inject_prefetch = False  # nothing is read in between
            # Starting an input takes longer than to go on with one that is repeated.
            again = iterator.make_initializer(dataset.repeat().with_options(options))
            self.starts = [iterator.initializer, again]
            return iterator.get_next()

        self.graph, self.session, self.batches = tf.Graph(), None, None
        with self.graph.as_default():
            made = self.estimator._evaluate_build_graph(batch, hooks)
        self.scaffold, self.update, self.metrics, self.hooks = made

    def create_session(self) -> tf.compat.v1.Session:
        """The session, with the variables of the checkpoint: called by MonitoredSession."""
        if self.session is None:
            self.session = tf.compat.v1.train.ChiefSessionCreator(
                self.scaffold,
                config=self.estimator._session_config,
                checkpoint_filename_with_path=self.checkpoint,
            ).create_session()
            self.session.close = lambda: None  # which MonitoredSession would do in the end
        else:
            self.graph.finalize()
            self.scaffold.saver.restore(self.session, self.checkpoint)
            self.session.run(self.scaffold.local_init_op)
        self.session.run(self.starts[:1])
        return self.session


def evaluate_checkpoint(estimator: Estimator, spec: EvalSpec, checkpoint: str) -> None:
    """Evaluate a checkpoint, and call the exporters, as `train_and_evaluate` does."""
    metrics = estimator.evaluate(spec.input_fn, checkpoint_path=checkpoint, hooks=spec.hooks)
    for exporter in spec.exporters:
        facts = {"export_path": "", "checkpoint_path": checkpoint, "is_the_final_export": False}
        exporter.export(estimator=estimator, eval_result=metrics, **facts)


def evaluate_checkpoints(
    estimator: Estimator, spec: EvalSpec, *, steps: int, early_stop: EarlyStopHook
) -> None:
    """The task of an evaluator: evaluate the latest checkpoint that the chief has saved.

    It ends at the step `steps`, or when `early_stop`, whose exporter is one of the spec's, is due.
    """
    for checkpoint in tf.train.checkpoints_iterator(estimator.model_dir):
        try:
            step = global_step_of(checkpoint)
            if early_stop.exporter.evaluated_step != step:
                evaluate_checkpoint(estimator, spec, checkpoint)
        except (tf.errors.OpError, OSError, ValueError):
            if tf.io.gfile.exists(f"{checkpoint}.index"):
                raise
            continue  # the chief has deleted it by now: a newer one is there
        if step >= steps or early_stop.due:
            return


@dataclasses.dataclass(eq=False)
class EvaluationTable(Exporter):
    """Prints a row after each evaluation; it comes after `best` among the exporters.

    step   epoch      loss  accuracy
      92     2.0    0.9421    0.7143  best
     184     4.0    1.0113    0.6825
    """

    best: BestCheckpointExporter
    line: StatusLine
    epoch_of: Callable[[int], float]
    begun: bool = False
    name = "evaluation_table"

    def export(self, *, eval_result: dict[str, Any], **others: Any) -> None:
        step = int(eval_result["global_step"])
        header, row = "    step   epoch", f"{step:8}  {self.epoch_of(step):6.1f}"
        mark = "  best"
        for name in sorted(eval_result, key=lambda name: (name != self.best.metric, name)):
            width = max(len(name), 8)
            if name != "global_step" and len(header) + 2 + width + len(mark) <= WIDTH:
                header += f"  {name:>{width}}"
                row += f"  {eval_result[name]:{width}.4f}"
        if not self.begun:
            self.line.print(header)
        self.begun = True
        self.line.print(row + mark * (self.best.evaluations_without_improvement == 0))
