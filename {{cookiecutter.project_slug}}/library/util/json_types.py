"""JSON that a program has written, read back as the dataclasses that it was."""

import contextlib
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from library.util.errors import UserError

LARGE = 2**63
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What the use of a value raises that is not as a program writes it."""


@contextlib.contextmanager
def written_here(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Report what is not as this program writes it, UNREADABLE or one of `errors`: a UserError."""
    try:
        yield
    except UNREADABLE + errors as error:
        raise UserError(f"{path}: not a file that was written here: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A mapping that this program has written, empty without the file; UserError: it is none."""
    with written_here(path):
        return parse_json(path.read_text(encoding="utf-8")) if path.exists() else {}


def read_card(
    kind: Any,
    text: str | bytes,
    *,
    place: object,
    what: str,
    remedy: str,
    prepare: Callable[[dict[str, Any]], dict[str, Any]],
) -> Any:
    """A dataclass from its JSON, where its field `format_version` is the newest one by default.

    Args:
        kind: the dataclass.
        text: what the file `place` holds.
        what: as "the card of a dataset".
        remedy: what to do about a newer version.
        prepare: makes the content of an older version a newer one; an error where it is no card.

    Raises:
        UserError: it is no such card, or a newer one.
    """
    try:
        content = parse_json(text)
        if content.setdefault("format_version", 1) not in range(1, kind.format_version + 1):
            raise UserError(
                f"{place}: format_version {content['format_version']}, but this program reads up "
                f"to {kind.format_version}: {remedy}"
            )
        return typed(kind, prepare(content) | {"format_version": kind.format_version})
    except UNREADABLE as error:
        raise UserError(f"{place}: not {what}") from error


def parse_json(text: str | bytes) -> dict[str, Any]:
    """A mapping in JSON; ValueError where the text is none."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError("not a mapping")
    return value


def typed(kind: Any, value: Any) -> Any:
    """A value of this type from the one that JSON has for it, such as a list for a tuple.

        typed(tuple[Shard, ...], [{"file": "x", "examples": 1}])

    Raises:
        ValueError: it is not of this type: a dataclass, tuple, list, dict, number, text or Any.
    """
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else typed(arguments[0], value)
    if dataclasses.is_dataclass(origin) and isinstance(value, dict):
        hints = typing.get_type_hints(origin)
        if not value.keys() <= hints.keys():
            raise ValueError(f"{', '.join(value.keys() - hints.keys())} is not known")
        try:
            return kind(**{name: typed(hints[name], each) for name, each in value.items()})
        except TypeError as error:  # a field is missing
            raise ValueError(str(error)) from error
    if origin in (list, tuple) and isinstance(value, list):
        return origin(typed(arguments[0], each) for each in value)
    if origin is dict and isinstance(value, dict):
        return {typed(arguments[0], key): typed(arguments[1], each) for key, each in value.items()}
    if type(value) is int and abs(value) >= LARGE or type(value) is float and not isfinite(value):
        raise ValueError("not a number, or too large a one")
    if origin is float and type(value) is int:
        return float(value)
    if origin is str and type(value) is str:
        value.encode()  # half a character is a ValueError
        return value
    if origin is Any or type(value) is origin:
        return value
    raise ValueError(f"{str(value)[:20]} is not of the type {getattr(kind, '__name__', kind)}")
