"""docs/settings.md lists the options as they are, and what it says of sets is so."""

import re
import subprocess
import sys

import pytest

from settings_page import FOLDERS, TEMPLATE, hyperparameters_of, page_of  # isort: skip

from library.config import Settings, load, options_of  # isort: skip  it is found by now

pytestmark = pytest.mark.parametrize("modality", list(FOLDERS))


def page(modality: str) -> str:
    return (FOLDERS[modality] / "docs" / "settings.md").read_text("utf-8")


def test_the_page_is_that_of_the_settings(modality):
    assert page_of(modality) == page(modality), f"run: python tests/settings_page.py {modality}"


def test_the_page_has_each_option_once_and_says_which_define_the_architecture(modality):
    for cls in (Settings, hyperparameters_of(FOLDERS[modality])):
        for name, option in options_of(cls).items():
            (row,) = re.findall(rf"^\| `{name}` \|.*$", page(modality), re.MULTILINE)
            assert ("defines the architecture" in row) == option.rule["defines_architecture"]
            assert option.rule["help"] in row


def test_what_the_page_says_of_sets_is_so(modality, tmp_path):
    (sets,) = re.findall(r"^```yaml\n(.*?)^```$", page(modality), re.MULTILINE | re.DOTALL)
    (tmp_path / "project.yaml").write_text(sets, encoding="utf-8")
    assert load(tmp_path / "project.yaml", "large")["train_epochs"] == 30
    night = load(tmp_path / "project.yaml", "night")
    assert (night["train_batch_size"], night["train_epochs"]) == (256, 300)


def test_its_command_shows_the_origin_of_a_value(modality):
    (command,) = re.findall(r"^```sh\npython (.*?)\n```$", page(modality), re.MULTILINE)
    words = [sys.executable, *command.split()]
    printed = subprocess.run(words, cwd=TEMPLATE, capture_output=True, text=True, check=True)
    assert "train_epochs: 5.0  # command line\n" in printed.stdout
