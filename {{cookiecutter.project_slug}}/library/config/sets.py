"""A YAML file of named sets, each of which may take over others; every mistake with its line.

    default: &DEFAULT
      learning_rate: 1e-3

    careful:
      <<: *DEFAULT            # or: inherits: default
      learning_rate: 1e-4

Numbers are those of YAML 1.2: 1e-4 is a number, 010 is ten, 1:30 is a string, and yes/no are what
an option makes of them.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from library.config.options import INTEGER, NUMBER
from library.util import UserError, did_you_mean


class Yaml12(yaml.SafeLoader):
    """The safe loader with the scalars of YAML 1.2, https://yaml.org/spec/1.2.2 section 10.3."""

    yaml_implicit_resolvers: dict[str, Any] = {}


TAG = "tag:yaml.org,2002:"
PATTERNS = {"merge": "<<", "null": "null|Null|NULL|~|", "int": INTEGER.pattern}
PATTERNS |= {"bool": "true|True|TRUE|false|False|FALSE", "float": NUMBER.pattern}
for _name, _pattern in PATTERNS.items():
    Yaml12.add_implicit_resolver(TAG + _name, re.compile(f"^(?:{_pattern})$"), None)
Yaml12.add_constructor(TAG + "int", lambda loader, node: int(node.value))
Yaml12.add_constructor(TAG + "float", lambda loader, node: float(node.value))


def load(path: str | Path, config_set: str) -> dict[str, Any]:
    """One set of a YAML file with all that it takes over, as plain Python values.

    Raises:
        UserError: the file or the set cannot be used; each line says where and why.
    """
    file = SetsFile(path)
    entries = file.merged(config_set)
    if file.errors:
        raise UserError(*file.errors)
    loader = Yaml12("")
    try:
        return {key: loader.construct_object(node, deep=True) for key, (node, _) in entries.items()}
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        raise UserError(f"{path}: set {config_set}: {str(error).partition(chr(10))[0]}") from error


class SetsFile:
    """A YAML file of named sets; `errors` has a line for each mistake in its structure."""

    def __init__(self, path: str | Path, root: Path = Path()):
        path = Path(path)
        self.path = path.relative_to(root) if path.is_relative_to(root) else path  # as shown
        self.errors: dict[str, None] = {}  # a dict keeps the order, and an inherited mistake once
        try:
            node = Yaml12(path.read_text(encoding="utf-8")).get_single_node()
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{self.path}: not a text file in UTF-8") from error
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
            line = f":{mark.line + 1}" if mark else ""
            raise UserError(f"{self.path}{line}: not YAML: {reason}") from error
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise UserError(
                f"{self.path}: it has to hold named sets, such as default, with options below each"
            )
        self.sets = dict(self._pairs(node, "the file"))

    def _error(self, node: yaml.Node, message: str) -> None:
        self.errors[f"{self.path}:{node.start_mark.line + 1}: {message}"] = None

    def _pairs(self, node: yaml.Node, owner: str) -> Iterator[tuple[str, yaml.Node]]:
        """Keys and values of a mapping, each key a text and there once."""
        if not isinstance(node, yaml.MappingNode):
            return self._error(node, f"{owner} is not a mapping of options to values")
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._error(key, f"a key of {owner} is not a plain name")
            elif value.tag.removeprefix(TAG) not in ("str", "seq", "map", *PATTERNS):
                self._error(value, f"{key.value}: the tag {value.tag} is not allowed")
            elif key.value in seen:
                self._error(key, f"{key.value} is a duplicate in {owner}")
            else:
                seen.add(key.value)
                yield key.value, value

    def merged(self, name: str) -> dict[str, tuple[yaml.Node, str]]:
        """What a set says, with all that it takes over: option -> value, and where that stands."""
        if name in self.sets:
            return self._merged(self.sets[name], name, ())
        known = ", ".join(self.sets) + did_you_mean(name, self.sets)
        self.errors[f"{self.path}: there is no set {name}; it has {known}"] = None
        return {}

    def _merged(
        self, node: yaml.Node, name: str, below: tuple[yaml.Node, ...]
    ) -> dict[str, tuple[yaml.Node, str]]:
        """The same for a mapping that the set takes over; `below` took that over."""
        name = next((known for known, one in self.sets.items() if one is node), name)
        taken: dict[str, tuple[yaml.Node, str]] = {}
        own: dict[str, tuple[yaml.Node, str]] = {}
        for key, value in self._pairs(node, f"set {name}"):
            if key not in ("<<", "inherits"):
                own[key] = value, f"{self.path}:{value.start_mark.line + 1}, set {name}"
                continue
            parents = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for parent in reversed(parents):  # the first one wins, as YAML's merge key has it
                wanted = parent.value if isinstance(parent, yaml.ScalarNode) else "a mapping"
                if key == "inherits" and wanted not in self.sets:
                    near = did_you_mean(wanted, self.sets)
                    self._error(value, f"set {name} inherits no known set: {wanted}{near}")
                    continue
                parent = self.sets[wanted] if key == "inherits" else parent
                if parent is node or parent in below:
                    self._error(value, f"set {name} inherits itself")
                else:
                    taken |= self._merged(parent, name, (*below, node))
        return taken | own

    def texts(self, name: str) -> list[tuple[str, Any, str]]:
        """The same as a text, None, list or {} for each option: see `Option.value`."""
        return [(key, _text(node), where) for key, (node, where) in self.merged(name).items()]


def _text(node: yaml.Node) -> Any:
    """A string, None for null, a list of such, or {} for a mapping."""
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag == TAG + "null" else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_text(each) if isinstance(each, yaml.ScalarNode) else {} for each in node.value]
    return {}
