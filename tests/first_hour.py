"""What a person does with the READMEs alone: python tests/first_hour.py [--per_class N] [modality]

It types the first command of the template's README, which makes a project, and then in its folder
every command of the section on your own files in the project's README, in their order and nothing
else. Only what makes an environment is left out: that of this Python is used. The files are those
of the demo: N per class to train on, a quarter as many to test, and some new ones. TensorBoard is
asked for what it shows, and ended. A command that fails, or leaves something else than the README
says, ends it. At the end it prints how long each command took, as a table.
"""

import argparse
import csv
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

TEMPLATE = Path(__file__).parent.parent
PLACE = "gh:org/tf-skeleton"
"""What the README calls the template; here it is this folder."""

NO_COMMAND = ("pip ", "dataset/", "new_files", "#")
"""Lines of code that are not typed: the environment is there, and so are the files."""

NEW_PER_CLASS = 2
WAIT_SECS = 60.0
"""For TensorBoard to start, and to read what is there."""

MAKE_FILES = """if True:
    import json, sys
    from project.settings import modality
    modality.sample_data.make("dataset", per_class=json.loads(sys.argv[1]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("modality", nargs="?", default="images", choices=("images", "audio"))
    help = "files of each class to train on, default 200"
    parser.add_argument("--per_class", type=int, default=200, metavar="N", help=help)
    parser.add_argument("--folder", type=Path, help="an empty one for the project, which is kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        times = first_hour(folder, given.modality, per_class=given.per_class)
    print("\n| command | seconds |\n| --- | ---: |")
    for command, seconds in times.items():
        print(f"| `{command}` | {seconds:.1f} |")


def first_hour(folder: Path, modality: str, *, per_class: int) -> dict[str, float]:
    """Do all that the READMEs say.

    Args:
        folder: an empty one, for the project.
        modality: images or audio.
        per_class: files of each class to train on.

    Returns:
        Seconds by command, as it stands in the README.
    """
    times = {}
    template = (TEMPLATE / "README.md").read_text(encoding="utf-8")
    first, *others = commands(template, "tf-skeleton")
    words = shlex.split(first.replace(PLACE, shlex.quote(str(TEMPLATE))))
    answers = ["--no-input", "--default-config"]
    times[first] = call([words[0], *answers, *words[1:], f"modality={modality}"], folder)
    (project,) = folder.iterdir()
    make_files(project, {"train": per_class, "test": -(-per_class // 4), "new": NEW_PER_CLASS})
    readme = (project / "README.md").read_text(encoding="utf-8")
    if others != commands(readme, "Your own")[: len(others)]:
        sys.exit(f"the project's README does not begin with {', '.join(others)}")
    for command in commands(readme, "Your own"):
        words = shlex.split(command)
        if words[0] == "tensorboard":
            begin = time.monotonic()
            check_tags(scalar_tags(words, project))
            times[command] = time.monotonic() - begin
        else:
            times[command] = call(words, project)
    check_files(project)
    return times


def commands(readme: str, heading: str) -> list[str]:
    """What is typed of a section, each command in a line."""
    fenced = re.findall(r"^```\w*\n(.*?)^```$|^##? ([^\n]*)$", readme, re.MULTILINE | re.DOTALL)
    (begin,) = [i for i, (_, title) in enumerate(fenced) if title.startswith(heading)]
    blocks = itertools.takewhile(lambda each: not each[1], fenced[begin + 1 :])
    code = "".join(block for block, _ in blocks)
    lines = re.sub(r"\s*\\\n\s*", " ", code).splitlines()
    return [line for line in lines if line and not line.startswith(NO_COMMAND)]


def environment() -> dict[str, str]:
    """That of a terminal in which this Python's environment is active."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PATH": path
    }


def call(words: list[str], folder: Path) -> float:
    """Show a command, run it, and return its seconds."""
    print(f"\n$ {shlex.join(words)}", flush=True)
    begin = time.monotonic()
    status = subprocess.run(words, cwd=folder, env=environment()).returncode
    if status:
        sys.exit(f"status {status}: {shlex.join(words)}")
    return time.monotonic() - begin


def make_files(project: Path, per_class: dict[str, int]) -> None:
    """dataset/train and dataset/test with a folder for each class; new_files with none."""
    words = [sys.executable, "-c", MAKE_FILES, json.dumps(per_class)]
    subprocess.run(words, cwd=project, env=environment(), check=True)
    (project / "new_files").mkdir()
    for number, file in enumerate(sorted((project / "dataset/new").glob("*/*"))):
        file.rename(project / "new_files" / f"{number:03}{file.suffix}")
    shutil.rmtree(project / "dataset/new")


def scalar_tags(words: list[str], project: Path) -> dict[str, list[str]]:
    """The names of the numbers that TensorBoard shows, by run."""
    print(f"\n$ {shlex.join(words)}", flush=True)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # this machine: no proxy
    deadline = time.monotonic() + WAIT_SECS
    with subprocess.Popen(
        words, cwd=project, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None, "it is a pipe"
        try:
            for line in process.stderr:
                address = re.search(r"http://\S+/", line)
                if address:
                    print(line, end="", flush=True)
                    break
            else:
                sys.exit("TensorBoard has told no address")
            tags: dict[str, list[str]] = {}
            while len(tags) < 2 and time.monotonic() < deadline:  # it reads a run after the other
                time.sleep(0.2)
                with opener.open(f"{address[0]}data/plugin/scalars/tags") as answer:
                    tags = {run: list(names) for run, names in json.load(answer).items()}
        finally:
            process.terminate()
    return tags


def check_tags(tags: dict[str, list[str]]) -> None:
    """The training and its evaluations, both with loss and accuracy."""
    print(*(f"{run}: {', '.join(names)}" for run, names in tags.items()), sep="\n")
    wanted = {"loss", "accuracy"}
    if len(tags) < 2 or not all(wanted <= set(names) for names in tags.values()):
        sys.exit(f"TensorBoard shows other numbers: {tags}")


def check_files(project: Path) -> None:
    """What the commands have to leave: the report, the predictions and the export."""
    classes = sorted(path.name for path in (project / "dataset/train").iterdir())
    report = (project / "runs/default/evaluation/test/report.html").read_text(encoding="utf-8")
    missing = [name for name in classes if f">{name}<" not in report]
    if missing:
        sys.exit(f"report.html does not name {', '.join(missing)}")
    with open(project / "runs/default/predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = sorted(path.name for path in (project / "new_files").iterdir())
    if [Path(row["file"]).name for row in rows] != names:
        sys.exit("predictions.csv has not a row for each file")
    if not all(row["class"] in classes for row in rows):
        sys.exit("predictions.csv has a file without a class")
    if len(list(project.glob("runs/default/export/*/saved_model.pb"))) != 1:
        sys.exit("there is no export")


if __name__ == "__main__":
    main()
