"""The best model of a run: kept when an evaluation improves, found again by name."""

import dataclasses
import datetime
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from library.estimator import Exporter
from library.train.checkpoints import damage, name_checkpoints, newest_checkpoint
from library.util import (
    UserError,
    did_you_mean,
    moving_into,
    read_json,
    typed,
    write_json,
    written_here,
)

BEST_FILE, PATIENCE_FILE = "best.json", "patience.json"
FORMAT_VERSION = 1
SHOWN = 5
"""Names in a line."""


@dataclasses.dataclass(eq=False)
class BestCheckpointExporter(Exporter):
    """Copies the checkpoint to `best_model_dir` whenever the metric of an evaluation improves.

        EvalSpec(input_fn, exporters=BestCheckpointExporter("out/best", "accuracy", "max"))

    The folder then holds the files of the `keep` best checkpoints, `checkpoint` as TensorFlow
    writes it, and best.json:

        {"format_version": 1, "metric": "accuracy", "mode": "max", "value": 0.97, "step": 1200,
         "time": "...", "kept": [{"value": 0.97, "step": 1200, "time": "..."}],
         "measured_with": {"validation_data": "...", "l2_regularization": 0.0001}}

    best.json is the truth: it is replaced after the files that it names are complete and before any
    other is deleted, so that a kill at any moment leaves a complete best model. NaN is never the
    best. patience.json has `evaluated_step`, that of the last evaluation, and
    `evaluations_without_improvement`, in a row.
    """

    best_model_dir: str | Path
    metric: str = "loss"
    mode: str = "min"
    keep: int = 1
    _: dataclasses.KW_ONLY
    assets: Sequence[str | Path] = ()  # files to copy along with the best: the card of the model
    # What a value of the metric depends on beside the checkpoint, as JSON.
    measured_with: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max") or self.keep < 1:
            got = f"(got {self.mode}, {self.keep})"
            raise ValueError(f"mode must be min or max and keep at least 1 {got}")
        self.folder = Path(self.best_model_dir)
        self.read_patience()

    def read_patience(self) -> None:
        """Update `evaluated_step` and `evaluations_without_improvement` from patience.json."""
        file = self.folder / PATIENCE_FILE
        with written_here(file):
            patience: dict[str, int | None] = typed(dict[str, int | None], read_json(file))
            self.evaluated_step = patience.get("evaluated_step")
            evaluations = patience.get("evaluations_without_improvement") or 0
            if evaluations < 0:
                raise ValueError(f"{evaluations} evaluations")
        self.evaluations_without_improvement = evaluations

    def _write_patience(self, step: int | None, evaluations: int) -> None:
        patience = {"evaluated_step": step, "evaluations_without_improvement": evaluations}
        write_json(self.folder / PATIENCE_FILE, patience)
        self.read_patience()

    name = "best_checkpoint"

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: dict[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Keep this checkpoint if it is among the best: the path of the copy, or None."""
        if self.metric not in eval_result:
            raise ValueError(
                f"The evaluation has no metric {self.metric}; it has {', '.join(eval_result)}"
            )
        value, step = float(eval_result[self.metric]), int(eval_result["global_step"])
        time = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        # Workers that do not wait for each other go on after a checkpoint has its name.
        name = f"model.ckpt-{step}"
        new = {"value": value, "step": step, "time": time}
        kept = [one for one in self._kept() if one["step"] != step]
        ranked = sorted([*kept, new], key=self._rank)[: self.keep]
        among_the_best = not math.isnan(value) and new in ranked
        self.folder.mkdir(parents=True, exist_ok=True)
        if among_the_best:
            try:
                with moving_into(self.folder) as temporary:
                    for source in tf.io.gfile.glob(f"{checkpoint_path}.*"):
                        shutil.copy(source, temporary / (name + source[len(checkpoint_path) :]))
                    for source in self.assets if new is ranked[0] else ():  # they are the best's
                        shutil.copy(source, temporary)
                    if reason := damage(str(temporary / name)):
                        raise FileNotFoundError(reason)
            except FileNotFoundError:  # deleted by a training that is faster than its evaluator
                reason = "was deleted or damaged before it could be kept as the best"
                print(f"{checkpoint_path} {reason}", flush=True)
                return None
            self._write(ranked)
        improved = among_the_best and new is ranked[0]
        self._write_patience(step, 0 if improved else self.evaluations_without_improvement + 1)
        return str(self.folder / name) if among_the_best else None

    def _write(self, ranked: list[dict[str, Any]]) -> None:
        """Name the best checkpoints, whose files are there; delete those that are it no longer."""
        # In this order, so that a kill at any moment leaves a best.json whose files are complete.
        record = {"metric": self.metric, "mode": self.mode, **ranked[0], "kept": ranked}
        record |= {"format_version": FORMAT_VERSION, "measured_with": self.measured_with}
        write_json(self.folder / BEST_FILE, record)
        name_checkpoints(self.folder, [f"model.ckpt-{one['step']}" for one in ranked[::-1]])

    @property
    def outdated(self) -> list[str]:
        """What the values of best.json were measured with, and is different now."""
        record = read_best(self.folder) or {"measured_with": self.measured_with}
        before = record["measured_with"].items()
        return [name for name, value in self.measured_with.items() if (name, value) not in before]

    def measure_again(self, evaluate: Callable[[str], Mapping[str, Any]]) -> None:
        """Give the best checkpoints values that can be compared with those to come.

        `evaluate` takes the path of a checkpoint and returns its metrics, as they are measured now.
        """
        changed, kept = self.outdated, self._kept()
        if not changed:
            return
        new = []
        for one in kept:
            metrics = evaluate(_checkpoint_of(self.folder, one["step"]))
            new.append({**one, "value": float(metrics[self.metric])})
        if not all(math.isclose(a["value"], b["value"]) for a, b in zip(kept, new, strict=True)):
            # What was no improvement then may be one now.
            self._write_patience(self.evaluated_step, 0)
        self._write(sorted(new, key=self._rank))
        why = f"{', '.join(changed[:SHOWN])}{' and more' * (len(changed) > SHOWN)}"
        values = f"{self.metric} {kept[0]['value']:.4f} -> {new[0]['value']:.4f}"
        print(f"best model evaluated again, since {why} changed: {values}", flush=True)

    def _rank(self, one: dict[str, Any]) -> tuple[float, int]:
        """The best first; of equal ones, the earlier."""
        value = one["value"] if self.mode == "min" else -one["value"]
        return (math.inf if math.isnan(value) else value), one["step"]

    def _kept(self) -> list[dict[str, Any]]:
        record = read_best(self.folder)
        if record is None:
            return []
        if (record["metric"], record["mode"]) != (self.metric, self.mode):
            raise UserError(
                f"{self.folder / BEST_FILE} keeps the {record['mode']} of "
                f"{record['metric']}, not the {self.mode} of {self.metric}: use another folder"
            )
        return record["kept"]


def read_best(best_model_dir: str | Path) -> dict[str, Any] | None:
    """The content of best.json, or None where no best model is yet."""
    file = Path(best_model_dir) / BEST_FILE
    if not file.exists():
        return None
    with written_here(file):
        record = read_json(file)
        if record.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
            raise ValueError(f"format_version {record['format_version']} is not known")
        for one in (record, *record["kept"]):
            one["step"], one["value"] = int(one["step"]), float(one["value"])
        if not record["kept"]:
            raise ValueError("nothing is kept")
        record |= {name: str(record[name]) for name in ("metric", "mode")}
        return record | {"measured_with": dict(record.get("measured_with", {}))}


def _checkpoint_of(folder: str | Path, step: int) -> str:
    return str(Path(folder) / f"model.ckpt-{step}")


def global_step_of(checkpoint: str) -> int:
    """The step at which a checkpoint was written."""
    return int(tf.train.load_variable(checkpoint, tf.compat.v1.GraphKeys.GLOBAL_STEP))


def find_checkpoint(
    model: str | Path, *, model_dir: Path, best_model_dir: Path, option: str = "model"
) -> str:
    """The path of a checkpoint, as TensorFlow names it.

    Args:
        model: `latest`, `best`, or the path of a checkpoint or of a folder with checkpoints.
        model_dir, best_model_dir: where `latest` and `best` are looked for.
        option: the one that says so, for the error.
    """
    model = str(model)
    folder, checkpoint = str(model_dir) if model == "latest" else model, None
    if model == "best":
        best = read_best(best_model_dir)
        if best is None:
            run = Path(best_model_dir).parent
            near = did_you_mean(run.name, [each.parent.name for each in run.parent.glob("*/best")])
            text = f"{option}: there is no best model in {best_model_dir}: train first"
            raise UserError(text + near)
        folder = _checkpoint_of(best_model_dir, best["step"])
    if os.path.isdir(folder):
        checkpoint = newest_checkpoint(option, folder)
    elif os.path.exists(f"{folder}.index"):
        checkpoint = folder
        if reason := damage(checkpoint):
            raise UserError(f"{option}: {checkpoint} cannot be read: {reason}")
    if checkpoint:
        return checkpoint
    if model in ("best", "latest"):
        raise UserError(f"{option}: there is no checkpoint in {folder}: train first")
    words = "latest, best, or " if option == "model" else ""
    allowed = f"{words}the path of one, or of its folder, as runs/NAME/best"
    raise UserError(f"{option}: there is no checkpoint {model} (allowed: {allowed})")
