"""Train, evaluate, predict with, export and profile the model of this project.

python run.py                                 train, or resume where it stopped
python run.py --config_set gtx1080ti          with another set of project.yaml
python run.py --learning_rate 1e-4            with another value of an option
python run.py --run NAME                      a run of its own, in runs/NAME
python run.py evaluate --split test           print and write the metrics
python run.py predict --input FILE_OR_DIR ... write predictions.csv
python run.py export                          write a SavedModel
python run.py profile                         measure the input and the step
python run.py cluster --workers 2 --ps 1      try a cluster on this machine
"""

import contextlib
import os
import shlex
import sys
from pathlib import Path

from library.config import CommandLine, DataSettings, RunSettings, parse_command_line
from library.distribute import run_local_cluster
from library.util import redirect_native_logs, run_main
from project.settings import Hyperparameters, modality

COMMANDS = ("train", "evaluate", "predict", "export", "profile", "cluster")


def main() -> None:
    line = parse_command_line(__doc__, COMMANDS, Hyperparameters, root=Path(__file__).parent)
    in_cluster = "TF_CONFIG" in os.environ
    if line.print_config:
        print(line.as_yaml())
        return
    if line.command == "cluster":
        run_local_cluster(
            [sys.executable, __file__, "train", *line.words()],
            workers=line.settings.workers,
            servers=line.settings.ps,
            logs=line.settings.model_dir / "cluster",
        )
    else:  # the logs of a cluster's tasks are kept by what started them
        with contextlib.nullcontext() if in_cluster else redirect_native_logs():
            run_command(line)
    if line.command in ("train", "cluster") and not in_cluster and not line.settings.overfit:
        print_next(line)


def run_command(line: CommandLine) -> None:
    """Do what the command line says. TensorFlow is imported here, when it is known to be right."""
    from library import profile, serve, train
    from project import input_fn, networks
    from project.model_fn import HEADS, model_fn

    run = train.Run.of(
        line, modality, inputs=input_fn, networks=networks, model_fn=model_fn, heads=HEADS
    )
    match line.command:
        case "train":
            train.start_training(run)
        case "evaluate":
            train.run_evaluation(run)
        case "predict":
            serve.predict_files(run)
        case "export":
            serve.export_model(run)
        case "profile":
            profile.profile_training(run)


def print_next(line: CommandLine) -> None:
    """The commands that one would try after a training."""
    given = shlex.join(line.words(only=(DataSettings, RunSettings)))
    split = "test" if Path(f"{line.settings.test_data}.json").exists() else "validation"
    print(f"next: python run.py evaluate --split {split} {given}".rstrip())
    print(f"      python run.py predict --input FILE_OR_DIR {given}".rstrip())


if __name__ == "__main__":
    run_main(main)
