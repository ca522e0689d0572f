"""run.yaml: what each start of a run used, a YAML document for each; the command runs."""

import contextlib
import datetime
import hashlib
import importlib.metadata
import inspect
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import yaml

from library.config import PROJECT, options_of, plain, word_of
from library.data import content_of
from library.train.checkpoints import last_step
from library.train.exporter import read_best
from library.util import UserError, read_json, shown_path, typed, write_text, written_here

if TYPE_CHECKING:
    from library.train.run import Run

FILE = "run.yaml"
FORMAT_VERSION = 1
PACKAGES = ("tensorflow", "tf-keras", "tensorflow-estimator", "numpy", "Pillow")
OWN = ("run", "model_dir", "best_model_dir")
"""Settings that differ from run to run in any case."""
DATA = ("train_data", "validation_data")
CHANGING = ("settings", "hyperparameters", "versions", "data")
"""Parts of a record that `append` compares with the last one."""


def describe(settings: Any, hyperparameters: Any, *, step: int, examples: int) -> dict[str, Any]:
    """The record of a start that has so many steps and examples behind it.

    The checksums of the datasets' cards stand for the data.
    """
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "format_version": FORMAT_VERSION,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "start": {"step": step, "examples": examples},
        "git": _git(Path(__file__).parent),
        "versions": versions,
        "devices": [device.name for device in tf.config.list_physical_devices()],
        "data": {name: card_checksum(getattr(settings, name)) for name in DATA}
        | {_portable(path): card_checksum(path) for path in settings.extra_data},
        "machine": {"system": platform.platform(), "processors": os.cpu_count()},
        "settings": options_used(settings),
        "hyperparameters": options_used(hyperparameters),
    }


def evaluated_with(run: "Run", field: str = "validation_data") -> dict[str, Any]:
    """What a metric of the dataset that an option names depends on, beside the checkpoint.

    Hyperparameters, such as `l2_regularization`, and the code of the project define the loss.
    """
    files = sorted(Path(inspect.getfile(run.model_fn)).parent.glob("*.py"))
    return {
        field: card_checksum(getattr(run.settings, field)),
        "code": hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest(),
        **options_used(run.hyperparameters),
    }


def card_checksum(dataset: str) -> str:
    """The SHA-256 of the card of a dataset."""
    return hashlib.sha256(content_of(f"{dataset}.json")).hexdigest()


def options_used(options: Any) -> dict[str, Any]:
    """The options that a training uses: all but the flags of other commands."""
    cls: Any = type(options)
    return {
        name: _portable(plain(getattr(options, name)))
        for name, option in options_of(cls).items()
        if not option.rule.get("command")
    }


def _portable(value: Any) -> Any:
    """Of a path in the project, what stays when the project is moved."""
    if isinstance(value, list):
        return [*map(_portable, value)]
    folder = f"{PROJECT}{os.sep}"
    return value.removeprefix(folder) if isinstance(value, str) else value


def append(folder: Path, record: dict[str, Any]) -> list[str]:
    """Append a record; return a line for all that has changed since the last start."""
    last = load(folder)[-1:]
    path = folder / FILE
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, f"{before}---\n{yaml.safe_dump(record, sort_keys=False, allow_unicode=True)}")
    return [
        f"{name}: {old[part][name]} -> {value}"
        for old in last
        for part in CHANGING
        for name, value in record[part].items()
        if name in old[part] and _portable(old[part][name]) != value
    ]


def load(folder: Path) -> list[dict[str, Any]]:
    """The records of all starts, the first one first; UserError: run.yaml cannot be read."""
    path = folder / FILE
    if not path.exists():
        return []
    with written_here(path, yaml.YAMLError):
        records = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        for record in records:
            if record.get("format_version", 1) != FORMAT_VERSION:
                raise ValueError(f"format_version {record['format_version']} is not known")
            start = record["start"]
            sizes = [start["step"], start["examples"], record["settings"]["train_batch_size"]]
            if min(typed(list[int], sizes)) < 0:
                raise ValueError("a number is below 0")
            for part in CHANGING:
                typed(dict[str, Any], record.setdefault(part, {}))
    return records


def last_options(folder: Path) -> dict[str, Any]:
    """The settings and hyperparameters of the last start; none where there was none."""
    for record in load(folder)[-1:]:
        options = {**record["settings"], **record["hyperparameters"]}
        return {name: _portable(value) for name, value in options.items()}  # older ones are not
    return {}


def examples_before(folder: Path, step: int, batch_size: int) -> int:
    """The number of examples that a run has seen at a step, whatever its batches were.

    Without run.yaml, they are taken to have been of `batch_size`.
    """
    for record in reversed(load(folder)):
        start, size = record["start"], record["settings"]["train_batch_size"]
        if start["step"] <= step:
            return start["examples"] + (step - start["step"]) * size
    return step * batch_size


def _git(folder: Path) -> dict[str, Any] | None:
    """The commit, and whether the tree differs from it; None where there is no repository."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def find_runs(folder: Path = PROJECT / "runs") -> list[Path]:
    """The folders of the runs in a folder; UserError: there are none."""
    files = sorted(folder.glob(f"*/checkpoints/{FILE}"))
    if not files:
        raise UserError(f"runs: there are none in {folder}: python run.py starts the first one")
    return [file.parents[1] for file in files]


def differing(used: Sequence[Mapping[str, Any]]) -> list[str]:
    """The options in which runs differ, but for those that are each run's own."""
    names = dict.fromkeys(name for options in used for name in options if name not in OWN)
    return [name for name in names if len({word_of(each.get(name)) for each in used}) > 1]


def list_runs(folder: Path = PROJECT / "runs") -> None:
    """Print each run: its data and step, its metrics, and the options in which the runs differ."""
    runs = find_runs(folder)
    used = {run: found for run in runs if (found := last_options(run / "checkpoints"))}
    differ = differing([*used.values()])
    for run, options in used.items():
        step = last_step(run / "checkpoints")
        print(f"{run.name}: step {step}, trained on {shown_path(str(options.get('train_data')))}")
        if best := read_best(run / "best"):
            number = f"{best['metric']} {best['value']:.4f}"
            print(f"  best checkpoint: validation {number}, step {best['step']}")
        for file in sorted(run.glob("evaluation/*/metrics.json")):
            with written_here(file):
                metrics = read_json(file)
                numbers = [f"{k} {v:.4f}" for k, v in metrics.items() if isinstance(v, float)]
                print(f"  {file.parent.name}: {', '.join(numbers)}, step {metrics['global_step']}")
        if differ:
            print("  " + ", ".join(f"{name} {word_of(options.get(name))}" for name in differ))
