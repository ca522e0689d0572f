"""YAML sets and the command line -> frozen dataclasses, or one clear line for each mistake.

A YAML file holds named sets of options. A set takes over others by a merge key or by name, and
overrides what it wants:

    default: &DEFAULT
      learning_rate: 1e-3

    careful:
      <<: *DEFAULT            # or: inherits: default
      learning_rate: 1e-4

The command line wins over the chosen set, the set over the default of the field. Numbers are those
of YAML 1.2: 1e-4 is a number, 010 is ten, 1:30 is a string, and yes/no are what a field makes of
them.
"""

import argparse
import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from library.config.options import REQUIRED, options_of, plain
from library.config.sets import SetsFile, Yaml12, text_of
from library.util import UserError, did_you_mean


def load(path: str | Path, config_set: str) -> dict[str, Any]:
    """One set of a YAML file with all that it takes over, as plain Python values.

    Raises:
        UserError: the file or the set cannot be used; each line says where and why.
    """
    file = SetsFile(path)
    file.check_name(config_set)
    entries = {} if file.errors else file.merged(config_set)
    if file.errors:
        raise UserError(*file.errors)
    loader = Yaml12("")
    try:
        return {key: loader.construct_object(node, deep=True) for key, (node, _) in entries.items()}
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: set {config_set}: {str(error).partition(chr(10))[0]}") from error


Entry = tuple[str, Any, str]
"""An option, what stands there for it (see `Option.value`), and where."""


@dataclasses.dataclass(frozen=True)
class Resolved:
    """The values of a dataclass of options, and where each came from."""

    cls: type
    values: dict[str, Any]
    origins: dict[str, str]

    @functools.cached_property
    def options(self) -> Any:
        """The dataclass; UserError where two of its fields contradict each other."""
        return self.cls(**self.values)

    def _derived(self, name: str) -> str:
        """What null stands for, where the dataclass works that out."""
        value = getattr(self.options, name)
        return f": {plain(value)}" if self.values[name] is None and value is not None else ""

    def as_yaml(self, name: str) -> str:
        """A set of this name that can be saved, and used again."""

        def line(value: Any) -> str:
            return yaml.safe_dump(
                value, default_flow_style=True, width=math.inf, allow_unicode=True
            ).partition("\n")[0]

        pairs = ((line({key: plain(value)})[1:-1], key) for key, value in self.values.items())
        options = [f"  {pair}  # {self.origins[key]}{self._derived(key)}" for pair, key in pairs]
        return "\n".join([f"{line(name)}:", *options])


class Parser(argparse.ArgumentParser):
    """A command line with a flag for each field of some dataclasses, and no guessing.

    parser = Parser("What the program does.", Settings)
    flags = parser.parse(sys.argv[1:])
    settings = parser.resolve(Settings, "project.yaml", flags["config_set"])
    parser.raise_errors()
    settings.options.learning_rate
    """

    def __init__(self, description: str, *classes: type, root: str | Path = "."):
        """
        Args:
            description: of the program, for `--help`.
            classes: dataclasses whose fields are made by `option`.
            root: the folder that relative paths start from.
        """
        super().__init__(
            description=description,
            allow_abbrev=False,
            formatter_class=functools.partial(
                argparse.RawDescriptionHelpFormatter, max_help_position=30
            ),
        )
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")  # argparse's knows no -1e-3
        self.root = Path(root).absolute()
        self.flags: dict[str, Any] = {}
        self.errors: dict[str, None] = {}
        groups: dict[str, Any] = {"options": self}
        for option in (one for cls in classes for one in options_of(cls).values()):
            title = (option.group.__doc__ or "").partition("\n")[0].rstrip(".")
            groups[title] = groups.get(title) or self.add_argument_group(title)
            shape: dict[str, Any] = {"metavar": "VALUE"} | ({"nargs": "*"} if option.many else {})
            if option.kind is bool:
                shape = {"action": argparse.BooleanOptionalAction}
            help = option.help.replace("%", "%%")
            groups[title].add_argument(
                f"--{option.name}", default=argparse.SUPPRESS, help=help, **shape
            )

    def error(self, message: str) -> NoReturn:
        raise UserError(message)

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """The flags that are given, by name; a flag that is not known becomes an error."""
        known = [flag for action in self._actions for flag in action.option_strings]
        words: list[str] = []
        for word in argv:
            last = words[-1] if words else ""
            if re.match("--[^=]+$", last) and last not in known and not word.startswith("--"):
                words[-1] += f"={word}"  # a flag that is not known keeps its value
            else:
                words.append(word)
        positional = (action.dest.upper() for action in self._actions if not action.option_strings)
        self.usage = " ".join(["%(prog)s [--NAME VALUE ...]", *positional])
        arguments, unknown = self.parse_known_args(words)
        for word in unknown:
            self.add_error(f"unknown argument {word}", word.partition("=")[0], known)
        self.flags = vars(arguments)
        return self.flags

    def resolve(self, cls: type, path: str | Path | None = None, config_set: str = "") -> Resolved:
        """The values for a dataclass: command line over set over default.

        Args:
            cls: one of those that the parser was made with.
            path: the YAML file; all its sets are checked. None: command line and defaults alone.
            config_set: the set of it to use.

        Returns:
            What could be resolved; mistakes are in `errors`.
        """
        sets: dict[str, list[Entry]] = {}
        if path is not None:
            try:
                file = SetsFile(self.root / path, self.root)
            except UserError as error:
                self.errors |= dict.fromkeys(error.lines)
            else:
                file.check_name(config_set)
                for each in file.sets:
                    taken = file.merged(each).items()
                    sets[each] = [(name, text_of(node), origin) for name, (node, origin) in taken]
                self.errors |= file.errors
        given = [
            (name, flag if isinstance(flag, list) else str(flag), "command line")
            for name, flag in self.flags.items()
            if name in options_of(cls)
        ]
        chosen = self._resolved(cls, sets.pop(config_set, []) + given)
        for name in options_of(cls):
            if name not in chosen.values and name not in self.flags:
                self.add_error(f"--{name} is missing")
        for entries in sets.values():
            self._resolved(cls, entries)
        return chosen

    def _resolved(self, cls: type, entries: Iterable[Entry]) -> Resolved:
        """The values that entries give, the later ones winning; mistakes are noted."""
        options = options_of(cls)
        values = {
            name: one.default_from(self.root)
            for name, one in options.items()
            if one.default is not REQUIRED
        }
        found = Resolved(cls, values, dict.fromkeys(values, "default"))
        right = True
        for name, text, origin in entries:
            try:
                if name not in options:
                    raise ValueError(f"there is no option {name}{did_you_mean(name, options)}")
                values[name], found.origins[name] = options[name].value(text, self.root), origin
            except ValueError as error:
                right = False
                self.add_error(f"{origin}: {error}")
        if right and values.keys() == options.keys():
            try:
                found.options  # noqa: B018  its fields may contradict each other
            except UserError as error:
                for line in error.lines:  # of all that it names, what was given last is wrong
                    named = [
                        found.origins[word] for word in re.findall(r"\w+", line) if word in values
                    ]
                    given = [origin for origin in named if origin != "default"] or ["default"]
                    origin = "command line" if "command line" in given else given[0]
                    self.add_error(f"{origin}: {line}")
        return found

    def add_error(self, line: str, word: str = "", known: Iterable[str] = ()) -> None:
        """Note a mistake; with what was written and what is known, the nearest name too."""
        self.errors[line + did_you_mean(word, known)] = None

    def raise_errors(self) -> None:
        """Raise a UserError with a line for each mistake that was found, if any."""
        if self.errors:
            raise UserError(*self.errors)
