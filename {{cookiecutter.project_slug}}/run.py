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
import dataclasses
import os
import shlex
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from library.config import Parser, Resolved
from library.distribute import run_on_this_machine
from library.util import redirect_native_logs, run_main
from project.settings import (
    LOGGING,
    OPTIMIZATION,
    SPEED,
    TRAINING,
    Hyperparameters,
    Settings,
)

FLAGS_OF = {
    "train": (),
    "evaluate": ("split",),
    "predict": ("input", "output", "top_k", "images_out"),
    "export": ("export_dir", "tflite", "check"),
    "profile": ("trace",),
    "cluster": ("workers", "ps"),
}
"""The commands, and the flags that only they take."""

SETS = {"config_set": "default", "project_file": "project.yaml"}
"""Where options come from, unless the command line says otherwise."""

SPLITS = ("train", "validation", "test")


def main() -> None:
    arguments, settings, hyperparameters = parse_command_line()
    if arguments["print_config"]:
        name = settings.options.hyperparameter_set
        print(f"# {arguments['project_file']}\n{settings.as_yaml(arguments['config_set'])}\n---")
        print(f"# {settings.options.hyperparameter_file}\n{hyperparameters.as_yaml(name)}")
        return

    if arguments["command"] == "cluster":
        run_cluster(settings.options, arguments)
        tell_what_is_next(arguments, settings.options)
        return

    # TensorFlow takes seconds to import: not before the command line is known to be right. The logs
    # of a cluster's tasks are kept by what started them.
    with contextlib.nullcontext() if "TF_CONFIG" in os.environ else redirect_native_logs():
        run_command(arguments, settings.options, hyperparameters.options)


def run_command(
    arguments: dict[str, Any], settings: Settings, hyperparameters: Hyperparameters
) -> None:
    from project import commands, exporting, profile, training

    options = settings, hyperparameters
    match arguments["command"]:
        case "train":
            training.train(*options)
            if "TF_CONFIG" not in os.environ and not settings.overfit:
                tell_what_is_next(arguments, settings)
        case "evaluate":
            commands.evaluate(*options, split=arguments["split"] or "test")
        case "predict":
            commands.predict(
                *options,
                inputs=arguments["input"],
                output=arguments["output"] or "predictions.csv",
                top_k=arguments["top_k"],
                images_out=arguments["images_out"],
            )
        case "export":
            exporting.export(
                *options,
                export_dir=arguments["export_dir"] or "export",
                tflite=bool(arguments["tflite"]),
                check=bool(arguments["check"]),
            )
        case "profile":
            profile.profile(*options, trace=bool(arguments["trace"]))


def tell_what_is_next(arguments: dict[str, Any], settings: Settings) -> None:
    """The commands that one would try after a training, with the flags that it had."""
    given = shlex.join(flags_of(arguments, but_for=(TRAINING, SPEED, LOGGING, OPTIMIZATION)))
    split = "test" if Path(f"{settings.test_data}.json").exists() else "validation"
    print(f"next: python run.py evaluate --split {split} {given}".rstrip())
    print(f"      python run.py predict --input FILE_OR_DIR {given}".rstrip())


def run_cluster(settings: Settings, arguments: dict[str, Any]) -> None:
    """Train by several processes of this program, each with the options that were given."""
    run_on_this_machine(
        [sys.executable, __file__, "train", *flags_of(arguments)],
        workers=2 if arguments["workers"] is None else arguments["workers"],
        servers=1 if arguments["ps"] is None else arguments["ps"],
        logs=settings.model_dir / "cluster",
    )


def flags_of(arguments: dict[str, Any], *, but_for: Collection[str] = ()) -> list[str]:
    """The words of the command line that chose and changed options, but for those of groups."""
    words = []
    for name, default in SETS.items():
        if arguments[name] != default:
            words += [f"--{name}", arguments[name]]
    for field in (*dataclasses.fields(Settings), *dataclasses.fields(Hyperparameters)):
        value = arguments.get(field.name)
        if field.metadata["group"] in but_for:
            continue
        if isinstance(value, bool):
            words.append(f"--{field.name}" if value else f"--no-{field.name}")
        elif value is not None:
            words += [f"--{field.name}", value]
    return words


def parse_command_line() -> tuple[dict[str, Any], Resolved, Resolved]:
    """Command line and YAML files -> arguments, settings, hyperparameters; or all mistakes."""
    parser = Parser(__doc__, Settings, Hyperparameters, root=Path(__file__).parent)
    parser.add_argument("command", nargs="?", default="train", help=" | ".join(FLAGS_OF))
    for name, text in (("config_set", "set of options"), ("project_file", "its file")):
        parser.add_argument(f"--{name}", default=SETS[name], metavar="NAME", help=text)
    parser.add_argument("--print_config", action="store_true", help="show all values, and stop")
    parser.add_argument("--split", metavar="NAME", help="evaluate: one of " + ", ".join(SPLITS))
    text = "predict: files, folders, patterns; -: names from standard input"
    parser.add_argument("--input", nargs="+", metavar="FILE_OR_DIR", help=text)
    text = "predict: .csv or .jsonl; -: standard output; default predictions.csv"
    parser.add_argument("--output", metavar="FILE", help=text)
    text = "predict: write the N most probable classes, not all"
    parser.add_argument("--top_k", type=int, metavar="N", help=text)
    text = "predict: draw the worst mistakes, where folders name the classes"
    parser.add_argument("--images_out", metavar="DIR", help=text)
    parser.add_argument("--export_dir", metavar="DIR", help="export: default export")
    text = "export: write models for TFLite too"
    parser.add_argument("--tflite", action="store_true", default=None, help=text)
    text = "export: compare it with the checkpoint, in a process of its own"
    parser.add_argument("--check", action="store_true", default=None, help=text)
    text = "profile: write a trace for TensorBoard to model_dir"
    parser.add_argument("--trace", action="store_true", default=None, help=text)
    text = "cluster: workers beside the chief, default 2"
    parser.add_argument("--workers", type=int, metavar="N", help=text)
    text = "cluster: parameter servers, default 1; 0: all-reduce"
    parser.add_argument("--ps", type=int, metavar="N", help=text)
    arguments = parser.parse(sys.argv[1:])
    settings = parser.resolve(Settings, arguments["project_file"], arguments["config_set"])
    file, name = (settings.values[f"hyperparameter_{word}"] for word in ("file", "set"))
    hyperparameters = parser.resolve(Hyperparameters, file, name)

    command, split = arguments["command"], arguments["split"] or "test"
    for name, word, known in (("command", command, FLAGS_OF), ("--split", split, SPLITS)):
        if word not in known:
            parser.add_error(f"{name}: {word} is not one of {', '.join(known)}", word, known)
    for owner, flags in FLAGS_OF.items():
        for flag in flags:
            if arguments[flag] is not None and owner != command:
                parser.add_error(f"--{flag} belongs to {owner}, not to {command}")
    for flag, least in (("workers", 0), ("ps", 0), ("top_k", 1)):
        if arguments[flag] is not None and arguments[flag] < least:
            parser.add_error(f"--{flag}: {arguments[flag]} is not a whole number at least {least}")
    if command == "predict" and not arguments["input"]:
        parser.add_error("predict: --input is missing: name files, or folders of files")
    parser.raise_errors()
    return arguments, settings, hyperparameters


if __name__ == "__main__":
    run_main(main)
