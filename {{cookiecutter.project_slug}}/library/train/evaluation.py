"""The command evaluate: metrics and a report of a trained model on a dataset."""

import contextlib
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from library.config import OptimizerHyperparameters, options_of, word_of
from library.report import EXAMPLES, StatsHook, read_curves, write_report
from library.train import run_record
from library.train.errors import translate_errors
from library.train.exporter import read_best
from library.train.hub import HUB_CARD, METRICS, hub_card
from library.train.run import Run
from library.util import (
    UserError,
    check_folder,
    read_json,
    replacing,
    set_aside,
    sha256_of,
    write_json,
    write_text,
)


def run_evaluation(run: Run) -> Path:
    """Print the metrics of `model` on a split; write them and a report to evaluation/SPLIT."""
    run, checkpoint = run.trained()
    split, field, folder = _place(run)
    path: str = getattr(run.settings, field)
    run.expect_target(run.card(field), field, "model")
    check_folder("run", folder)
    check_folder("model_dir", run.settings.model_dir / f"eval_{split}")  # for TensorBoard
    options = run_record.last_options(run.settings.model_dir)
    own = Path(checkpoint).parent in (run.settings.model_dir, run.settings.best_model_dir)
    if own and (others := _differences(run, options, field)):
        print(f"not as in the training: {', '.join(others)}")
    with tempfile.TemporaryFile("w+", -1, "utf-8", errors="surrogateescape", newline="") as table:
        hook = StatsHook(run.head, table)
        with translate_errors(run, path):
            metrics = run.estimator().evaluate(
                lambda: run.inputs.evaluation_input(run, path),
                checkpoint_path=checkpoint,
                name=split,
                hooks=[hook],
            )
        numbers = {name: value.item() for name, value in sorted(metrics.items())}
        for name, value in numbers.items():
            print(f"{name}: {value:.6g}")
        facts = {"split": split, "data": path, "checkpoint": checkpoint}
        _keep_other(folder, facts)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / METRICS).unlink(missing_ok=True)  # or a kill leaves rows that are not of it
        table.seek(0)
        with (
            replacing(folder / EXAMPLES) as temporary,
            temporary.open("w", -1, "utf-8", "surrogateescape", "") as file,
        ):
            shutil.copyfileobj(table, file)
    measured_with = _measured_with(run, checkpoint)
    write_json(folder / METRICS, {**facts, **numbers, "measured_with": measured_with})
    step = numbers.pop("global_step")
    worst = {example.key for example in hook.stats.worst} if hook.stats else set()
    write_report(
        folder,
        title=f"Evaluation on the {split} set",
        metrics=numbers,
        stats=hook.stats,
        sounds=run.modality.playable(path, worst),
        curves=read_curves(run.settings.model_dir, metrics=numbers),
        facts={**facts, "step": str(step)},
        settings=options,
        best_step=(read_best(run.settings.best_model_dir) or {}).get("step"),
    )
    if own:
        write_text(Path(checkpoint).with_name(HUB_CARD), hub_card(run, checkpoint))
    print(f"wrote metrics.json, report.html and its parts to {folder}")
    return folder


def evaluation_of(run: Run) -> Path:
    """The folder of an evaluation of `model` as `run_evaluation` writes it, of an earlier one if
    nothing that its metrics depend on has changed."""
    found, checkpoint = run.trained()
    _, field, folder = _place(found)
    found.expect_target(found.card(field), field, "model")
    with contextlib.suppress(UserError):  # a damaged one is made again
        measured_with = read_json(folder / METRICS).get("measured_with")
        whole = (folder / EXAMPLES).exists()
        if whole and measured_with == _measured_with(found, checkpoint):
            return folder
    print(f"evaluating {checkpoint}")
    return run_evaluation(run)


def _place(run: Run) -> tuple[str, str, Path]:
    """The split, the option that names its dataset, and the folder of the evaluation."""
    split = run.settings.split or "test"
    return split, f"{split}_data", run.dir / "evaluation" / split


def _differences(run: Run, options: dict[str, Any], field: str) -> list[str]:
    """What is not as in the last start, which had these options.

    An optimizer changes no metric; an architecture is that of the checkpoint.
    """
    cls: Any = type(run.hyperparameters)
    values = run_record.options_used(run.hyperparameters)
    now = {
        name: values[name]
        for name, option in options_of(cls).items()
        if not (option.rule["defines_architecture"] or option.group is OptimizerHyperparameters)
    }
    if field == "validation_data":
        now[field] = run_record.options_used(run.settings)[field]
    return [
        f"{name} {word_of(value)} (was {word_of(options[name])})"
        for name, value in now.items()
        if options.get(name, value) != value
    ]


def _measured_with(run: Run, checkpoint: str) -> dict[str, str]:
    """Checksums of all that the metrics depend on: checkpoint, data, code and hyperparameters."""
    field = _place(run)[1]
    found = run_record.evaluated_with(run, field)
    checksum = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
    index = sha256_of(f"{checkpoint}.index")  # which has the checksums of all variables
    return {"checkpoint": index, "data": found[field], "with_code_and_options": checksum}


def _keep_other(folder: Path, facts: dict[str, str]) -> None:
    """Rename the folder of an earlier report, of other data or another checkpoint: -1, -2, ..."""
    file = folder / METRICS
    with contextlib.suppress(UserError):  # a damaged one is of something else
        if facts.items() <= read_json(file).items():
            return
    if file.exists():
        print(f"the last report, of other data or another checkpoint, is in {set_aside(folder)}")
