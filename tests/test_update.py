"""A project follows its template: `cruft update` brings what is new, and leaves what is its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TEMPLATE

AUTHOR = {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"}
COMMITTER = {"GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org"}
NO_SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def call(*words: str | Path, cwd: Path, status: int = 0) -> str:
    environment = {**os.environ, **AUTHOR, **COMMITTER, **NO_SETTINGS}
    process = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert process.returncode == status, process.stdout + process.stderr
    return process.stdout


def commit(folder: Path, *, tag: str | None = None) -> None:
    call("git", "add", "--all", cwd=folder)
    call("git", "commit", "--quiet", "--message", "a change", cwd=folder)
    if tag:
        call("git", "tag", tag, cwd=folder)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A repository of the template as it is here, what is not committed included, at v0.1.0."""
    folder = tmp_path / "template"
    names = call("git", "ls-files", "-z", "-co", "--exclude-standard", cwd=TEMPLATE)
    for name in names.split("\0"):
        if (TEMPLATE / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(TEMPLATE / name, folder / name)
    call("git", "init", "--quiet", cwd=folder)
    commit(folder, tag="v0.1.0")
    return folder


@pytest.mark.parametrize("modality", ["images", "audio"])
def test_an_update_brings_what_is_new_and_leaves_what_was_edited(template, tmp_path, modality):
    cruft = [sys.executable, "-m", "cruft"]
    answers = json.dumps({"modality": modality, "project_slug": "mine", "author_name": "Ada"})
    words = ["--no-input", "--default-config", "--checkout", "v0.1.0", "--extra-context", answers]
    call(*cruft, "create", template, *words, cwd=tmp_path)
    project = tmp_path / "mine"
    call("git", "init", "--quiet", cwd=project)
    own_set = "\nmine:\n  inherits: default\n  train_batch_size: 64\n"
    with open(project / "project.yaml", "a", encoding="utf-8") as file:
        file.write(own_set)
    own_network = "\nNETWORKS['mine'] = cnn  # edited\n"
    with open(project / "project" / "networks.py", "a", encoding="utf-8") as file:
        file.write(own_network)
    commit(project)
    call(*cruft, "check", "--checkout", "v0.1.0", cwd=project)

    rendered = template / "{{cookiecutter.project_slug}}"
    networks = rendered / ("audio" if modality == "audio" else "") / "project" / "networks.py"
    edit(
        rendered / "library/data/order.py",
        "\nimport tensorflow ",
        "\n# new in v0.2.0\nimport tensorflow ",
    )
    edit(networks, '"""The networks: ', '"""The new networks: ')
    (rendered / "library" / "added.py").write_text('"""New."""\n', encoding="utf-8")
    commit(template, tag="v0.2.0")
    call(*cruft, "check", "--checkout", "v0.2.0", cwd=project, status=1)

    call(*cruft, "update", "--skip-apply-ask", "--checkout", "v0.2.0", cwd=project)

    assert "# new in v0.2.0" in (project / "library/data/order.py").read_text(encoding="utf-8")
    assert (project / "library" / "added.py").exists()
    edited = (project / "project" / "networks.py").read_text(encoding="utf-8")
    assert edited.startswith('"""The new networks: ')
    assert edited.endswith(own_network)
    assert (project / "project.yaml").read_text(encoding="utf-8").endswith(own_set)
    state = json.loads((project / ".cruft.json").read_text(encoding="utf-8"))
    newest = call("git", "rev-parse", "v0.2.0", cwd=template).strip()
    assert (state["commit"], state["checkout"]) == (newest, "v0.2.0")
    call(*cruft, "check", cwd=project)
    changed = call("git", "status", "--porcelain", cwd=project).split()[1::2]
    assert sorted(changed) == [
        *[".cruft.json", "library/added.py"],
        *["library/data/order.py", "project/networks.py"],
    ]
