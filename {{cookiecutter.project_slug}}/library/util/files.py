"""Files that are written whole or not at all; the files below a folder."""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from library.util.errors import UserError

PROJECT = Path(__file__).parents[2]
"""The folder of run.py."""
JUNK = ("Thumbs.db", "desktop.ini", "__MACOSX")
LINK_OUT = "a link that leads out of the dataset"


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path`, which becomes `path` when the block ends without an error.

    The content is on the disk before the name is, and the name when this returns: not even a power
    cut leaves half a file, or one that names another one that is not there.
    """
    path = Path(path)
    temporary = _temporary(path.parent, path.name)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def moving_into(folder: str | Path) -> Iterator[Path]:
    """A temporary folder, whose files move to `folder` when the block ends without an error.

    The contents are on the disk before the names are, as for `replacing`.
    """
    temporary = _temporary(Path(folder), "files")
    temporary.mkdir()
    try:
        yield temporary
        files = sorted(temporary.iterdir())
        for file in files:
            _sync(file)
        for file in files:
            os.replace(file, Path(folder) / file.name)
        _sync(Path(folder))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(folder: Path, name: str) -> Path:
    """A new name; two containers that share a disk may have the same process id."""
    return folder / f".{name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"


def _sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: str | Path) -> list[Path]:
    """Make a folder with those above it, and return the new ones, the innermost first."""
    places = (Path(folder), *Path(folder).parents)
    new = list(itertools.takewhile(lambda place: not place.exists(), places))
    Path(folder).mkdir(parents=True, exist_ok=True)
    for place in new:
        _sync(place.parent)
    return new


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically, in UTF-8, with a newline at the end."""
    with replacing(path) as temporary:
        temporary.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file atomically, indented."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False))


def sha256_of(path: str | Path) -> str:
    """The checksum, hexadecimal, of a file that may be larger than memory."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def check_folder(option: str, folder: str | Path) -> None:
    """Refuse a folder, of this option, that cannot be made or written to: UserError."""
    path = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    if not path.is_dir():
        raise UserError(f"{option}: {path} is a file, not a folder")
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise UserError(f"{option}: {path} is not writable: {error.strerror}") from error


def set_aside(path: Path) -> Path:
    """Rename a file or folder NAME to the first free one of NAME-1, NAME-2 and so on."""
    names = (path.with_name(f"{path.stem}-{i}{path.suffix}") for i in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def shown_path(path: str | Path) -> str:
    """A path for others to read: below the project's folder, from there; a URL as it is."""
    if "://" in str(path):
        return str(path)
    path = Path(os.path.normpath(path))
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


class Budget:
    """Bytes that threads may use at the same time.

    budget = Budget(500_000_000)
    with budget.taken(12_000_000): ...
    """

    def __init__(self, size: int):
        self.size = self.free = size
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait until so many are free; what is larger than the budget waits for all of it."""
        size = min(size, self.size)
        with self._changed:
            self._changed.wait_for(lambda: size <= self.free)
            self.free -= size
        try:
            yield
        finally:
            with self._changed:
                self.free += size
                self._changed.notify_all()


def remove_leftovers(folder: str | Path) -> None:
    """Delete temporary files and folders of killed processes: ours, and TensorFlow's."""
    for pattern in (".*.tmp", "*.tempstate*"):
        for file in Path(folder).glob(pattern):
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            else:
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
            link = entry.is_symlink()
            real = os.path.realpath(path) if link else os.path.join(above[-1], entry.name)
            if link and not follow_links and not is_inside(real, inside):
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
