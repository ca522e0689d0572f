"""What the tests share: the template, rendered as cookiecutter's own API does it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).parent.parent


@pytest.fixture
def render(tmp_path: Path) -> Callable[..., Path]:
    """A function from answers to the folder of the rendered project."""

    def render(**answers: str) -> Path:
        folder = cookiecutter(
            str(TEMPLATE),
            no_input=True,
            default_config=True,
            extra_context=answers,
            output_dir=str(tmp_path / f"rendered{len(list(tmp_path.iterdir()))}"),
        )
        return Path(folder)

    return render
