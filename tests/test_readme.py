"""The READMEs name only what is there."""

import re

import pytest
from conftest import TEMPLATE

README = TEMPLATE / "README.md"


@pytest.fixture(params=["template", "rendered"])
def readme(request, render):
    return README if request.param == "template" else render() / "README.md"


def test_every_make_target_exists(readme):
    targets = re.findall(r"^([\w-]+):", (readme.parent / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"`make ([\w-]+)`|^make ([\w-]+)", readme.read_text(), re.MULTILINE))
    named = {a or b for a, b in named}
    assert named
    assert named <= set(targets)


def test_every_link_to_a_file_leads_somewhere(readme):
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", readme.read_text())
    for link in links:
        assert (readme.parent / link).exists(), link


def test_every_flag_that_is_named_exists(readme, render):
    project = render()
    known = "".join((project / name).read_text() for name in ("run.py", "convert_dataset.py"))
    known += (project / "project" / "settings.py").read_text()
    for flag in set(re.findall(r"--(\w+)", readme.read_text())) - {"file", "logdir"}:
        name = flag.removeprefix("no-")
        assert re.search(rf"\b{name}\b", known), flag
