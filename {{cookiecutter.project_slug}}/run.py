"""Train, evaluate, predict with, export and profile the model of this project.

python run.py                                 train, or resume where it stopped
python run.py --config_set gtx1080ti --new    a new run, with a set of settings
python run.py compare RUN RUN ...             say which is better; or `runs`
python run.py evaluate --split test           print and write the metrics
python run.py predict FILE_OR_DIR ...         write predictions.csv
python run.py export                          write a SavedModel
python run.py tune --budget_minutes 20        search hyperparameters
python run.py audit                           find labels that look wrong
python run.py profile                         measure the input and the step
python run.py cluster --workers 2 --ps 1      try a cluster on this machine
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from library.config import CommandLine, DataSettings, RunSettings, parse_command_line
from library.distribute import run_local_cluster
from library.util import redirect_native_logs, run_main
from project.settings import Hyperparameters, modality

COMMANDS: tuple[str, ...] = ("train", "evaluate", "predict", "export", "tune", "audit")
COMMANDS += ("profile", "cluster", "runs", "compare")


def main() -> None:
    line = parse_command_line(__doc__, COMMANDS, Hyperparameters, root=Path(__file__).parent)
    settings, in_cluster = line.settings, "TF_CONFIG" in os.environ
    if line.print_config:
        print(line.as_yaml())
    elif line.command == "cluster":
        command = [sys.executable, __file__, "train", *line.words()]
        logs = settings.model_dir / "cluster"
        run_local_cluster(command, workers=settings.workers, servers=settings.ps, logs=logs)
    else:  # the logs of a cluster's tasks are kept by what started them
        with contextlib.nullcontext() if in_cluster else redirect_native_logs():
            run_command(line)
    stopped = line.print_config or in_cluster or settings.overfit or settings.print_model
    if line.command in ("train", "cluster") and not stopped:
        print_next(line)


def run_command(line: CommandLine) -> None:
    """Do what the command line says. TensorFlow is imported here, when it is known to be right."""
    from library import audit, compare, profile, serve, train, tune
    from project import input_fn, networks
    from project.model_fn import HEADS, model_fn

    parts = {"inputs": input_fn, "networks": networks, "model_fn": model_fn, "heads": HEADS}
    run = train.Run.of(line, modality=modality, **parts)
    commands: dict[str, Callable[[], object]] = {
        "train": lambda: train.start_training(run),
        "evaluate": lambda: train.run_evaluation(run),
        "predict": lambda: serve.predict_files(run),
        "export": lambda: serve.export_model(run),
        "tune": lambda: tune.tune(run),
        "audit": lambda: audit.audit_labels(run),
        "profile": lambda: profile.profile_training(run),
        "runs": lambda: train.list_runs(),
        "compare": lambda: compare.compare_runs(run),
    }
    commands[line.command]()


def print_next(line: CommandLine) -> None:
    """The commands that one would try after a training."""
    groups = (DataSettings, RunSettings), (RunSettings,)
    of_data, of_run = (shlex.join(line.words(only=each)) for each in groups)
    split = "test" if Path(f"{line.settings.test_data}.json").exists() else "validation"
    print(f"next: python run.py evaluate --split {split} {of_data}".rstrip())
    print(f"      python run.py predict FILE_OR_DIR {of_run}".rstrip())


if __name__ == "__main__":
    run_main(main)
