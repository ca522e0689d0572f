"""Commands of run.py on a trained model: evaluate and predict."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from library.report import MISTAKES, TallyHook, caption_of, picture_grid, png, reports
from library.serve import (
    STANDARD,
    Inputs,
    WorstMistakes,
    columns_of,
    find_files,
    rows_of,
    writer_of,
)
from library.train import run_record
from library.util import UserError, check_folder, replacing
from project.input_fn import evaluation_input, prediction_input, standard
from project.networks import pictures_of, prepared
from project.sessions import card_of, estimator_of, told_in_a_line, trained_model
from project.settings import Hyperparameters, Settings


def evaluate(settings: Settings, hyperparameters: Hyperparameters, *, split: str) -> None:
    """Print the metrics of `model` on a data set, and write them to model_dir/evaluation."""
    hyperparameters = prepared(settings, hyperparameters)
    checkpoint, model = trained_model(settings, hyperparameters)
    path: str = getattr(settings, f"{split}_data")
    classes = card_of(settings, f"{split}_data").classes
    if classes != model.class_names:
        raise UserError(
            f"{split}_data: {path} has the classes {', '.join(classes)}, "
            f"but the model has {', '.join(model.class_names)}"
        )
    hook = TallyHook(model.class_names)
    with told_in_a_line(settings, path):
        metrics = estimator_of(settings, hyperparameters, model).evaluate(
            lambda: evaluation_input(path, settings, hyperparameters),
            checkpoint_path=checkpoint,
            name=split,
            hooks=[hook],
        )
    numbers = {name: value.item() for name, value in sorted(metrics.items())}
    for name, value in numbers.items():
        print(f"{name}: {value:.6g}")
    folder = settings.model_dir / "evaluation"
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"split": split, "data": path, "checkpoint": checkpoint}
    with replacing(folder / "metrics.json") as temporary:
        temporary.write_text(json.dumps({**facts, **numbers}, indent=2) + "\n", encoding="utf-8")
    step = numbers.pop("global_step")
    reports.write_report(
        folder,
        title=f"Evaluation on the {split} set",
        metrics=numbers,
        tally=hook.tally,
        curves=reports.read_curves(settings.model_dir, metrics=numbers),
        facts={**facts, "step": str(step)},
        settings=run_record.last_options(settings.model_dir),
    )
    print(f"written to {folder}: metrics.json, report.html and its parts")


def predict(
    settings: Settings,
    hyperparameters: Hyperparameters,
    *,
    inputs: Sequence[str],
    output: str,
    top_k: int | None,
    images_out: str | None,
) -> None:
    """Write the predictions of `model` for files and folders, a row for each.

    Args:
        settings, hyperparameters: of the model.
        inputs: files, folders, patterns, or `-`.
        output: a .csv or .jsonl file, or `-`.
        top_k: how many classes of each are written; None: all.
        images_out: the folder for pictures of the worst mistakes; None: none are drawn.
    """
    write = writer_of(output)
    check_folder("--output", Path(output).absolute().parent)
    if images_out:
        check_folder("--images_out", Path(images_out).absolute())
    hyperparameters = prepared(settings, hyperparameters)
    checkpoint, model = trained_model(settings, hyperparameters)
    contents = Inputs(find_files(inputs), lambda data: standard(data, hyperparameters))
    predictions = estimator_of(settings, hyperparameters, model).predict(
        lambda: prediction_input(contents, settings, hyperparameters),
        checkpoint_path=checkpoint,
        yield_single_examples=False,
    )
    rows = rows_of(predictions, contents, model.class_names, top_k=top_k)
    worst = WorstMistakes(model.class_names, MISTAKES)
    write(output, worst.of(rows), columns_of(model.class_names, top_k))
    if contents.failed == contents.count:
        raise UserError(f"--input: none of {contents.count} files could be used: see {output}")
    told = sys.stderr if output == STANDARD else sys.stdout
    print(f"{contents.count - contents.failed} predictions written to {output}", file=told)
    if contents.failed:
        print(f"{contents.failed} files could not be used: see the column error", file=told)
    if images_out:
        draw_mistakes(settings, hyperparameters, worst, folder=Path(images_out))
        what = f"{len(worst.rows)} of {worst.known} files whose folder is a class"
        print(f"the worst mistakes, {what}, drawn in {images_out}", file=told)


def draw_mistakes(
    settings: Settings, hyperparameters: Hyperparameters, worst: WorstMistakes, *, folder: Path
) -> None:
    """Draw each mistake as the network sees it, with the true class and the predicted one."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [Path(row["file"]) for row in worst.rows]
    contents = Inputs(files, lambda data: standard(data, hyperparameters))
    params = dataclasses.asdict(hyperparameters)
    rows = iter(enumerate(worst.rows, start=1))
    for features in prediction_input(contents, settings, hyperparameters) if files else ():
        for picture in pictures_of(features, params).numpy():
            rank, row = next(rows)
            caption = caption_of(row["label"], row["class"], row["probability"])
            with replacing(folder / f"mistake-{rank:02}.png") as temporary:
                temporary.write_bytes(png(picture_grid([picture], [caption])))
