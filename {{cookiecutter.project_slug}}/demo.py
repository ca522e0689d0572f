"""The whole way, on sample data: python demo.py

Each step is the command that you would type. It fails where the accuracy is below TARGET. All files
are in runs/demo; called again, it continues from what is there.
"""

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

from library.util import UserError, run_main
from project.settings import modality

RUN, SAMPLES, DATA, TARGET = Path("runs/demo"), "runs/demo/samples", "runs/demo/data", 0.99


def main() -> None:
    if not Path(SAMPLES).exists():
        call("sample data", f"-m {modality.sample_data.__name__} {SAMPLES}")
    for name in ("train", "test"):
        if not Path(f"{DATA}/{name}.json").exists():
            words = f"--dataset_dir {SAMPLES}/{name} --tfrecord_dir {DATA}"
            call(f"convert {name}", f"convert_dataset.py {words}")
    data = "".join(f" --{name}_data {DATA}/{name}" for name in ("train", "validation", "test"))
    call("train", f"run.py train --run demo{data}")
    call("evaluate", f"run.py evaluate --run demo{data} --split test")
    folders = sorted(Path(SAMPLES, "test").iterdir())
    inputs = shlex.join(min(folder.iterdir()).as_posix() for folder in folders[::2])
    call("predict", f"run.py predict --run demo --input {inputs}")
    call("export", f"run.py export --run demo{data} --tflite --check")
    accuracy = json.loads((RUN / "evaluation/test/metrics.json").read_text())["accuracy"]
    print(f"\ntest accuracy    {100 * accuracy:.1f}%")
    with open(RUN / "predictions.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            percent = 100 * float(row["probability"])
            print(f"prediction       {row['file']}: {row['class']} {percent:.1f}%")
    report, export = RUN / "evaluation/test/report.html", max(RUN.glob("export/[0-9]*"))
    for name, path in (("report", report), ("best checkpoint", RUN / "best"), ("export", export)):
        print(f"{name:<16} {path.as_posix()}")
    if accuracy < TARGET:
        raise UserError(f"the test accuracy is below {100 * TARGET:.0f}%")


def call(title: str, command: str) -> None:
    """Show a step and its command, and run it."""
    print(f"\n== {title}\n$ python {command.strip()}", flush=True)
    if status := subprocess.run([sys.executable, *shlex.split(command)]).returncode:
        sys.exit(status)


if __name__ == "__main__":
    run_main(main)
