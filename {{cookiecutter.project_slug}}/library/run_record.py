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

import yaml

from library.files import replacing
from library.options import plain

FILE = "run.yaml"
PACKAGES = ("tensorflow", "tf-keras", "tensorflow-estimator", "numpy", "Pillow")


def describe(
    *,
    settings: dict[str, Any],
    hyperparameters: dict[str, Any],
    cards: Iterable[Path],
    devices: Iterable[str],
    root: Path,
) -> dict[str, Any]:
    """What is worth knowing of a start, as plain values.

    Args:
        settings: resolved.
        hyperparameters: resolved.
        cards: the cards of the data sets; their checksums stand for the data.
        devices: the names of the devices that TensorFlow sees.
        root: the project's folder, for its git commit.
    """
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "git": _git(root),
        "versions": {"python": platform.python_version(), **_versions()},
        "devices": list(devices),
        "data": {str(card): hashlib.sha256(card.read_bytes()).hexdigest() for card in cards},
        "settings": {name: plain(value) for name, value in settings.items()},
        "hyperparameters": {name: plain(value) for name, value in hyperparameters.items()},
    }


def append(folder: Path, record: dict[str, Any]) -> list[str]:
    """Append a record to run.yaml, a YAML document for each start.

    Returns:
        A line for each option that has another value than at the last start.
    """
    path = folder / FILE
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        document = yaml.safe_dump(record, sort_keys=False, allow_unicode=True)
        temporary.write_text(f"{before}---\n{document}", encoding="utf-8")
    last = list(yaml.safe_load_all(before))[-1:]
    return [
        f"{name}: {old[part].get(name)} -> {value}"
        for old in last
        for part in ("settings", "hyperparameters")
        for name, value in record[part].items()
        if old[part].get(name) != value
    ]


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
