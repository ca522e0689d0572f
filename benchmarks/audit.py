"""Planted label errors that `run.py audit` finds, beside cleanlab: python benchmarks/audit.py DIR

    pip install cleanlab
    python benchmarks/audit.py dataset/train [--share 0.05] [--audit="--train_epochs 10 ..."]

Gives a share of the files in a folder of class folders another class, audits them, and prints how
many of these are among the first 1.4 x as many of the list, and among the suspects; then what
cleanlab says of the same probabilities. `--audit` has options of `run.py audit`.

With `--test_dir DIR`, it also prints the accuracy there of trainings with the options `--train`, on
the right labels, on the planted ones, and on these without the suspects.
"""

import argparse
import csv
import itertools
import random
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import PROJECT
from library.audit import cross_validate, label_issues
from library.config import FOLDS, parse_command_line

Options = list[str | Path]


def plant(root: Path, share: float, table: Path) -> set[str]:
    """Write a table for --relabel; the files in it."""
    files = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*"))
    classes, chosen = sorted({file.split("/")[0] for file in files}), random.Random(0)
    some = chosen.sample(files, round(share * len(files)))
    with open(table, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "label", "suggested"))
        for name in some:
            old = name.split("/")[0]
            writer.writerow((name, old, chosen.choice([each for each in classes if each != old])))
    return {*some}


def run(program: str, *words: str | Path) -> None:
    subprocess.run([sys.executable, PROJECT / program, *words], check=True)


def convert(root: Path, folder: Path, name: str, *options: str | Path) -> None:
    words = ["--dataset_dir", root, "--tfrecord_dir", folder, "--tfrecord_filename", name]
    run("convert_dataset.py", *words, *options)


def options_of(data: Path, folder: Path) -> Options:
    """The options of a run in a folder of its own."""
    places = "--model_dir", folder / "checkpoints", "--best_model_dir", folder / "best"
    return [*places, "--train_data", data / "train", "--validation_data", data / "validation"]


def names_of(table: Path) -> list[str]:
    with open(table, newline="", encoding="utf-8") as file:
        return [row["file"] for row in csv.DictReader(file)]


def outputs_of(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels and out-of-sample probabilities, as an audit keeps them."""
    parts = [np.load(file) for file in sorted(folder.glob("parts-*/*.npz"))]
    labels = parts[0]["label"]
    if len(parts) == 1:  # the features of a frozen network
        x = parts[0]["features"].astype(np.float32)
        return labels, cross_validate(x, labels, parts[0]["probabilities"].shape[1])
    fold = np.arange(len(labels))[:, np.newaxis] % FOLDS
    return labels, np.choose(fold, [part["probabilities"] for part in parts])


def compare(labels: np.ndarray, probabilities: np.ndarray) -> None:
    """What cleanlab says of the same probabilities."""
    from cleanlab.count import num_label_issues
    from cleanlab.rank import get_label_quality_scores

    ours, each = label_issues(labels, probabilities), "self_confidence"
    count = num_label_issues(labels, probabilities, estimation_method="off_diagonal_calibrated")
    print(f"suspicious: {ours.suspicious.sum()}; cleanlab estimates {count}")
    theirs = get_label_quality_scores(labels, probabilities, method=each)
    print(f"same scores as cleanlab's {each}: {np.allclose(theirs, ours.scores)}")


def accuracy(words: Options, test_data: Path) -> float:
    """Of a training with these options, on the test data."""
    from library.train import Run, start_training
    from project import input_fn, networks
    from project.model_fn import HEADS, model_fn
    from project.settings import Hyperparameters, modality

    argv = [str(word) for word in words]
    line = parse_command_line("", ("train",), Hyperparameters, root=PROJECT, argv=argv)
    parts = {"inputs": input_fn, "networks": networks, "model_fn": model_fn, "heads": HEADS}
    run = Run.of(line, modality=modality, **parts)
    start_training(run)
    run, best = run.trained()
    metrics = run.estimator().evaluate(
        lambda: run.inputs.evaluation_input(run, str(test_data)), checkpoint_path=best
    )
    return float(metrics["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset_dir", type=Path)
    parser.add_argument("--share", type=float, default=0.05, help="of labels that are wrong")
    parser.add_argument("--audit", type=shlex.split, default=[], help="options of the audit")
    parser.add_argument("--test_dir", type=Path, help="measure the accuracy on these files")
    parser.add_argument("--train", type=shlex.split, default=[], help="options of the trainings")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each dataset")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name), arguments.dataset_dir
        table, suspects = folder / "planted.csv", folder / "run/audit/suspects.csv"
        planted = plant(root, arguments.share, table)
        convert(root, folder / "audited", "train", "--relabel", table)
        run("run.py", "audit", *options_of(folder / "audited", folder / "run"), *arguments.audit)
        wrong = [each in planted for each in names_of(suspects.with_name("scores.csv"))]
        first = round(1.4 * arguments.share * len(wrong))
        print(f"{sum(wrong)} of {len(wrong)} labels are wrong; of these, among the first {first}:")
        print(f"ours: {sum(wrong[:first]) / sum(wrong):.1%}")
        found = [each in planted for each in names_of(suspects)]
        print(f"{sum(found)} of {len(found)} suspects are wrong")
        compare(*outputs_of(folder / "run/audit"))
        if not arguments.test_dir:
            return
        planted_too, cut = ["--relabel", table], ["--leave_out", suspects]
        cases: dict[str, Options] = {"right": [], "planted": [*planted_too]}
        cases["left out"] = [*planted_too, *cut]
        for case, options in cases.items():
            convert(root, folder / case, "train", *options)
            convert(arguments.test_dir, folder / case, "test")
        accuracies: dict[str, list[float]] = {case: [] for case in cases}
        for seed, case in itertools.product(range(arguments.seeds), cases):
            words = options_of(folder / case, folder / f"{case} {seed}")
            words += [*arguments.train, "--random_seed", str(seed)]
            accuracies[case].append(accuracy(words, folder / case / "test"))
            print(f"{case} labels, seed {seed}: {accuracies[case][-1]:.2%}", flush=True)
        for case, each in accuracies.items():
            error = np.std(each, ddof=1) / len(each) ** 0.5
            print(f"{case} labels: {np.mean(each):.2%} +- {error:.2%}")


if __name__ == "__main__":
    main()
