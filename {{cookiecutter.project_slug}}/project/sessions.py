"""What the commands share: the data and the model they need, the Estimator, mistakes in a line."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from library.config import URL
from library.data import Card, verify
from library.distribute import Cluster, Parallel
from library.estimator import Estimator, RunConfig
from library.train import ModelCard, WarmStart, find_checkpoint, read_divergence
from library.util import RunError, UserError, attach_log
from project.model_fn import model_fn
from project.settings import Hyperparameters, Settings


class DivergedError(RunError):
    """A loss or a gradient is not finite."""

    def __init__(self, found: dict[str, Any]):
        """`found` is what `library.divergence.read_divergence` tells."""
        self.found = found
        super().__init__(
            f"diverged after step {found['step']}, loss {found['loss']}: a smaller learning_rate, "
            "or clip_gradient_norm, may help"
        )


@contextlib.contextmanager
def told_in_a_line(settings: Settings, *data: str) -> Iterator[None]:
    """Turn what can go wrong in a session without being our mistake into a line.

    Args:
        settings: of the run.
        data: the data sets that it reads.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
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
        raise RunError(
            f"no space left for {settings.model_dir} or {settings.best_model_dir}: the last "
            "checkpoint is whole, and the run goes on from it when there is room"
        ) from error


def card_of(settings: Settings, field: str) -> Card:
    """The card of a data set, or a line that says how to make it."""
    path = getattr(settings, field)
    if not URL.match(path) and not os.path.exists(f"{path}.json"):
        how = "convert_dataset.py makes one"
        if field == "validation_data":
            how += ", with --validation_fraction 0.1; the best model is chosen on it"
        raise UserError(f"{field}: there is no data set {path}: {how}")
    return Card.load(f"{path}.json")


def training_data(settings: Settings) -> Card:
    """The card of the training data; the validation data has to fit."""
    card, validation = card_of(settings, "train_data"), card_of(settings, "validation_data")
    if card.classes != validation.classes:
        raise UserError(
            f"validation_data: {settings.validation_data} has the classes "
            f"{', '.join(validation.classes)}, but the training data has {', '.join(card.classes)}"
        )
    if not card.classes:
        raise UserError(f"train_data: {settings.train_data} has no classes to learn")
    for each, path in ((card, settings.train_data), (validation, settings.validation_data)):
        each.files(path)  # all have to be there
    return card


def without_missing_device(settings: Settings) -> Settings:
    """A set for a GPU box works without one."""
    device = settings.prefetch_to_device or ""
    if "gpu" not in device.lower() or tf.config.list_physical_devices("GPU"):
        return settings
    print(f"prefetch_to_device: there is no {device} here: left out")
    return dataclasses.replace(settings, prefetch_to_device=None)


def trained_model(settings: Settings, hyperparameters: Hyperparameters) -> tuple[str, ModelCard]:
    """The checkpoint that `model` names, and its card; the hyperparameters have to fit."""
    checkpoint = find_checkpoint(
        settings.model, model_dir=settings.model_dir, best_model_dir=settings.best_model_dir
    )
    folder = os.path.dirname(checkpoint)
    model = ModelCard.load(folder)
    ModelCard.of(model.head, model.target, hyperparameters).must_equal(model, folder)
    return checkpoint, model


def estimator_of(
    settings: Settings,
    hyperparameters: Hyperparameters,
    model: ModelCard,
    *,
    parallel: Parallel | None = None,
    strategy: tf.distribute.Strategy | None = None,
    warm_start: WarmStart | None = None,
    **schedule: int,
) -> Estimator:
    """The Estimator of a run.

    Args:
        settings, hyperparameters: of the run.
        model: its card.
        parallel, strategy: for a training that is divided.
        warm_start: for a training that begins with another one's variables.
        schedule: for a training, what `project.model_fn.learning_rate` needs.
    """
    cluster = parallel.cluster if parallel else Cluster()
    attach_log(settings.model_dir)
    # CheckpointHook saves; this is for workers that would do it by the clock, each at another step.
    steps = {"save_checkpoints_steps": 1000} if cluster.all_reduce else {}
    config = RunConfig(
        model_dir=str(settings.model_dir),
        tf_random_seed=settings.random_seed,
        keep_checkpoint_max=settings.keep_checkpoint_max,
        save_summary_steps=settings.save_summary_steps,
        log_step_count_steps=None,  # ProgressHook tells more
        train_distribute=strategy,
        session_config=parallel and parallel.session_config,
        **steps,
    )
    if cluster.has_servers and not cluster.is_evaluator:
        # For functions whose variables are on a server, such as those of a hub module.
        config.session_config.share_cluster_devices_in_session = True
    params = params_of(settings, hyperparameters, model, parallel=parallel) | schedule
    return Estimator(
        model_fn, config=config, params=params, warm_start_from=warm_start and warm_start.settings
    )


def params_of(
    settings: Settings,
    hyperparameters: Hyperparameters,
    model: ModelCard,
    *,
    parallel: Parallel | None = None,
) -> dict[str, Any]:
    """What `model_fn` needs to know, but for the schedule of a training."""
    cluster = parallel.cluster if parallel else Cluster()
    in_step = parallel is not None and cluster.has_servers and parallel.sync
    return {
        **dataclasses.asdict(hyperparameters),
        "class_names": model.class_names,
        "random_seed": settings.random_seed,
        "xla": settings.xla,
        "compute_dtype": _compute_dtype(settings),
        "sync_workers": cluster.num_workers if in_step else 0,
        "is_chief": cluster.is_chief,
    }


def _compute_dtype(settings: Settings) -> str:
    if not settings.mixed_precision:
        return "float32"
    return "float16" if tf.config.list_physical_devices("GPU") else "bfloat16"
