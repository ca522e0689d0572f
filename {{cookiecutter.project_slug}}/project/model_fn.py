"""The model: features, labels, mode, params -> EstimatorSpec."""

from typing import Any

import tensorflow as tf

from library.estimator import EstimatorSpec, ModeKeys
from library.estimator import export as estimator_export
from project.networks import NETWORKS


def model_fn(
    features: dict[str, tf.Tensor],
    labels: tf.Tensor | None,
    mode: str,
    params: dict[str, Any],
) -> EstimatorSpec:
    """A classifier of pictures.

    Args:
        features: `image`, float32 [batch, image_size, image_size, 3] in [-1, 1].
        labels: int64 [batch], None for a prediction.
        mode: one of ModeKeys.
        params: the fields of Hyperparameters, and `class_names`, `random_seed`, `xla`.

    Returns:
        The EstimatorSpec for this mode. The predictions are, for each picture, `class` (its name,
        string), `probability` (of that class, float32) and `probabilities` (float32 [classes]).
    """
    class_names = params["class_names"]
    with tf.xla.experimental.jit_scope(compile_ops=params["xla"]):
        logits = NETWORKS[params["network"]](
            features["image"],
            num_classes=len(class_names),
            training=mode == ModeKeys.TRAIN,
            dropout_rate=params["dropout_rate"],
            seed=params["random_seed"],
        )
    predicted = tf.argmax(logits, axis=-1)

    if mode == ModeKeys.PREDICT:
        probabilities = tf.nn.softmax(logits)
        predictions = {
            "class": tf.gather(tf.constant(class_names), predicted),
            "probability": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities,
        }
        output = estimator_export.PredictOutput(predictions)
        return EstimatorSpec(
            mode, predictions=predictions, export_outputs={"serving_default": output}
        )

    losses = _losses(logits, labels, params)
    if mode == ModeKeys.EVAL:
        # The Estimator averages what it is given with metrics.mean: given the loss of every
        # example, and not of every batch, that is the average over examples, the last partial
        # batch included. It asks for a scalar, but lets a tensor of unknown shape pass.
        every_loss = tf.compat.v1.placeholder_with_default(losses, shape=None)
        metrics = _metrics(logits, predicted, labels)
        return EstimatorSpec(mode, loss=every_loss, eval_metric_ops=metrics)

    loss = tf.reduce_mean(losses, name="batch_loss")  # `loss` is the name of its summary
    accuracy = tf.reduce_mean(tf.cast(tf.equal(predicted, labels), tf.float32))
    tf.compat.v1.summary.scalar("accuracy", accuracy)
    optimizer = tf.compat.v1.train.AdamOptimizer(
        params["learning_rate"],
        beta1=params["adam_beta1"],
        beta2=params["adam_beta2"],
        epsilon=params["adam_epsilon"],
    )
    updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)  # of batch norm
    with tf.control_dependencies(updates):
        train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def _losses(logits: tf.Tensor, labels: tf.Tensor, params: dict[str, Any]) -> tf.Tensor:
    """Cross entropy with smoothed labels, plus L2 of the kernels: float32 [batch]."""
    num_classes = logits.shape[-1]
    smoothing = params["xentropy_label_smoothing"]
    targets = tf.one_hot(labels, num_classes) * (1 - smoothing) + smoothing / num_classes
    xentropy = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    kernels = [v for v in tf.compat.v1.trainable_variables() if v.op.name.endswith("kernel")]
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
