"""Stop training at the first loss or gradient that is not finite, before it does harm."""

import math
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

MESSAGE = "diverged: step, loss, variables, gradient norms"
VALUES = re.compile(re.escape(f"[{MESSAGE}]") + r" \[(.*?)\] \[(.*?)\] \[(.*?)\] \[(.*?)\]")


def assert_finite(
    loss: tf.Tensor,
    gradients: Sequence[tf.Tensor],
    variables: Sequence[tf.Variable],
    *,
    overflow_allowed: tf.Tensor | bool = False,
) -> tf.Operation:
    """An op that fails when the loss or the gradient of a variable is not finite.

    Let the update of the variables depend on it: then the session fails before the update, and no
    checkpoint is written. With `overflow_allowed`, gradients may overflow: a loss scale mends it.
    """
    norms = tf.stack([tf.norm(gradient) for gradient in gradients])
    finite = tf.math.is_finite(loss)
    finite &= overflow_allowed | tf.reduce_all(tf.math.is_finite(norms))
    names = tf.constant([variable.op.name for variable in variables])
    step = tf.compat.v1.train.get_global_step()
    return tf.debugging.Assert(finite, [MESSAGE, step, loss, names, norms], summarize=-1)


def read_divergence(error: tf.errors.InvalidArgumentError) -> dict[str, Any] | None:
    """What `assert_finite` saw, from the error of the session; None for another error.

    Returns:
        `step` (int, the last good one), `loss` (float), `gradient_norms` (floats by variable);
        numbers that are not finite are strings, since JSON has none.
    """
    found = VALUES.search(error.message)
    if not found:
        return None
    step, loss, names, norms = found.groups()
    norms = dict(zip(names.split(), map(_number, norms.split()), strict=True))
    return {"step": int(step), "loss": _number(loss), "gradient_norms": norms}


def _number(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else str(number)
