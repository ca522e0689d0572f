"""The command runs: what each run is, and how good."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from library.config import word_of
from library.train import run_record
from library.train.exporter import read_best
from library.util import PROJECT, UserError, shown_path

OWN = ("run", "model_dir", "best_model_dir")
"""Settings that differ in any case."""


def list_runs(folder: Path = PROJECT / "runs") -> None:
    """Print each run: its data and step, its metrics, and the options in which the runs differ."""
    files = sorted(folder.glob(f"*/checkpoints/{run_record.FILE}"))
    if not files:
        raise UserError(f"runs: there are none in {folder}: python run.py starts the first one")
    used = {file.parents[1]: run_record.last_options(file.parent) for file in files}
    names = dict.fromkeys(name for options in used.values() for name in options)
    differ = [
        name
        for name in names
        if name not in OWN and len({word_of(each.get(name)) for each in used.values()}) > 1
    ]
    for run, options in used.items():
        step = (tf.train.latest_checkpoint(str(run / "checkpoints")) or "-0").rpartition("-")[2]
        print(f"{run.name}: step {step}, trained on {shown_path(options['train_data'])}")
        for line in _metrics(run):
            print(f"  {line}")
        if differ:
            print("  " + ", ".join(f"{name} {word_of(options.get(name))}" for name in differ))


def _metrics(run: Path) -> Iterator[str]:
    """A line for the best evaluation while training, and for each report."""
    if best := read_best(run / "best"):
        number = f"{best['metric']} {best['value']:.4f}"
        yield f"best checkpoint: validation {number}, step {best['step']}"
    for file in sorted(run.glob("evaluation/*/metrics.json")):
        metrics: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        numbers = [f"{k} {v:.4f}" for k, v in metrics.items() if isinstance(v, float)]
        yield f"{file.parent.name}: {', '.join(numbers)}, step {metrics['global_step']}"
