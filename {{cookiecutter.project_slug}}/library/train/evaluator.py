"""Evaluate checkpoints that training has saved: one after a restart, or each as they come."""

import tensorflow as tf

from library.estimator import Estimator, EvalSpec
from library.train.exporter import global_step_of
from library.train.hooks import EarlyStopHook


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
