"""What every model_fn needs: from a network, a head and an optimizer to an EstimatorSpec."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from library.distribute import average_over_replicas, num_replicas
from library.estimator import EstimatorSpec, ModeKeys
from library.estimator import export as estimator_export
from library.nn import (
    Optimizer,
    SyncReplicasShutdownHook,
    accumulate_gradients,
    averages_scaffold,
    clip_gradients,
    heat_maps,
    update_averages,
    with_loss_scale,
)
from library.report import show_inputs
from library.train.errors import assert_finite
from library.train.run import Run

Features = dict[str, tf.Tensor]
Network = Callable[..., tf.Tensor]
OptimizerOf = Callable[[tf.Tensor], tuple[Optimizer, tf.Tensor]]


def model_spec(
    features: Features,
    labels: tf.Tensor | None,
    mode: str,
    run: Run,
    *,
    network: Network,
    optimizer: OptimizerOf,
) -> EstimatorSpec:
    """Training, evaluation or prediction by a network and the head of the run.

    Training accumulates gradients, scales the loss, clips, stops at what is not finite, and writes
    summaries, as the hyperparameters and settings ask for; it works on any number of replicas.

    Args:
        features: what the network takes; for an evaluation also `key`, string [batch], the names of
            the files; for a prediction it may be of any type, and comes out as it is.
        labels: as the head takes them; None for a prediction.
        mode: one of ModeKeys.
        run: its settings, hyperparameters and head.
        network: features, `training` (bool), `dtype` (to compute in) -> float32
            [batch, head.logits_dimension].
        optimizer: the global step -> the optimizer and its learning rate, a scalar.

    Returns:
        Predictions are those of the head. The loss is averaged over examples, L2 included.
    """
    if mode == ModeKeys.TRAIN:
        return _training(features, labels, run, network=network, optimizer=optimizer)
    head = run.head
    # A prediction is what is exported, and that runs anywhere.
    with tf.xla.experimental.jit_scope(compile_ops=run.settings.xla and mode != ModeKeys.PREDICT):
        logits = network(features, training=False, dtype="float32")
    scaffold = averages_scaffold() if run.hyperparameters.average_decay else None
    if mode == ModeKeys.PREDICT:
        predictions = head.predictions(logits)
        output = estimator_export.PredictOutput(predictions)
        if "key" in features:
            predictions = {**predictions, "key": features["key"]}
        outputs = {"serving_default": output}
        return EstimatorSpec(mode, predictions, export_outputs=outputs, scaffold=scaffold)
    maps = heat_maps(logits)
    if maps is not None:
        maps = run.networks.on_drawn(features, maps)
    head.collect(labels, logits, run.drawn(features), features["key"], maps)
    # The Estimator averages what it is given with metrics.mean: given the loss of every example,
    # and not of every batch, that is the average over examples, the last partial batch included.
    # It asks for a scalar, but lets a tensor of unknown shape pass.
    losses = head.losses(labels, logits) + l2_loss(run)
    every_loss = tf.compat.v1.placeholder_with_default(losses, shape=None)
    metrics = head.metrics(labels, logits)
    return EstimatorSpec(mode, loss=every_loss, eval_metric_ops=metrics, scaffold=scaffold)


def l2_loss(run: Run) -> tf.Tensor:
    """`l2_regularization` times half the sum of the kernels' squares."""
    kernels = [v for v in tf.compat.v1.trainable_variables() if v.name.endswith("kernel:0")]
    l2 = tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
    return run.hyperparameters.l2_regularization * l2


@tf.autograph.experimental.do_not_convert  # as a strategy would: nothing here branches on tensors
def _training(
    features: Features, labels: tf.Tensor, run: Run, *, network: Network, optimizer: OptimizerOf
) -> EstimatorSpec:
    """One step of the optimizer; `features` and `labels` are this replica's share of the batch."""
    mode, step = ModeKeys.TRAIN, tf.compat.v1.train.get_global_step()
    params, head, dtype = run.hyperparameters, run.head, run.compute_dtype
    chosen, rate = optimizer(step)
    overflow_allowed: Any = False
    if dtype == "float16":
        chosen, overflow_allowed = with_loss_scale(chosen)
    variables: list[tf.Variable] = []

    def compute(features: Features, labels: tf.Tensor) -> tuple[Any, ...]:
        with tf.xla.experimental.jit_scope(compile_ops=run.settings.xla):
            logits = network(features, training=True, dtype=dtype)
        metrics = head.batch_metrics(labels, logits)
        loss = tf.reduce_mean(head.losses(labels, logits) + l2_loss(run))
        pairs = [pair for pair in chosen.compute_gradients(loss) if pair[0] is not None]
        gradients, variables[:] = zip(*pairs, strict=True)
        return loss, metrics, list(gradients)

    loss, metrics, gradients = accumulate_gradients(
        compute, (features, labels), num_splits=params.gradient_accumulation
    )
    assertion = assert_finite(loss, gradients, variables, overflow_allowed=overflow_allowed)
    loss, *values = average_over_replicas([loss, *metrics.values()])
    loss = tf.identity(loss, name="batch_loss")  # `loss` is the name of its summary
    for name, metric in zip(metrics, values, strict=True):
        tf.compat.v1.summary.scalar(name, tf.identity(metric, name=f"batch_{name}"))
    tf.compat.v1.summary.scalar("learning_rate", rate)
    if num_replicas() == 1:  # else each has a share, and the norm of one is not that of the sum
        tf.compat.v1.summary.scalar("gradient_norm", tf.linalg.global_norm(gradients))
    if "features" not in features:  # recorded ones cannot be drawn
        show_inputs(run.drawn(features), labels)
    updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)  # of batch norm
    with tf.control_dependencies([*updates, assertion]):
        if params.clip_gradient_norm is not None:
            gradients = clip_gradients(gradients, params.clip_gradient_norm)
        pairs = zip(gradients, variables, strict=True)
        if run.parallel.sync and run.cluster.has_servers and run.cluster.num_workers > 1:
            # Averages the gradients of all workers; none begins the next step before that (Chen et
            # al. 2016, https://arxiv.org/abs/1604.00981, without backup workers).
            workers = run.cluster.num_workers
            chosen = tf.compat.v1.train.SyncReplicasOptimizer(chosen, workers, workers)
            by_chief = chosen.make_session_run_hook(run.cluster.is_chief)
            hooks = [by_chief, SyncReplicasShutdownHook()]
            train_op = chosen.apply_gradients(pairs, step)
            if params.average_decay:
                with tf.control_dependencies([train_op]):  # which has counted the step
                    averages = update_averages(params.average_decay, step - 1)
                train_op = averages if run.cluster.is_chief else train_op  # once for all trainers
            return EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=hooks)
        done = chosen.apply_gradients(pairs)
        if params.average_decay:
            with tf.control_dependencies([done]):
                done = update_averages(params.average_decay, step)
        # Not by the optimizer: a step that overflows in float16 is a step of the data all the same.
        with tf.control_dependencies([done]):
            train_op = step.assign_add(1, read_value=False)
    return EstimatorSpec(mode, loss=loss, train_op=train_op)
