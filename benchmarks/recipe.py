"""How well recipes learn, and what they cost: python benchmarks/recipe.py DATA ...

    python benchmarks/recipe.py DATA [DATA ...] [--recipe "NAME: --FLAG VALUE ..."] [--seeds 0 1 2]
                                [--project DIR] [--work DIR] [--jobs 1]

Each DATA is a folder with the folders train and test, a folder for each class in both. A recipe is
a name and flags of run.py; without any, it is the default set. Each recipe trains on each dataset
once for each seed, the best checkpoint is evaluated on the test set, and a table of Markdown is
printed: the mean and the worst accuracy, CPU seconds of the training, and the largest fall of the
validation accuracy from one evaluation to the next after a quarter of the epochs. What is in
results.jsonl of the work folder already is not trained again.
"""

import argparse
import concurrent.futures
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import PROJECT, system_name

Row = dict[str, Any]


def run(project: Path, log: Path, *words: object) -> tuple[float, float]:
    """Run a program of the project: wall seconds, and CPU seconds of its process."""
    begin = time.monotonic()
    command = [sys.executable, *map(str, words)]
    with open(log, "a", encoding="utf-8") as file:
        child = subprocess.Popen(command, cwd=project, stdout=file, stderr=subprocess.STDOUT)
        _, child.returncode, usage = os.wait4(child.pid, 0)
    if child.returncode:
        sys.exit(f"{shlex.join(command)} failed: see {log}")
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime


def convert(project: Path, data: Path, folder: Path) -> None:
    """Convert a dataset, once."""
    for split in ("train", "test"):
        if not (folder / f"{split}.json").exists():
            words = ("--dataset_dir", data / split, "--tfrecord_dir", folder)
            run(project, folder.parent / "convert.log", "convert_dataset.py", *words)


def largest_fall(log: Path) -> float:
    """Percentage points between evaluations, from the table that a training prints."""
    lines = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    header = next(words for words in lines if words[:3] == ["step", "epoch", "loss"])
    column = header.index("accuracy")
    rows = [words for words in lines if len(words) > column and "." in words[1]]
    rows = [words for words in rows if words[0].isdecimal()]
    found = [100 * float(words[column]) for words in rows if words[-1] != "accuracy"]
    late = found[len(found) // 4 :]
    return max([0.0, *(a - b for a, b in zip(late, late[1:], strict=False))])


def train(options: argparse.Namespace, data: Path, name: str, flags: str, seed: int) -> Row:
    """One training and its evaluation on the test set."""
    folder = options.work / data.name
    with tempfile.TemporaryDirectory(dir=options.work) as temporary:
        log = Path(temporary, "log")
        words: list[object] = ["--model_dir", f"{temporary}/checkpoints"]
        words += ["--best_model_dir", f"{temporary}/best"]
        for split in ("train", "validation", "test"):
            words += [f"--{split}_data", folder / split]
        shaped = [*shlex.split(flags), "--random_seed", seed, "--no-live_progress"]
        wall, cpu = run(options.project, log, "run.py", "train", *words, *shaped)
        run(options.project, log, "run.py", "evaluate", *words, "--split", "test")
        metrics = json.loads(next(Path(temporary).rglob("metrics.json")).read_text())
        fall = largest_fall(log)
    return {
        "data": data.name,
        "recipe": name,
        "flags": flags,
        "seed": seed,
        "accuracy": 100 * metrics["accuracy"],
        "loss": metrics["loss"],
        "wall": wall,
        "cpu": cpu,
        "fall": fall,
    }


def table(rows: list[Row]) -> None:
    """Print a line of Markdown for each dataset and recipe."""
    print("| dataset | recipe | accuracy: mean (worst) | CPU s | largest fall |")
    print("| --- | --- | --- | --- | --- |")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["recipe"], row["flags"]), []).append(row)
    for (data, recipe, flags), group in sorted(groups.items()):
        accuracies = [row["accuracy"] for row in group]
        cpu, fall = statistics.mean(row["cpu"] for row in group), max(r["fall"] for r in group)
        what = f"{recipe} `{flags}`" if flags else recipe
        print(
            f"| {data} | {what} | {statistics.mean(accuracies):.2f} ({min(accuracies):.2f}), "
            f"{len(group)} seeds | {cpu:.0f} | {fall:.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--recipe", action="append", default=[], help="NAME: FLAGS of run.py")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--project", type=Path, default=PROJECT, help="folder of run.py")
    parser.add_argument("--work", type=Path, default=Path("build/recipe"))
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    options = parser.parse_args()
    options.work = options.work.absolute()
    options.work.mkdir(parents=True, exist_ok=True)
    results = options.work / "results.jsonl"
    found = [json.loads(line) for line in results.open()] if results.exists() else []
    keys = ("data", "recipe", "flags", "seed")
    known = {tuple(row[key] for key in keys) for row in found}
    recipes = [each.partition(":")[::2] for each in options.recipe or ["default:"]]
    print(system_name(), flush=True)
    for data in options.data:
        convert(options.project, data, options.work / data.name)
    jobs = [
        (data, name.strip(), flags.strip(), seed)
        for seed in options.seeds
        for name, flags in recipes
        for data in options.data
        if (data.name, name.strip(), flags.strip(), seed) not in known
    ]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda job: train(options, *job), jobs):
            found.append(row)
            with open(results, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    table(found)


if __name__ == "__main__":
    main()
