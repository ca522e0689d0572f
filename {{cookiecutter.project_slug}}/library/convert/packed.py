"""A zip or tar file as a folder: what a conversion asks of paths, without unpacking anything."""

import functools
import io
import stat
import tarfile
import types
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from library.util import BadFileError, UserError, is_junk

TOP, OUTSIDE = PurePosixPath(), "a name that leads out of the dataset"
SUFFIXES = (".zip", ".tar")
TIMES, SURELY = 200, 2**24
"""A file that its archive has compressed more often, and that has more bytes, is a bomb."""
CLASS, BESIDE = ".cls", (".cls", ".json", ".txt")
"""As webdataset has it: the class of the file of the same name, and what else stands beside it."""


class _Member(NamedTuple):
    size: int
    read: Callable[[], bytes]
    reason: str  # why it cannot be used, or ""


class Packed:
    """A folder or a file in an archive, in place of a Path."""

    def __init__(self, archive: Path, inside: PurePosixPath = TOP):
        self.archive, self.inside = archive, inside

    def __str__(self) -> str:
        return str(self.archive / self.inside)

    def __truediv__(self, name: str) -> "Packed":
        return Packed(self.archive, self.inside / name)

    @property
    def name(self) -> str:
        return self.inside.name or self.archive.stem

    @property
    def parent(self) -> "Path | Packed":
        return Packed(self.archive, self.inside.parent) if self.inside.name else self.archive.parent

    def files(self) -> Iterator[tuple[str, str]]:
        """The names of all files below a folder, and why each cannot be used, or ""."""
        for name, member in _members(self.archive).items():
            if name.is_relative_to(self.inside):
                yield name.relative_to(self.inside).as_posix(), member.reason
            elif member.reason == OUTSIDE:
                yield name.as_posix(), member.reason

    def classes(self) -> dict[str, tuple[str, ...]]:
        """The class of each file that has one beside it, as cat/0001.jpg and cat/0001.cls."""
        names = [name for name, reason in self.files() if not reason]
        texts = {
            _key(name): (self / name).read().decode(errors="replace").strip()
            for name in names
            if name.endswith(CLASS)
        }
        kept = (name for name in names if not name.endswith(BESIDE))
        return {name: (texts[_key(name)],) for name in kept if texts.get(_key(name))}

    def reason(self, name: str) -> str:
        """Why a file cannot be used, or ""."""
        return _members(self.archive)[self.inside / name].reason

    def folders(self) -> list[Any]:
        """The folders in this one."""
        usable = (name for name, reason in self.files() if not reason and "/" in name)
        return [self / name for name in dict.fromkeys(name.partition("/")[0] for name in usable)]

    def is_file(self) -> bool:
        return self.inside in _members(self.archive)

    def is_dir(self) -> bool:
        return any(True for _ in self.files())

    def exists(self) -> bool:
        return self.is_file()

    def stat(self) -> Any:
        """Its size, and the time of the archive."""
        size = _members(self.archive)[self.inside].size
        return types.SimpleNamespace(st_size=size, st_mtime_ns=self.archive.stat().st_mtime_ns)

    def read(self) -> bytes:
        """The content of a file; BadFileError if it is damaged."""
        try:
            return _members(self.archive)[self.inside].read()
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise BadFileError(f"damaged in its archive: {error}") from error

    def open(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.read())


@functools.cache
def folder_of(path: Path) -> Any:
    """A path as it is; of an archive the Packed folder that has all files, as "train" in train.zip.

    Packed stands in for a Path, so it is typed as one where it goes.
    """
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return path
    root = Packed(path)
    while len(folders := root.folders()) == 1 and not any(
        name.count("/") < 2 for name, reason in root.files() if not reason
    ):
        (root,) = folders
    return root


def _key(name: str) -> str:
    """Of webdataset: a name up to the first dot of its last part."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


@functools.lru_cache(4)  # in each process
def _members(archive: Path) -> dict[PurePosixPath, _Member]:
    """All files of an archive by their names, in the order of a folder's."""
    find = _in_zip if archive.suffix.lower() == ".zip" else _in_tar
    try:
        found = {PurePosixPath(name.replace("\\", "/")): each for name, each in find(archive)}
    except (OSError, EOFError, NotImplementedError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise UserError(f"dataset_dir: {archive} cannot be read: {error}") from error
    return {
        name: each._replace(reason=OUTSIDE) if name.is_absolute() or ".." in name.parts else each
        for name, each in sorted(found.items())
        if not any(is_junk(part) for part in name.parts if part != "..")
    }


def _in_zip(path: Path) -> Iterator[tuple[str, _Member]]:
    archive = zipfile.ZipFile(path)  # open as long as the process
    for info in archive.infolist():
        times, reason = info.file_size / max(1, info.compress_size), ""
        if info.flag_bits & 1:
            reason = "encrypted"
        elif stat.S_ISLNK(info.external_attr >> 16):
            reason = "a link"
        elif info.file_size > SURELY and times > TIMES:
            reason = f"too large: {info.file_size:,} bytes, compressed {times:.0f} times"
        if not info.is_dir():
            read = functools.partial(archive.read, info)
            yield info.filename, _Member(info.file_size, read, reason)


def _in_tar(path: Path) -> Iterator[tuple[str, _Member]]:
    file = open(path, "rb", buffering=0)  # noqa: SIM115 - as long as the process

    def read(offset: int, size: int) -> bytes:
        file.seek(offset)
        return file.read(size)

    with tarfile.open(path, "r:") as archive:
        while info := archive.next():
            archive.members = []  # type: ignore[attr-defined]  # which take a kilobyte each
            reason = "" if info.isreg() and not info.issparse() else "not a file, or a link"
            if not info.isdir():
                member = functools.partial(read, info.offset_data, info.size)
                yield info.name, _Member(info.size, member, reason)
