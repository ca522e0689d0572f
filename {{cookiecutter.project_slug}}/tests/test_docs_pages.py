"""The pages of docs/ on settings, order, input and TensorFlow 2.15: their commands run."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, convert, copy_project, run_program

from library.config import options_of
from project.settings import Hyperparameters, Settings

DOCS = ROOT / "docs"
PICTURES = (ROOT / "library" / "pictures.py").exists()
OVERLAY = ROOT / "audio"  # where the template runs in place
OLD = "from_tensorflow_2.15"
PAGES = [
    name
    for name in ("settings", "order_and_resume", "input_pipeline", OLD)
    if (DOCS / f"{name}.md").exists() and (PICTURES or name != OLD)  # whose example is of pictures
]


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of each block of code."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell(script: str, folder: Path) -> str:
    """What a block prints that is typed in a folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, f"{script}\n{process.stdout}{process.stderr}"
    return process.stdout + process.stderr


def printed_by(code: str, names: dict[str, Any]) -> str:
    """What a block prints that follows on others, whose names it has."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<block>", "exec"), names)
    return printed.getvalue()


def numbers(text: str) -> dict[str, float]:
    """The numbers of `name: 0.5`, by name."""
    found = re.findall(r"^(\w+): ([-\d.e]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def losses(text: str) -> dict[int, float]:
    """The losses that an Estimator logs, by step."""
    return {
        int(step): float(loss) for loss, step in re.findall(r"loss = (\S+), step = (\d+)", text)
    }


# ---- all pages ---------------------------------------------------------------------------------


def headings(file: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    text = file.read_text(encoding="utf-8")
    titles = re.findall(r"^(?:\{.*\})?#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name):
    for link in re.findall(r"\]\(([^)]+)\)", page(name)):
        file, _, anchor = link.partition("#")
        target = DOCS / file if file else DOCS / f"{name}.md"
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def test_every_flag_that_a_page_names_exists():
    programs = ("run.py", "convert_dataset.py", "library/images/records.py")
    known = {*options_of(Settings), *options_of(Hyperparameters), "NAME", "no-NAME"}
    known |= set(re.findall(r"\w+", "".join((ROOT / name).read_text() for name in programs)))
    for name in PAGES:
        text = page(name)
        other = "Recordings" if PICTURES else "Pictures"
        text = re.sub(rf"^## {other}$.*?(?=^## |\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
        if not PICTURES:  # what is said of pictures there
            text = re.sub(r"^## In a stream$.*?(?=^## )", "", text, flags=re.MULTILINE | re.DOTALL)
            known |= {"cache_decoded", "shuffle"}
        if name == OLD:
            known |= {"data_dir", "batch_size", "max_steps", "augment"}
        flags = {flag.removeprefix("no-") for flag in re.findall(r"(?<![\w-])--(\w[\w-]*)", text)}
        assert flags <= known, name


# ---- order and resume --------------------------------------------------------------------------


def test_the_page_on_order_shows_what_its_code_prints(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(data, "data")
    found = blocks(page("order_and_resume"))
    names: dict[str, Any] = {}
    for (kind, code), (shown, output) in zip(found[::2], found[1::2], strict=True):
        assert (kind, shown) == ("python", "text")
        assert printed_by(code, names) == output


# ---- the input ---------------------------------------------------------------------------------


def test_the_page_on_the_input_measures_the_stages_that_there_are(samples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("library.profile.measure.WARM_UP", 1)
    title = "Pictures" if PICTURES else "Recordings"
    section = page("input_pipeline").split(f"\n## {title}\n")[1].split("\n## ")[0]
    pieces = blocks(section)
    if PICTURES:
        for source in sorted((samples / "train").glob("*/*"))[::2]:
            target = tmp_path / "pictures" / source.relative_to(samples)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    else:
        convert(samples / "train", tmp_path / "data", "train")
    names: dict[str, Any] = {}
    for kind, code in pieces:
        if kind == "sh":
            run_program(*code.replace("\\\n", "").split()[1:], cwd=tmp_path)
        elif kind == "python":
            printed = printed_by(code.replace("SECONDS = 4", "SECONDS = 0.02"), names)
        else:
            rows = [re.sub(r"[\d.]+ ", "", row).split() for row in code.splitlines()]
            now = [re.sub(r"[\d.]+ ", "", row).split() for row in printed.splitlines()]
            assert rows == [row for row in now if row[0] != "cache:"]


def test_the_command_that_the_page_on_the_input_shows_is_taken():
    (command, *_) = [content for kind, content in blocks(page("input_pipeline")) if kind == "sh"]
    assert command == "python run.py profile\n"  # it takes a minute
    shell(f"{command.strip()} --print_config", ROOT)


# ---- from TensorFlow 2.15 ----------------------------------------------------------------------


ONLY_TAKEN = (
    "python run.py --config_set old --train_epochs 2\n",
    "python run.py evaluate --config_set old --model best --split test\n",
)
"""Commands whose like other tests run: to go on with a training, to evaluate its best model."""


@pytest.mark.slow
@pytest.mark.skipif(OLD not in PAGES, reason="its example is one of pictures")
@pytest.mark.skipif(sys.platform == "win32", reason="its commands are those of a POSIX shell")
def test_the_ten_steps_from_tensorflow_2_15_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_project(tmp_path)
    shutil.copytree(DOCS / OLD, tmp_path / "docs" / OLD)
    steps = re.split(r"^## (?=\d)", page(OLD), flags=re.MULTILINE)
    assert [int(step.partition(".")[0]) for step in steps[1:]] == list(range(1, 11))
    shown, printed = [], []  # of each step
    for step in steps:
        pieces = blocks(step)
        shown.append("".join(content for kind, content in pieces if kind == "text"))
        codes = [content for kind, content in pieces if kind == "sh"]
        codes = [code.strip() + " --print_config" * (code in ONLY_TAKEN) for code in codes]
        outputs = [shell(code, tmp_path) for code in codes]
        outputs += [printed_by(code, {}) for kind, code in pieces if kind == "python"]
        printed.append("".join(outputs).replace(f"{tmp_path}/", ""))

    recorded = losses(shown[1])  # on TensorFlow 2.15.1
    assert len(recorded) == 6
    now = losses(printed[1])
    assert {step: now[step] for step in recorded} == pytest.approx(recorded, abs=1e-3)
    said = numbers(re.search(r"at its end `(.*)`", steps[1])[1].replace("`, `", "\n"))
    assert said == pytest.approx({"accuracy": 0.42, "global_step": 200, "loss": 1.50296})
    assert numbers(printed[1]) == pytest.approx(said, abs=0.01)

    assert "learning_rate: 0.01  # command line" in printed[3]
    assert "network: old" in printed[4]
    assert shown[5] in printed[5]
    assert "not taken" not in printed[5]
    assert "not used" not in printed[5]
    assert "train_epochs: 2.0  # command line" in printed[6]
    assert '"metric": "loss"' in printed[7]
    of_the_old_checkpoint = numbers(shown[8])
    found = numbers(printed[8])
    found = {name: found[name] for name in of_the_old_checkpoint}
    assert found == pytest.approx(of_the_old_checkpoint, abs=0.01)
    assert printed[9].endswith("star (1, 6)\n")
    assert not (tmp_path / "old_project.py").exists()
