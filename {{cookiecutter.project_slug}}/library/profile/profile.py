"""The command profile: how fast input and training step are, and which is the bottleneck."""

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from library.config import URL
from library.data import num_train_examples, stages_of
from library.profile.measure import Meter, TraceHook, measure_storage
from library.train import Plan, Run, check_batch, translate_errors
from library.util import UserError

BALANCED = 1.25
"""Input and step are balanced where neither takes this many times as long as the other."""
WORTH_IT = 1.05
"""A smaller gain is noise."""
FILLING_SECONDS = 20
"""A cache that takes longer to fill is not tried."""
CHANGE_LEARNING = ("--train_batch_size", "--no-antialias", "--input_dtype")


def profile_training(run: Run, seconds: float = 4) -> dict[str, Any]:
    """Print how fast input and training step are, alone and together, and what to change.

    Nothing is kept but the trace, where `trace` asks for one: the model is trained in a temporary
    folder, on one device, and each part is measured for so many seconds.

    Returns:
        `bottleneck` and `times`, as the function `bottleneck` gives them; `gains`, how many times
        as fast training is with each change of the settings that was tried.
    """
    check_batch(run)
    run, settings = run.for_training(), run.settings
    if settings.devices != 1:
        print("devices: profile measures one")
    with translate_errors(run, settings.train_data):
        if not URL.match(settings.train_data):
            print(f"{'storage, not from memory':36}{'examples/s':>12}{'MB/s':>12}")
            stored = run.modality.open_data(settings.train_data)
            for name, (per_sec, mb_per_sec) in measure_storage(stored).items():
                print(f"{name:36}{per_sec:12,.0f}{mb_per_sec:12,.0f}", flush=True)
        print(f"{'':36}{'examples/s':>12}{'ms a batch':>12}{'cores':>7}{'resident MB':>13}")
        stages = measure_stages(run, seconds)
        if missing := [name for name in ("read", "batch") if name not in stages]:
            marks = " and ".join(f'.apply(stage("{name}"))' for name in missing)
            raise UserError(f"profile: train_input in project/input_fn.py has no {marks}")
        alone = _measure_steps(run, seconds, "training step alone", one_batch=True)
        found, times = bottleneck(alone.batch_ms, {n: each.batch_ms for n, each in stages.items()})
        epoch_secs = _epoch_examples(run) / stages["batch"].examples_per_sec
        gains = _gains(run, seconds, found, epoch_secs)
        print(verdict(found, times, gains))
        if settings.trace:
            _train(run, TraceHook(settings.model_dir))
            print(f"trace: tensorboard --logdir {settings.model_dir} shows it under Profile")
    return {"bottleneck": found, "times": times, "gains": gains}


def measure_stages(run: Run, seconds: float) -> dict[str, Meter]:
    """The training input as far as each of its stages, in their order."""
    meters: dict[str, Meter] = {}
    for name, batches in stages_of(lambda: run.inputs.train_input(run)).items():
        if name != "batch" and "batch" not in meters:
            # What an example has become is dropped where it is: its copy is the batch's business.
            batches = batches.map(lambda *_: tf.constant(0)).batch(run.batch_size).prefetch(2)
        meters[name] = meter = Meter(run.batch_size, seconds)
        for _ in batches:
            if not meter.count():
                break
        meter.show(f"input up to {name}")
    return meters


def _gains(run: Run, seconds: float, found: str, epoch_secs: float) -> dict[str, float]:
    """How many times as fast training is with each change that may widen the bottleneck."""
    both = _measure_steps(run, seconds, "both")
    changes: dict[str, list[dict[str, Any]]] = {
        "model": [{"xla": True}, {"train_batch_size": 2 * run.settings.train_batch_size}],
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
    values = dataclasses.asdict(run.settings) | dataclasses.asdict(run.hyperparameters)
    gains = {}
    for options in changes[found]:
        change = {name: x for name, x in options.items() if x != values.get(name, x)}
        if not change:
            continue
        words = {"True": "--{}", "False": "--no-{}"}  # as they are typed
        flags = " ".join(words.get(str(x), "--{} {}").format(n, x) for n, x in change.items())
        try:
            if "cache" in change and epoch_secs > FILLING_SECONDS:
                raise UserError(f"cache: it would take {epoch_secs:.0f} s to fill")
            meter = _measure_steps(run.replace(**change), seconds, f"both, {flags}")
            gains[flags] = meter.examples_per_sec / both.examples_per_sec
        except UserError as error:
            print(f"not tried: {flags}: {error}")
        except tf.errors.ResourceExhaustedError:
            print(f"not tried: {flags}: not enough memory")
    return gains


def _measure_steps(run: Run, seconds: float, name: str, *, one_batch: bool = False) -> Meter:
    meter = Meter(run.batch_size, seconds)
    _train(run, meter, one_batch=one_batch)
    meter.show(name)
    return meter


def _train(run: Run, hook: tf.compat.v1.train.SessionRunHook, *, one_batch: bool = False) -> None:
    """Train in a temporary folder until the hook ends it, on one batch or on all."""
    run.inputs.train_input(run)  # fills a cache

    def input_fn() -> tf.data.Dataset:
        batches = run.inputs.train_input(run)
        return batches.take(1).cache().repeat() if one_batch else batches

    with tempfile.TemporaryDirectory() as folder:
        plan = Plan.without_end(run, _epoch_examples(run))
        there = run.replace(plan=plan, model_dir=Path(folder))
        there.estimator().train(input_fn, hooks=[hook])


def _epoch_examples(run: Run) -> int:
    return num_train_examples(run.settings, run.train_card)


# ---- the verdict -------------------------------------------------------------------------------


def bottleneck(step_ms: float, stage_ms: Mapping[str, float]) -> tuple[str, float]:
    """The slowest part of a training, by the step alone and a batch up to each stage, in order.

    Returns:
        "model", "transfer" (to the device), "disk", "preprocessing" or "balanced"; and how many
        times as long as the rest it takes, at least 1.
    """
    input_ms = list(stage_ms.values())[-1]
    times = max(input_ms, step_ms) / min(input_ms, step_ms)
    if times < BALANCED:
        return "balanced", times
    if step_ms > input_ms:
        return "model", times
    parts = {
        "disk": stage_ms["read"],
        "preprocessing": stage_ms["batch"] - stage_ms["read"],
        "transfer": input_ms - stage_ms["batch"],
    }
    return max(parts, key=parts.__getitem__), times


def verdict(found: str, times: float, gains: Mapping[str, float]) -> str:
    """What `bottleneck` found, in words, and the change that gains most."""
    slow = f"the input takes {times:.1f} times as long as a training step, most of it for"
    words = {
        "model": f"the model: a training step takes {times:.1f} times as long as its input",
        "transfer": f"RAM to device: {slow} the copy to the device",
        "preprocessing": f"preprocessing on the CPU: {slow} decoding and augmentation",
        "disk": f"the disk: {slow} reading",
        "balanced": f"none: input and training step take about as long ({times:.2f} times)",
    }
    if not gains:
        return f"bottleneck: {words[found]}"
    tried = ", ".join(f"{change} ({gain:.2f}x)" for change, gain in gains.items())
    best = max(gains, key=gains.__getitem__)
    learning = "; it also changes learning" if best.startswith(CHANGE_LEARNING) else ""
    advice = f"try {best} ({gains[best]:.2f}x faster{learning}); tried: {tried}"
    if gains[best] < WORTH_IT:
        advice = f"no setting that was tried gains much: {tried}"
    return f"bottleneck: {words[found]}\n{advice}"
