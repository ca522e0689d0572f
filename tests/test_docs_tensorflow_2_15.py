"""docs/from_tensorflow_2.15.md: its commands and programs run in order, and print what it says."""

import re
import shutil
import subprocess
import sys

import pytest
from conftest import environment
from test_docs import blocks, page

NAME = "from_tensorflow_2.15"


def shell(script: str, folder) -> str:
    """What a block prints that is typed in a folder."""
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}"
    return done.stdout.replace(f"{folder}/", "")


def numbers(text: str) -> dict[str, float]:
    """The numbers of `name: 0.5`, by name."""
    found = re.findall(r"^(\w+): ([-\d.e]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def losses(text: str) -> dict[int, float]:
    """The losses that an Estimator logs, by step."""
    return {
        int(step): float(loss) for loss, step in re.findall(r"loss = (\S+), step = (\d+)", text)
    }


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="its commands are those of a POSIX shell")
def test_the_ten_steps_work(projects, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(projects["images"], folder)
    steps = re.split(r"^## (?=\d)", page(folder, NAME), flags=re.MULTILINE)
    assert [int(step.partition(".")[0]) for step in steps[1:]] == list(range(1, 11))
    shown, printed = [], []  # of each step
    for step in steps:
        pieces = blocks(step)
        shown.append("".join(content for kind, content in pieces if kind == "text"))
        codes = [
            code if kind == "sh" else f"python - <<'END_OF_PROGRAM'\n{code}END_OF_PROGRAM"
            for kind, code in pieces
            if kind in ("sh", "python")
        ]
        printed.append("".join(shell(code, folder) for code in codes))

    recorded = losses(shown[1])  # on TensorFlow 2.15.1
    assert len(recorded) == 6
    now = losses(printed[1])
    # The kernels of another processor round differently: tests/matrix.py compares digit for digit.
    assert {step: now[step] for step in recorded} == pytest.approx(recorded, abs=0.05)
    assert now[0] == pytest.approx(recorded[0], abs=1e-4)
    said = numbers(re.search(r"at its end `(.*)`", steps[1])[1].replace("`, `", "\n"))
    assert said == pytest.approx({"accuracy": 0.42, "global_step": 200, "loss": 1.50296})
    assert numbers(printed[1]) == pytest.approx(said, abs=0.1)

    assert "learning_rate: 0.01  # command line" in printed[3]
    assert "network: old" in printed[4]
    assert shown[5] in printed[5]
    assert "not taken" not in printed[5]
    assert "not used" not in printed[5]
    assert "training from step" in printed[6]
    assert '"metric": "loss"' in printed[7]
    of_the_old_checkpoint = numbers(shown[8])
    found = numbers(printed[8])  # the last one of each name
    found = {name: found[name] for name in of_the_old_checkpoint}
    assert found == pytest.approx(of_the_old_checkpoint, abs=0.1)
    assert printed[9].endswith("star (1, 6)\n")
    assert not (folder / "old_project.py").exists()
