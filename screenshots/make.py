"""The images of README.md, of a project that is trained for them: make screenshots

    python screenshots/make.py PROJECT_DIR [--dataset_dir DIR]

trains in PROJECT_DIR on its sample data, or on the images in DIR/train and DIR/test, a folder for
each class. What was written to the terminal is kept in PROJECT_DIR/runs/screenshots.json: called
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
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import terminal
from PIL import Image
from playwright.sync_api import Browser, FloatRect, Playwright, sync_playwright

HERE = Path(__file__).parent

SAMPLES = "-m library.images.sample_data {dataset_dir}"
CONVERSION = (
    "convert_dataset.py --dataset_dir {dataset_dir}/train",
    "convert_dataset.py --dataset_dir {dataset_dir}/test",
)
TRAINING = "run.py --train_epochs 20 --epochs_between_evals 2"
AFTERWARDS = ("run.py evaluate", "run.py export --check")
RUN = "runs/default"
MIDDLE = 0.5
"""Share of the time of the training after which its line is shown."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CARDS = ("accuracy", "inputs", "loss", "mistakes")
"""What is shown of TensorBoard's Time Series, in the order of their names."""

STARTED_SECS, LOADED_MS, SETTLED_MS = 60, 60_000, 2_000
"""How long TensorBoard may take to answer and to draw a card; and for what moves to stand."""

WIDTH = 1000
"""Pixels of an image, at most."""
MOST_BYTES = 150_000
REPORT_WIDTH, MARGIN = 1240, 30
"""Of the window in which the report is opened, and what is left below its last part."""

COLORS = (256, 128, 64, 32)
"""Sizes of the palette, of which the first one that is small enough is taken."""

KMEANS = 5
"""Rounds that better the palette: the few pixels of a scale of colors keep theirs."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("project_dir", type=Path, help="a rendered project for images")
    parser.add_argument("--dataset_dir", type=Path, help="folder of train/ and test/")
    parser.add_argument("--output_dir", type=Path, default=HERE, help="where the images go")
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
        draw_report(browser, project, output_dir)
        with tensorboard(project / RUN / "checkpoints") as address:
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
    file = project / "runs/screenshots.json"
    if not file.exists():
        samples = project / "runs/samples"
        commands = [*CONVERSION, TRAINING, *AFTERWARDS]
        if dataset_dir is None and not samples.exists():
            commands.insert(0, SAMPLES)
        seen = {}
        for command in commands:
            words = command.format(dataset_dir=(dataset_dir or samples).resolve())
            print(f"$ python {words}", flush=True)
            seen[command] = terminal.record(words, project)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(seen))
    found: dict[str, terminal.Chunks] = json.loads(without_place(file.read_text(), project))
    return found


def without_place(text: str, project: Path) -> str:
    """The paths as from the project's folder: where that was matters to nobody."""
    return text.replace(f"{project}/", "")


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
        save(tab.locator("pre").screenshot(), folder / f"{name}.png")
        tab.close()


def draw_report(browser: Browser, project: Path, folder: Path) -> None:
    """report.png, the numbers and curves, and mistakes.png, what follows but for the settings."""
    tab = browser.new_page(viewport={"width": REPORT_WIDTH, "height": REPORT_WIDTH})
    report = project / RUN / "evaluation/test/report.html"
    tab.set_content(without_place(report.read_text(), project))
    below, gallery = (tab.locator(name).bounding_box() for name in (".beside", ".gallery"))
    assert below, "the report is one of classes"
    assert gallery
    end = gallery["y"] + gallery["height"] + MARGIN
    parts = {"report": (0, below["y"]), "mistakes": (below["y"], end)}
    for name, (top, bottom) in parts.items():
        clip = FloatRect(x=0, y=top, width=REPORT_WIDTH, height=bottom - top)
        save(tab.screenshot(clip=clip, full_page=True), folder / f"{name}.png")
    tab.close()


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """Its address, while it runs."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = ["-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
    address = f"http://localhost:{port}"
    try:
        for _ in range(STARTED_SECS):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(address).close()
                break
            time.sleep(1)
        yield address
    finally:
        process.terminate()
        process.wait()


def draw_tensorboard(browser: Browser, address: str, folder: Path) -> None:
    """tensorboard.png: some of its cards."""
    tab = browser.new_page(viewport={"width": 1200, "height": 860})
    tab.set_default_timeout(LOADED_MS)
    tags = urllib.parse.quote(f"^({'|'.join(CARDS)})$")
    tab.goto(f"{address}/?tagFilter={tags}&smoothing=0#timeseries")
    # TensorBoard draws what is in sight, and when it is there.
    tab.get_by_text("Enable step selection").click()
    tab.get_by_role("button", name="Settings").last.click()
    for kind in ("scalar-card svg path", "image-card img"):
        tab.locator(kind).nth(1).wait_for(state="attached")
    tab.wait_for_load_state("networkidle")
    tab.wait_for_timeout(SETTLED_MS)
    save(tab.screenshot(), folder / "tensorboard.png")
    tab.close()


def save(screenshot: bytes, path: Path) -> None:
    """Write an image of at most WIDTH and MOST_BYTES, in a palette."""
    image = Image.open(io.BytesIO(screenshot)).convert("RGB")
    if image.width > WIDTH:
        image = image.resize(
            (WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS
        )
    for colors in COLORS:
        small = io.BytesIO()
        image.quantize(colors, Image.Quantize.MEDIANCUT, KMEANS).save(small, "png", optimize=True)
        if small.tell() <= MOST_BYTES:
            break
    path.write_bytes(small.getvalue())
    print(f"{path}: {image.width} x {image.height}, {small.tell():,} bytes", flush=True)


if __name__ == "__main__":
    sys.exit(main())
