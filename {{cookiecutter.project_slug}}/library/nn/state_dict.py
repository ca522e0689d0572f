"""Weights that PyTorch saved, read without PyTorch, and without running code of the file."""

import collections
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from library.util import UserError

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
"""Begins a file that torch.save wrote before PyTorch 1.6; newer ones are archives."""

KNOWN: dict[str, Any] = {
    "collections.OrderedDict": collections.OrderedDict,
    "torch.FloatStorage": np.dtype("<f4"),
    "torch.LongStorage": np.dtype("<i8"),
    "torch._utils._rebuild_tensor_v2": lambda *parts: parts[:4],  # storage, offset, shape, strides
}
"""What a dictionary of tensors is made of."""

UNREADABLE = (pickle.UnpicklingError, AttributeError, EOFError, LookupError, TypeError, ValueError)


class _Unpickler(pickle.Unpickler):
    """Reads what is KNOWN."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in KNOWN:
            raise pickle.UnpicklingError(f"it holds {module}.{name}")
        return KNOWN[f"{module}.{name}"]

    def persistent_load(self, pid: tuple[Any, ...]) -> tuple[Any, ...]:
        """A storage: its type and its key; its size comes with its content."""
        return pid[1:3]


def read_state_dict(path: str | Path) -> dict[str, np.ndarray]:
    """The tensors of a file that `torch.save(module.state_dict(), ...)` wrote, by name.

    Raises:
        UserError: it cannot be read, or is of another kind.
    """
    try:
        with open(path, "rb") as file:
            # Magic number, version, system, tensors without content, keys of the storages.
            number, _, _, tensors, keys = (_Unpickler(file).load() for _ in range(5))
            if number != MAGIC_NUMBER:
                raise ValueError("its first number is another one")
            types = {key: dtype for (dtype, key), *_ in tensors.values()}
            sizes = (np.fromfile(file, "<i8", 1).item() for _ in keys)  # each before its content
            storages = {key: np.fromfile(file, types[key], next(sizes)) for key in keys}
        # NumPy refuses a tensor that is larger than its storage. Its strides are in bytes.
        return {
            name: np.ndarray(
                shape,
                dtype,
                storages[key],
                offset * dtype.itemsize,
                np.dot(strides, dtype.itemsize),
            ).copy()
            for name, ((dtype, key), offset, shape, strides) in tensors.items()
        }
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise UserError(f"{path}: not a state_dict as PyTorch 1.5 saved it: {error}") from error
