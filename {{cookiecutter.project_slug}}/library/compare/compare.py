"""Compare the best models of runs by their errors on the same examples."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from library import report
from library.config import word_of
from library.report import LEVEL, MEASURES
from library.train import Run, evaluation_of, read_best, run_record
from library.util import UserError, did_you_mean, read_json, replacing, shown_path

PAGE = "compare.html"
MOST_CURVES = 7
"""Runs whose curves are drawn."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """A run, and the evaluation of its best model."""

    name: str
    options: dict[str, Any]  # settings, hyperparameters, checksums of data, versions
    metrics: dict[str, float]
    errors: np.ndarray  # [examples]
    curves: report.Curves


def compare_runs(run: Run) -> None:
    """Print which runs are better or worse than the first one; write a page about all of them.

    A best model is evaluated where there is no evaluation with today's data and code.
    """
    split = run.settings.split or "validation"
    run = run.replace(split=split, model=Path("best"))
    runs = [_compared(run, name, folder) for name, folder in _folders(run).items()]
    field = f"{split}_data"
    label = run.card(field).label
    measured = {each.name: report.measure(each.errors, label) for each in runs}
    for name, each in measured.items():
        print(f"{name}: {MEASURES[label]} {report.measure_words(each, label)}")
    lines, differ = _verdicts(runs, label), run_record.differing([one.options for one in runs])
    print(*lines, sep="\n")
    for option in differ:
        print(f"{option}: {', '.join(word_of(each.options.get(option)) for each in runs)}")
    figures, names = report.figures, dict.fromkeys(n for each in runs for n in each.metrics)
    curves = {
        f"{name} over the steps": figures.png(figures.curve(name, each))
        for name, each in _curves(runs[:MOST_CURVES]).items()
    }
    title = f"{MEASURES[label].replace('_', ' ')}, {LEVEL:.0%} intervals"
    page = report.render(
        Path(__file__).with_name(PAGE),
        title=f"{len(runs)} runs on the {split} set",
        facts={"data": shown_path(getattr(run.settings, field)), "examples": len(runs[0].errors)},
        lines=lines,
        intervals=figures.png(figures.intervals(title, measured, shares=label != "value")),
        runs=runs,
        differ=differ,
        metrics=names,
        curves=curves,
        most=MOST_CURVES,
    )
    run.dir.parent.mkdir(parents=True, exist_ok=True)
    with replacing(run.dir.parent / PAGE) as temporary:
        temporary.write_bytes(page)
    print(f"wrote {run.dir.parent / PAGE}")


def _folders(run: Run) -> dict[str, Path]:
    """The folders of the runs that are compared, by name; of all, the oldest is the first."""
    parent, names = run.dir.parent, run.settings.runs
    folders = {name: next(filter(_is_run, (parent / name, Path(name))), None) for name in names}
    if lacking := [name for name, folder in folders.items() if not folder]:
        near = did_you_mean(lacking[0], [each.name for each in parent.glob("*")])
        raise UserError(f"compare: there is no run {lacking[0]} in {parent}{near}")
    if not names:
        found = [each for each in run_record.find_runs(parent) if read_best(each / "best")]
        found.sort(key=lambda each: run_record.load(each / "checkpoints")[0]["time"])
        folders = {each.name: each for each in found}
    if len(folders) < 2:
        raise UserError(f"compare: takes two runs or more, but got {len(folders)}")
    return {name: folder for name, folder in folders.items() if folder}


def _is_run(folder: Path) -> bool:
    return (folder / "checkpoints").is_dir()


def _compared(run: Run, name: str, folder: Path) -> Compared:
    """A run with its evaluation, which is made where it is lacking."""
    model_dir = folder / "checkpoints"
    found = evaluation_of(run.replace(model_dir=model_dir, best_model_dir=folder / "best"))
    errors = report.read_column(found, "error")
    if not len(errors):
        raise UserError(
            f"compare: the head of {name} has no `columns` with the error of an example"
        )
    metrics = {k: v for k, v in read_json(found / "metrics.json").items() if isinstance(v, float)}
    record = (run_record.load(model_dir) or [{}])[-1]
    parts = ("settings", "hyperparameters", "versions")
    options = {k: v for part in parts for k, v in record.get(part, {}).items()}
    options |= {f"{k}, SHA-256": v[:8] for k, v in record.get("data", {}).items()}
    options["git commit"] = (record.get("git") or {}).get("commit")
    curves = report.read_curves(model_dir, metrics=metrics)
    return Compared(name, options, metrics, errors, curves)


def _curves(runs: list[Compared]) -> dict[str, dict[str, Any]]:
    """By name the curve of each run."""
    names = dict.fromkeys(
        (k, part) for each in runs for k in each.curves for part in each.curves[k]
    )
    return {
        f"{part} {name}": {
            each.name: each.curves[name][part] for each in runs if part in each.curves.get(name, {})
        }
        for name, part in names
    }


def _verdicts(runs: list[Compared], label: str) -> list[str]:
    """A line on each run beside the first one."""
    first, *others = runs
    gains = np.stack([first.errors - each.errors for each in others], axis=1)
    # Of many runs, some seem better by chance: wider intervals hold together at this level.
    level = 1 - (1 - LEVEL) / len(others)
    ends = report.mean_intervals(gains, level=level, paired=True)
    lines = []
    for other, mean, low, high in zip(others, gains.mean(axis=0), *ends, strict=True):
        words, gain = f"{other.name} and {first.name} cannot be told apart", [mean, low, high]
        if low > 0:
            words = f"{other.name} beats {first.name}"
        if high < 0:
            words, gain = f"{first.name} beats {other.name}", [-mean, -high, -low]
        by, low, high = (f"{x:+.3g}" if label == "value" else f"{100 * x:+.1f}" for x in gain)
        what = "less " if label == "value" else "points of "
        interval = f"{LEVEL:.0%} interval {low} to {high}"
        lines.append(f"{words}: {by} {what}{MEASURES[label]}, {interval}")
    return lines
