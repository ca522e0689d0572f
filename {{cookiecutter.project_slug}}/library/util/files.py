"""Files that are written whole or not at all; the files below a folder."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from library.util.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

JUNK = ("Thumbs.db", "desktop.ini", "__MACOSX")
LINK_OUT = "a link that leads out of the dataset"


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path`, which becomes `path` when the block ends without an error.

    The content is on the disk before the name is, so that not even a power cut leaves half a file.
    """
    path = Path(path)
    # Two containers that share a disk may have the same process id.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically, in UTF-8, with a newline at the end."""
    with replacing(path) as temporary:
        temporary.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file atomically, indented."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False))


def check_folder(option: str, folder: str | Path) -> None:
    """Refuse a folder, of this option, that cannot be made or written to: UserError."""
    path = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    if not path.is_dir():
        raise UserError(f"{option}: {path} is a file, not a folder")
    if not os.access(path, os.W_OK):
        raise UserError(f"{option}: {path} is not writable")


@contextlib.contextmanager
def locked(folder: str | Path, message: str) -> Iterator[None]:
    """Keep other processes out of such a block for this folder: they get a UserError, `message`.

    The lock ends with the process, however that ends. On Windows there is none.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UserError(message) from error
    except OSError:
        pass  # a disk without locks
    try:
        yield
    finally:
        os.close(handle)


def remove_leftovers(folder: str | Path) -> None:
    """Delete temporary files of killed processes: ours, and TensorFlow's."""
    for pattern in (".*.tmp", "*.tempstate*"):
        for file in Path(folder).glob(pattern):
            file.unlink(missing_ok=True)


def is_junk(name: str) -> bool:
    """Whether a file or folder is hidden, or made by a file manager."""
    return name.startswith(".") or name in JUNK


def files_below(
    folder: Path, *, root: Path | None = None, follow_links: bool = False
) -> Iterator[tuple[Path, str]]:
    """All files below a folder, sorted, without junk; each with why it is unusable, or "".

    Links are followed, except in a circle, and out of `root` unless `follow_links`.
    """
    inside = os.path.realpath(root or folder)

    def walk(folder: Path, above: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if is_junk(entry.name):
                continue
            path = folder / entry.name
            real = os.path.realpath(path)
            if entry.is_symlink() and not follow_links and not is_inside(real, inside):
                yield path, LINK_OUT
            elif entry.is_dir():
                if real in above:
                    yield path, "a link to a folder that it is in"
                else:
                    yield from walk(path, (*above, real))
            elif entry.is_file():
                yield path, ""
            else:
                yield path, "not a file, or a link to nothing"

    yield from walk(folder, (os.path.realpath(folder),))


def is_inside(path: str, folder: str) -> bool:
    """Whether a resolved path is that of a folder, or below it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
