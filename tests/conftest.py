"""What the tests share: the template, rendered as cookiecutter's own API does it."""

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).parent.parent
MODALITIES = ("images", "audio")


def rendered(folder: Path, **answers: str) -> Path:
    """A project in this folder."""
    made = cookiecutter(
        str(TEMPLATE),
        no_input=True,
        default_config=True,
        extra_context=answers,
        output_dir=str(folder),
    )
    return Path(made)


@pytest.fixture
def render(tmp_path: Path) -> Callable[..., Path]:
    """A function from answers to the folder of the rendered project."""

    def render(**answers: str) -> Path:
        return rendered(tmp_path / f"rendered{len(list(tmp_path.iterdir()))}", **answers)

    return render


@pytest.fixture(scope="session")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A project of each modality, as it was rendered: tests leave it so."""
    folder = tmp_path_factory.mktemp("projects")
    return {name: rendered(folder / name, modality=name) for name in MODALITIES}


@pytest.fixture(scope="session", params=MODALITIES)
def project(request: pytest.FixtureRequest, projects: dict[str, Path]) -> Path:
    """One of `projects` after the other."""
    return projects[request.param]


def environment() -> dict[str, str]:
    """That of a terminal in which this Python's environment is active."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "RUFF_NO_CACHE": "true", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return {**kept, **quiet, "PATH": path}


def python(*words: object, cwd: Path, status: int = 0) -> str:
    """What `python WORDS` prints in a folder, and its errors; it ends with this status."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + (done.stderr if status else "")


@dataclasses.dataclass
class Walk:
    """A project after the first hour of its README, and what was printed."""

    project: Path
    printed: str


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Walk]:
    """A function from a modality to its walk, which is made once."""

    @functools.cache
    def walk(modality: str) -> Walk:
        folder = tmp_path_factory.mktemp("walk") / modality
        words = ["--per_class", 4, "--folder", folder, modality]
        printed = python(TEMPLATE / "tests/first_hour.py", *words, cwd=TEMPLATE)
        (project,) = folder.iterdir()
        return Walk(project, printed)

    return walk


@pytest.fixture(scope="session", params=MODALITIES)
def walked(request: pytest.FixtureRequest, walk: Callable[[str], Walk]) -> Path:
    """The project of each modality after its first hour; tests add to it only."""
    return walk(request.param).project
