"""Weights that PyTorch saved, read without PyTorch, and without running code of the file."""

import collections
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from library.util import UserError

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
"""Begins a file that torch.save wrote before PyTorch 1.6; newer ones are archives."""
DTYPES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}
STORAGE_COUNT = np.dtype("<i8")


class _Unpickler(pickle.Unpickler):
    """Knows what a dictionary of tensors is made of, and no other name."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "collections", "OrderedDict":
                return collections.OrderedDict
            case "torch._utils", "_rebuild_tensor_v2":
                return lambda storage, offset, shape, strides, *_: (storage, offset, shape, strides)
            case "torch", "FloatStorage" | "LongStorage":
                return DTYPES[name]
        raise pickle.UnpicklingError(f"it holds {module}.{name}")

    def persistent_load(self, pid: tuple[Any, ...]) -> tuple[np.dtype, str]:
        """A storage: its type and its key; where it was, and its size, come with the content."""
        return pid[1], pid[2]


def read_state_dict(path: str | Path) -> dict[str, np.ndarray]:
    """The tensors of a file that `torch.save(module.state_dict(), ...)` wrote, by name.

    Raises:
        UserError: it cannot be read, or is of another kind.
    """
    try:
        with open(path, "rb") as file:
            return _read(file)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (
        pickle.UnpicklingError,
        AttributeError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(f"{path}: not a state_dict as PyTorch 1.5 saved it: {error}") from error


def _read(file: BinaryIO) -> dict[str, np.ndarray]:
    """Magic number, version, system, tensors without content, keys of the storages, storages."""
    number, _, _, tensors, keys = (_Unpickler(file).load() for _ in range(5))
    if number != MAGIC_NUMBER:
        raise ValueError("its first number is another one")
    dtypes = {key: dtype for (dtype, key), *_ in tensors.values()}
    storages = {}
    for key in keys:
        (count,) = np.frombuffer(file.read(STORAGE_COUNT.itemsize), STORAGE_COUNT)
        storages[key] = np.frombuffer(file.read(count * dtypes[key].itemsize), dtypes[key], count)
    return {
        name: _tensor(storages[key], offset, shape, strides)
        for name, ((_, key), offset, shape, strides) in tensors.items()
    }


def _tensor(
    storage: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray:
    """Part of a storage; strides count elements, and need not be those of C's order."""
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if min(offset, *strides, *shape, last, 0) < 0 or last >= len(storage):
        raise ValueError("a tensor is larger than its storage")
    return np.ndarray(
        shape,
        storage.dtype,
        storage,
        offset * storage.itemsize,
        [stride * storage.itemsize for stride in strides],
    ).copy()
