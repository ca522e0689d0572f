"""The hyperparameters that every modality shares."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from library.config.options import architecture, option


@dataclasses.dataclass(frozen=True)
class HeadHyperparameters:
    """Head"""

    head: str | None = architecture(
        None,
        "classification, multi_label, regression, or one of the project; null: as the labels ask",
    )
    dropout_rate: float = option(
        0.3, "share of features dropped before the last layer", minimum=0, maximum=0.9
    )
    xentropy_label_smoothing: float = option(
        0.1, "share of each label spread over all classes", minimum=0, maximum=0.9
    )
    class_weights: str = option(
        "none",
        "weight of an example's loss; balanced: the rarer its class, the more",
        choices=("none", "balanced"),
    )
    l2_regularization: float = option(1e-5, "weight of half the squared kernels", minimum=0)


@dataclasses.dataclass(frozen=True)
class OptimizerHyperparameters:
    """Optimization"""

    # Checkpoints hold what it remembers.
    optimizer: str = architecture(
        "adam", "sgd has Nesterov momentum", choices=("adam", "adamw", "sgd")
    )
    learning_rate: float = option(3e-3, "step size after the warm-up", above=0)
    learning_rate_schedule: str = option(
        "cosine",
        "how learning_rate changes after the warm-up",
        choices=("constant", "cosine", "step", "exponential"),
    )
    warmup_epochs: float | None = option(
        None, "epochs in which learning_rate rises from 0; null: a tenth of the run", minimum=0
    )
    decay_epochs: float | None = option(
        None, "epochs until cosine is 0, or per decay; null: all after the warm-up", above=0
    )
    decay_rate: float = option(0.5, "factor of a step or exponential decay", above=0, maximum=1)
    momentum: float = option(0.9, "momentum of sgd", minimum=0, maximum=0.999999)
    weight_decay: float = option(1e-4, "decay of weights by adamw, times learning_rate", minimum=0)
    adam_beta1: float = option(0.9, "decay of the gradients' mean", minimum=0, maximum=0.999999)
    adam_beta2: float = option(0.999, "decay of their squares' mean", minimum=0, maximum=0.999999)
    adam_epsilon: float = option(1e-8, "added to Adam's denominator", above=0)
    # Checkpoints hold the average.
    average_decay: float = architecture(
        0.98,
        "decay of the average of weights that is evaluated and exported; 0: the last weights",
        minimum=0,
        maximum=0.999999,
    )
    gradient_accumulation: int = option(1, "splits of a batch, computed in turn", minimum=1)
    clip_gradient_norm: float | None = option(None, "largest global norm of gradients", above=0)


@dataclasses.dataclass(frozen=True)
class TrainingHyperparameters(HeadHyperparameters, OptimizerHyperparameters):
    """The hyperparameters that every modality shares."""

    # Options that `run.py tune` searches: a range, or values to choose from; None: up to ten times
    # more or less than the value, unless that is 0.
    searched: ClassVar[Mapping[str, tuple[Any, ...] | None]] = {
        "learning_rate": None,
        "weight_decay": None,
        "l2_regularization": None,
        "dropout_rate": (0.0, 0.6),
    }
