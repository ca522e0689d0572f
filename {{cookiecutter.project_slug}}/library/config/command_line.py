"""The command line of run.py: a command, and a flag for each setting and hyperparameter."""

import dataclasses
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from library.config.options import options_of
from library.config.parser import Parser, Resolved
from library.config.settings import ALIASES, COMMAND_ALIASES, Settings

SETS = {"config_set": "default", "project_file": "project.yaml"}
"""Flags that say where options come from, and their defaults."""


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """A command with all its options, and the flags that were given."""

    command: str
    settings: Settings
    hyperparameters: Any
    print_config: bool  # whether to print `as_yaml` and nothing else
    flags: dict[str, Any]
    resolved: tuple[Resolved, ...]

    @property
    def given(self) -> frozenset[str]:
        """Names of the options that were given on the command line."""
        return frozenset(self.flags.keys() - {"command", "print_config", *SETS})

    def as_yaml(self) -> str:
        """All values as sets of the two files, each with the place it came from."""
        files = (self.flags["project_file"], self.settings.hyperparameter_file)
        names = (self.flags["config_set"], self.settings.hyperparameter_set)
        sets = zip(files, names, self.resolved, strict=True)
        return "\n---\n".join(f"# {file}\n{each.as_yaml(name)}" for file, name, each in sets)

    def words(self, only: Collection[type] = ()) -> list[str]:
        """The flags that were given, but for those of one command; of the groups `only`, or all."""
        words = []
        for name, default in SETS.items():
            if self.flags[name] != default:
                words += [f"--{name}", self.flags[name]]
        for option in (each for found in self.resolved for each in options_of(found.cls).values()):
            value = self.flags.get(option.name)
            if value is None or option.rule["command"] or (only and option.group not in only):
                continue
            words.append(f"--no-{option.name}" if value is False else f"--{option.name}")
            if not isinstance(value, bool):
                words += value if option.many else [value]
        return words


def parse_command_line(
    description: str | None,
    commands: Collection[str],
    hyperparameters: type,
    *,
    root: Path,
    argv: Sequence[str] | None = None,
) -> CommandLine:
    """The command (train unless given) and its options: command line over sets over defaults.

    `hyperparameters` is the project's dataclass; relative paths start from `root`, the folder of
    the program. UserError has a line for each mistake, in the words and in the two YAML files.
    """
    parser = Parser(description or "", Settings, hyperparameters, root=root)
    parser.add_argument("command", nargs="?", default="train", help=" | ".join(commands))
    for name, text in (("config_set", "set of settings to use"), ("project_file", "its file")):
        text += f" (default: {SETS[name]})"
        parser.add_argument(f"--{name}", default=SETS[name], metavar="NAME", help=text)
    parser.add_argument("--print_config", action="store_true", help="print all values and stop")
    text = "train a new run: NAME-2, if there is a run NAME"
    parser.add_argument("--new", action="store_true", help=text)
    parser.aliases = COMMAND_ALIASES | ALIASES | {f"--{n}": f"--{x}" for n, x in ALIASES.items()}
    flags = parser.parse(
        sys.argv[1:] if argv is None else argv,
        takes=lambda flags: {"predict": "input", "compare": "runs"}.get(flags["command"], ""),
    )
    command = flags["command"]
    settings = parser.resolve(Settings, flags["project_file"], flags["config_set"])
    if flags.pop("new") and not parser.errors:
        settings = _new_run(parser, command, settings)
    file, name = (settings.values[f"hyperparameter_{word}"] for word in ("file", "set"))
    resolved = parser.resolve(hyperparameters, file, name)
    if command not in commands:
        line = f"command: {command} is not one of {', '.join(commands)}"
        parser.add_error(line, command, commands)
    for name, option in options_of(Settings).items():
        takers = option.rule["command"].split(" or ") if name in flags else [""]
        if command in commands and takers != [""] and command not in takers:
            parser.add_error(f"--{name} belongs to {option.rule['command']}, not to {command}")
    if command == "predict" and not settings.values["input"]:
        parser.add_error(
            "predict: name files or folders, for example: python run.py predict photos"
        )
    parser.raise_errors()
    return CommandLine(
        command=command,
        settings=settings.options,
        hyperparameters=resolved.options,
        print_config=flags["print_config"],
        flags=flags,
        resolved=(settings, resolved),
    )


def _new_run(parser: Parser, command: str, settings: Resolved) -> Resolved:
    """The same settings for a run that is not there yet."""
    if command not in ("train", "cluster"):
        parser.add_error(f"--new belongs to train, not to {command}")
    if settings.values["model_dir"]:
        parser.add_error("--new: model_dir is given, which does not follow from the name of a run")
    parser.flags["run"] = settings.options.next_run
    if not (parser.errors or parser.flags["print_config"]):
        print(f"new run: {parser.flags['run']}")
    return parser.resolve(Settings, parser.flags["project_file"], parser.flags["config_set"])
