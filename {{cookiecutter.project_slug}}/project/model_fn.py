"""The model: features, labels, mode, params -> EstimatorSpec."""

import math
from typing import Any

import tensorflow as tf

from library.distribute import average_over_replicas
from library.estimator import EstimatorSpec, ModeKeys
from library.estimator import export as estimator_export
from library.nn import (
    Adam,
    SyncReplicasShutdownHook,
    accumulate_gradients,
    clip_gradients,
    sync_replicas,
    with_loss_scale,
)
from library.report import show_inputs, tell
from library.train import assert_finite
from project.networks import logits_of, pictures_of


def model_fn(
    features: dict[str, tf.Tensor],
    labels: tf.Tensor | None,
    mode: str,
    params: dict[str, Any],
) -> EstimatorSpec:
    """A classifier.

    Args:
        features: what `project.networks.logits_of` takes; for an evaluation also `key`, string
            [batch], the names of the files; for a prediction it may be of any type, and comes out
            as it is.
        labels: int64 [batch], None for a prediction.
        mode: one of ModeKeys.
        params: the fields of Hyperparameters, and `class_names`, `random_seed`, `xla`; for
            training also `compute_dtype`, `sync_workers` (with parameter servers, the processes
            that share a batch; else 0), `is_chief`, and what `learning_rate` needs.

    Returns:
        The EstimatorSpec for this mode. The predictions are, for each example, `class` (its name,
        string), `probability` (of that class, float32) and `probabilities` (float32 [classes]).
    """
    if mode == ModeKeys.TRAIN:
        return _training(features, labels, params)

    logits = _logits(features, mode, params | {"compute_dtype": "float32"})
    predicted, probabilities = tf.argmax(logits, axis=-1), tf.nn.softmax(logits)
    if mode == ModeKeys.PREDICT:
        predictions = {
            "class": tf.gather(tf.constant(params["class_names"]), predicted),
            "probability": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities,
        }
        output = estimator_export.PredictOutput(predictions)
        if "key" in features:
            predictions = {**predictions, "key": features["key"]}
        return EstimatorSpec(
            mode, predictions=predictions, export_outputs={"serving_default": output}
        )

    pictures = pictures_of(features, params)
    tell(labels=labels, probabilities=probabilities, pictures=pictures, keys=features["key"])
    # The Estimator averages what it is given with metrics.mean: given the loss of every example,
    # and not of every batch, that is the average over examples, the last partial batch included.
    # It asks for a scalar, but lets a tensor of unknown shape pass.
    losses = _losses(logits, labels, params)
    every_loss = tf.compat.v1.placeholder_with_default(losses, shape=None)
    return EstimatorSpec(mode, loss=every_loss, eval_metric_ops=_metrics(logits, predicted, labels))


@tf.autograph.experimental.do_not_convert  # as a strategy would: nothing here branches on tensors
def _training(
    features: dict[str, tf.Tensor], labels: tf.Tensor, params: dict[str, Any]
) -> EstimatorSpec:
    """One step of the optimizer; `features` and `labels` are this replica's share of the batch."""
    mode, step = ModeKeys.TRAIN, tf.compat.v1.train.get_global_step()
    rate = learning_rate(step, params)
    optimizer = adam = Adam(
        rate,
        beta1=params["adam_beta1"],
        beta2=params["adam_beta2"],
        epsilon=params["adam_epsilon"],
    )
    overflow_allowed = False
    if params["compute_dtype"] == "float16":
        optimizer, overflow_allowed = with_loss_scale(adam)

    def compute(features: dict[str, tf.Tensor], labels: tf.Tensor) -> tuple[list[tf.Tensor], ...]:
        logits = _logits(features, mode, params)
        right = tf.equal(tf.argmax(logits, axis=-1), labels)
        loss = tf.reduce_mean(_losses(logits, labels, params))
        accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
        pairs = [pair for pair in optimizer.compute_gradients(loss) if pair[0] is not None]
        gradients, variables[:] = zip(*pairs, strict=True)
        return [loss, accuracy], list(gradients)

    variables: list[tf.Variable] = []
    (loss, accuracy), gradients = accumulate_gradients(
        compute, (features, labels), num_splits=params["gradient_accumulation"]
    )
    assertion = assert_finite(loss, gradients, variables, overflow_allowed=overflow_allowed)
    loss, accuracy = average_over_replicas([loss, accuracy])
    loss = tf.identity(loss, name="batch_loss")  # `loss` is the name of its summary
    accuracy = tf.identity(accuracy, name="batch_accuracy")
    tf.compat.v1.summary.scalar("accuracy", accuracy)
    tf.compat.v1.summary.scalar("learning_rate", rate)
    tf.compat.v1.summary.scalar("gradient_norm", tf.linalg.global_norm(gradients))
    show_inputs(pictures_of(features, params), labels)
    updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)  # of batch norm
    with tf.control_dependencies([*updates, assertion]):
        if params["clip_gradient_norm"] is not None:
            gradients = clip_gradients(gradients, params["clip_gradient_norm"])
        pairs = zip(gradients, variables, strict=True)
        if params["sync_workers"] > 1:
            optimizer = sync_replicas(optimizer, params["sync_workers"])
            hooks = [
                optimizer.make_session_run_hook(params["is_chief"]),
                SyncReplicasShutdownHook(),
            ]
            train_op = optimizer.apply_gradients(pairs, step)
            return EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=hooks)
        # Not by the optimizer: a step that overflows in float16 is a step of the data all the same.
        with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
            train_op = step.assign_add(1, read_value=False)
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def _logits(features: dict[str, tf.Tensor], mode: str, params: dict[str, Any]) -> tf.Tensor:
    """float32 [batch, classes]; compiled when the option xla asks for it."""
    # A prediction is what is exported, and that runs anywhere.
    with tf.xla.experimental.jit_scope(compile_ops=params["xla"] and mode != ModeKeys.PREDICT):
        return logits_of(
            features,
            num_classes=len(params["class_names"]),
            training=mode == ModeKeys.TRAIN,
            params=params,
        )


def learning_rate(step: tf.Tensor, params: dict[str, Any]) -> tf.Tensor:
    """The step size, a function of the global step alone: a run that goes on goes on with it.

    Args:
        step: scalar, int64.
        params: `learning_rate`, `learning_rate_schedule`, `warmup_epochs`, `decay_epochs`,
            `decay_rate`; `train_batch_size`; `num_examples` of an epoch; `examples_offset`, which
            is how many more examples the run has seen than steps of this batch size have.

    Returns:
        float32 scalar.
    """
    batch_size, num_examples = params["train_batch_size"], params["num_examples"]
    examples = step * batch_size + params["examples_offset"]
    epochs = tf.cast(examples, tf.float32) / num_examples
    decays = tf.maximum(epochs - params["warmup_epochs"], 0.0) / params["decay_epochs"]
    schedule = params["learning_rate_schedule"]
    factor = tf.constant(1.0)
    if schedule == "cosine":  # without restarts: https://arxiv.org/abs/1608.03983
        factor = (1 + tf.cos(math.pi * tf.minimum(decays, 1.0))) / 2
    elif schedule == "step":
        factor = params["decay_rate"] ** tf.floor(decays)
    elif schedule == "exponential":
        factor = params["decay_rate"] ** decays
    if params["warmup_epochs"]:
        factor *= tf.minimum((epochs + batch_size / num_examples) / params["warmup_epochs"], 1)
    return params["learning_rate"] * factor


def _losses(logits: tf.Tensor, labels: tf.Tensor, params: dict[str, Any]) -> tf.Tensor:
    """Cross entropy with smoothed labels, plus L2 of the kernels: float32 [batch]."""
    num_classes = logits.shape[-1]
    smoothing = params["xentropy_label_smoothing"]
    targets = tf.one_hot(labels, num_classes) * (1 - smoothing) + smoothing / num_classes
    xentropy = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    kernels = [v for v in tf.compat.v1.trainable_variables() if v.name.endswith("kernel:0")]
    l2 = tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
    return xentropy + params["l2_regularization"] * l2


def _metrics(logits: tf.Tensor, predicted: tf.Tensor, labels: tf.Tensor) -> dict[str, Any]:
    """Averages over all examples, but for the mean of the classes' own accuracies."""
    num_classes = logits.shape[-1]
    metrics = {
        "accuracy": tf.compat.v1.metrics.accuracy(labels, predicted),
        "mean_per_class_accuracy": tf.compat.v1.metrics.mean_per_class_accuracy(
            labels, predicted, num_classes
        ),
    }
    if num_classes > 5:
        in_top_5 = tf.nn.in_top_k(labels, logits, k=5)
        metrics["top_5_accuracy"] = tf.compat.v1.metrics.mean(tf.cast(in_top_5, tf.float32))
    return metrics
