"""Files that are there whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from library.util.errors import UserError


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path`, which becomes `path` when the block ends well.

        with replacing("best.json") as temporary:
            temporary.write_text(...)

    The content is on the disk before the name is, so that not even a power cut leaves half a file
    under its name. After an error the temporary file is gone, and `path` is as it was.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_folder(name: str, folder: str | Path) -> None:
    """Refuse a folder that cannot be made or written to.

    Args:
        name: of the option that says so.
        folder: which may be there or not.

    Raises:
        UserError: it is a file, or below one, or nothing can be written there.
    """
    path = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    if not path.is_dir():
        raise UserError(f"{name}: {path} is a file, not a folder")
    if not os.access(path, os.W_OK):
        raise UserError(f"{name}: {path} cannot be written to")


def remove_leftovers(folder: str | Path) -> None:
    """Delete what a killed process has left half written: our files, and TensorFlow's."""
    for pattern in (".*.tmp", "*.tempstate*"):
        for file in Path(folder).glob(pattern):
            file.unlink(missing_ok=True)
