"""Errors, atomic files, logs, progress; and packages that import their names on first use."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from library.util.errors import BadFileError, RunError, UserError, did_you_mean, refuse
    from library.util.errors import run_main
    from library.util.files import LINK_OUT, PROJECT, Budget, check_folder, files_below, is_inside
    from library.util.files import is_junk, make_folder, moving_into, remove_leftovers, replacing
    from library.util.files import set_aside, sha256_of, shown_path, write_json, write_text
    from library.util.json_types import parse_json, read_card, read_json, typed, written_here
    from library.util.lock import locked
    from library.util.log import attach_log, redirect_native_logs
    from library.util.progress import Progress, StatusLine, counted


def lazy(package: str, file: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package: its names are those imported under `if TYPE_CHECKING:`.

    Without it, `--help` and the processes of a conversion would wait for TensorFlow, which they do
    not use. Python 3.15 has a statement for this, https://peps.python.org/pep-0810.
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


if not TYPE_CHECKING:  # so that mypy names a name that is not there
    __getattr__ = lazy(__name__, __file__)
