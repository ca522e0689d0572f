"""MODEL_CARD.md: what a model is, for people and, in its YAML head, for the Hugging Face hub.

It says what run.yaml, the cards of the datasets and the evaluations of this very checkpoint say,
and nothing else; no path of this machine is in it.
"""

import contextlib
import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import yaml

from library import report
from library.config import PATHS, PROJECT, URL, options_of, plain, word_of
from library.data import Card
from library.train import run_record
from library.train.exporter import global_step_of
from library.train.run import Run
from library.util import UserError, read_json, sha256_of

HUB_CARD, METRICS = "MODEL_CARD.md", "metrics.json"
WORST_CLASSES, FEW_EXAMPLES = 5, 20
"""Worst classes that are listed; with fewer examples, the numbers of a class are rough."""
HUB_NAMES = {"mean_absolute_error": "mae", "root_mean_squared_error": "rmse", "f1_micro": "f1"}
"""What the hub calls some metrics: https://huggingface.co/metrics."""


def hub_card(run: Run, checkpoint: str) -> str:
    """The text, in Markdown, on a checkpoint of the run; UserError: a record cannot be read."""
    target, name, settings = run.model.target, f"{PROJECT.name} {run.dir.name}", run.settings
    own = Path(checkpoint).parent in (settings.model_dir, settings.best_model_dir)
    record: dict[str, Any] = ([{}] + own * run_record.load(settings.model_dir))[-1]
    evaluations = list(_evaluations(run, sha256_of(f"{checkpoint}.index")))
    used = record.get("settings", {})
    # The data of options by their names; that of extra_data by its paths.
    checksums = record.get("data", {}).items()
    data = [_dataset(Path(each).name, used.get(each, each), found) for each, found in checksums]
    data += [_dataset(each["split"], each["data"], each["checksum"]) for each in evaluations]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": _cell, "word": word_of}
    template = environment.from_string(Path(__file__).with_name(HUB_CARD).read_text("utf-8"))
    return template.render(
        head=yaml.safe_dump(_head(run, name, evaluations), sort_keys=False, allow_unicode=True),
        name=name,
        unit=_modality(run),
        target=target,
        network=run.hyperparameters.network,
        step=global_step_of(checkpoint),
        evaluations=evaluations,
        data=list({each["checksum"]: each for each in data}.values()),
        record=record,
        options=_changed(run, record),
        worst=WORST_CLASSES,
        few=FEW_EXAMPLES,
    )


def _modality(run: Run) -> str:
    return run.modality.__name__.rpartition(".")[2]


def _head(run: Run, name: str, evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """What the hub reads: https://huggingface.co/docs/hub/model-cards."""
    label, modality = run.model.target.label, _modality(run)
    head: dict[str, Any] = {"library_name": "tensorflow", "tags": ["tensorflow", modality]}
    task = "other" if label == "value" else f"{modality.removesuffix('s')}-classification"
    if task != "other":
        head["pipeline_tag"] = task
    results: list[dict[str, Any]] = []
    for found in evaluations:
        dataset, numbers = Path(found["data"]).name, found["metrics"].items()
        metrics = [{"type": HUB_NAMES.get(k, k), "name": k, "value": v} for k, v in numbers]
        place = {"name": dataset, "type": dataset, "split": found["split"]}
        results.append({"task": {"type": task}, "dataset": place, "metrics": metrics})
    if results:
        head["metrics"] = sorted({each["type"] for one in results for each in one["metrics"]})
        head["model-index"] = [{"name": name, "results": results}]
    return head


def _evaluations(run: Run, checksum: str) -> Iterator[dict[str, Any]]:
    """What is known of the checkpoint with this checksum, by split."""
    for file in sorted((run.dir / "evaluation").glob(f"*/{METRICS}")):
        content, folder, label = {}, file.parent, run.model.target.label
        with contextlib.suppress(UserError):  # a damaged one says nothing
            content = read_json(file)
        measured_with = content.get("measured_with", {})
        if measured_with.get("checkpoint") != checksum or content["split"] != folder.name:
            continue
        rows = [row for row in _table(folder / "per_class.csv") if int(row["examples"])]
        rows.sort(key=lambda row: float(row["f1"]))
        found = {"split": content["split"], "data": content["data"], "rows": rows}
        found["rough"] = sum(int(row["examples"]) < FEW_EXAMPLES for row in rows)
        found["metrics"] = {k: v for k, v in content.items() if isinstance(v, float)}
        if len(errors := report.read_column(folder, "error")):
            words = report.measure_words(report.measure(errors, label), label)
            found |= {"measure": f"{report.MEASURES[label]} {words}", "examples": len(errors)}
        if len(confidence := report.read_column(folder, "confidence")):
            found["calibration"] = _calibration_error(confidence, errors)
        yield found | {"checksum": measured_with["data"]}


def _table(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none without the file."""
    with (
        contextlib.suppress(FileNotFoundError),
        open(file, encoding="utf-8", errors="replace", newline="") as content,
    ):
        return list(csv.DictReader(content))
    return []


def _calibration_error(confidence: np.ndarray, errors: np.ndarray) -> float:
    """The expected calibration error, as in the report: over ten bins of the confidence."""
    bins = np.minimum((10 * confidence).astype(int), 9)
    return float(abs(np.bincount(bins, confidence - (1 - errors))).sum() / len(errors))


def _dataset(name: str, path: str, checksum: str) -> dict[str, Any]:
    """What is known of a dataset, if it is still the one with this checksum."""
    found: dict[str, Any] = {"name": name.removesuffix("_data"), "checksum": checksum}
    path = path if URL.match(path) else os.path.join(PROJECT, path)
    with contextlib.suppress(UserError):
        card = Card.load(f"{path}.json")
        if run_record.card_checksum(path) == checksum:
            found["examples"] = card.num_examples
            rejected, rows = (_table(Path(f"{path}.{n}.csv")) for n in ("rejected", "duplicates"))
            leaks = [row for row in rows if row["same as"].startswith(("train:", "validation:"))]
            numbers = {"rejected": rejected, "duplicates": rows}
            found |= {name: len(each) for name, each in numbers.items() if each}
            found["leaks"] = len(leaks) if found["name"] == "test" else 0
    return found


def _changed(run: Run, record: dict[str, Any]) -> dict[str, Any]:
    """The options of the training that are not the defaults, but for paths."""
    changed = {}
    for part in ("settings", "hyperparameters"):
        kind: type = type(getattr(run, part))
        options = options_of(kind)
        for name, value in record.get(part, {}).items():
            option = options.get(name)
            other = option and option.kind not in PATHS and value != plain(option.default)
            if other and name not in run_record.OWN and not os.path.isabs(str(value)):
                changed[name] = value
    return changed


def _cell(value: Any) -> str:
    """A text for a cell of a table in Markdown."""
    return " ".join(str(value).split()).replace("|", "\\|")
