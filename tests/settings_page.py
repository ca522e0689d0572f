"""Write docs/settings.md of both modalities, or of those named: the tables of all options.

python tests/settings_page.py [images] [audio]

What stands above MARK in a page is prose, edited there.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).parent.parent / "{{cookiecutter.project_slug}}"
FOLDERS = {"images": TEMPLATE, "audio": TEMPLATE / "audio"}
MARK = "<!-- below: written from the dataclasses -->\n"

sys.path.insert(0, str(TEMPLATE))
from library.config import Option, Settings, options_of, word_of  # noqa: E402


def page_of(modality: str) -> str:
    """The page as it should be: its prose as it is, and a section for each dataclass."""
    folder = FOLDERS[modality]
    prose, mark, _ = (folder / "docs" / "settings.md").read_text("utf-8").partition(MARK)
    assert mark, f"{folder}/docs/settings.md: there is no line {MARK}"
    return "\n".join([prose + mark, *section(Settings), *section(hyperparameters_of(folder))])


def hyperparameters_of(folder: Path) -> type:
    """`Hyperparameters` of a project/settings.py, imported by its path: there are two of them."""
    spec = importlib.util.spec_from_file_location("settings_here", folder / "project/settings.py")
    assert spec is not None, "what ends in .py has a loader"
    assert spec.loader is not None, "what ends in .py has a loader"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        options_of(module.Hyperparameters)  # its type hints are found while it is a module
    finally:
        del sys.modules[spec.name]
    return module.Hyperparameters


def section(cls: type) -> Iterator[str]:
    """The lines on a class: what it is, and a table for each of its groups."""
    yield f"## {cls.__name__}\n\n{cls.__doc__}\n"
    groups: dict[type, list[Option]] = {}
    for option in options_of(cls).values():
        groups.setdefault(option.group, []).append(option)
    for group, options in groups.items():
        yield f"### {(group.__doc__ or '').rstrip('.')}\n"
        yield "| option | allowed | default | effect |\n| --- | --- | --- | --- |"
        yield from map(row, options)
        yield ""


def row(option: Option) -> str:
    command = f"`{option.rule['command']}`: " * bool(option.rule["command"])
    effect = command + option.rule["help"]
    effect += "; **defines the architecture**" * option.rule["defines_architecture"]
    cells: list[Any] = [f"`{option.name}`", option.allowed, f"`{word_of(option.default)}`", effect]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    for modality in sys.argv[1:] or FOLDERS:
        (FOLDERS[modality] / "docs" / "settings.md").write_text(page_of(modality), "utf-8")
