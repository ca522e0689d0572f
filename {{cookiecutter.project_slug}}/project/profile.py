"""The command profile: how fast input and training step are, and what holds them up."""

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from library.config import URL
from library.data import Card, num_train_examples
from library.profile import Speed, Stored, profiling
from library.train import ModelCard
from library.util import UserError
from project.input_fn import train_input
from project.networks import prepared
from project.sessions import estimator_of, told_in_a_line, training_data, without_missing_device
from project.settings import Hyperparameters, Settings, modality

FILLING_SECONDS = 20
"""A cache that takes longer to fill is not tried."""


def profile(
    settings: Settings, hyperparameters: Hyperparameters, *, seconds: float = 4, trace: bool = False
) -> dict[str, Any]:
    """Print how fast input and training step are, alone and together, and what holds them up.

    Nothing is kept but the trace: the model is trained in a temporary folder.

    Args:
        settings, hyperparameters: of a training; `profile` measures some other values of them.
        seconds: for which each part is measured.
        trace: whether to write one of some steps to model_dir, for TensorBoard.

    Returns:
        `bottleneck`, as `library.profiling.bottleneck` names it; `times`, how many times as long as
        the rest it takes; `gains`, a factor for each change that was measured.
    """
    hyperparameters = prepared(settings, hyperparameters)
    card = training_data(settings)
    settings = without_missing_device(settings)
    if settings.devices != 1:
        print("devices: profile measures one")
    speed_of = functools.partial(_speed_of_steps, card=card, seconds=seconds)
    with told_in_a_line(settings, settings.train_data):
        if not URL.match(settings.train_data):
            _show_storage(modality.open_data(settings.train_data))
        print(f"{'':36}{'examples/s':>12}{'ms a batch':>12}{'cores':>7}{'resident MB':>13}")
        stages = {}
        measured = profiling.measure_stages(
            functools.partial(train_input, settings, hyperparameters, 0),
            settings.train_batch_size,
            seconds=seconds,
        )
        for name, speed in measured:
            stages[name] = speed
            _show(f"input up to {name}", speed)
        alone = speed_of(settings, hyperparameters, one_batch=True)
        _show("training step alone", alone)
        both = speed_of(settings, hyperparameters)
        _show("both", both)

        stage_ms = {name: speed.batch_ms for name, speed in stages.items()}
        found, times = profiling.bottleneck(alone.batch_ms, stage_ms)
        filling = num_train_examples(settings, card) / stages["decode"].examples_per_sec
        gains = {}
        values = dataclasses.asdict(settings) | dataclasses.asdict(hyperparameters)
        for change in _changes(found, settings):
            change = {
                name: value for name, value in change.items() if value != values.get(name, value)
            }
            if not change:
                continue
            flags = " ".join(map(_flag, change, change.values()))
            try:
                changed = _changed(settings, change), _changed(hyperparameters, change)
                if "cache" in change and filling > FILLING_SECONDS:
                    raise UserError(f"cache: it would take {filling:.0f} s to fill")
                speed = speed_of(*changed)
            except UserError as error:
                print(f"not tried: {flags}: {error}")
                continue
            _show(f"both, {flags}", speed)
            gains[flags] = speed.examples_per_sec / both.examples_per_sec
        print(profiling.verdict(found, times, gains))
        if trace:
            hook = profiling.TraceHook(settings.model_dir)
            _train(settings, hyperparameters, hook, card=card)
            print(f"trace: tensorboard --logdir {settings.model_dir} shows it under Profile")
    return {"bottleneck": found, "times": times, "gains": gains}


def _changes(found: str, settings: Settings) -> list[dict[str, Any]]:
    """What may widen a bottleneck."""
    changes: dict[str, list[dict[str, Any]]] = {
        "model": [{"xla": True}, {"train_batch_size": 2 * settings.train_batch_size}],
        "preprocessing": [
            {"antialias": False},
            {"input_dtype": "uint8"},
            {"num_parallel_calls": -1},
            {"cache": "memory", "cache_decoded": True},
        ],
        "disk": [{"shuffle": "stream", "cache": "none"}, {"shuffle": "global", "cache": "memory"}],
        "transfer": [{"input_dtype": "uint8"}],
        "balanced": [],
    }
    return changes[found]


def _changed(options: Any, change: dict[str, Any]) -> Any:
    """Settings or hyperparameters with those changes that are theirs."""
    names = {field.name for field in dataclasses.fields(options)}
    return dataclasses.replace(options, **{k: v for k, v in change.items() if k in names})


def _flag(name: str, value: Any) -> str:
    """As it is typed."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"


def _train(
    settings: Settings,
    hyperparameters: Hyperparameters,
    hook: tf.compat.v1.train.SessionRunHook,
    *,
    card: Card,
    one_batch: bool = False,
) -> None:
    """Train in a temporary folder until the hook ends it, on one batch or on all."""
    train_input(settings, hyperparameters, 0)  # fills a cache

    def input_fn() -> tf.data.Dataset:
        batches = train_input(settings, hyperparameters, 0)
        return batches.take(1).cache().repeat() if one_batch else batches

    model = ModelCard.of("classification", card.target, hyperparameters)
    with tempfile.TemporaryDirectory() as folder:
        there = dataclasses.replace(settings, model_dir=Path(folder))
        estimator_of(
            there,
            hyperparameters,
            model,
            train_batch_size=settings.train_batch_size,
            num_examples=num_train_examples(settings, card),
            examples_offset=0,
        ).train(input_fn, hooks=[hook])


def _speed_of_steps(
    settings: Settings,
    hyperparameters: Hyperparameters,
    *,
    card: Card,
    seconds: float,
    one_batch: bool = False,
) -> Speed:
    meter = profiling.Meter(settings.train_batch_size, seconds=seconds)
    hook = profiling.MeterHook(meter)
    _train(settings, hyperparameters, hook, card=card, one_batch=one_batch)
    return meter.speed


def _show(name: str, speed: Speed) -> None:
    print(
        f"{name:36}{speed.examples_per_sec:12,.0f}{speed.batch_ms:12.1f}{speed.cpus:7.1f}"
        f"{speed.resident_mb:13,.0f}",
        flush=True,
    )


def _show_storage(stored: Stored) -> None:
    print(f"{'storage, not from memory':36}{'examples/s':>12}{'MB/s':>12}")
    for name, (examples_per_sec, mb_per_sec) in profiling.measure_storage(stored).items():
        print(f"{name:36}{examples_per_sec:12,.0f}{mb_per_sec:12,.0f}", flush=True)
