"""The wheel of estimator/: the files of the template, and an old program runs on it as it is."""

import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from conftest import TEMPLATE

PROJECT = "{{cookiecutter.project_slug}}"
OLD_PROGRAM = TEMPLATE / PROJECT / "docs/from_tensorflow_2.15/old_project.py"
PACKAGE = Path(PROJECT) / "library/estimator"

needs_tensorflow = pytest.mark.skipif(
    not importlib.util.find_spec("tensorflow_estimator"), reason="TensorFlow is not installed"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where pip installed the wheel, built as from a clone."""
    clone = tmp_path_factory.mktemp("clone")
    for folder in ("estimator", PACKAGE):  # a copy: building leaves files beside pyproject.toml
        ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        shutil.copytree(TEMPLATE / folder, clone / folder, ignore=ignored)
    target = tmp_path_factory.mktemp("site-packages")
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", *words, str(clone / "estimator")], check=True)
    return target


def run(installed: Path, *words: str | Path) -> str:
    """What a program prints that finds the wheel and nothing of the project."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TF_")}
    process = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**environment, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=installed,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout + process.stderr


def test_the_wheel_has_the_files_of_the_template_and_little_else(installed: Path) -> None:
    folder = installed / "tf_estimator_compat"
    packed = {file.name: file.read_text() for file in folder.glob("*.py")}
    assert packed == {file.name: file.read_text() for file in (TEMPLATE / PACKAGE).glob("*.py")}
    assert sum(text.count("\n") for text in packed.values()) <= 500
    (metadata,) = installed.glob("tensorflow_estimator_compat-*.dist-info/METADATA")
    required = re.findall(r"^Requires-Dist: ([\w-]+)", metadata.read_text(), re.MULTILINE)
    assert required == ["tensorflow", "tf-keras", "tensorflow-estimator"]


@needs_tensorflow
def test_an_old_program_runs_as_it_is(installed: Path, tmp_path: Path) -> None:
    for number in range(12):
        split, name = ("train", "test")[number % 2], ("cross", "star", "wave")[number % 3]
        image = tmp_path / "images" / split / name / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(gray_png(32, level=20 * number))
    words: list[str | Path] = ["-m", "tf_estimator_compat", OLD_PROGRAM, "--max_steps", "3"]
    words += ["--data_dir", tmp_path / "images", "--model_dir", tmp_path / "model"]
    printed = run(installed, *words)
    losses = [float(loss) for loss in re.findall(r"loss = (\S+), step = 0", printed)]
    assert losses == [pytest.approx(1.1, abs=0.1)]  # of three classes, before anything is learnt
    assert "global_step: 3\n" in printed
    (exported,) = re.findall(r"^exported to (.*)$", printed, re.MULTILINE)
    assert (Path(exported) / "saved_model.pb").exists()


@needs_tensorflow
def test_both_names_of_the_package_get_along(installed: Path) -> None:
    printed = run(
        installed,
        "-c",
        f"import sys; sys.path.append({str(TEMPLATE / PROJECT)!r})\n"
        "import tf_estimator_compat, library.estimator\n"
        "tf_estimator_compat.install()\n"
        "import tensorflow as tf\n"
        "print(tf.estimator.Estimator is library.estimator.Estimator)\n"
        "from tensorflow.python.estimator.canned import dnn\n"
        "library.estimator.install()\n"
        "print(tf.estimator.DNNClassifier is tf_estimator_compat.DNNClassifier)\n",
    )
    assert [line for line in printed.splitlines() if line in ("True", "False")] == ["True"] * 2


def gray_png(size: int, level: int) -> bytes:
    """A PNG file, all of one gray."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    rows = (b"\0" + bytes([level]) * size) * size
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
