"""YAML sets and the command line -> frozen dataclasses, or one clear line for each mistake.

The command line wins over the chosen set, the set over the default of the field.
"""

import argparse
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from library.config.options import REQUIRED, options_of, plain
from library.util import UserError, did_you_mean

Entry = tuple[str, Any, str]
"""An option, the text for it (see `Option.value`), and where that stands."""


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

    def as_yaml(self, name: str) -> str:
        """A set of this name that can be saved, and used again."""
        import yaml

        def line(value: Any) -> str:
            text = yaml.safe_dump(
                value, default_flow_style=True, width=math.inf, allow_unicode=True
            )
            return text.partition("\n")[0]

        lines = [f"{line(name)}:"]
        for key, value in self.values.items():
            derived = getattr(self.options, key)  # null may stand for another value
            shown = "" if derived == value else f": {plain(derived)}"
            lines.append(f"  {line({key: plain(value)})[1:-1]}  # {self.origins[key]}{shown}")
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """A command line with a flag for each field of some dataclasses, and no guessing.

    parser = Parser("What the program does.", Settings)
    flags = parser.parse(sys.argv[1:])
    settings = parser.resolve(Settings, "project.yaml", flags["config_set"])
    parser.raise_errors()
    settings.options.learning_rate
    """

    def __init__(self, description: str, *classes: type, root: str | Path = "."):
        """The fields of `classes` are made by `option`; relative paths start from `root`."""
        layout = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30)
        super().__init__(description=description, allow_abbrev=False, formatter_class=layout)
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")  # argparse's knows no -1e-3
        self.root, self.classes = Path(root).absolute(), classes
        self.flags: dict[str, Any] = {}
        self.errors: dict[str, None] = {}
        self.aliases: dict[str, str] = {}  # what some words are called here, for errors
        groups: dict[type, Any] = {}
        for option in (one for cls in classes for one in options_of(cls).values()):
            if option.group not in groups:
                title = (option.group.__doc__ or "").partition("\n")[0].rstrip(".")
                groups[option.group] = self.add_argument_group(title)
            shape: dict[str, Any] = {"metavar": "VALUE"} | ({"nargs": "*"} if option.many else {})
            if option.kind is bool:
                shape = {"action": argparse.BooleanOptionalAction}
            shape |= {"default": argparse.SUPPRESS, "help": option.help.replace("%", "%%")}
            groups[option.group].add_argument(f"--{option.name}", **shape)

    def error(self, message: str) -> NoReturn:
        raise UserError(message)

    def parse(
        self, argv: Sequence[str], *, takes: Callable[[dict[str, Any]], str] = lambda flags: ""
    ) -> dict[str, Any]:
        """The flags that are given, by name; a flag that is not known becomes an error.

        `takes` is the option, if any, that words without a flag belong to beside such flags.
        """
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
        self.flags = vars(arguments)
        for word in unknown:
            if (name := takes(self.flags)) and (word == "-" or not word.startswith("-")):
                self.flags[name] = [*self.flags.get(name, []), word]
            else:
                self.add_error(f"unknown argument {word}", word.partition("=")[0], known)
        return self.flags

    def resolve(self, cls: type, path: str | Path | None = None, config_set: str = "") -> Resolved:
        """The values for a dataclass, as far as they can be resolved: `errors` has the mistakes.

        Of the YAML file at `path`, `config_set` is used, and all sets are checked.
        """
        sets: dict[str, list[Entry]] = {}
        if path is not None:
            from library.config.sets import SetsFile  # YAML takes time that --help does not have

            try:
                file = SetsFile(self.root / path, self.root)
            except UserError as error:
                self.errors |= dict.fromkeys(error.lines)
            else:
                sets = {name: file.texts(name) for name in {config_set: None, **file.sets}}
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
        optional = [each for each in options.values() if each.default is not REQUIRED]
        values = {each.name: each.default_from(self.root) for each in optional}
        found = Resolved(cls, values, dict.fromkeys(values, "default"))
        right = True
        for name, text, origin in entries:
            try:
                if name not in options:
                    other = any(name in options_of(each) for each in self.classes)
                    near = " here: the other file has it" if other else self._near(name, options)
                    raise ValueError(f"there is no option {name}{near}")
                values[name], found.origins[name] = options[name].value(text, self.root), origin
            except ValueError as error:
                right = False
                self.add_error(f"{origin}: {error}")
        if right and values.keys() == options.keys():
            try:
                found.options  # noqa: B018  its fields may contradict each other
            except UserError as error:
                for line in error.lines:
                    self.add_error(f"{self._blamed(found, line)}: {line}")
        return found

    def _blamed(self, found: Resolved, line: str) -> str:
        """Where the option was given last that a line names."""
        words = re.findall(r"(?<!\S)\w+", line)  # not those of a path
        origins = [found.origins[word] for word in words if word in found.values]
        given = [origin for origin in origins if origin != "default"] or ["default"]
        return "command line" if "command line" in given else given[0]

    def add_error(self, line: str, word: str = "", known: Iterable[str] = ()) -> None:
        """Note a mistake; with what was written and what is known, the nearest name too."""
        self.errors[line + self._near(word, known)] = None

    def _near(self, word: str, known: Iterable[str]) -> str:
        name = self.aliases.get(word)
        return f" (did you mean {name}?)" if name else did_you_mean(word, known)

    def raise_errors(self) -> None:
        """Raise a UserError with a line for each mistake, if there is one."""
        if self.errors:
            raise UserError(*self.errors)
