"""The rendered project on several TensorFlows and Pythons: python tests/matrix.py build/matrix

Each version gets an environment of its own. There the tests of the Estimator and of training run;
then the wheel of estimator/ runs an old program unedited, and the project trains on the same images
with the same seed. All losses of both have to be those of TensorFlow 2.15.1. At last, each feature
of the Estimator is tried (tests/features.py). The two tables that are printed at the end are those
of README.md and docs/from_tensorflow_2.15.md.

    python tests/matrix.py build/matrix --canary     the nightly build instead
    python tests/matrix.py build/matrix --quick      of the tests, only those of the Estimator
    python tests/matrix.py build/matrix --only 2.22  what has this in its name
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).parent.parent
REFERENCE = ("3.11", "tensorflow==2.15.1")
VERSIONS = [
    REFERENCE,
    ("3.11", "tensorflow==2.18.1"),
    ("3.10", "tensorflow==2.21.0"),
    ("3.13", "tensorflow==2.21.0"),
    ("3.13", "tensorflow>=2.22.0rc0,<2.23"),
]
"""Python, and what pip installs: the oldest, one between, the newest that tf-keras knows with its
oldest and newest Python, and one that is newer, a release candidate if need be."""

CANARY = [("3.13", "tf-nightly")]

SUPPORTED = "2.21"
"""The newest TensorFlow that tf-keras, and so pyproject.toml, takes; a newer one replaces it."""

TESTS = ("estimator", "all_reduce", "run", "training_steps", "survival")
TOLERANCE = 1e-4

LOSSES = """
import glob, json, tensorflow as tf
values = {}
for file in glob.glob("matrix/model/events*"):
    for event in tf.compat.v1.train.summary_iterator(file):
        values |= {event.step: v.simple_value for v in event.summary.value if v.tag == "loss"}
print(json.dumps([values[step] for step in sorted(values)]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--canary", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.absolute()
    versions = [REFERENCE, *CANARY] if options.canary else VERSIONS
    versions = [each for each in versions if options.only in each[1] or each == REFERENCE]
    project = render(folder)
    rows, expected = [], dict[str, list[float]]()
    tried = dict[str, dict[str, str]]()
    for python, requirement in versions:
        print(f"\n== {requirement}, Python {python}", flush=True)
        program = environment(folder, python, requirement, project)
        passed = run_tests(program, project, TESTS[:1] if options.quick else TESTS)
        losses = {"old": old_losses(program, project), "project": project_losses(program, project)}
        expected = expected or losses
        difference = max(worst(losses[name], expected[name]) for name in losses)
        counts = " + ".join(str(len(each)) for each in losses.values())
        tensorflow, keras = versions_of(program)
        tried[f"{tensorflow}, Python {python}"] = features(program)
        row = f"| {tensorflow} | {keras} | {python} | {passed} | {counts} | {difference:.0e} |"
        rows.append(row)
        print(row, flush=True)
        if difference > TOLERANCE:
            sys.exit(f"{requirement}: losses differ by {difference} from those of {REFERENCE[1]}")
    print("\n| TensorFlow | tf-keras | Python | tests passed | losses | largest difference |")
    print("| --- | --- | --- | --- | --- | --- |", *rows, sep="\n")
    print(f"\n| | {' | '.join(tried)} |\n|{' --- |' * (1 + len(tried))}")
    for name in next(iter(tried.values())):
        print("|", " | ".join([name, *(answers[name] for answers in tried.values())]), "|")


def render(folder: Path) -> Path:
    """A project of the template as it is now, with sample images, converted once."""
    shutil.rmtree(folder / "project", ignore_errors=True)
    answers = {"project_slug": "project"}
    options = {"no_input": True, "default_config": True, "extra_context": answers}
    return Path(cookiecutter(str(TEMPLATE), output_dir=str(folder), **options)).absolute()


def environment(folder: Path, python: str, requirement: str, project: Path) -> Path:
    """The interpreter of a virtual environment with the project, the wheel and this TensorFlow."""
    place = folder / f"py{python}-{re.sub('[^a-z0-9.]', '', requirement)}"
    program = (place / "bin" / "python").absolute()
    if not (place / "installed").exists():
        call(find_python(python), "-m", "venv", "--clear", place)
        pip = (program, "-m", "pip", "install", "--quiet")
        release = requirement.rpartition("==")[2]
        known = release != requirement and numbers(release) <= numbers(SUPPORTED)
        call(*pip, "-e", f"{project}[dev]", *([requirement] if known else []))
        if requirement == "tf-nightly":
            call(program, "-m", "pip", "uninstall", "--quiet", "-y", "tensorflow", "tf-keras")
            call(*pip, requirement, "tf-keras-nightly")
        elif not known:
            call(*pip, requirement)
        (place / "installed").touch()
    wheel = ("--no-deps", "--force-reinstall", TEMPLATE / "estimator")  # as it is now
    call(program, "-m", "pip", "install", "--quiet", *wheel)
    return program


def numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")[:2]]


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


def run_tests(program: Path, project: Path, names: tuple[str, ...]) -> int:
    """How many tests have passed; all have to."""
    files = [f"tests/test_{name}.py" for name in names]
    marked = ["-m", "slow or not slow"] if "survival" in names else []
    printed = call(program, "-m", "pytest", "-q", *marked, *files, cwd=project)
    return int(re.findall(r"(\d+) passed", printed)[-1])


def old_losses(program: Path, project: Path) -> list[float]:
    """What a program for TensorFlow 2.15 prints, run as it is: losses, and metrics at the end."""
    if not (project / "pictures").exists():
        call(program, "-m", "library.images.sample_data", "pictures", cwd=project)
    shutil.rmtree(project / "matrix", ignore_errors=True)
    old = "docs/from_tensorflow_2.15/old_project.py"
    words = ["-m", "tf_estimator_compat", old, "--model_dir", "matrix/old"]
    printed = call(program, *words, cwd=project)
    return [
        float(x) for x in re.findall(r"(?:loss = |^(?:loss|accuracy): )([\d.]+)", printed, re.M)
    ]


def project_losses(program: Path, project: Path) -> list[float]:
    """The losses of two epochs of the project, step by step."""
    if not (project / "data").exists():  # once: images may be encoded differently elsewhere
        words = ["--dataset_dir", "pictures/train", "--tfrecord_filename", "train"]
        words += ["--tfrecord_dir", "data", "--validation_fraction", "0.1"]
        call(program, "convert_dataset.py", *words, cwd=project)
    words = ["--save_summary_steps", "1", "--train_epochs", "2", "--model_dir", "matrix/model"]
    call(program, "run.py", *words, "--best_model_dir", "matrix/best", cwd=project)
    losses: list[float] = json.loads(call(program, "-c", LOSSES, cwd=project).splitlines()[-1])
    return losses


def features(program: Path) -> dict[str, str]:
    """Whether each feature of the Estimator works."""
    printed = call(program, "-m", "tf_estimator_compat", TEMPLATE / "tests" / "features.py")
    answers: dict[str, str] = json.loads(re.findall("^{.*}$", printed, re.M)[-1])
    return answers


def versions_of(program: Path) -> tuple[str, str]:
    """TensorFlow, and tf-keras, which TensorFlow 2.15 does not need."""
    code = "import sys, importlib.util, tensorflow as tf; print(tf.__version__)\n"
    code += "print(importlib.import_module('tf_keras').__version__ "
    code += "if importlib.util.find_spec('tf_keras') else '-')"
    tensorflow, keras = call(program, "-c", code).splitlines()[-2:]
    return tensorflow, keras


def worst(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


def call(*words: str | Path, cwd: Path | None = None) -> str:
    """What a program prints; it must not fail.

    The kernels of oneDNN differ in their last digits from one TensorFlow to another, and are off.
    """
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(map(str, words))}")
    return done.stdout


if __name__ == "__main__":
    main()
