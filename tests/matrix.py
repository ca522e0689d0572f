"""The rendered project on several TensorFlows and Pythons: python tests/matrix.py build/matrix

Each gets an environment of its own, runs the tests of the Estimator, of run.py and of training that
is killed, and trains on the same pictures with the same seed; the first 50 losses have to agree.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from cookiecutter.main import cookiecutter

PAIRS = [("3.11", "2.15.1"), ("3.11", "2.18.1"), ("3.10", "2.21.0"), ("3.13", "2.21.0")]
"""Python and TensorFlow: the oldest, one between, and the newest with its oldest and newest."""

STEPS, TOLERANCE = 50, 1e-4

LOSSES = """
import glob, json, tensorflow as tf
values = {}
for file in glob.glob("out/current/events*"):
    for event in tf.compat.v1.train.summary_iterator(file):
        values |= {event.step: v.simple_value for v in event.summary.value if v.tag == "loss"}
print(json.dumps([values[step] for step in sorted(values)]))
"""


def main(folder: Path) -> None:
    template = str(Path(__file__).parent.parent)
    shutil.rmtree(folder / "project", ignore_errors=True)
    project = Path(
        cookiecutter(
            template,
            no_input=True,
            default_config=True,
            extra_context={"project_slug": "project"},
            output_dir=str(folder),
        )
    ).absolute()
    losses: dict[str, list[float]] = {}
    for python, tensorflow in PAIRS:
        name = f"TensorFlow {tensorflow}, Python {python}"
        print(f"\n== {name}", flush=True)
        program = environment(folder / f"py{python}-tf{tensorflow}", python, tensorflow, project)
        losses[name] = train(program, project)
    reference, expected = next(iter(losses.items()))
    for name, found in losses.items():
        worst = max(abs(a - b) for a, b in zip(expected, found, strict=True))
        print(f"{name}: {len(found)} losses, at most {worst:.1e} from those of {reference}")
        if len(found) < STEPS or worst > TOLERANCE:
            sys.exit(f"{name}: the first {STEPS} losses differ by more than {TOLERANCE}")
    print(f"{len(losses)} passed, 0 failed")


def environment(folder: Path, python: str, tensorflow: str, project: Path) -> Path:
    """The interpreter of a virtual environment with the project and this TensorFlow."""
    program = (folder / "bin" / "python").absolute()
    if not (folder / "installed").exists():
        call(find_python(python), "-m", "venv", "--clear", folder)
        words = ["-e", f"{project}[dev]", f"tensorflow=={tensorflow}"]
        call(program, "-m", "pip", "install", "--quiet", *words)
        (folder / "installed").touch()
    return program


def find_python(version: str) -> str:
    """An interpreter of this version: on the path, or installed by pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *map(str, pyenv.glob(f"{version}.*/bin/python"))]
    for candidate in candidates:
        try:
            done = subprocess.run([candidate, "--version"], capture_output=True, text=True)
        except OSError:
            continue
        if done.returncode == 0 and f" {version}." in done.stdout:
            return candidate
    sys.exit(f"Python {version} is not installed")


def train(program: Path, project: Path) -> list[float]:
    """Run the tests and a short training; return its losses, step by step."""
    names = ("estimator", "all_reduce", "run", "training_steps")
    tests = [f"tests/test_{name}.py" for name in names]
    call(program, "-m", "pytest", "-q", *tests, cwd=project)
    call(program, "-m", "pytest", "-q", "-m", "slow", "tests/test_survival.py", cwd=project)
    if not (project / "data").exists():  # once: pictures may be encoded differently elsewhere
        call(program, "-m", "library.images.sample_data", "pictures", cwd=project)
        words = ["--dataset_dir", "pictures/train", "--tfrecord_filename", "train"]
        words += ["--tfrecord_dir", "data", "--validation_fraction", "0.1"]
        call(program, "convert_dataset.py", *words, cwd=project)
    shutil.rmtree(project / "out", ignore_errors=True)
    words = ["--save_summary_steps", "1", "--train_epochs", "2"]
    call(program, "run.py", *words, cwd=project)
    done = subprocess.run(
        [program, "-c", LOSSES], cwd=project, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def call(*words: str | Path, cwd: Path | None = None) -> None:
    if subprocess.run(list(map(str, words)), cwd=cwd).returncode:
        sys.exit(f"failed: {' '.join(map(str, words))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
