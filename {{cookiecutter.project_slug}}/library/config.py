"""YAML sets and the command line -> frozen dataclasses, or one clear line for each mistake.

A dataclass is the only place that knows its options: `option(...)` gives each field its default,
its help and what is allowed. A YAML file holds named sets of such options; a set takes over
another one by a merge key or by name, and overrides what it wants:

    default: &DEFAULT
      learning_rate: 1e-3

    careful:
      <<: *DEFAULT            # or: inherits: default
      learning_rate: 1e-4

The command line wins over the chosen set, the set over the default. Numbers are those of YAML
1.2: 1e-4 is a number, 010 is ten, 1:30 is a string, and yes/no are what the field makes of them.
"""

import argparse
import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from library.errors import UserError

BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
INTEGER = re.compile(r"[-+]?[0-9]+")
NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
REQUIRED = dataclasses.MISSING


def option(
    default: Any,
    help: str,
    *,
    group: str = "options",
    choices: Sequence[str] = (),
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: float = -math.inf,
    shaping: bool = False,
) -> Any:
    """A field of a dataclass of options.

    Args:
        default: its value when neither a set nor the command line gives one; REQUIRED asks for
            one of these.
        help: its unit and its effect, as `--help` shows them.
        group: the heading under which `--help` lists it.
        choices: the only values that are allowed, for a string.
        minimum, maximum: the allowed range of a number, both included.
        above: a bound that is itself not allowed.
        shaping: whether a model that was trained with another value cannot be used.
    """
    allowed = {"choices": choices, "minimum": minimum, "maximum": maximum, "above": above}
    words = {"help": help, "group": group, "shaping": shaping}
    return dataclasses.field(default=default, metadata=words | allowed)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A question to end an error line with, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


# ---- values ------------------------------------------------------------------------------------


def _kind(cls: type, name: str) -> tuple[type, bool]:
    """The type of a field, and whether it may be empty."""
    hint = typing.get_type_hints(cls)[name]
    if isinstance(hint, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not type(None)), True
    return hint, False


def _limits(field: dataclasses.Field) -> str:
    """Choices or range of a field, in words."""
    rule = field.metadata
    if rule["choices"]:
        return "one of " + ", ".join(rule["choices"])
    bounds = [("at least", "minimum"), ("above", "above"), ("at most", "maximum")]
    return " and ".join(f"{word} {rule[key]:g}" for word, key in bounds if math.isfinite(rule[key]))


def _allowed(cls: type, field: dataclasses.Field) -> str:
    """What a field takes, in words."""
    kind, optional = _kind(cls, field.name)
    noun = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
    if field.metadata["choices"]:
        return _limits(field)
    return f"{noun} {_limits(field)}".strip() + (" or null" if optional else "")


def _value(cls: type, field: dataclasses.Field, text: str | None) -> Any:
    """The value that a text means for this field; ValueError with what is allowed otherwise."""
    kind, optional = _kind(cls, field.name)
    if text is None and optional:
        return None
    rule, value = field.metadata, None
    if text is not None:
        if kind is bool:
            value = BOOLEANS.get(text.lower())
        elif kind is int and INTEGER.fullmatch(text) and len(text) < 20:
            value = int(text)
        elif kind is float and NUMBER.fullmatch(text) and math.isfinite(float(text)):
            value = float(text)
        elif kind is str and (not rule["choices"] or text in rule["choices"]):
            value = text
    inside = not isinstance(value, (int, float)) or (
        rule["minimum"] <= value <= rule["maximum"] and value > rule["above"]
    )
    if value is None or not inside:
        raise ValueError(
            f"{field.name}: {'null' if text is None else text} is not {_allowed(cls, field)}"
            + did_you_mean(text or "", rule["choices"])
        )
    return value


# ---- YAML files --------------------------------------------------------------------------------


class _Yaml12(yaml.SafeLoader):
    """The safe loader with the plain scalars of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema)."""

    yaml_implicit_resolvers: typing.ClassVar[dict] = {}


for _tag, _pattern in (
    ("merge", r"<<"),
    ("null", r"null|Null|NULL|~|"),
    ("bool", r"true|True|TRUE|false|False|FALSE"),
    ("int", INTEGER.pattern),
    ("float", NUMBER.pattern),
):
    _Yaml12.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), None
    )
_Yaml12.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))
_Yaml12.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(node.value))


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A value of a set, and where it stands."""

    node: yaml.Node
    origin: str

    @property
    def text(self) -> str | None:
        if not isinstance(self.node, yaml.ScalarNode):
            return "a list or a mapping"
        return None if self.node.tag.endswith(":null") else self.node.value


class _File:
    """A YAML file of named sets."""

    def __init__(self, path: str | Path):
        self.path = path
        try:
            loader = _Yaml12(Path(path).read_text(encoding="utf-8"))
            root = loader.get_single_node()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not a text file in UTF-8") from error
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
            raise UserError(f"{path}{line}: not YAML: {reason}") from error
        self.sets = dict(self._pairs(root, "the file", "a set"))

    def _pairs(
        self, node: yaml.Node | None, owner: str, of: str
    ) -> Iterator[tuple[str, yaml.Node]]:
        """The keys and values of a mapping, each key a text and there once; merge keys included."""
        if not isinstance(node, yaml.MappingNode):
            where = f":{node.start_mark.line + 1}" if node else ""
            raise UserError(f"{self.path}{where}: {owner} must be a mapping of names to {of}")
        seen = set()
        for key, value in node.value:
            where = f"{self.path}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"{where}: {owner} must have plain names as keys")
            if key.value in seen:
                raise UserError(f"{where}: {key.value} is there twice in {owner}")
            seen.add(key.value)
            yield key.value, value

    def merged(self, name: str) -> dict[str, _Entry]:
        """One set with all that it takes over."""
        if name not in self.sets:
            raise UserError(
                f"{self.path}: there is no set {name}; it has {', '.join(self.sets)}"
                + did_you_mean(name, list(self.sets))
            )
        return self._merge(self.sets[name], name, ())

    def _merge(self, node: yaml.Node, name: str, path: tuple[yaml.Node, ...]) -> dict[str, _Entry]:
        if node in path:
            line = node.start_mark.line + 1
            raise UserError(f"{self.path}:{line}: set {name} takes over itself")
        name = next((known for known, one in self.sets.items() if one is node), name)
        entries: dict[str, _Entry] = {}
        own: dict[str, _Entry] = {}
        for key, value in self._pairs(node, f"set {name}", "values"):
            where = f"{self.path}:{value.start_mark.line + 1}"
            if key == "<<":
                parents = value.value if isinstance(value, yaml.SequenceNode) else [value]
            elif key == "inherits":
                if value.value not in self.sets:
                    raise UserError(f"{where}: set {name} inherits an unknown set: {value.value}")
                parents = [self.sets[value.value]]
            else:
                own[key] = _Entry(value, f"{where}, set {name}")
                continue
            for parent in reversed(parents):  # the first parent wins, as YAML's merge key has it
                entries |= self._merge(parent, name, (*path, node))
        return entries | own


def load(path: str | Path, config_set: str) -> dict[str, Any]:
    """One set of a YAML file with all that it takes over, as plain Python values.

    Raises:
        UserError: the file or the set cannot be used; the line says where and why.
    """
    loader = _Yaml12("")
    return {
        key: loader.construct_object(entry.node, deep=True)
        for key, entry in _File(path).merged(config_set).items()
    }


# ---- command line ------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with a flag for each field of a dataclass, and no guessing."""

    def __init__(self, description: str):
        super().__init__(
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_fields(self, cls: type) -> None:
        groups: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            rule = field.metadata
            if rule["group"] not in groups:
                groups[rule["group"]] = self.add_argument_group(rule["group"])
            boolean = _kind(cls, field.name)[0] is bool
            shape = {"action": argparse.BooleanOptionalAction} if boolean else {"metavar": "VALUE"}
            notes = [_limits(field)] if _limits(field) else []
            if field.default is REQUIRED:
                notes.append("required")
            elif field.default is not None:
                word = str(field.default).lower() if boolean else field.default
                notes.append(f"default: {word}")
            groups[rule["group"]].add_argument(
                f"--{field.name}",
                default=argparse.SUPPRESS,
                help=f"{rule['help']} ({'; '.join(notes)})".replace("%", "%%").replace(" ()", ""),
                **shape,
            )

    def error(self, message: str) -> typing.NoReturn:
        raise UserError(message)

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """The flags that are given, by name; every flag that is not known is an error."""
        joined: list[str] = []
        for word in argv:  # argparse takes -1e-3 for a flag: --name -1e-3 becomes --name=-1e-3
            if joined and joined[-1].startswith("--") and re.match(r"-[0-9.]", word):
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        arguments, unknown = self.parse_known_args(joined)
        flags = [flag for action in self._actions for flag in action.option_strings]
        if unknown:
            raise UserError(
                *(
                    f"unknown argument {word}" + did_you_mean(word.partition("=")[0], flags)
                    for word in unknown
                )
            )
        return vars(arguments)


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A dataclass of options, and where the value of each field came from."""

    options: Any
    origins: dict[str, str]

    def __str__(self) -> str:
        """YAML that can be saved, and used again as the content of a set."""
        lines = []
        for name, value in dataclasses.asdict(self.options).items():
            text = yaml.safe_dump({name: value}, width=math.inf, allow_unicode=True).strip()
            lines.append(f"{text}  # {self.origins.get(name, 'default')}")
        return "\n".join(lines)


def resolve(
    cls: type, flags: dict[str, Any], path: str | Path | None = None, config_set: str = ""
) -> Resolved:
    """The dataclass `cls` from command line over set over default.

    Args:
        cls: a dataclass whose fields are made by `option`.
        flags: what `Parser.parse` gave; flags of other names are left alone.
        path: the YAML file; all its sets are checked. None: command line and defaults alone.
        config_set: the set of it to use.

    Raises:
        UserError: with one line for each mistake.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    errors: dict[str, None] = {}  # a dict keeps the order, and an inherited mistake once

    def take(name: str, text: str | None, origin: str, keep: bool = True) -> None:
        try:
            value = _value(cls, fields[name], text)
        except ValueError as error:
            errors[f"{origin}: {error}"] = None
        else:
            if keep:
                values[name], origins[name] = value, origin

    if path is not None:
        file = _File(path)
        file.merged(config_set)
        for each in file.sets:
            for name, entry in file.merged(each).items():
                if name in fields:
                    take(name, entry.text, entry.origin, keep=each == config_set)
                else:
                    near = did_you_mean(name, list(fields))
                    errors[f"{entry.origin}: there is no option {name}{near}"] = None
    for name in [name for name in fields if name in flags]:
        take(name, str(flags[name]), "command line")
    for name, field in fields.items():
        if field.default is REQUIRED and name not in values:
            errors.setdefault(f"--{name} is missing")
    if errors:
        raise UserError(*errors)
    return Resolved(cls(**values), origins)
