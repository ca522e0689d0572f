"""Evaluate checkpoints that training has saved: one after a restart, or each as they come."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from library.estimator import Estimator, EvalSpec
from library.train.exporter import global_step_of
from library.train.hooks import EarlyStopHook

official: Any = importlib.import_module("tensorflow_estimator.python.estimator.estimator")

Hooks = Sequence[tf.compat.v1.train.SessionRunHook]


class KeptEvaluation(tf.compat.v1.train.SessionCreator):
    """`Estimator.evaluate` for one checkpoint after another: graph, session and input stay.

        estimator.evaluate = KeptEvaluation(estimator)

    The first evaluation makes them. Each later one loads the variables, resets the metrics, starts
    the input at its beginning and calls the same hooks: it finds, writes and returns the same. An
    evaluation that fails leaves nothing to the next one, which is then a first one.
    """

    def __init__(self, estimator: Estimator):
        self.estimator = estimator
        self.made_for: Any = None  # what the graph evaluates: input and hooks
        self.session: Any = None

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
        self.checkpoint = checkpoint_path
        final = tf.compat.v1.train.FinalOpsHook(self.metrics)
        with self.graph.as_default():
            with tf.compat.v1.train.MonitoredSession(self, [*self.hooks, final]) as session:
                while not session.should_stop():
                    session.run(self.update)
            metrics: dict[str, Any] = final.final_ops_values
            folder, step = self.estimator.eval_dir(name), metrics["global_step"]
            official._write_dict_to_summary(folder, metrics, step)
            official._write_checkpoint_path_to_summary(folder, checkpoint_path, step)
        self.made_for = asked
        return metrics

    def _make(self, input_fn: Callable[[], tf.data.Dataset], hooks: Hooks) -> None:
        self.graph, self.session = tf.Graph(), None
        with self.graph.as_default():
            made = self.estimator._evaluate_build_graph(input_fn, hooks)
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
        return self.session


def evaluate_checkpoint(estimator: Estimator, spec: EvalSpec, checkpoint: str) -> None:
    """Evaluate a checkpoint, and call the exporters, as `train_and_evaluate` does."""
    metrics = estimator.evaluate(spec.input_fn, checkpoint_path=checkpoint, hooks=spec.hooks)
    for exporter in spec.exporters:
        exporter.export(estimator, "", checkpoint, metrics, is_the_final_export=False)


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
