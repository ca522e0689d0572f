"""What a person meets: the terminal, the log, TensorBoard, the report, predictions."""

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import LIMIT_SECS, ROOT, copy_project, run_program, small_model, summaries

pytestmark = pytest.mark.slow  # programs are run as processes

SHORT = [*small_model(), "--train_epochs", "6", "--epochs_between_evals", "2"]
SHORT += ["--train_batch_size", "16", "--log_steps", "1", "--save_summary_steps", "1"]
MODEL = small_model()
COLUMNS = 80


def on_a_terminal(command: list[str], folder: Path) -> str:
    """Run a command on a terminal of 80 columns; what it has shown, errors among it."""
    pty = pytest.importorskip("pty", reason="a terminal of Unix")
    main, other = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(
        command, cwd=folder, stdin=other, stdout=other, stderr=other, env=environment
    ) as process:
        os.close(other)
        shown = b""
        while True:
            try:
                some = os.read(main, 4096)
            except OSError:  # on Linux, the end
                break
            if not some:
                break
            shown += some
    os.close(main)
    assert process.returncode == 0, shown.decode()
    return shown.decode()


@pytest.fixture(scope="module")
def project(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of its own, with data."""
    folder = tmp_path_factory.mktemp("seen") / "project"
    copy_project(folder)
    (folder / "data").symlink_to(data)
    return folder


@pytest.fixture(scope="module")
def shown(project: Path) -> str:
    """What a training shows on a terminal."""
    return on_a_terminal([sys.executable, "run.py", *SHORT], project)


def test_a_terminal_has_one_live_line_and_a_row_for_each_evaluation(shown):
    lines = shown.replace("\r\n", "\n").split("\n")
    assert lines[0].startswith("training from step 0 to ")
    last_parts = [line.split("\r")[-1] for line in lines]
    header, *rows = [part for part in last_parts if re.match(r" +(step|\d+) ", part)]
    assert header.split()[:4] == ["step", "epoch", "loss", "accuracy"]
    assert [float(row.split()[1]) for row in rows] == pytest.approx([2, 4, 6], abs=0.3)
    losses = [float(row.split()[2]) for row in rows]
    best = [row.endswith("  best") for row in rows]
    assert best == [loss == min(losses[: i + 1]) for i, loss in enumerate(losses)]
    live = [part for line in lines for part in line.split("\r") if re.match(r"\d+/", part)]
    assert max(map(len, [*live, *last_parts[:-4]])) < COLUMNS
    last = int(re.search(r"to (\d+)", lines[0])[1])
    assert re.fullmatch(
        rf"{last}/{last}  epoch 5\.[89]  loss \d\.\d+  accuracy \d\.\d+  [\d,]+/s  \d+% input  "
        r"0:00 left *",
        live[-1],
    )
    assert not [line for line in lines if "tensorflow" in line.lower()]


def test_what_is_shown_at_the_end_is_true_and_its_next_command_works(shown, project):
    end = shown.replace("\r\n", "\n").split("\n")[-5:]
    best = json.loads((project / "runs/default/best/best.json").read_text())
    assert f"best model: loss {best['value']:.4f} at step {best['step']}, in " in shown
    command = next(line.removeprefix("next: ") for line in end if line.startswith("next: "))
    python, *words = shlex.split(command)
    assert python == "python"
    run_program(*words, cwd=project)
    folder = project / "runs/default/evaluation/test"
    report = (folder / "report.html").read_text()
    assert f"{best['step']}</td>" in report


def test_what_tensorflow_says_is_in_the_log(shown, project):
    log = (project / "runs/default/checkpoints/log.txt").read_text()
    assert shlex.join(["run.py", *SHORT]) in log
    assert "INFO:tensorflow:" in log
    assert "Saving checkpoints for 0" in log


def test_a_log_has_lines_and_a_terminal_may_have_them(project):
    program = """if True:
        from library.util import StatusLine
        with StatusLine(live=%s) as line:
            line.update("step 1 of 2")
            line.print("a row")
            line.update("step 2 of 2")
        print("the end")
    """
    live, lines = (
        on_a_terminal([sys.executable, "-c", program % word], project) for word in (True, False)
    )
    assert lines == "step 1 of 2\r\na row\r\nstep 2 of 2\r\nthe end\r\n"
    blank = " " * (COLUMNS - 3)
    short = [text.ljust(COLUMNS - 3) for text in ("step 1 of 2", "step 2 of 2")]
    assert live == f"\r{short[0]}\r{blank}\ra row\r\n\r{short[1]}\r\nthe end\r\n"


def test_the_loss_in_tensorboard_is_that_of_the_step(shown, project):
    """Shown and written are one number, and no second pass."""
    values = summaries(project / "runs/default/checkpoints")
    written = {step: value.simple_value for step, value in values if value.tag == "gradient_norm"}
    assert written
    assert all(norm > 0 for norm in written.values())
    losses = {step: value.simple_value for step, value in values if value.tag == "loss"}
    live = re.findall(r"(\d+)/\d+  epoch [\d.]+  loss ([\d.]+)", shown)
    assert live
    # A summary has the number of the step before which it was taken, or after.
    for step, loss in live:
        near = [losses.get(int(step) + i, np.inf) for i in (-1, 0, 1)]
        assert min(abs(float(loss) - each) for each in near) < 1e-3


def predict(project: Path, *words: object, names: str = ""):
    """Run `predict`, with names in standard input."""
    program = "run.py" if (project / "run.py").exists() else ROOT / "run.py"
    return subprocess.run(
        [sys.executable, program, "predict", *MODEL, *map(str, words)],
        cwd=project,
        input=names,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECS,
    )


def test_names_from_standard_input_give_rows_on_standard_output(shown, project, samples):
    files = sorted((samples / "test").rglob("*.*"))
    (project / "broken.bin").write_bytes(b"nothing")
    names = [*files[:3], project / "broken.bin", project / "missing", *files[3:5]]
    for jpeg in [file for file in files if file.suffix == ".jpg"][:1]:
        (project / "cut.jpg").write_bytes(jpeg.read_bytes()[:-300])
        names.append(project / "cut.jpg")
    process = predict(
        project, "--input", "-", "--output", "-", "--top_k", 2, names="\n".join(map(str, names))
    )
    assert process.returncode == 0, process.stderr
    rows = list(csv.DictReader(io.StringIO(process.stdout)))
    assert [row["file"] for row in rows] == list(map(str, names))
    failed = [False] * 3 + [True] * 2 + [False] * 2 + [True] * len(names[7:])
    assert [bool(row["error"]) for row in rows] == failed
    assert list(rows[0]) == ["file", "class", "probability", "error", "class 2", "probability 2"]
    assert float(rows[0]["probability"]) >= float(rows[0]["probability 2"]) > 0
    assert (
        f"wrote 5 predictions to standard output\n{sum(failed)} of {len(names)} files could not be"
        in process.stderr
    )
