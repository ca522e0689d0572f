"""Train, evaluate, predict with, export and profile the model of this project.

python run.py                                 train, or go on where it stopped
python run.py --config_set gtx1080ti          with another set of project.yaml
python run.py --learning_rate 1e-4            with another value of an option
python run.py evaluate --split test           print and write the metrics
python run.py predict --input FILE_OR_DIR ... write predictions.csv
python run.py export --export_dir DIR         write a SavedModel
python run.py profile                         measure the input and the step
python run.py cluster --workers 2 --ps 1      try a cluster on this machine
"""

import contextlib
import os
import shlex
import sys
from pathlib import Path

from library.config import (
    CommandLine,
    HeadHyperparameters,
    LoggingSettings,
    OptimizationHyperparameters,
    Settings,
    SpeedSettings,
    TrainingSettings,
    parse_command_line,
)
from library.distribute import run_on_this_machine
from library.util import redirect_native_logs, run_main
from project.settings import Hyperparameters

COMMANDS = ("train", "evaluate", "predict", "export", "profile", "cluster")

NOT_NEXT = (
    TrainingSettings,
    SpeedSettings,
    LoggingSettings,
    HeadHyperparameters,
    OptimizationHyperparameters,
)
"""Options that evaluation and prediction do not need again."""


def main() -> None:
    line = parse_command_line(
        __doc__ or "", COMMANDS, Hyperparameters, argv=sys.argv[1:], root=Path(__file__).parent
    )
    if line.print_config:
        print(line.as_yaml())
        return

    if line.command == "cluster":
        run_cluster(line)
        tell_what_is_next(line)
        return

    # TensorFlow takes seconds to import: not before the command line is known to be right. The logs
    # of a cluster's tasks are kept by what started them.
    with contextlib.nullcontext() if "TF_CONFIG" in os.environ else redirect_native_logs():
        run_command(line, line.settings)


def run_command(line: CommandLine, settings: Settings) -> None:
    from project import commands, exporting, profile, training

    options = settings, line.hyperparameters
    match line.command:
        case "train":
            training.train(*options)
            if "TF_CONFIG" not in os.environ and not settings.overfit:
                tell_what_is_next(line)
        case "evaluate":
            commands.evaluate(*options, split=settings.split)
        case "predict":
            commands.predict(
                *options,
                inputs=settings.input,
                output=settings.output or str(settings.run_dir / "predictions.csv"),
                top_k=settings.top_k,
                images_out=settings.images_out,
            )
        case "export":
            exporting.export(
                *options,
                export_dir=settings.export_dir or settings.run_dir / "export",
                tflite=settings.tflite,
                check=settings.check,
            )
        case "profile":
            profile.profile(*options, trace=settings.trace)


def tell_what_is_next(line: CommandLine) -> None:
    """The commands that one would try after a training, with the flags that it had."""
    given = shlex.join(line.words(without=NOT_NEXT))
    split = "test" if Path(f"{line.settings.test_data}.json").exists() else "validation"
    print(f"next: python run.py evaluate --split {split} {given}".rstrip())
    print(f"      python run.py predict --input FILE_OR_DIR {given}".rstrip())


def run_cluster(line: CommandLine) -> None:
    """Train by several processes of this program, each with the options that were given."""
    run_on_this_machine(
        [sys.executable, __file__, "train", *line.words()],
        workers=line.settings.workers,
        servers=line.settings.ps,
        logs=line.settings.model_dir / "cluster",
    )


if __name__ == "__main__":
    run_main(main)
