"""Predictions for files, against an evaluation: python benchmarks/predict.py

    python benchmarks/predict.py [FILES]

The same JPEGs of 500 x 375 pixels, FILES (20,000) in a folder, and in a dataset as many times, go
through the same network, in processes of `run.py` in turns; what the same takes for one file is
taken off. Resident memory of the prediction is that at a quarter of its time, at half, and at the
end.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from common import PROJECT, make_dataset, make_jpeg, system_name, write_files

IMAGES, ROUNDS = 200, 3


def run(*words: object) -> tuple[float, list[float]]:
    """Run run.py; return the seconds it takes, and its resident MB from moment to moment."""
    begin, memory = time.perf_counter(), []
    command = [sys.executable, PROJECT / "run.py", *words]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            memory.append(watched.memory_info().rss / 2**20)
            time.sleep(0.1)
    if process.returncode:
        sys.exit(process.returncode)
    return time.perf_counter() - begin, memory


def main() -> None:
    files = int(sys.argv[1]) if sys.argv[1:] else 20_000
    jpegs = [make_jpeg(seed) for seed in range(IMAGES)]
    print(f"{files:,} files, {system_name()}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_dataset(folder / "train", jpegs)
        make_dataset(folder / "many", jpegs, copies=files // IMAGES)
        make_dataset(folder / "one", jpegs[:2])
        write_files(folder / "files", jpegs, files)
        write_files(folder / "file", jpegs, 1)
        given = ["--model_dir", folder / "checkpoints", "--best_model_dir", folder / "best"]
        train = ["--train_data", folder / "train", "--validation_data", folder / "train"]
        run("train", *given, *train, "--train_epochs", 1)
        found: dict[str, list[float]] = {"predict": [], "evaluate": []}
        for _ in range(ROUNDS):
            output = ["--output", folder / "predictions.csv"]
            seconds, memory = run("predict", *given, *output, "--input", folder / "files")
            least, _ = run("predict", *given, *output, "--input", folder / "file")
            found["predict"].append(files / (seconds - least))
            seconds, _ = run("evaluate", *given, "--test_data", folder / "many")
            least, _ = run("evaluate", *given, "--test_data", folder / "one")
            found["evaluate"].append(files / (seconds - least))
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    for command, rate in medians.items():
        print(f"{command}: {rate:,.0f} images/s")
    print(f"{medians['predict'] / medians['evaluate']:.2f} x")
    moments = [memory[len(memory) // 4], memory[len(memory) // 2], memory[-2]]
    print("resident MB:", ", ".join(f"{each:,.0f}" for each in moments))


if __name__ == "__main__":
    main()
