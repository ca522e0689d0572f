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

import dataclasses
import sys
from pathlib import Path
from typing import Any

from library.config import Parser, Resolved
from library.errors import run
from library.local_cluster import run_on_this_machine
from library.quiet import quiet_import
from project.settings import Hyperparameters, Settings

FLAGS_OF = {
    "train": (),
    "evaluate": ("split",),
    "predict": ("input", "output"),
    "export": ("export_dir",),
    "profile": ("trace",),
    "cluster": ("workers", "ps"),
}
"""The commands, and the flags that only they take."""

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
        return

    # TensorFlow takes seconds to import: not before the command line is known to be right.
    with quiet_import():
        from project import commands, profile, training

    options = settings.options, hyperparameters.options
    match arguments["command"]:
        case "train":
            training.train(*options)
        case "evaluate":
            commands.evaluate(*options, split=arguments["split"] or "test")
        case "predict":
            output = arguments["output"] or "predictions.csv"
            commands.predict(*options, inputs=arguments["input"], output=output)
        case "export":
            commands.export(*options, export_dir=arguments["export_dir"] or "export")
        case "profile":
            profile.profile(*options, trace=bool(arguments["trace"]))


def run_cluster(settings: Settings, arguments: dict[str, Any]) -> None:
    """Train by several processes of this program, each with the options that were given."""
    words = ["train", "--config_set", arguments["config_set"]]
    words += ["--project_file", arguments["project_file"]]
    for field in (*dataclasses.fields(Settings), *dataclasses.fields(Hyperparameters)):
        value = arguments.get(field.name)
        if isinstance(value, bool):
            words.append(f"--{field.name}" if value else f"--no-{field.name}")
        elif value is not None:
            words += [f"--{field.name}", value]
    run_on_this_machine(
        [sys.executable, __file__, *words],
        workers=2 if arguments["workers"] is None else arguments["workers"],
        servers=1 if arguments["ps"] is None else arguments["ps"],
        logs=settings.model_dir / "cluster",
    )


def parse_command_line() -> tuple[dict[str, Any], Resolved, Resolved]:
    """Command line and YAML files -> arguments, settings, hyperparameters; or all mistakes."""
    parser = Parser(__doc__, Settings, Hyperparameters, root=Path(__file__).parent)
    parser.add_argument("command", nargs="?", default="train", help=" | ".join(FLAGS_OF))
    parser.add_argument("--config_set", default="default", metavar="NAME", help="set of options")
    parser.add_argument("--project_file", default="project.yaml", metavar="FILE", help="its file")
    parser.add_argument("--print_config", action="store_true", help="show all values, and stop")
    parser.add_argument("--split", metavar="NAME", help="evaluate: one of " + ", ".join(SPLITS))
    parser.add_argument("--input", nargs="+", metavar="FILE_OR_DIR", help="predict: what for")
    parser.add_argument("--output", metavar="FILE", help="predict: default predictions.csv")
    parser.add_argument("--export_dir", metavar="DIR", help="export: default export")
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
    for flag in ("workers", "ps"):
        if (arguments[flag] or 0) < 0:
            parser.add_error(f"--{flag}: {arguments[flag]} is not a whole number at least 0")
    if command == "predict" and not arguments["input"]:
        parser.add_error("predict: --input is missing: name files, or folders of files")
    parser.raise_errors()
    return arguments, settings, hyperparameters


if __name__ == "__main__":
    run(main)
