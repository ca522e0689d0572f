"""The command predict: a table with a row for each file, and a look at the worst mistakes."""

import contextlib
import csv
import io
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from library import report  # whose drawing imports matplotlib when it is used
from library.report import WORST, mistake_caption
from library.serve.files import STDIO, InputFiles, Row, find_files
from library.train import Run, translate_errors
from library.util import UserError, check_folder, counted, replacing, set_aside

SUFFIXES = (".csv", ".jsonl")
"""Of the tables that can be written; standard output is CSV."""


def predict_files(run: Run) -> None:
    """Write the predictions of `model` for `input` to `output`, in memory that does not grow."""
    settings = run.settings
    output = settings.output or str(run.dir / "predictions.csv")
    check_output(output)
    if settings.images_out:
        check_folder("--images_out", settings.images_out.absolute())
    run, checkpoint = run.trained()
    target = run.head.target
    if settings.top_k and not target.classes:
        raise UserError(f"--top_k: chooses among classes, but the head is {run.head.name}")
    if settings.images_out and target.label != "class":
        raise UserError(f"--images_out: draws misclassified files, but the head is {run.head.name}")
    files = _input_files(run, find_files(settings.input))
    predictions = run.estimator().predict(
        lambda: run.inputs.prediction_input(run, files),
        checkpoint_path=checkpoint,
        yield_single_examples=False,
    )
    rows = files.rows(predictions, lambda each: run.head.row(each, settings.top_k))
    worst = WorstMistakes(target.classes)
    if settings.output is None and Path(output).exists():
        print(f"the last predictions are in {set_aside(Path(output))}")
    with translate_errors(run):
        write_rows(output, worst.watch(rows), run.head.columns(settings.top_k))
    if files.failed == files.count:
        raise UserError(
            f"--input: {counted(files.count, 'files')}, none of which could be used: see the "
            f"`error` column{f' of {output}' * (output != STDIO)}"
        )
    stream = sys.stderr if output == STDIO else sys.stdout
    done = counted(files.count - files.failed, "predictions")
    print(f"wrote {done} to {'standard output' if output == STDIO else output}", file=stream)
    if files.failed:
        total = counted(files.count, "files")
        print(f"{files.failed} of {total} could not be used: see the `error` column", file=stream)
    if settings.images_out:
        worst.draw(run, settings.images_out)
        what = f"the {len(worst.rows)} worst of {worst.count} mistakes in {settings.images_out}"
        print(f"drew {what}; {worst.known} files are in folders named after a class", file=stream)


def _input_files(run: Run, files: Iterable[Path]) -> InputFiles:
    return InputFiles(files, lambda data: run.inputs.canonicalize(data, run.hyperparameters))


def check_output(output: str) -> None:
    """Refuse a table that could not be written in the end."""
    if output == STDIO:
        return
    if os.path.isdir(output):
        raise UserError(f"--output: {output} is a folder, not a file")
    if not output.endswith(SUFFIXES):
        raise UserError(f"--output: {output} does not end in {' or '.join(SUFFIXES)}")
    check_folder("--output", Path(output).absolute().parent)


def write_rows(output: str, rows: Iterable[Row], columns: Sequence[str]) -> None:
    """Write a table that appears when it is complete; `-` is standard output.

    JSON lines have the columns that a row has, CSV has all.
    """
    with contextlib.ExitStack() as stack:
        file: IO[str] = sys.stdout
        if isinstance(sys.stdout, io.TextIOWrapper):  # UTF-8, whatever the console's encoding is
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="")
        if output != STDIO:
            Path(output).parent.mkdir(parents=True, exist_ok=True)
            path = stack.enter_context(replacing(output))
            file = stack.enter_context(path.open("w", -1, "utf-8", "surrogateescape", ""))
        if output.endswith(".jsonl"):
            for row in rows:
                file.write(json.dumps({name: row[name] for name in columns if name in row}) + "\n")
            return
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        for row in rows:
            cells = (row.get(name, "") for name in columns)
            table.writerow([f"{x:.9g}" if isinstance(x, float) else x for x in cells])


class WorstMistakes:
    """The most confident mistakes among rows of files whose folder is named after a class."""

    def __init__(self, classes: Collection[str]):
        self.classes = frozenset(classes)
        self.known = self.count = 0  # files of a known class, and mistakes among them
        self.rows: list[Row] = []  # the most confident first, with `label`, the true class

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows."""
        for row in rows:
            label = Path(row["file"]).parent.name
            if label in self.classes and "class" in row:
                self.known += 1
                if label != row["class"]:
                    self.count += 1
                    self.rows.append({**row, "label": label})
                    self.rows = sorted(self.rows, key=lambda one: -one["probability"])[:WORST]
            yield row

    def draw(self, run: Run, folder: Path) -> None:
        """Draw each mistake as the network sees it, with the true class and the predicted one."""
        folder.mkdir(parents=True, exist_ok=True)
        files = _input_files(run, [Path(row["file"]) for row in self.rows])
        rows = iter(enumerate(self.rows, start=1))
        for features in run.inputs.prediction_input(run, files) if self.rows else ():
            for image in run.drawn(features).numpy():
                rank, row = next(rows)
                caption = mistake_caption(row["label"], row["class"], row["probability"])
                with replacing(folder / f"mistake-{rank:02}.png") as temporary:
                    grid = report.image_grid([image], [caption])
                    temporary.write_bytes(report.png(grid))
