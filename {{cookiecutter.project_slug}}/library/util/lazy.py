"""Packages whose names are imported when they are first used.

`--help`, and the worker processes of a conversion, would wait seconds for a TensorFlow that they
do not use. Python 3.15 has a statement for this, https://peps.python.org/pep-0810.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy(package: str, file: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package: its names are those imported under `if TYPE_CHECKING:`.

    Either a name is that of a module in the package, or it stands in one of another name.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {each.name: node.module for node in imports for each in node.names if node.module}

    def find(name: str) -> Any:
        home = homes.get(name, "")
        if home == package:
            return importlib.import_module(f"{package}.{name}")
        if not home.startswith(f"{package}."):
            raise AttributeError(f"{package} has no name {name}")
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
