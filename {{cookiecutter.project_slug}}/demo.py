"""The whole way, on sample data: python demo.py

It makes samples, converts, trains, evaluates, predicts and exports, each by the command that you
would type, and fails where the accuracy is below its target. Its files are in runs/demo; called
again, it continues from what is there.
"""

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

from library.util import UserError, run_main
from project.settings import modality

RUN, TARGET = Path("runs/demo"), 0.95
SAMPLES, DATA = f"{RUN}/samples", f"{RUN}/data"


def main() -> None:
    if not Path(SAMPLES).exists():
        call("sample data", f"-m {modality.sample_data.__name__} {SAMPLES}")
    for name in ("train", "test"):
        if not Path(f"{DATA}/{name}.json").exists():
            folder = f"--dataset_dir {SAMPLES}/{name}"
            call(f"convert {name}", f"convert_dataset.py {folder} --tfrecord_dir {DATA}")
    data = f"--run demo --train_data {DATA}/train --validation_data {DATA}/validation"
    call("train", f"run.py train {data} --train_epochs 15 --epochs_between_evals 3")
    test = f"--run demo --test_data {DATA}/test"
    call("evaluate", f"run.py evaluate {test} --split test")
    classes = sorted(Path(SAMPLES, "test").iterdir())
    inputs = shlex.join(min(folder.iterdir()).as_posix() for folder in classes[::2])
    call("predict", f"run.py predict --run demo --input {inputs}")
    call("export", f"run.py export {test} --tflite --check")

    accuracy = json.loads((RUN / "evaluation/test/metrics.json").read_text())["accuracy"]
    print(f"\ntest accuracy    {100 * accuracy:.1f} %")
    with open(RUN / "predictions.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            print(
                f"prediction       {row['file']}: {row['class']}, probability {row['probability']}"
            )
    print("report           runs/demo/evaluation/test/report.html")
    print("best checkpoint  runs/demo/best")
    print(f"export           {max(RUN.glob('export/[0-9]*')).as_posix()}")
    if accuracy < TARGET:
        raise UserError(f"the test accuracy is below {100 * TARGET:.0f} %")


def call(title: str, command: str) -> None:
    """Show a step and its command, and run it."""
    print(f"\n== {title}\n$ python {command.strip()}", flush=True)
    if status := subprocess.run([sys.executable, *shlex.split(command)]).returncode:
        sys.exit(status)


if __name__ == "__main__":
    run_main(main)
