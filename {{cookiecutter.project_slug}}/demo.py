"""The whole way, on sample data: python demo.py

Makes them, converts, trains, evaluates on the test split, predicts and exports, each by the
command that you would type, and fails where the accuracy stays under its target. Called again, it
goes on from what is there.
"""

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

from library.util import UserError, run_main
from project.settings import modality

OUT = "out/demo"
SAMPLES, DATA = f"{OUT}/samples", f"{OUT}/data"
TARGET = 0.95


def main() -> None:
    if not Path(SAMPLES).exists():
        call("sample data", f"-m {modality.sample_data.__name__} {SAMPLES}")
    for name, more in (("train", "--validation_fraction 0.1"), ("test", "")):
        if not Path(f"{DATA}/{name}.json").exists():
            names = f"--dataset_dir {SAMPLES}/{name} --tfrecord_filename {name}"
            call(f"convert {name}", f"convert_dataset.py {names} --tfrecord_dir {DATA} {more}")

    files = f"--model_dir {OUT}/current --best_model_dir {OUT}/best"
    data = f"--train_data {DATA}/train --validation_data {DATA}/validation"
    call("train", f"run.py train {data} {files} --train_epochs 15 --epochs_between_evals 3")
    call("evaluate", f"run.py evaluate --test_data {DATA}/test {files} --split test")
    folders = sorted(Path(SAMPLES, "test").iterdir())
    inputs = shlex.join(sorted(folder.iterdir())[0].as_posix() for folder in folders[::2])
    call("predict", f"run.py predict {files} --input {inputs} --output {OUT}/predictions.csv")
    tested = f"--test_data {DATA}/test --export_dir {OUT}/export --tflite --check"
    call("export", f"run.py export {files} {tested}")

    evaluation = f"{OUT}/current/evaluation"
    accuracy = json.loads(Path(f"{evaluation}/metrics.json").read_text())["accuracy"]
    print(f"\ntest accuracy    {100 * accuracy:.1f} %")
    with open(f"{OUT}/predictions.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            percent = 100 * float(row["probability"])
            print(f"prediction       {row['file']}: {row['class']}, {percent:.1f} %")
    print(f"report           {evaluation}/report.html")
    print(f"best checkpoint  {OUT}/best")
    print(f"export           {max(Path(OUT, 'export').glob('[0-9]*')).as_posix()}")
    if accuracy < TARGET:
        raise UserError(f"the test accuracy is under {100 * TARGET:.0f} %")


def call(title: str, command: str) -> None:
    """Show a step and its command, and run it."""
    print(f"\n== {title}\n$ python {command.strip()}", flush=True)
    status = subprocess.run([sys.executable, *shlex.split(command)]).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    run_main(main)
