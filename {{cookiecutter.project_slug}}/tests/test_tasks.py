"""The tasks of docs/tasks.md: each patch applies, and the model that it makes learns its task."""

import csv
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, convert, copy_project, run_program, small_model

PATCHES = ("regression", "multi_label")
PICTURES = (ROOT / "library" / "pictures.py").exists()
PER_CLASS = {"train": 60, "test": 10}
SHORT = [*small_model(), "--train_batch_size", 16, "--train_epochs", 12, "--dropout_rate", 0]
SHORT += ["--epochs_between_evals", 6, "--learning_rate_schedule", "cosine", "--decay_epochs", 12]
SHORT += ["--min_crop_area", 1] if PICTURES else []

if PICTURES:
    from PIL import Image, ImageDraw

    LABELS = {"blue": (60, 60, 255), "red": (255, 60, 60)}

    def save(parts: Sequence[tuple[float, tuple[int, int, int]]], file: Path, random) -> None:
        """A picture of discs side by side: the radius and the colour of each."""
        image = Image.new("RGB", (64, 64), tuple(random.integers(0, 120, 3).tolist()))
        width = 64 / len(parts)
        for number, (radius, colour) in enumerate(parts):
            x = random.uniform(radius, width - radius) + number * width
            y = random.uniform(radius, 64 - radius)
            box = (x - radius, y - radius, x + radius, y + radius)
            ImageDraw.Draw(image).ellipse(box, fill=colour)
        image.save(file.with_suffix(".jpg"), quality=95)  # whose bytes the conversion keeps

    def save_number(number: float, file: Path, random) -> None:
        save([(number, (230, 230, 230))], file, random)

    def save_labels(labels: Sequence[str], file: Path, random) -> None:
        save([(random.uniform(5, 10), LABELS[label]) for label in labels], file, random)

else:
    import soundfile

    LABELS = {"high": 12.0, "low": 2.0}

    def save(tones: Sequence[float], file: Path, random) -> None:
        """A recording of tones that get louder and softer, in quarter octaves above 200 Hz."""
        time = np.arange(int(16000 * random.uniform(0.5, 1))) / 16000
        sound = random.normal(0, 0.02, len(time))
        for tone in tones:
            loudness = np.interp(time, np.linspace(0, 1, 9), random.uniform(0.1, 0.4, 9))
            sound += loudness * np.sin(2 * np.pi * 200 * 2 ** (tone / 4) * time)
        soundfile.write(file.with_suffix(".wav"), sound, 16000, "PCM_16")

    def save_number(number: float, file: Path, random) -> None:
        save([number], file, random)

    def save_labels(labels: Sequence[str], file: Path, random) -> None:
        save([LABELS[label] + random.uniform(-2, 2) for label in labels], file, random)


def apply(patch: str, folder: Path) -> None:
    """`git apply` at the root of a project, which is in no repository here."""
    subprocess.run(
        ["git", "apply", "-"],
        cwd=folder,
        input=patch,
        text=True,
        check=True,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
    )


def patch_of(name: str) -> str:
    return (ROOT / "docs" / f"{name}.patch").read_text(encoding="utf-8")


def patches_on_the_page() -> list[str]:
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    return re.findall(r"^```diff\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def patched_project(folder: Path, name: str) -> Path:
    """A copy of this project, edited as the page says."""
    copy_project(folder)
    apply(patch_of(name), folder)
    if not PICTURES:
        apply(patches_on_the_page()[-1], folder)
    return folder


def make_data(
    folder: Path, classes: Sequence[str], save_example: Callable, only_tested: str = ""
) -> None:
    """Draw examples, and convert them: the sets train, validation and test."""
    random = np.random.default_rng(0)
    for split, count in PER_CLASS.items():
        for name in classes:
            (folder / "mine" / split / name).mkdir(parents=True)
            for number in range(0 if (split, name) == ("train", only_tested) else count):
                save_example(name, folder / "mine" / split / name / f"{number:03}", random)
    data = folder / "data"
    convert(folder / "mine/train", data, "train", "--validation_fraction", 0.1)
    convert(folder / "mine/test", data, "test", "--classes_from", data / "train.json")


def whole_way(folder: Path) -> tuple[dict, list[dict[str, str]], dict[str, np.ndarray]]:
    """Train, and return the metrics, the rows of predictions and what the export gives: of test."""
    run_program("run.py", *SHORT, cwd=folder)
    run_program("run.py", "evaluate", *SHORT, cwd=folder)
    metrics = json.loads((folder / "out/current/evaluation/metrics.json").read_text())
    broken = folder / "mine" / "broken"
    broken.write_bytes(b"neither a picture nor a recording")
    words = ["--input", folder / "mine/test", broken, "--output", "new/predictions.csv"]
    run_program("run.py", "predict", *SHORT, *words, cwd=folder)
    with open(folder / "new/predictions.csv", newline="", encoding="utf-8") as file:
        *rows, last = csv.DictReader(file)
    assert (last["file"], bool(last["error"])) == (str(broken), True)
    assert not any(row["error"] for row in rows)

    run_program("run.py", "export", *SHORT, cwd=folder)
    (export,) = (folder / "export").iterdir()
    signature = tf.saved_model.load(str(export)).signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    contents = tf.constant([Path(row["file"]).read_bytes() for row in rows])
    served = {key: value.numpy() for key, value in signature(**{name: contents}).items()}
    return metrics, rows, served


@pytest.mark.parametrize("name", PATCHES)
def test_the_patch_applies_to_the_project_as_it_is(tmp_path, name):
    patched_project(tmp_path, name)
    changed = {
        path.relative_to(tmp_path).as_posix()
        for path in tmp_path.rglob("*.py")
        if path.read_bytes() != (ROOT / path.relative_to(tmp_path)).read_bytes()
    }
    assert changed >= {"project/model_fn.py", "project/commands.py"}
    assert all(path.startswith("project/") for path in changed)
    for path in changed:
        compile((tmp_path / path).read_text(encoding="utf-8"), path, "exec")


@pytest.mark.parametrize("name", PATCHES)
@pytest.mark.skipif(not shutil.which("patch"), reason="patch is not installed")
def test_patch_applies_it_too(tmp_path, name):
    copy_project(tmp_path)
    words = ["patch", "-p1", "--fuzz=0", "--dry-run"]
    subprocess.run(words, cwd=tmp_path, input=patch_of(name), text=True, check=True)


def test_the_page_shows_the_patches_whole():
    of_tasks = [patch for patch in patches_on_the_page() if "model_fn.py" in patch]
    assert of_tasks == [patch_of(name) for name in PATCHES]


@pytest.mark.slow
def test_a_regression_learns_the_number(tmp_path):
    folder = patched_project(tmp_path, "regression")
    names = ["2.5", "5", "7.5", "10", "12.5", "15"]
    make_data(folder, names, lambda name, *rest: save_number(float(name), *rest), "10")
    metrics, rows, served = whole_way(folder)
    true = np.array([float(Path(row["file"]).parent.name) for row in rows])
    values = np.array([float(row["value"]) for row in rows])
    assert list(rows[0]) == ["file", "value", "error"]
    errors = np.abs(values - true)
    of_the_mean = np.abs(true - true.mean()).mean()
    assert metrics["mean_absolute_error"] < of_the_mean / 4
    assert metrics["mean_absolute_error"] == pytest.approx(errors.mean(), rel=1e-4)
    rms = np.sqrt((errors**2).mean())
    assert metrics["root_mean_squared_error"] == pytest.approx(rms, rel=1e-4)
    assert errors[true == 10].mean() < 2.5  # which it has never seen; to the next one it is 2.5
    assert served.keys() == {"value"}
    np.testing.assert_allclose(served["value"], values, atol=1e-3)


@pytest.mark.slow
def test_a_class_that_is_no_number_is_one_line(tmp_path):
    folder = patched_project(tmp_path, "regression")
    make_data(folder, ["2.5", "wide"], lambda name, *rest: save_number(5.0, *rest))
    process = run_program("run.py", *SHORT, cwd=folder, status=2)
    assert "a class is not named by a number: could not convert" in process.stderr


@pytest.mark.slow
def test_several_labels_are_learnt_each_on_its_own(tmp_path):
    folder = patched_project(tmp_path, "multi_label")
    first, second = LABELS
    classes = [first, second, f"{first}+{second}"]
    make_data(folder, classes, lambda name, *rest: save_labels(name.split("+"), *rest))
    metrics, rows, served = whole_way(folder)
    true = np.array([[name in Path(row["file"]).parent.name for name in LABELS] for row in rows])
    p = np.array([[float(row[f"probability of {name}"]) for name in LABELS] for row in rows])
    found = p > 0.5
    assert metrics["exact_match"] > 0.9
    assert metrics["exact_match"] == pytest.approx((found == true).all(axis=1).mean())
    assert metrics["accuracy"] == pytest.approx((found == true).mean())
    assert metrics["precision"] == pytest.approx((found & true).sum() / found.sum())
    assert metrics["recall"] == pytest.approx((found & true).sum() / true.sum())
    joined = ["+".join(np.array(list(LABELS))[each]) for each in found]
    assert [row["class"] for row in rows] == joined
    np.testing.assert_allclose(served["probabilities"], p, atol=1e-4)
    assert [name.decode() for name in served["class"]] == joined
    exactly = np.prod(np.where(found, p, 1 - p), axis=1)
    np.testing.assert_allclose(served["probability"], exactly, atol=1e-4)
    np.testing.assert_allclose([float(row["probability"]) for row in rows], exactly, atol=1e-4)
