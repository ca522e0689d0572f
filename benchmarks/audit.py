"""Planted label errors that `run.py audit` finds, beside cleanlab: python benchmarks/audit.py DIR

    pip install cleanlab
    python benchmarks/audit.py dataset/train [--share 0.05] [-- --train_epochs 10 ...]

Gives a share of the files in a folder of class folders another class, audits them, and prints how
many of these are among the first 1.4 x as many of the list; then what cleanlab says of the same
probabilities. What stands behind `--` goes to `run.py audit`; its network must not be frozen.
"""

import argparse
import csv
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import PROJECT
from library.audit import label_issues
from library.config import FOLDS


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


def outputs_of(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels and out-of-sample probabilities, as an audit keeps them."""
    parts = [np.load(file) for file in sorted(folder.glob("parts-*/fold-*.npz"))]
    fold = np.arange(len(parts[0]["label"]))[:, np.newaxis] % FOLDS
    return parts[0]["label"], np.choose(fold, [part["probabilities"] for part in parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset_dir", type=Path)
    parser.add_argument("--share", type=float, default=0.05, help="of labels that are wrong")
    parser.add_argument("options", nargs="*", help="of run.py audit")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planted = plant(arguments.dataset_dir, arguments.share, folder / "planted.csv")
        words = ["--dataset_dir", arguments.dataset_dir, "--relabel", folder / "planted.csv"]
        words += ["--tfrecord_dir", folder / "data", "--tfrecord_filename", "train"]
        subprocess.run([sys.executable, PROJECT / "convert_dataset.py", *words], check=True)
        words = ["--train_data", folder / "data/train", "--model_dir", folder / "run/checkpoints"]
        words += ["--validation_data", folder / "data/validation", *arguments.options]
        words += ["--best_model_dir", folder / "run/best"]
        subprocess.run([sys.executable, PROJECT / "run.py", "audit", *words], check=True)
        with open(folder / "run/audit/scores.csv", newline="", encoding="utf-8") as file:
            names = [row["file"] for row in csv.DictReader(file)]
        wrong = [name in planted for name in names]
        first = round(1.4 * arguments.share * len(names))
        print(f"{sum(wrong)} of {len(names)} labels are wrong; of these, among the first {first}:")
        print(f"ours: {sum(wrong[:first]) / sum(wrong):.1%}")
        labels, probabilities = outputs_of(folder / "run/audit")
        compare(labels, probabilities)


def compare(labels: np.ndarray, probabilities: np.ndarray) -> None:
    """What cleanlab says of the same probabilities."""
    from cleanlab.count import num_label_issues
    from cleanlab.rank import get_label_quality_scores

    ours, each = label_issues(labels, probabilities), "self_confidence"
    count = num_label_issues(labels, probabilities, estimation_method="off_diagonal_calibrated")
    print(f"suspicious: {ours.suspicious.sum()}; cleanlab estimates {count}")
    theirs = get_label_quality_scores(labels, probabilities, method=each)
    print(f"same scores as cleanlab's {each}: {np.allclose(theirs, ours.scores)}")


if __name__ == "__main__":
    main()
