"""The commands of the READMEs, typed one after the other and nothing else, lead to the end."""

import re
import subprocess
import sys
from pathlib import Path

from conftest import TEMPLATE
from first_hour import commands


def test_the_commands_of_the_readmes_alone_lead_to_a_report_predictions_and_an_export(tmp_path):
    process = subprocess.run(
        [sys.executable, TEMPLATE / "tests/first_hour.py", "--pictures", "2"]
        + ["--folder", tmp_path / "first"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    (project,) = (tmp_path / "first").iterdir()
    timed = re.findall(r"^\| `(.*)` \| [\d.]+ \|$", process.stdout, re.MULTILINE)
    assert timed == [
        "cookiecutter gh:org/tf-skeleton",
        *commands((project / "README.md").read_text(), "Your own"),
    ]
    programs = [Path(word).name for command in timed for word in command.split()[:2]]
    assert {"convert_dataset.py", "run.py", "tensorboard"} <= set(programs)


def test_the_readme_of_recordings_has_the_same_commands(render):
    """So that what holds for pictures holds for them; the demo types the like of each."""
    typed = [
        commands((render(modality=modality) / "README.md").read_text(), "Your own")
        for modality in ("images", "audio")
    ]
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
mine/train/cat/...
```
```sh
second
# a remark
third
```
"""
    assert commands(readme, "One") == ["first --a b"]
    assert commands(readme, "Two") == ["second", "third"]
