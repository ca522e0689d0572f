"""The old names of the Estimator, for code that nobody edits: `tf.estimator` and what imports it.

A finder in front of Python's own mends TensorFlow as soon as it is imported. After `install()`, it
also finds the old names in the official package. TensorFlow 2.15 is left as it is.
"""

import importlib
import importlib.util
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from . import seam

# `tf.compat.v1` is the module with _api, until somebody imports tensorflow.compat.v1 by this name.
_HOSTS = [
    "tensorflow",
    *(f"tensorflow.{api}compat.v{n}" for api in ("", "_api.v2.") for n in (1, 2)),
]
"""The modules with an attribute `estimator`."""

_NEW = "tensorflow_estimator.python.estimator"
_MOVED = {"tensorflow.python.estimator.keras": f"{_NEW}.keras_lib"}
_MOVED["tensorflow.python.estimator"] = _NEW
for _host in _HOSTS:
    _version = "v1" if _host.endswith("v1") else "v2"
    _MOVED[f"{_host}.estimator"] = f"tensorflow_estimator._api.{_version}.estimator"
"""Old names of modules, and those of the official package."""


def install() -> None:
    """Bring back all names of the Estimator, before or after TensorFlow is imported."""
    _FINDER.installed = True
    for host in _HOSTS if _FINDER.mended else ():
        module: Any = sys.modules.get(host)
        if module and not hasattr(module, "estimator"):
            module.estimator = _Lazy(f"{host}.estimator")


def watch() -> None:
    """Mend TensorFlow: now if it is imported, and else as soon as it is."""
    sys.meta_path.insert(0, _FINDER)
    if "tensorflow" in sys.modules:
        _FINDER.imported("tensorflow")


class _Lazy(types.ModuleType):
    """Stands for a module until an attribute is asked for: then importing it replaces this one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


class _Alias(Loader):
    """Imports a module by another name: both names give the same module."""

    def __init__(self, real: str):
        self.real = real

    def exec_module(self, module: types.ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.real)


class _Finder(MetaPathFinder):
    """Sees imports before Python's own finders do."""

    installed = mended = False
    _searching = ""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        for old, new in _MOVED.items() if self.installed and self.mended else ():
            if f"{fullname}.".startswith(f"{old}."):
                real = new + fullname[len(old) :]
                return importlib.util.find_spec(real) and ModuleSpec(fullname, _Alias(real))
        if fullname not in _HOSTS or fullname == self._searching or "_api" in fullname:
            return None
        self._searching = fullname  # find_spec asks all finders, this one too
        spec = importlib.util.find_spec(fullname)
        self._searching = ""
        if spec and spec.loader:
            execute = spec.loader.exec_module
            vars(spec.loader)["exec_module"] = lambda module: self.imported(
                fullname, execute(module)
            )
        return spec

    def imported(self, name: str, _: object = None) -> None:
        """Mend TensorFlow, and give the modules that are new their Estimator."""
        if name == "tensorflow":
            self.mended = seam.prepare(sys.modules[name])
            if not self.mended:
                sys.meta_path.remove(self)  # TensorFlow 2.15
        if self.installed:
            install()


_FINDER = _Finder()
