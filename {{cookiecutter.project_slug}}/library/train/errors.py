"""TensorFlow errors that the user can act on, as one-line errors."""

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from library.config import URL
from library.data import verify
from library.train.divergence import read_divergence
from library.util import RunError, UserError

if TYPE_CHECKING:
    from library.train.run import Run


class DivergedError(RunError):
    """A loss or a gradient is not finite."""

    def __init__(self, found: dict[str, Any]):
        """`found` is what `read_divergence` returns."""
        self.found = found
        super().__init__(
            f"diverged after step {found['step']}, loss {found['loss']}: a smaller learning_rate, "
            "or clip_gradient_norm, may help"
        )


@contextlib.contextmanager
def translate_errors(run: "Run", *data: str) -> Iterator[None]:
    """Translate TensorFlow errors that the user can act on into one-line messages.

    Args:
        run: whose folders may be full.
        data: the datasets that are read.
    """
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
        if "have not altered the graph" in error.message:  # the words of tf.train.Saver
            raise UserError(
                "model: the checkpoint does not fit the network in project/networks.py: use the "
                "version of the project that wrote it, or start a new run with --run NAME"
            ) from error
        found = read_divergence(error)
        if not found:
            raise
        raise DivergedError(found) from error
    except tf.errors.UnknownError as error:
        damaged = re.search(r"DamagedRecordError: (.*)", error.message)
        if not damaged:
            raise
        raise UserError(damaged[1]) from error
    except tf.errors.DataLossError as error:
        for path in data:
            if not URL.match(path):
                verify(path)  # raises a UserError that names the file and the record
        damaged = re.search(r"(corrupted|truncated) record at \d+", error.message)
        if not damaged:
            raise
        raise UserError(f"{' or '.join(data)}: {damaged[0]}") from error
    except (tf.errors.ResourceExhaustedError, OSError) as error:
        if "No space left" not in str(error):
            raise
        settings = run.settings
        raise RunError(
            f"no space left for {settings.model_dir} or {settings.best_model_dir}: the last "
            "checkpoint is whole, and the run continues from it when there is room"
        ) from error
