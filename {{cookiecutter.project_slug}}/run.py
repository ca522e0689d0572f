"""Train, evaluate, predict with and export the model of this project.

python run.py                                      train, or go on where training stopped
python run.py --config_set gtx1080ti               with another set of project.yaml
python run.py --learning_rate 1e-4                 with another value of one option
python run.py evaluate --model best --split test   print the metrics, and write them
python run.py predict --input FILE_OR_DIR ...      write predictions.csv
python run.py export --export_dir export           write a SavedModel that takes encoded pictures
"""

import sys
from typing import Any

from library.config import Parser, did_you_mean, resolve
from library.errors import UserError, run
from library.quiet import quiet_import
from project.settings import Hyperparameters, Settings

FLAGS_OF = {
    "train": (),
    "evaluate": ("split",),
    "predict": ("input", "output"),
    "export": ("export_dir",),
}
"""The commands, and the flags that only they take."""

SPLITS = ("train", "validation", "test")


def main() -> None:
    arguments = parse_command_line()
    settings = resolve(Settings, arguments, arguments["project_file"], arguments["config_set"])
    file, name = settings.options.hyperparameter_file, settings.options.hyperparameter_set
    hyperparameters = resolve(Hyperparameters, arguments, file, name)
    if arguments["print_config"]:
        print(f"# project.yaml\n{settings}\n\n# hyperparameters.yaml\n{hyperparameters}")
        return

    # TensorFlow takes seconds to import: not before the command line is known to be right.
    with quiet_import():
        from project import commands

    options = settings.options, hyperparameters.options
    match arguments["command"]:
        case "train":
            commands.train(*options)
        case "evaluate":
            commands.evaluate(*options, split=arguments["split"] or "test")
        case "predict":
            output = arguments["output"] or "predictions.csv"
            commands.predict(*options, inputs=arguments["input"], output=output)
        case "export":
            commands.export(*options, export_dir=arguments["export_dir"] or "export")


def parse_command_line() -> dict[str, Any]:
    """The flags that are given, by name, and the command; UserError for what does not fit."""
    parser = Parser(__doc__)
    parser.add_argument("command", nargs="?", default="train", help=" | ".join(FLAGS_OF))
    parser.add_argument("--config_set", default="default", help="the set of project.yaml to use")
    parser.add_argument("--project_file", default="project.yaml", help="the file of these sets")
    parser.add_argument("--print_config", action="store_true", help="show all values, and stop")
    parser.add_argument("--split", help="evaluate: train, validation or test (default: test)")
    parser.add_argument("--input", nargs="+", help="predict: pictures, or folders of pictures")
    parser.add_argument("--output", help="predict: a CSV file (default: predictions.csv)")
    parser.add_argument("--export_dir", help="export: a folder (default: export)")
    parser.add_fields(Settings)
    parser.add_fields(Hyperparameters)
    arguments = parser.parse(sys.argv[1:])

    command, split = arguments["command"], arguments["split"]
    for name, word, known in (("command", command, FLAGS_OF), ("--split", split or "test", SPLITS)):
        if word not in known:
            near = did_you_mean(word, list(known))
            raise UserError(f"{name}: {word} is not one of {', '.join(known)}{near}")
    for owner, flags in FLAGS_OF.items():
        for flag in flags:
            if arguments[flag] is not None and owner != command:
                raise UserError(f"--{flag} belongs to {owner}, not to {command}")
    if command == "predict" and not arguments["input"]:
        raise UserError("predict: --input is missing: name pictures, or folders of pictures")
    return arguments


if __name__ == "__main__":
    run(main)
