"""An audit of images with planted label errors."""

import csv
from pathlib import Path

import numpy as np
import pytest
from conftest import convert, make_run, quick_network
from PIL import Image

from library.audit import audit_labels

COLORS = {"blue": (30, 60, 220), "green": (40, 200, 60), "red": (220, 50, 40)}


def make_images(folder: Path, count: int) -> None:
    """Noise around a color, so many images of each."""
    random = np.random.default_rng(0)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.array(color) + random.normal(0, 25, [32, 32, 3])
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(folder / name / f"{number:02}.png")


@pytest.mark.slow
def test_an_audit_finds_planted_label_errors(tmp_path, monkeypatch):
    quick_network(monkeypatch)
    make_images(tmp_path / "files", 30)
    planted = {"blue/03.png": "red", "green/14.png": "blue", "red/05.png": "green"}
    with open(tmp_path / "planted.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "label"), *planted.items()])
    words = ["--validation_fraction", 0, "--relabel", tmp_path / "planted.csv"]
    convert(tmp_path / "files", tmp_path / "data", "train", *words)
    convert(tmp_path / "files", tmp_path / "data", "validation")
    options = {"train_epochs": 4, "epochs_between_evals": 4, "train_batch_size": 8}
    audit_labels(make_run(tmp_path / "data", tmp_path / "run", **options, learning_rate=1e-2))
    with open(tmp_path / "run/audit/suspects.csv", newline="", encoding="utf-8") as file:
        found = {row["file"]: (row["label"], row["suggested"]) for row in csv.DictReader(file)}
    for name, label in planted.items():
        assert found[name] == (label, name.split("/")[0])
    assert len(found) <= 9
