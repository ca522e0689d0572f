"""The rendered project as its user has it: clean, tested, and trained from the first minute."""

import pytest
from conftest import MODALITIES, python


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy"])
def test_the_linter_finds_nothing(project, tmp_path, command):
    cache = ["--cache-dir", tmp_path] if command == "mypy" else []
    python("-m", *command.split(), *cache, cwd=project)


PYTEST = ["-m", "pytest", "-p", "no:cacheprovider"]


def test_the_project_of_images_passes_its_tests_where_it_is_rendered(projects):
    # The others do not see the difference, and the demo runs the programs.
    files = ["tests/test_config.py", "tests/test_structure.py"]
    assert " passed" in python(*PYTEST, *files, cwd=projects["images"])


def test_the_project_of_audio_passes_the_tests_of_its_own_files(projects):
    # Which do not run in place.
    files = [f"tests/test_audio_{name}.py" for name in ("convert", "input_fn", "run")]
    words = ["-n", "logical", "--dist", "worksteal"]
    assert " passed" in python(*PYTEST, *words, *files, cwd=projects["audio"])


SAME = [
    "beam",
    "command_line",
    "config_properties",
    "estimator",
    "optimizers",
    "recording",
    "workers",
]
"""Slow tests of what knows nothing of the modality: they run in place."""


@pytest.mark.slow
def test_the_project_of_audio_passes_its_tests(projects):
    # In place, the tests are those of the project of images, and of library/audio.
    words = ["-n", "logical", "--dist", "worksteal"]
    assert " passed" in python(*PYTEST, *words, cwd=projects["audio"])
    words += ["-m", "slow", *(f"--ignore=tests/test_{name}.py" for name in SAME)]
    assert " passed" in python(*PYTEST, *words, cwd=projects["audio"])


@pytest.mark.parametrize(
    "modality", [MODALITIES[0], pytest.param(MODALITIES[1], marks=pytest.mark.slow)]
)
def test_the_demo_reaches_its_target_and_is_quick_when_called_again(render, modality):
    project = render(modality=modality)
    printed = python("demo.py", cwd=project)
    steps = [line for line in printed.splitlines() if line.startswith("== ")]
    assert [step[3:] for step in steps] == [
        *["sample data", "convert train", "convert test"],
        *["train", "evaluate", "predict", "export"],
    ]
    end = [line[:16].rstrip() for line in printed.splitlines()[-7:]]
    assert end == ["test accuracy", *["prediction"] * 3, "report", "best checkpoint", "export"]
    again = python("demo.py", cwd=project)
    assert "training is complete" in again
    assert "== convert" not in again
    assert again.splitlines()[-7:-1] == printed.splitlines()[-7:-1]
