"""The commands of the READMEs, typed one after the other and nothing else, lead to the end."""

import re

import pytest
from conftest import MODALITIES, TEMPLATE
from first_hour import commands

THREE = [
    "cookiecutter gh:org/tf-skeleton",
    "python convert_dataset.py --dataset_dir dataset/train",
    "python run.py --config_set gtx1080ti",
]
"""The door of the template: each works as it is typed."""


def test_the_readme_begins_with_three_commands():
    text = (TEMPLATE / "README.md").read_text(encoding="utf-8")
    assert commands(text, "tf-skeleton")[:3] == THREE


@pytest.mark.parametrize("modality", MODALITIES)
def test_the_commands_of_the_readmes_alone_lead_to_a_report_predictions_and_an_export(
    walk, modality
):
    walked = walk(modality)
    timed = re.findall(r"^\| `(.*)` \| [\d.]+ \|$", walked.printed, re.MULTILINE)
    readme = (walked.project / "README.md").read_text(encoding="utf-8")
    assert timed == [THREE[0], *commands(readme, "Your own")]
    assert timed[:3] == THREE


def test_a_training_shows_progress_as_the_pages_do(walk):
    walked = walk("images")
    page = (walked.project / "docs/troubleshooting.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^step \d.*$", page, re.MULTILINE)
    shown = [re.sub(r"\d+", "1", each) for each in walked.printed.splitlines()]
    begin = re.sub(r"\d+", "1", line).partition("  1 examples/s")[0]
    assert any(each.startswith(begin) for each in shown), walked.printed


def test_both_modalities_have_the_same_commands(projects):
    """So that what holds for images holds for audio clips; the demo types the like of each."""
    typed = [commands((each / "README.md").read_text(), "Your own") for each in projects.values()]
    assert typed[0] == typed[1]
    assert len(typed[0]) >= 7


def test_lines_that_go_on_are_one_command_and_others_than_commands_are_left_out():
    readme = """# One
```
pip install that
first --a \\
    b
```
## Two
```
dataset/train/cat/...
```
```sh
second
# a remark
third
```
"""
    assert commands(readme, "One") == ["first --a b"]
    assert commands(readme, "Two") == ["second", "third"]
