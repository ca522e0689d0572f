"""The command evaluate: metrics and a report of a trained model on a dataset."""

import contextlib
from pathlib import Path

from library.report import StatsHook, read_curves, write_report
from library.train import run_record
from library.train.errors import translate_errors
from library.train.exporter import read_best
from library.train.run import Run
from library.util import UserError, check_folder, read_json, set_aside, write_json


def run_evaluation(run: Run) -> None:
    """Print the metrics of `model` on a split; write them and a report to evaluation/SPLIT."""
    run, checkpoint = run.trained()
    split = run.settings.split
    field, folder = f"{split}_data", run.dir / "evaluation" / split
    path: str = getattr(run.settings, field)
    run.expect_target(run.card(field), field, "model")
    check_folder("run", folder)
    check_folder("model_dir", run.settings.model_dir / f"eval_{split}")  # for TensorBoard
    options, hook = run_record.last_options(run.settings.model_dir), StatsHook(run.head)
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
    write_json(folder / "metrics.json", {**facts, **numbers})
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
    print(f"wrote metrics.json, report.html and its parts to {folder}")


def _keep_other(folder: Path, facts: dict[str, str]) -> None:
    """Rename the folder of an earlier report, of other data or another checkpoint: -1, -2, ..."""
    file = folder / "metrics.json"
    with contextlib.suppress(UserError):  # a damaged one is of something else
        if facts.items() <= read_json(file).items():
            return
    if file.exists():
        print(f"the last report, of other data or another checkpoint, is in {set_aside(folder)}")
