"""A dataclass field as an option: its default, its help, and the values that it takes."""

import dataclasses
import functools
import math
import os
import re
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from library.util import did_you_mean

REQUIRED = dataclasses.MISSING
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
INTEGER = re.compile(r"[-+]?[0-9]+")
NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
SECRET = re.compile(r"(?i)://[^/]*:[^/]*@|://.*[?&][^=]*(sig|token|key|secret|passw|cred)[^=]*=")
UNSAFE = "a URL with a password or signature would stand in logs: set them in the environment"


class Location(str):
    """A path, or a URL of a file system of fsspec, as s3://bucket/train."""


PATHS = (Path, Location)
NOUNS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a line of text",
    Path: "a local path",
    Location: "a path or URL",
}
BOUNDS = {"minimum": "at least", "above": "above", "maximum": "at most"}


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] = (),
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: float = -math.inf,
    defines_architecture: bool = False,
    command: str = "",
) -> Any:
    """A field of a dataclass of options; its type is one of NOUNS, `tuple[T, ...]` or `T | None`.

    `--help` lists it under the docstring of the dataclass that defines it.

    Args:
        default: REQUIRED if a set or the command line has to give a value.
        help: its unit and its effect.
        choices: the allowed strings; for paths and numbers, words that are allowed besides.
        minimum, maximum: the allowed range of a number, both included.
        above: a bound that is itself not allowed.
        defines_architecture: whether a trained model can only be used with the same value.
        command: the only one that takes its flag, or "A or B"; its relative paths start from where
            it is given, not from the program's folder.
    """
    rule = {"help": help, "choices": choices, "minimum": minimum, "maximum": maximum}
    rule |= {"above": above, "defines_architecture": defines_architecture, "command": command}
    return dataclasses.field(default=default, metadata=rule)


architecture = functools.partial(option, defines_architecture=True)
"""An option with which a trained model can only be used as it was trained."""


class Option:
    """A field, as the command line and the YAML files see it."""

    def __init__(self, cls: type, field: dataclasses.Field, hint: Any):
        self.name, self.default, self.rule = field.name, field.default, field.metadata
        self.group = next(c for c in cls.__mro__ if self.name in vars(c).get("__annotations__", ()))
        self.optional = isinstance(hint, types.UnionType) or self.default is None
        if isinstance(hint, types.UnionType):
            hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
        self.many = typing.get_origin(hint) is tuple
        self.kind: type = typing.get_args(hint)[0] if self.many else hint

    def default_from(self, root: Path) -> Any:
        """Its default; a relative path starts from `root`."""
        is_path = self.kind in PATHS and isinstance(self.default, PATHS)
        return self.value(str(self.default), root) if is_path else self.default

    @property
    def allowed(self) -> str:
        """The values that it takes, in words."""
        bounds = (f"{words} {self.rule[name]}" for name, words in BOUNDS.items())
        noun = " and ".join(bound for bound in bounds if not bound.endswith("inf"))
        noun = f"{NOUNS[self.kind]} {noun}".rstrip()
        if choices := ", ".join(self.rule["choices"]):
            others = "a path" if self.kind in PATHS else noun
            noun = f"one of {choices}" if self.kind is str else f"{choices} or {others}"
        return "a list, each " * self.many + noun + " or null" * self.optional

    @property
    def help(self) -> str:
        """Its line in `--help`: effect, values and default."""
        command = f"{self.rule['command']}: " if self.rule["command"] else ""
        values = f"{self.allowed}; " if self.kind is not bool else ""
        default = "required" if self.default is REQUIRED else f"default: {word_of(self.default)}"
        return f"{command}{self.rule['help']} ({values}{default})"

    def value(self, text: Any, root: Path) -> Any:
        """The value that a text stands for; ValueError with what is allowed where it has none.

        A text is a string, None or "null" for null, a list for many, a dict for a mapping.
        """
        if self.optional and text in (None, "null"):
            return None
        texts = text if isinstance(text, list) else [text]
        values = [self._one(each, root) for each in texts]
        if None in values or (isinstance(text, list) and not self.many):
            near = did_you_mean(word_of(text), self.rule["choices"])
            raise ValueError(f"{self.name}: {word_of(text)} is not {self.allowed}{near}")
        return tuple(values) if self.many else values[0]

    def _one(self, text: Any, root: Path) -> Any:
        """One value; None for a text that is not allowed."""
        if not isinstance(text, str) or len(f".{text}.".splitlines()) > 1:
            return None
        if self.kind is bool:
            return BOOLEANS.get(text.lower())
        if text in self.rule["choices"]:
            return self.kind(text) if self.kind in PATHS else text
        if self.kind is str:
            return None if self.rule["choices"] else text
        if self.kind in PATHS:
            path = os.path.expandvars(os.path.expanduser(text))
            if "$" in path:
                raise ValueError(f"{self.name}: {text}: this variable is not set")
            if not path.strip() or "\0" in path:
                return None
            if SECRET.search(path):
                raise ValueError(f"{self.name}: {UNSAFE}")
            if URL.match(path):
                return Location(path) if self.kind is Location else None
            path = os.path.join(Path.cwd() if self.rule["command"] else root, path)
            normal = os.path.normpath(path)  # another place where `..` is behind a link
            same = os.path.realpath(normal) == os.path.realpath(path)
            return self.kind(normal if same else path)
        pattern = INTEGER if self.kind is int else NUMBER
        if not pattern.fullmatch(text) or len(text) > 30:
            return None
        number = self.kind(text)
        inside = self.rule["minimum"] <= number <= self.rule["maximum"]
        return number if inside and self.rule["above"] < number < math.inf else None


def plain(value: Any) -> Any:
    """The value of an option as YAML knows it."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, PATHS) else value


def word_of(value: Any) -> str:
    """The value of an option, or the text for one, as it is written in YAML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(word_of, value))}]"
    if isinstance(value, bool | dict):
        return "a mapping" if isinstance(value, dict) else str(value).lower()
    return "null" if value is None else str(value)


@functools.cache
def options_of(cls: type) -> dict[str, Option]:
    """The options of a dataclass by name, those of its own and of its first base first."""
    hints = typing.get_type_hints(cls)
    options = [Option(cls, field, hints[field.name]) for field in dataclasses.fields(cls)]
    options.sort(key=lambda option: cls.__mro__.index(option.group))
    return {option.name: option for option in options}
