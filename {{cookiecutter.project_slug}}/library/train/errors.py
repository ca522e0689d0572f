"""TensorFlow errors that the user can act on, as one-line errors; training that diverges."""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from library.data import verify
from library.train.plan import Plan
from library.train.run import Run
from library.util import RunError, UserError, write_json

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


@contextlib.contextmanager
def translate_errors(run: Run, *data: str, plan: Plan | None = None) -> Iterator[None]:
    """Translate TensorFlow errors that the user can act on into one-line messages.

    Args:
        run: whose folders may be full.
        data: the datasets that are read.
        plan: of a training that is kept: divergence.json in model_dir says why it diverged.
    """
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, ValueError) as error:
        # The words of tf.train.Saver, and those of Estimator.export_saved_model.
        if re.search("have not altered the graph|load all requested variables", str(error)):
            raise UserError(
                "model: the checkpoint does not fit the network in project/networks.py: use the "
                "version of the project that wrote it, or start a new run with --run NAME"
            ) from error
        found = None if isinstance(error, ValueError) else read_divergence(error)
        if not found:
            raise
        raise RunError(
            f"diverged after step {found['step']}, loss {found['loss']}: a smaller learning_rate, "
            f"or clip_gradient_norm, may help{_write_divergence(run, plan, found) if plan else ''}"
        ) from error
    except tf.errors.UnknownError as error:
        raised = re.search(r"(DamagedRecord|User|Run)Error: (.*)", error.message)  # by our reader
        if not raised:
            raise
        raise (RunError if raised[1] == "Run" else UserError)(raised[2]) from error
    except tf.errors.DataLossError:
        for path in data:
            verify(path)  # raises a UserError that names the file and the record
        raise
    except (tf.errors.ResourceExhaustedError, OSError) as error:
        if "No space left" not in str(error):
            raise
        settings = run.settings
        raise RunError(
            f"no space left for {settings.model_dir}, {settings.best_model_dir} or "
            f"{settings.cache_dir}: the last checkpoint is whole, and the run continues from it "
            "when there is room"
        ) from error


def _write_divergence(run: Run, plan: Plan, found: dict[str, Any]) -> str:
    """Write what is known of a divergence to model_dir: the end of the line that reports it."""
    seen = plan.examples + (found["step"] - plan.step) * plan.batch_size
    keys = run.modality.train_keys(run.settings, seen, plan.batch_size)
    file = run.settings.model_dir / "divergence.json"
    write_json(file, {**found, "keys": keys})
    return f". {file} names the examples and the gradients; the last checkpoint is good"
