"""What the template renders, for every answer, and which answers it refuses."""

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import TEMPLATE, python
from cookiecutter.exceptions import FailedHookException

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHOICES = {
    name: choices
    for name, choices in json.loads((TEMPLATE / "cookiecutter.json").read_text()).items()
    if isinstance(choices, list) and not name.startswith("_")
}
LICENSES = {
    "MIT": "MIT License",
    "Apache-2.0": "Apache License",
    "BSD-3-Clause": "BSD 3-Clause License",
    "Proprietary": "All rights reserved",
}


def texts(project: Path) -> dict[str, str]:
    return {
        path.relative_to(project).as_posix(): path.read_text(encoding="utf-8")
        for path in project.rglob("*")
        if path.is_file()
    }


def toml(project: Path) -> dict:
    return tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("answers", list(itertools.product(*CHOICES.values())), ids="-".join)
def test_every_choice_renders_whole(render, answers):
    answers = dict(zip(CHOICES, answers, strict=True))
    project = render(author_name="Ada Lovelace", **answers)
    for name, text in texts(project).items():
        text = re.sub(r"\$\{\{.*?\}\}", "", text)  # GitHub's own
        # Braces there are those of Python, of reports, and of the card of a model.
        copied = name.endswith((".py", ".html", "/MODEL_CARD.md"))
        jinja = r"cookiecutter" if copied else r"\{\{|\}\}|\{%|%\}|cookiecutter"
        assert not re.search(jinja, text, re.IGNORECASE), name
    license_text = (project / "LICENSE").read_text()
    assert LICENSES[answers["license"]] in license_text
    assert "Ada Lovelace" in license_text
    assert not [
        text
        for word, text in LICENSES.items()
        if word != answers["license"] and text in license_text
    ]
    described = toml(project)["project"]
    assert described["license"].removeprefix("LicenseRef-") == answers["license"]
    tensorflow = next(need for need in described["dependencies"] if need.startswith("tensorflow"))
    assert ("[and-cuda]" in tensorflow) == (answers["accelerator"] == "gpu")
    assert not [path for path in project.rglob("*") if re.fullmatch(r"[._].*cache_*", path.name)]


@pytest.mark.parametrize(
    "text",
    ['a "b" c', "it's", "back\\slash", "ünïcödé 图", "emoji 🎉", "# no comment: {x} [y]", "a\tb"],
)
def test_odd_names_render_to_valid_files(render, text):
    project = render(project_name=text, project_slug="odd", description=text, author_name=text)
    plain = " ".join(text.split())
    described = toml(project)["project"]
    assert described["description"] == plain
    assert described["authors"] == [{"name": plain}]
    for path in project.rglob("*.y*ml"):
        assert all(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    for path in project.rglob("*.py"):
        compile(path.read_text(encoding="utf-8"), path, "exec")
    assert text in (project / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("slug", ["a", "A9", "my-project", "my_project", "con1", "3d"])
def test_good_slugs_are_taken(render, slug):
    assert render(project_slug=slug).name == slug


BAD_SLUGS = ["", " ", "a b", ".", "..", ".hidden", "-dash", "a-", "../up", "a/b", "/abs", "a\\b"]
BAD_SLUGS += ["c:", "con", "NUL", "com1", "ä", "a.b", "a\n", "$(ls)", "~"]


@pytest.mark.parametrize("slug", BAD_SLUGS)
def test_bad_slugs_are_refused_before_anything_is_written(render, tmp_path, slug):
    with pytest.raises(FailedHookException, match=r"^project_slug: .*\.$"):
        render(project_slug=slug)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_slug_is_one_line_at_the_terminal(tmp_path):
    process = subprocess.run(
        [sys.executable, "-m", "cookiecutter", "--no-input", "--default-config", TEMPLATE]
        + ["project_slug=../up"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 1
    assert process.stdout + process.stderr == (
        "project_slug: '../up' is not a name of letters (a to z), digits, - and _ "
        "that begins and ends with a letter or digit.\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal that is made for the test")
def test_a_bad_slug_is_asked_for_again_and_no_answer_is_lost(tmp_path):
    import pty

    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cookiecutter", "--default-config", "-o", tmp_path, TEMPLATE],
        stdin=inside,
        stdout=subprocess.PIPE,
        text=True,
    )
    answers = ["Hot & Cold", "a/b", "con", "again", "A description", "Me", "", "2", ""]
    os.write(terminal, "".join(f"{answer}\n" for answer in answers).encode())
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "project_slug: 'a/b' is not a name of letters" in output
    assert "project_slug: 'con' is a name that Windows reserves." in output
    assert [path.name for path in tmp_path.iterdir()] == ["again"]
    assert "Hot & Cold" in (tmp_path / "again" / "README.md").read_text()
    assert (tmp_path / "again" / "library" / "audio").is_dir()


def test_a_name_makes_its_slug(render):
    assert render(project_name="Größe der Fische, 2. Versuch").name == "grosse-der-fische-2-versuch"


def test_python_files_are_rendered_as_they_are(projects):
    source = TEMPLATE / "{{cookiecutter.project_slug}}"
    kept = set()
    for modality, project in projects.items():
        for path in project.rglob("*.py"):
            name = path.relative_to(project)
            of_audio = modality == "audio" and (source / "audio" / name).exists()
            original = source / "audio" / name if of_audio else source / name
            lines = original.read_text(encoding="utf-8").splitlines()
            if modality == "audio" and name == Path("library/nn/__init__.py"):
                gone = re.compile(r"\.(efficientnet|pretrained) ")
                lines = [line for line in lines if not gone.search(line)]
            assert path.read_text(encoding="utf-8").splitlines() == lines, name
            kept.add(original)
    assert kept == set(source.rglob("*.py"))


def test_every_module_that_is_imported_is_there(project):
    for path in project.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            place = project.joinpath(*node.module.split("."))
            if node.module.split(".")[0] not in ("library", "project"):
                continue
            assert place.with_suffix(".py").exists() or place.is_dir(), (path, node.module)
            if node.module in ("library", "project"):
                for each in node.names:
                    there = (place / f"{each.name}.py").exists() or (place / each.name).is_dir()
                    assert there, (path, each.name)


def test_hyperparameters_that_both_modalities_have_are_the_same(projects):
    code = """
import dataclasses, json
from project import settings
fields = dataclasses.fields(settings.Hyperparameters)
print(json.dumps({f.name: repr((f.type, f.default, f.metadata)) for f in fields}))
"""
    first, second = (json.loads(python("-c", code, cwd=each)) for each in projects.values())
    both = first.keys() & second.keys()
    assert len(both) > 15
    assert [name for name in both if first[name] != second[name]] == ["network"]


def test_nothing_of_the_other_modality_is_left(projects):
    for modality, other in (("images", "audio"), ("audio", "images")):
        names = {
            path.relative_to(projects[modality]).parts for path in projects[modality].rglob("*")
        }
        found = [parts for parts in names if other in parts or f"_{other}_" in parts[-1]]
        assert found == []
