"""A dataclass field as an option: its default, its help, and which values it takes."""

import dataclasses
import inspect
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


class Location(str):
    """A path, or a URL of a file system that TensorFlow reads, as gs://bucket/train."""


PATHS = (Path, Location)
NOUNS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a line of text",
    Path: "a path on this machine, its variables set",
    Location: "a path or URL, its variables set",
}


def option(
    default: Any,
    help: str,
    *,
    group: str = "",
    choices: Sequence[str] = (),
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: float = -math.inf,
    defines_architecture: bool = False,
    command: str = "",
) -> Any:
    """A field of a dataclass of options; its type is one of NOUNS, `tuple[T, ...]` or `T | None`.

    Args:
        default: its value when neither a set nor the command line gives one; REQUIRED asks for
            one of these.
        help: its unit and its effect, as `--help` shows them.
        choices: the only values that are allowed, for a string; words beside paths or numbers,
            for these.
        minimum, maximum: the allowed range of a number, both included.
        above: a bound that is itself not allowed.
        defines_architecture: whether a model that was trained with another value cannot be used.
        command: the only command that takes its flag.

    `--help` lists it under the first line of the docstring of the dataclass that defines it.
    """
    allowed = {"choices": choices, "minimum": minimum, "maximum": maximum, "above": above}
    words = {"help": help, "defines_architecture": defines_architecture, "command": command}
    return dataclasses.field(default=default, metadata=words | allowed)


class Option:
    """A field, as the command line and the YAML files see it."""

    def __init__(self, cls: type, field: dataclasses.Field):
        self.name, self.default, self.rule = field.name, field.default, field.metadata
        hint = typing.get_type_hints(cls)[field.name]
        self.optional = isinstance(hint, types.UnionType) or self.default is None
        if isinstance(hint, types.UnionType):
            hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
        self.many = typing.get_origin(hint) is tuple
        self.kind: type = typing.get_args(hint)[0] if self.many else hint
        self.group = next(
            each for each in cls.__mro__ if self.name in inspect.get_annotations(each)
        )

    def default_from(self, root: Path) -> Any:
        """Its default; a path starts from `root`."""
        is_path = self.kind in PATHS and isinstance(self.default, PATHS)
        return self.value(str(self.default), root) if is_path else self.default

    @property
    def limits(self) -> str:
        """Choices or range, in words."""
        words = ", ".join(self.rule["choices"])
        if words and self.kind is str:
            return f"one of {words}"
        if words and self.kind in PATHS:
            return f"{words} or a path"
        names = (("at least", "minimum"), ("above", "above"), ("at most", "maximum"))
        bounds = " and ".join(
            f"{name} {self.rule[key]}" for name, key in names if math.isfinite(self.rule[key])
        )
        return f"{words} or {NOUNS[self.kind]} {bounds}" if words else bounds

    @property
    def help(self) -> str:
        """Its line in `--help`: effect, limits and default."""
        notes = [self.limits] * bool(self.limits)
        if self.default is REQUIRED:
            notes.append("required")
        elif self.default != ():
            notes.append(f"default: {word_of(self.default)}")
        command = f"{self.rule['command']}: " * bool(self.rule["command"])
        return command + self.rule["help"] + f" ({'; '.join(notes)})" * bool(notes)

    @property
    def allowed(self) -> str:
        """What it takes, in words."""
        noun = self.limits if self.rule["choices"] else f"{NOUNS[self.kind]} {self.limits}".strip()
        return ("a list, each " if self.many else "") + noun + (" or null" * self.optional)

    def value(self, text: Any, root: Path) -> Any:
        """What a text means for this option.

        Args:
            text: a string; None or "null" for null; a list for many; a dict for a mapping.
            root: the folder that relative paths start from.

        Raises:
            ValueError: it means nothing; the message says what is allowed.
        """
        if self.optional and text in (None, "null"):
            return None
        texts = text if isinstance(text, list) else [text]
        values = [self._one(each, root) for each in texts]
        if None in values or (isinstance(text, list) and not self.many):
            near = did_you_mean(_shown(text), self.rule["choices"])
            raise ValueError(f"{self.name}: {_shown(text)} is not {self.allowed}{near}")
        return tuple(values) if self.many else values[0]

    def _one(self, text: Any, root: Path) -> Any:
        """One value; None for a text that is not allowed."""
        if not isinstance(text, str):
            return None
        if self.kind is bool:
            return BOOLEANS.get(text.lower())
        if self.kind in (str, *PATHS) and len(f".{text}.".splitlines()) > 1:
            return None
        if self.kind is not str and text in self.rule["choices"]:
            return self.kind(text) if self.kind in PATHS else text
        if self.kind in PATHS:
            path = os.path.expandvars(os.path.expanduser(text))
            if not path.strip() or re.search(r"\$|\0", path):
                return None
            if URL.match(path):
                return Location(path) if self.kind is Location else None
            return self.kind(root / path)
        if self.kind is str:
            return text if not self.rule["choices"] or text in self.rule["choices"] else None
        pattern = INTEGER if self.kind is int else NUMBER
        if not pattern.fullmatch(text) or len(text) > 30:
            return None
        number = self.kind(text)
        inside = self.rule["minimum"] <= number <= self.rule["maximum"]
        return number if inside and self.rule["above"] < number < math.inf else None


def _shown(text: Any) -> str:
    """What `Option.value` takes, in words."""
    if isinstance(text, list):
        return f"[{', '.join(map(_shown, text))}]"
    return "null" if text is None else "a mapping" if isinstance(text, dict) else text


def plain(value: Any) -> Any:
    """The value of an option as YAML knows it."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, PATHS) else value


def word_of(value: Any) -> str:
    """The value of an option as it is written in YAML."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(plain(value))


def options_of(cls: type) -> dict[str, Option]:
    """The options of a dataclass by name, those of its own and of its first base first."""
    options = [Option(cls, field) for field in dataclasses.fields(cls)]
    options.sort(key=lambda option: cls.__mro__.index(option.group))
    return {option.name: option for option in options}
