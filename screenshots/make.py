"""The pictures of README.md, of a project that is trained for them: make screenshots

    python screenshots/make.py PROJECT_DIR [--dataset_dir DIR]

trains in PROJECT_DIR on its sample data, or on the pictures in DIR/train and DIR/test, a folder for
each class. What was written to the terminal is kept in PROJECT_DIR/out/screenshots.json: called
again, it draws anew, and trains only where that is not there. It needs a Chromium: the one that
$CHROMIUM names, one of PATH, or that of `playwright install chromium`.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import terminal
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Playwright, sync_playwright

HERE = Path(__file__).parent

SAMPLES = "-m library.sample_data {dataset_dir}"
CONVERSION = (
    "convert_dataset.py --dataset_dir {dataset_dir}/train --tfrecord_filename train"
    " --tfrecord_dir data --validation_fraction 0.1",
    "convert_dataset.py --dataset_dir {dataset_dir}/test --tfrecord_filename test"
    " --tfrecord_dir data",
)
TRAINING = "run.py --train_epochs 20 --epochs_between_evals 2"
AFTERWARDS = ("run.py evaluate --split test", "run.py export --export_dir export --check")
MIDDLE = 0.47
"""Share of the time of the training after which its line is shown."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WAIT_MS, SETTLE_MS = 60_000, 3_000
"""For TensorBoard to have loaded something, and then for what moves to stand."""

WIDTH = 1000
"""Pixels of a picture, at most."""
MOST_BYTES = 150_000
COLORS = (256, 128, 64, 32)
"""Sizes of the palette, of which the first one that is small enough is taken."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("project_dir", type=Path, help="a rendered project for pictures")
    parser.add_argument("--dataset_dir", type=Path, help="folder of train/ and test/")
    parser.add_argument("--output_dir", type=Path, default=HERE, help="where the pictures go")
    options = parser.parse_args()
    project, output_dir = options.project_dir.resolve(), options.output_dir
    with sync_playwright() as playwright:
        program = chromium(playwright)
        if program is None:
            print("no Chromium: install it, or name it by CHROMIUM=PROGRAM", file=sys.stderr)
            return 2
        seen = recorded(project, options.dataset_dir)
        browser = playwright.chromium.launch(executable_path=program)
        draw_terminal(browser, seen, output_dir)
        draw_report(browser, project / "out/current/evaluation/report.html", output_dir)
        with tensorboard(project / "out/current") as address:
            draw_tensorboard(browser, address, output_dir)
        browser.close()
    return 0


def chromium(playwright: Playwright) -> str | None:
    """The program, or None where there is none."""
    own = playwright.chromium.executable_path
    named = [os.environ.get("CHROMIUM"), *map(shutil.which, BROWSERS), own]
    return next((each for each in named if each and Path(each).exists()), None)


def recorded(project: Path, dataset_dir: Path | None) -> dict[str, terminal.Chunks]:
    """By command: what it wrote, now or when this was called before."""
    file = project / "out/screenshots.json"
    if not file.exists():
        samples = project / "out/samples"
        commands = [*CONVERSION, TRAINING, *AFTERWARDS]
        if dataset_dir is None and not samples.exists():
            commands.insert(0, SAMPLES)
        folder = (dataset_dir or samples).resolve()
        seen = {}
        for command in commands:
            print(f"$ python {command}", flush=True)
            words = command.format(dataset_dir=folder)
            seen[command] = terminal.record(words, project)
        file.write_text(json.dumps(seen))
    # As from its folder: it matters to nobody where the project was.
    return json.loads(file.read_text().replace(f"{project}/", ""))


def draw_terminal(browser: Browser, seen: dict[str, terminal.Chunks], folder: Path) -> None:
    """training.png, as it stood in the middle, and commands.png, from its end on."""
    middle = [f"$ python {TRAINING}", *terminal.screen(seen[TRAINING], share=MIDDLE)]
    end = terminal.screen(seen[TRAINING])
    for command in AFTERWARDS:
        end[-1] = f"$ python {command}"
        end += terminal.screen(seen[command])
    end[-1] = "$ "
    for name, lines in (("training", middle), ("commands", end)):
        tab = browser.new_page(device_scale_factor=1.5)
        tab.set_content(terminal.page(lines))
        save(tab.locator("pre"), folder / f"{name}.png")
        tab.close()


def draw_report(browser: Browser, report: Path, folder: Path) -> None:
    """report.png: the begin of the page."""
    tab = browser.new_page(viewport={"width": WIDTH, "height": 1000})
    tab.goto(report.as_uri())
    save(tab, folder / "report.png")
    tab.close()


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """Its address, while it runs."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = ["-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
    try:
        yield f"http://localhost:{port}"
    finally:
        process.terminate()
        process.wait()
