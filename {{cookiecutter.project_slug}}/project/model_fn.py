"""The model: network, head and optimizer. Change the loss or the optimizer here."""

import math

import tensorflow as tf

from library import heads
from library.estimator import EstimatorSpec
from library.nn import SGD, Adam, AdamW, Optimizer
from library.train import Run, model_spec
from project.networks import outputs_of
from project.settings import Hyperparameters

HEADS: dict[str, type[heads.Head]] = {**heads.HEADS}
"""What is learned, by the hyperparameter `head`; docs/make_it_yours.md adds one."""


def model_fn(
    features: dict[str, tf.Tensor],
    labels: tf.Tensor | None,
    mode: str,
    params: Hyperparameters,
    *,
    run: Run,
) -> EstimatorSpec:
    """The network that `network` names, the head that fits the labels, and the optimizer.

    Args:
        features: of project/input_fn.py; see `library.train.model_spec`.
        labels: int64 [batch], float32 [batch, classes] or float32 [batch], as the head takes them.
        run: the rest that a model may depend on: its plan, settings and head.
    """

    def network(features: dict[str, tf.Tensor], *, training: bool, dtype: str) -> tf.Tensor:
        return outputs_of(
            features, run.head, training=training, dtype=dtype, params=params, seed=run.seed
        )

    def optimizer(step: tf.Tensor) -> tuple[Optimizer, tf.Tensor]:
        assert run.plan is not None, "a training has one"
        epochs, last = run.plan.epochs(step), run.settings.train_epochs
        rate = learning_rate(epochs, params, per_step=run.plan.epochs_per_step, last=last)
        return optimizer_of(params, rate), rate

    return model_spec(features, labels, mode, run, network=network, optimizer=optimizer)


def optimizer_of(params: Hyperparameters, rate: tf.Tensor) -> Optimizer:
    """The optimizer that the hyperparameter `optimizer` names, at a learning rate."""
    adam = {"beta1": params.adam_beta1, "beta2": params.adam_beta2, "epsilon": params.adam_epsilon}
    match params.optimizer:
        case "adam":
            return Adam(rate, **adam)
        case "adamw":
            return AdamW(rate, weight_decay=params.weight_decay, **adam)
        case "sgd":
            return SGD(rate, momentum=params.momentum)
    raise ValueError(f"optimizer: {params.optimizer} is not one of adam, adamw, sgd")


def learning_rate(
    epochs: tf.Tensor, params: Hyperparameters, *, per_step: float, last: float
) -> tf.Tensor:
    """The learning rate, a function of the epochs so far alone: a resumed run continues with it.

    Args:
        epochs: since the beginning of the run, float32 scalar, as the rate is.
        per_step: epochs of a step, so that the first step of a warm-up has a rate above 0.
        last: the epoch at which the run ends.
    """
    warmup_epochs = last / 10 if params.warmup_epochs is None else params.warmup_epochs
    decay_epochs = params.decay_epochs or max(last - warmup_epochs, per_step)
    decays = tf.maximum(epochs - warmup_epochs, 0.0) / decay_epochs
    factor = tf.constant(1.0)
    match params.learning_rate_schedule:
        case "cosine":  # without restarts: https://arxiv.org/abs/1608.03983
            factor = (1 + tf.cos(math.pi * tf.minimum(decays, 1.0))) / 2
        case "step":
            factor = params.decay_rate ** tf.floor(decays)
        case "exponential":
            factor = params.decay_rate**decays
    if warmup_epochs:
        factor *= tf.minimum((epochs + per_step) / warmup_epochs, 1)
    return params.learning_rate * factor
