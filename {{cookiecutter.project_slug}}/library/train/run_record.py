"""What a run used: settings, command, commit, versions, devices and data, kept in run.yaml."""

import contextlib
import datetime
import hashlib
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf
import yaml

from library.config import plain
from library.util import UserError, replacing

FILE = "run.yaml"
PACKAGES = ("tensorflow", "tf-keras", "tensorflow-estimator", "numpy", "Pillow")


def describe(
    *,
    start: dict[str, int],
    settings: dict[str, Any],
    hyperparameters: dict[str, Any],
    cards: dict[str, str],
    devices: Iterable[str],
    root: Path,
) -> dict[str, Any]:
    """What is worth knowing of a start, as plain values.

    Args:
        start: the step and the number of examples that the run has behind it.
        settings: resolved.
        hyperparameters: resolved.
        cards: the cards of the data sets, by option; their checksums stand for the data.
        devices: the names of the devices that TensorFlow sees.
        root: the project's folder, for its git commit.
    """
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "start": start,
        "git": _git(root),
        "versions": {"python": platform.python_version(), **_versions()},
        "devices": list(devices),
        "data": {
            name: hashlib.sha256(tf.io.gfile.GFile(card, "rb").read()).hexdigest()
            for name, card in cards.items()
        },
        "settings": {name: plain(value) for name, value in settings.items()},
        "hyperparameters": {name: plain(value) for name, value in hyperparameters.items()},
    }


def append(folder: Path, record: dict[str, Any]) -> list[str]:
    """Append a record to run.yaml, a YAML document for each start.

    Returns:
        A line for each option, version and data set that is another than at the last start.
    """
    last = load(folder)[-1:]
    path = folder / FILE
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        document = yaml.safe_dump(record, sort_keys=False, allow_unicode=True)
        temporary.write_text(f"{before}---\n{document}", encoding="utf-8")
    return [
        f"{name}: {old[part].get(name)} -> {value}"
        for old in last
        for part in ("settings", "hyperparameters", "versions", "data")
        for name, value in record[part].items()
        if old[part].get(name) != value
    ]


def last_options(folder: Path) -> dict[str, Any]:
    """The settings and hyperparameters of the last start; none where there was none."""
    options: dict[str, Any] = {}
    for record in load(folder)[-1:]:
        options = {**record["settings"], **record["hyperparameters"]}
    return options


def load(folder: Path) -> list[dict[str, Any]]:
    """The records of all starts, the first one first.

    Raises:
        UserError: run.yaml is not one that was written here.
    """
    path = folder / FILE
    try:
        records = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        if not all(record["start"] and record["settings"] for record in records):
            raise ValueError("a part is missing")
        return records
    except FileNotFoundError:
        return []
    except (yaml.YAMLError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a file that was written here: {error}") from error


def examples_before(folder: Path, step: int, batch_size: int) -> int:
    """The number of examples that a run has seen at a step, whatever its batches were.

    Without run.yaml, they are taken to have been of `batch_size`.
    """
    for record in reversed(load(folder)):
        start, size = record["start"], record["settings"]["train_batch_size"]
        if start["step"] <= step:
            return start["examples"] + (step - start["step"]) * size
    return step * batch_size


def _versions() -> dict[str, str]:
    """Of those of PACKAGES that are installed by these names."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _git(root: Path) -> dict[str, Any] | None:
    """The commit, and whether the tree differs from it; None where there is no repository."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None
