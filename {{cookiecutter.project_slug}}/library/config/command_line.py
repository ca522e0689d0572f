"""The command line of run.py: a command, and a flag for each setting and hyperparameter."""

import dataclasses
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from library.config.options import Option, options_of
from library.config.parser import Parser, Resolved
from library.config.settings import Settings

SETS = {"config_set": "default", "project_file": "project.yaml"}
"""Flags that say where options come from, and their defaults."""


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """A command with all its options."""

    command: str
    flags: dict[str, Any]
    resolved_settings: Resolved
    resolved_hyperparameters: Resolved

    @property
    def settings(self) -> Settings:
        return self.resolved_settings.options

    @property
    def hyperparameters(self) -> Any:
        return self.resolved_hyperparameters.options

    @property
    def print_config(self) -> bool:
        return self.flags["print_config"]

    @property
    def given(self) -> frozenset[str]:
        """Names of the options that were given on the command line."""
        return frozenset(self._options()) & self.flags.keys()

    def _options(self) -> dict[str, Option]:
        return options_of(Settings) | options_of(self.resolved_hyperparameters.cls)

    def as_yaml(self) -> str:
        """All values, each with the place it came from, as sets of the two files."""
        settings, sets = self.settings, self.resolved_settings.as_yaml(self.flags["config_set"])
        return (
            f"# {self.flags['project_file']}\n{sets}\n---\n# {settings.hyperparameter_file}\n"
            + self.resolved_hyperparameters.as_yaml(settings.hyperparameter_set)
        )

    def words(self, only: Collection[type] = ()) -> list[str]:
        """The flags that were given, but for those of one command; of the groups `only`, or all."""
        words = []
        for name, default in SETS.items():
            if self.flags[name] != default:
                words += [f"--{name}", self.flags[name]]
        for name, option in self._options().items():
            if name not in self.flags or option.rule["command"]:
                continue
            if only and option.group not in only:
                continue
            value = self.flags[name]
            if option.kind is bool:
                words.append(f"--{name}" if value else f"--no-{name}")
            else:
                words += [f"--{name}", *value] if option.many else [f"--{name}={value}"]
        return words


def parse_command_line(
    description: str | None,
    commands: Collection[str],
    hyperparameters: type,
    *,
    root: Path,
    argv: Sequence[str] | None = None,
) -> CommandLine:
    """The command line over the chosen sets over the defaults.

    Args:
        description: of the program, for `--help`.
        commands: the known ones; without one, it is train.
        hyperparameters: the project's dataclass of options.
        root: the folder of the program, from which relative paths start.
        argv: the words after the program's name; None: those of this process.

    Raises:
        UserError: a line for each mistake in the command line and in the two YAML files.
    """
    parser = Parser(description or "", Settings, hyperparameters, root=root)
    parser.add_argument("command", nargs="?", default="train", help=" | ".join(commands))
    for name, text in (("config_set", "set of options"), ("project_file", "its file")):
        parser.add_argument(f"--{name}", default=SETS[name], metavar="NAME", help=text)
    parser.add_argument("--print_config", action="store_true", help="show all values, and stop")
    flags = parser.parse(sys.argv[1:] if argv is None else argv)
    command = flags["command"]
    settings = parser.resolve(Settings, flags["project_file"], flags["config_set"])
    file, name = (settings.values[f"hyperparameter_{word}"] for word in ("file", "set"))
    resolved = parser.resolve(hyperparameters, file, name)
    if command not in commands:
        line = f"command: {command} is not one of {', '.join(commands)}"
        parser.add_error(line, command, commands)
    for name, option in options_of(Settings).items():
        if name in flags and option.rule["command"] not in ("", command):
            parser.add_error(f"--{name} belongs to {option.rule['command']}, not to {command}")
    if command == "predict" and not settings.values["input"]:
        parser.add_error("predict: --input is missing: name files, or folders of files")
    parser.raise_errors()
    return CommandLine(command, flags, settings, resolved)
