"""The rendered project as its user has it: clean, tested, and trained from the first minute."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def python(*words: str, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "RUFF_NO_CACHE": "true"}
    process = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


MODALITIES = pytest.mark.parametrize("modality", ["images", "audio"])


@MODALITIES
@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy"])
def test_the_linter_finds_nothing(render, modality, command):
    python("-m", *command.split(), cwd=render(modality=modality))


PYTEST = ["-m", "pytest", "-p", "no:cacheprovider", "-n", "logical", "--dist", "worksteal"]


def test_the_project_of_pictures_passes_its_tests_where_it_is_rendered(render):
    # The others do not see the difference, and the demo runs the programs.
    assert " passed" in python(*PYTEST, "tests/test_config.py", cwd=render())


def test_the_project_of_sound_passes_its_tests(render):
    project = render(modality="audio")
    names = "audio config config_properties docs_cluster docs_use estimator exporter hooks util"
    passed = [*names.split(), "recording", "reports", "shuffling", "tfrecord"]  # in place
    others = [f"--ignore=tests/test_{name}.py" for name in passed]
    assert " passed" in python(*PYTEST, *others, cwd=project)
    files = ["tests/test_survival.py", "tests/test_convert_dataset.py", "tests/test_run.py"]
    assert " passed" in python(*PYTEST, "-m", "slow", *files, cwd=project)


@MODALITIES
def test_the_demo_reaches_its_target_and_is_quick_when_called_again(render, modality):
    project = render(modality=modality)
    printed = python("demo.py", cwd=project)
    steps = [line for line in printed.splitlines() if line.startswith("== ")]
    assert [step[3:] for step in steps] == [
        *["sample data", "convert train", "convert test"],
        *["train", "evaluate", "predict", "export"],
    ]
    end = [line.split("  ", 1)[0] for line in printed.splitlines()[-7:]]
    assert end == ["test accuracy", *["prediction"] * 3, "report", "best checkpoint", "export"]
    again = python("demo.py", cwd=project)
    assert "already trained to step" in again
    assert "== convert" not in again
    assert again.splitlines()[-7:-1] == printed.splitlines()[-7:-1]
