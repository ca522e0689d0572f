"""JSON that a program has written, read back as the dataclasses that it was."""

import dataclasses
import json
import types
import typing
from math import isfinite
from typing import Any

LARGE = 2**63


def parse_json(text: str) -> dict[str, Any]:
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
