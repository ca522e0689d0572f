"""The report of an evaluation: a page that needs nothing beside it, its figures and a table."""

import collections
import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from library.report import figures
from library.report.rendering import render
from library.report.stats import EvaluationStats
from library.report.tensorboard import MEAN
from library.util import replacing, shown_path

PAGE, TABLE, MISTAKES = "report.html", "per_class.csv", "mistakes.png"
FIGURES = ("confusion_matrix.png", "reliability.png", "predictions.png", "errors.png")
FILES = (TABLE, *FIGURES, MISTAKES)
"""What may be beside the page; which of them depends on the head."""
RUNS = {"train": "", "validation": "eval"}
"""Where in model_dir the Estimator writes the events of its runs."""
GRID_DPI = 90

Curves = dict[str, dict[str, tuple[list[int], list[float]]]]


def read_curves(model_dir: str | Path, *, metrics: Iterable[str] = ("accuracy",)) -> Curves:
    """The loss, these metrics and a learning rate that changes, from TensorBoard's events.

    Returns:
        By name and run (`train`, `validation`): the steps, and the value at each. Of training, it
        is the mean since the step before where there is one. Of a step that was written again after
        a restart, the last value holds.
    """
    found: dict[str, dict[str, dict[int, float]]] = collections.defaultdict(dict)
    for run, folder in RUNS.items():
        for file in sorted(Path(model_dir, folder).glob("events.out.tfevents.*")):
            for step, name, value in _scalars(file):
                found[name].setdefault(run, {})[step] = value
    for name in [name for name in found if f"{MEAN}{name}" in found]:
        found[name] |= found[f"{MEAN}{name}"]
    if len({*found["learning_rate"].get("train", {}).values()}) < 2:
        del found["learning_rate"]
    return {
        name: {run: (sorted(at), [at[i] for i in sorted(at)]) for run, at in found[name].items()}
        for name in dict.fromkeys(("loss", *metrics, "learning_rate"))
        if name in found
    }


def _scalars(file: Path) -> Iterator[tuple[int, str, float]]:
    """Step, name and value of all that is one number, up to where a kill has cut the file."""
    try:
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    yield event.step, value.tag, value.simple_value
                elif value.HasField("tensor"):
                    array = tf.make_ndarray(value.tensor)
                    if array.size == 1 and array.dtype != object:  # object: texts
                        yield event.step, value.tag, float(array.item())
    except tf.errors.DataLossError:
        return


def write_report(
    folder: str | Path,
    *,
    title: str,
    metrics: Mapping[str, float],
    stats: EvaluationStats | None,
    curves: Curves,
    facts: Mapping[str, str],
    settings: Mapping[str, Any],
    best_step: int | None = None,
    sounds: Mapping[str, bytes] | None = None,
) -> Path:
    """Write report.html, which needs nothing beside it, and the figures and table of `stats`.

    Args:
        folder: made where it is missing; an earlier report there is replaced.
        stats: None: the page shows metrics and curves.
        facts: what was evaluated: split, data, checkpoint.
        settings: of the training.
        best_step: that of the best checkpoint, which is marked in the curves.
        sounds: FLAC files of the worst examples, by their keys.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows, worst = (stats.rows(), stats.worst) if stats else ([], [])
    drawn = {name: figures.png(figure) for name, figure in stats.figures()} if stats else {}
    files = {f"{name}.png": content for name, content in drawn.items()}
    if rows:
        files[TABLE] = _csv(rows)
    if stats:
        files[MISTAKES] = figures.png(stats.mistakes_figure(), dpi=GRID_DPI)
    notes = {}
    share = metrics.get("accuracy", math.nan)
    if stats and stats.kind == "classification" and stats.examples and math.isfinite(share):
        notes = {"accuracy": _accuracy_note(share, rows)}
    files[PAGE] = render(
        Path(__file__).with_name(PAGE),
        title=title,
        metrics={name: _number(name, value) for name, value in metrics.items()},
        stats=stats,
        rows=sorted(rows, key=lambda row: (not row["examples"], row["f1"])),
        drawn=drawn,
        sounds=sounds or {},
        wide=figures.aspect([example.image for example in worst]) > figures.WIDE,
        notes=notes,
        curves={
            f"{name} over the steps": figures.png(figures.curve(name, runs, best_step=best_step))
            for name, runs in curves.items()
        },
        facts=_for_others(facts),
        settings=_for_others(settings),
    )
    for name in set(FILES) - files.keys():
        (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)
    return folder / PAGE


def _csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(rows[0])
    table.writerows([["" if cell != cell else cell for cell in row.values()] for row in rows])
    return text.getvalue().encode("utf-8", "surrogateescape")


def _for_others(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with paths as seen from the project."""
    paths = {n for n, each in values.items() if isinstance(each, str) and Path(each).is_absolute()}
    return {name: shown_path(each) if name in paths else each for name, each in values.items()}


def _accuracy_note(accuracy: float, rows: list[dict[str, Any]]) -> str:
    """Wilson's interval, and what always predicting the commonest class gives.

    https://doi.org/10.1080/01621459.1927.10502953
    """
    n, z = sum(row["examples"] for row in rows), 1.96
    commonest = max(rows, key=lambda row: row["examples"])
    middle = (accuracy + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(accuracy * (1 - accuracy) / n + (z / (2 * n)) ** 2)
    return (
        f"95% interval: {100 * (middle - half):.1f}% to {100 * (middle + half):.1f}%; "
        f"always {commonest['name']}: {100 * commonest['examples'] / n:.1f}%"
    )


def _number(name: str, value: float) -> str:
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if any(word in name for word in ("accuracy", "f1_", "precision")):
        return f"{100 * value:.4g}%"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
