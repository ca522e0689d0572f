"""The report of an evaluation: a page that needs nothing beside it, its pictures and a table."""

import base64
import csv
import html
import io
import math
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from PIL import Image

from library.config import word_of
from library.report import figures
from library.report.tally import Mistake, Tally
from library.util import replacing

PAGE = "report.html"
TABLE = "per_class.csv"
FILES = (TABLE, "confusion_matrix.png", "reliability.png", "mistakes.png")
RUNS = {"train": "", "validation": "eval"}
"""Where in model_dir the Estimator writes the events of its runs."""
MOST_ROWS = 50
"""Classes in the table of the page."""
SMALL = 64 * 64
"""Pixels of a picture that is enlarged without blur, and stored without loss."""
PICTURES_DPI, JPEG_QUALITY = 90, 90
CSS_DPI = 96
"""Pixels of a page in an inch."""

Curves = dict[str, dict[str, tuple[list[int], list[float]]]]


def read_curves(model_dir: str | Path, *, metrics: Iterable[str] = ("accuracy",)) -> Curves:
    """The loss, these metrics and the learning rate over the steps, from TensorBoard's events.

    Returns:
        By name and run (`train`, `validation`): the steps, and the value at each. What was not
        written is left out; of a step that was written again by a run that went on, the last holds.
    """
    names = dict.fromkeys(("loss", *metrics, "learning_rate"))
    found: dict[str, dict[str, dict[int, float]]] = {name: {} for name in names}
    for run, folder in RUNS.items():
        for file in sorted(Path(model_dir, folder).glob("events.out.tfevents.*")):
            for step, name, value in _scalars(file):
                if name in found:
                    found[name].setdefault(run, {})[step] = value
    return {
        name: {run: (sorted(at), [at[step] for step in sorted(at)]) for run, at in runs.items()}
        for name, runs in found.items()
        if runs
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


class ClassRow(NamedTuple):
    """What became of the examples of a class; where there are none, a share is not a number."""

    name: str
    examples: int
    right: int
    recall: float
    precision: float
    f1: float
    taken_for: str  # the class that most of the others were taken for
    times: int


def class_rows(tally: Tally) -> list[ClassRow]:
    """A row for each class, in the order of the labels."""
    right, examples = tally.confusion.diagonal(), tally.confusion.sum(axis=1)
    predicted = tally.confusion.sum(axis=0)
    wrong = tally.confusion - np.diag(right)
    times = wrong.max(axis=1)
    taken_for = [
        tally.class_names[other] if count else ""
        for other, count in zip(wrong.argmax(axis=1), times, strict=True)
    ]
    with np.errstate(invalid="ignore"):
        shares = [right / examples, right / predicted, 2 * right / (examples + predicted)]
    numbers = [column.tolist() for column in (examples, right, *shares)]
    return [
        ClassRow(*row)
        for row in zip(tally.class_names, *numbers, taken_for, times.tolist(), strict=True)
    ]


def write_report(
    folder: str | Path,
    *,
    title: str,
    metrics: Mapping[str, float],
    tally: Tally | None,
    curves: Curves,
    facts: Mapping[str, str],
    settings: Mapping[str, Any],
) -> Path:
    """Write report.html and, of a model with classes, its table and pictures.

    Args:
        folder: made where it is missing; an earlier report there is replaced.
        title: of the page.
        metrics: by name, as `Estimator.evaluate` returns them.
        tally: None for a model without classes.
        curves: of `read_curves`.
        facts: what was evaluated: split, data, checkpoint.
        settings: of the training.

    Returns:
        The page: one file, which needs no network.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        "title": _text(title),
        "tiles": _tiles(metrics, tally),
        "facts": _pairs(facts),
        "settings": _pairs(settings),
        "curves": "".join(
            _drawn(figures.png(figures.curve(name, runs)), f"{name} over the steps")
            for name, runs in curves.items()
        ),
    }
    page = Path(__file__).with_name(PAGE).read_text(encoding="utf-8")
    for part, content in (("curves", curves), ("settings", settings)):
        if not content:
            page = _without(page, part)
    if tally is None:
        page = _without(page, "classes")
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
    else:
        parts |= _write_classes(folder, tally)
    page = string.Template(page).substitute(parts)
    with replacing(folder / PAGE) as temporary:
        # The name of a file may be no Unicode.
        temporary.write_text(page, encoding="utf-8", errors="replace")
    return folder / PAGE


def _without(page: str, part: str) -> str:
    return re.sub(f"<!-- {part} -->.*<!-- /{part} -->\n", "", page, flags=re.DOTALL)


def _write_classes(folder: Path, tally: Tally) -> dict[str, str]:
    """Write the table and the pictures; return the parts of the page that show them."""
    rows, mistakes = class_rows(tally), tally.mistakes
    _write_table(folder / TABLE, rows)
    pictures = [each.picture for each in mistakes]
    captions = [each.caption(tally.class_names) for each in mistakes]
    confusion = figures.png(figures.confusion_matrix(tally.confusion, tally.class_names))
    reliability = figures.png(figures.reliability(tally.bins))
    grid = figures.png(figures.picture_grid(pictures, captions), dpi=PICTURES_DPI)
    for name, content in zip(FILES[1:], (confusion, reliability, grid), strict=True):
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)
    worst = sorted(rows, key=lambda row: (not row.examples, row.f1))[:MOST_ROWS]
    some = f" These are {MOST_ROWS} of {len(rows)}: {TABLE} has all." if rows[MOST_ROWS:] else ""
    wrong = int(tally.confusion.sum() - tally.confusion.trace())
    which = f"The {len(mistakes)} of {wrong:,}" if wrong > len(mistakes) else f"All {wrong:,}"
    shown = f"{which}, those of which the model was most certain first."
    return {
        "table_note": f"The worst come first, by F1.{some}",
        "table": _rows(map(_cells, worst)),
        "confusion_matrix": _drawn(confusion, f"Confusion matrix of {len(rows)} classes"),
        "reliability": _drawn(reliability, "Accuracy by the probability of the predicted class"),
        "mistakes_note": shown if wrong else "There are none.",
        "gallery": "gallery broad" if figures.aspect(pictures) > figures.WIDE else "gallery",
        "mistakes": "".join(map(_mistake, mistakes, captions)),
    }


def _write_table(path: Path, rows: Iterable[ClassRow]) -> None:
    with (
        replacing(path) as temporary,
        open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        table = csv.writer(file)
        table.writerow([*ClassRow._fields[:-2], "most often taken for", "times"])
        table.writerows([["" if cell != cell else cell for cell in row] for row in rows])


def _tiles(metrics: Mapping[str, float], tally: Tally | None) -> str:
    tiles = {name: _number(name, value) for name, value in metrics.items()}
    if tally is not None:
        total, right = int(tally.confusion.sum()), int(tally.confusion.trace())
        tiles |= {"examples": f"{total:,}", "mistakes": f"{total - right:,}"}
    return "".join(
        f"<div><dt>{_text(name.replace('_', ' '))}</dt><dd>{value}</dd></div>\n"
        for name, value in tiles.items()
    )


def _number(name: str, value: float) -> str:
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if "accuracy" in name:
        return f"{100 * value:.4g}%"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _cells(row: ClassRow) -> list[str]:
    shares = [
        "–" if math.isnan(share) else format(share, ".1%")
        for share in (row.recall, row.precision, row.f1)
    ]
    most = f"{_text(row.taken_for)} ({row.times:,})" if row.times else ""
    return [_text(row.name), f"{row.examples:,}", *shares, most if row.examples else "no examples"]


def _pairs(values: Mapping[str, Any]) -> str:
    return _rows([[_text(name), _text(word_of(value))] for name, value in values.items()])


def _rows(rows: Iterable[Sequence[str]]) -> str:
    """Lines of a table, the first cell of each its head."""
    return "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{each}</td>" for each in others)}</tr>\n'
        for first, *others in rows
    )


def _mistake(mistake: Mistake, caption: str) -> str:
    picture, buffer = mistake.picture, io.BytesIO()
    small = picture.shape[0] * picture.shape[1] <= SMALL
    kind, look = ("png", 'class="small"') if small else ("jpeg", "")
    Image.fromarray(picture).save(buffer, kind, quality=JPEG_QUALITY)
    true, taken_for = map(_text, caption.split("\n"))
    below = f"<b>{true}</b>, {taken_for}<span>{_text(mistake.key)}</span>"
    return _figure(kind, buffer.getvalue(), caption.replace("\n", ", "), look, below)


def _drawn(picture: bytes, words: str) -> str:
    """One of our figures, as large as it was drawn for."""
    with Image.open(io.BytesIO(picture)) as image:
        look = f'width="{image.width * CSS_DPI // figures.DPI}"'
    return _figure("png", picture, words, look)


def _figure(kind: str, picture: bytes, words: str, look: str, caption: str = "") -> str:
    data = f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
    return (
        f'<figure><img src="{data}" alt="{_text(words)}" {look}>'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _text(text: Any) -> str:
    return html.escape(str(text))
