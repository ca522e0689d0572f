"""An archive as a folder: what a conversion asks of paths, without unpacking anything."""

import contextlib
import functools
import io
import json
import tarfile
import types
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from library.convert.members import Member, lister_of, stem_of
from library.util import BadFileError, UserError, is_junk

TOP, OUTSIDE = PurePosixPath(), "a name that leads out of the dataset"
BESIDE = (".cls", ".json", ".txt")
"""As webdataset has it: what stands beside a file of the same name, with its class or without."""


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
        return self.inside.name or stem_of(self.archive)

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
        """The class of each file, or none, if the archive says it of some.

        It is in a column, or in a file beside it, as cat/0001.jpg, cat/0001.cls: its text, or the
        "label" of a .json.
        """
        names = [name for name, reason in self.files() if not reason]
        found = {_key(name): _members(self.archive)[self.inside / name].label for name in names}
        for ending in (".json", ".cls"):  # which wins
            for name in names:
                if name.endswith(ending):
                    with contextlib.suppress(BadFileError):  # its files have no class, then
                        text = _class_in((self / name).read().decode(errors="replace"), ending)
                        found[_key(name)] = text or found[_key(name)]
        kept = {name: found[_key(name)] for name in names if not name.endswith(BESIDE)}
        return {name: (text,) if text else () for name, text in kept.items() if any(kept.values())}

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
    if not lister_of(path):
        return path
    root = Packed(path)
    while len(folders := root.folders()) == 1 and not any(
        name.count("/") < 2 for name, reason in root.files() if not reason
    ):
        (root,) = folders
    return root


def _class_in(text: str, ending: str) -> str:
    """The class in a file beside another one, or ""."""
    if ending == ".json":
        try:
            content = json.loads(text)
        except ValueError:
            return ""
        text = str(content.get("label", "")) if isinstance(content, dict) else ""
    return text.strip()


def _key(name: str) -> str:
    """Of webdataset: a name up to the first dot of its last part."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


@functools.lru_cache(4)  # in each process
def _members(archive: Path) -> dict[PurePosixPath, Member]:
    """All files of an archive by their names, in the order of a folder's."""
    find, kinds = lister_of(archive), (tarfile.TarError, zipfile.BadZipFile, zlib.error)
    assert find, "folder_of has found it"
    try:
        found = {PurePosixPath(name.replace("\\", "/")): each for name, each in find(archive)}
    except (OSError, EOFError, NotImplementedError, *kinds) as error:
        raise UserError(f"dataset_dir: {archive} cannot be read: {error}") from error
    return {
        name: each._replace(reason=OUTSIDE) if name.is_absolute() or ".." in name.parts else each
        for name, each in sorted(found.items())
        if not any(is_junk(part) for part in name.parts if part != "..")
    }
