"""The files in an archive: zip, tar, Parquet of the Hugging Face hub, TensorFlow Datasets."""

import bisect
import contextlib
import functools
import io
import json
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from library.data import Example, find_records, read_record
from library.util import BadFileError, UserError

TIMES, SURELY = 200, 2**24
"""What an archive has compressed more often, and has more bytes, is a bomb."""
PIECE, POINTS = 2**16, 500
"""Of a gzip file: bytes decoded at once; the most places from which decoding continues."""
GROUPS = 8
"""Row groups of Parquet files that a process keeps."""
TFDS = "*.tfrecord-*-of-*"
"""Files of TensorFlow Datasets; https://www.tensorflow.org/datasets/external_tfrecord."""


class Member(NamedTuple):
    size: int
    read: Callable[[], bytes]
    reason: str = ""  # why it cannot be used, or ""
    label: str = ""  # its class, if the archive has a column for that


Members = Iterator[tuple[str, Member]]


def lister_of(path: Path) -> Callable[[Path], Members] | None:
    """What lists the files of an archive, or of a folder that is one; None for others."""
    if path.is_dir():
        kinds = {"*.parquet": _in_parquet, TFDS: _in_tfds}
        return next((lists for pattern, lists in kinds.items() if any(path.glob(pattern))), None)
    found = (
        list_members for end, list_members in LISTERS.items() if path.name.lower().endswith(end)
    )
    return next(found, None) if path.is_file() else None


def stem_of(path: Path) -> str:
    """The name of an archive without its ending."""
    return path.name if path.is_dir() else path.stem.removesuffix(".tar")


def _bomb(size: int, compressed: int) -> str:
    """What is wrong with so many bytes in so few, or ""."""
    times = size / max(1, compressed)
    bomb = size > SURELY and times > TIMES
    return f"too large: {size:,} bytes, compressed {times:.0f} times" if bomb else ""


def _in_zip(path: Path) -> Members:
    archive = zipfile.ZipFile(path)  # open as long as the process
    for info in archive.infolist():
        reason = _bomb(info.file_size, info.compress_size)
        if info.flag_bits & 1:
            reason = "encrypted"
        elif stat.S_ISLNK(info.external_attr >> 16):
            reason = "a link"
        if not info.is_dir():
            yield (
                info.filename,
                Member(info.file_size, functools.partial(archive.read, info), reason),
            )


# ---- tar ---------------------------------------------------------------------------------------


def _in_tar(path: Path) -> Members:
    plain = path.suffix.lower() == ".tar"
    file = open(path, "rb", buffering=0) if plain else _Gunzip(path)  # noqa: SIM115 - kept open

    def read(offset: int, size: int) -> bytes:
        file.seek(offset)
        return file.read(size) or b""

    with tarfile.open(fileobj=file, mode="r:") as archive:
        while info := archive.next():
            archive.members = []  # type: ignore[attr-defined]  # which take a kilobyte each
            reason = "" if info.isreg() and not info.issparse() else "not a file, or a link"
            if not info.isdir():
                member = functools.partial(read, info.offset_data, info.size)
                yield info.name, Member(info.size, member, reason)


class _Gunzip(io.RawIOBase):
    """What a gzip file holds, read from any place, without a copy.

    It keeps states of the decoder as it comes by, 40 kB each, and continues from the last one
    before a place: from 2 MB or a POINTS-th of the file before, at most.
    """

    def __init__(self, path: Path):
        self.path, self.file = path, open(path, "rb", buffering=0)  # noqa: SIM115
        self.step = max(2**21, path.stat().st_size // POINTS)
        self.points = [(0, 0, zlib.decompressobj(31))]  # bytes decoded, bytes read, decoder
        self.offset = 0
        self._continue_from(0)

    def _continue_from(self, number: int) -> None:
        self.begin, self.place, decoder = self.points[number]
        self.decoder, self.data = decoder.copy(), b""

    def _decode(self) -> bool:
        """Put the next piece in place of `data`, which begins at `begin`; False at the end."""
        self.begin += len(self.data)
        if self.place >= self.points[-1][1] + self.step:
            self.points.append((self.begin, self.place, self.decoder.copy()))
        self.file.seek(self.place)
        piece = self.file.read(PIECE) or b""
        self.place += len(piece)
        self.data = self.decoder.decompress(piece)
        while self.decoder.eof and (rest := self.decoder.unused_data.lstrip(b"\0")):
            self.decoder = zlib.decompressobj(31)  # several files, one after another
            self.data += self.decoder.decompress(rest)
        if reason := _bomb(self.begin + len(self.data), self.place):
            raise UserError(f"dataset_dir: {self.path} is {reason}")
        return bool(piece)

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.offset = offset + (self.offset if whence == io.SEEK_CUR else 0)
        return self.offset

    def tell(self) -> int:
        return self.offset

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or fewer at the end of the file."""
        last = bisect.bisect_right(self.points, self.offset, key=lambda point: point[0]) - 1
        if not self.begin <= self.offset or self.points[last][0] > self.begin:
            self._continue_from(last)
        parts, missing = list[bytes](), size
        while missing:
            part = self.data[self.offset - self.begin :][:missing]
            parts.append(part)
            self.offset, missing = self.offset + len(part), missing - len(part)
            if missing and not self._decode():
                break
        return b"".join(parts)


# ---- Parquet -----------------------------------------------------------------------------------


def _in_parquet(path: Path) -> Members:
    """The rows of Parquet files, whose schema says which column has files, and which the classes.

    A row is in a folder that is called like the split, as train-00000-of-00002.parquet is of train.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise UserError(f"dataset_dir: {path} needs pip install pyarrow") from error
    try:
        for file in sorted(path.glob("*.parquet")) if path.is_dir() else [path]:
            yield from _rows_of(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"dataset_dir: {path} cannot be read: {error}") from error


def _rows_of(path: Path) -> Members:
    file = _parquet(path)
    features = _features(file.schema_arrow)
    struct = {each.name for each in file.schema_arrow if "bytes" in _fields(each.type)}
    contents = [name for name in struct if features[name].get("_type") in ("Image", "Audio", None)]
    labels = [name for name, each in features.items() if each.get("_type") == "ClassLabel"]
    label = labels[0] if len(labels) == 1 else "label" if "label" in features else None
    if len(contents) != 1:
        raise UserError(
            f"dataset_dir: {path} has {len(contents)} columns of images or audio clips, not one: "
            f"its columns are {', '.join(features)}"
        )
    names, folder = features[label].get("names") if label else None, path.stem.partition("-")[0]
    number = 0
    for group in range(file.num_row_groups):
        rows, sizes = file.metadata.row_group(group), [0, 0]
        for column in map(rows.column, range(rows.num_columns)):
            if column.path_in_schema == f"{contents[0]}.bytes":
                sizes = [column.total_uncompressed_size, column.total_compressed_size]
        size, reason = sizes[0] // max(1, rows.num_rows), _bomb(*sizes)
        values = [None] * rows.num_rows
        if label:
            values = file.read_row_group(group, columns=[label]).column(0).to_pylist()
        for row, value in enumerate(values):
            name = "" if value is None else str(value)
            if names and isinstance(value, int):
                name = names[value] if 0 <= value < len(names) else ""
            read = functools.partial(_cell, path, group, contents[0], row)
            yield f"{folder}/{path.stem}-{number:06}", Member(size, read, reason, name)
            number += 1


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """Of each column what `datasets` says of it: https://huggingface.co/docs/datasets."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    found = json.loads(text).get("info", {}).get("features", {})
    return {name: found.get(name) or {} for name in schema.names}


def _fields(kind: Any) -> list[str]:
    """The names of the parts of a column."""
    return [kind.field(number).name for number in range(kind.num_fields)]


@functools.lru_cache(GROUPS)
def _parquet(path: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path, memory_map=True)


@functools.lru_cache(GROUPS)
def _group(path: Path, group: int, column: str) -> Any:
    """A column of files, and nothing else of a row group."""
    return _parquet(path).read_row_group(group, columns=[f"{column}.bytes"]).column(0)


def _cell(path: Path, group: int, column: str, row: int) -> bytes:
    try:
        content = _group(path, group, column)[row].as_py()
    except (OSError, ValueError) as error:
        raise BadFileError(f"damaged in its archive: {error}") from error
    if not content or content["bytes"] is None:
        raise BadFileError("its row has no content")
    return content["bytes"]


# ---- TensorFlow Datasets -----------------------------------------------------------------------


def _in_tfds(path: Path) -> Members:
    """The feature `image` of each record of NAME-SPLIT.tfrecord-00000-of-00004 and so on.

    The feature `label` is the number of a line of label.labels.txt. A folder is a split.
    """
    file = path / "label.labels.txt"
    names = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for file in sorted(path.glob(TFDS)):
        name, _, shard = file.name.partition(".tfrecord-")
        folder = name.rpartition("-")[2]
        with open(file, "rb", buffering=0) as opened:
            for number, place in enumerate(find_records(opened)):
                values = list[int]()
                with contextlib.suppress(BadFileError):  # found again when it is read
                    values += _features_in(read_record(opened, *place))["label"].int64_list.value
                label = ""
                if len(values) == 1 and values[0] >= 0:
                    label = names[values[0]] if values[0] < len(names) else str(values[0])
                member = Member(place[0], functools.partial(_image_in, file, place), "", label)
                yield f"{folder}/{shard}-{number:06}", member


def _features_in(record: bytes | None) -> Any:
    """The features of an Example by their names."""
    try:
        return Example.FromString(record).features.feature
    except (DecodeError, TypeError) as error:  # None for what is damaged
        raise BadFileError("damaged in its archive") from error


def _image_in(file: Path, place: tuple[int, int]) -> bytes:
    with open(file, "rb", buffering=0) as opened:
        values = _features_in(read_record(opened, *place))["image"].bytes_list.value
    if len(values) != 1:
        raise BadFileError("its record has no feature image")
    return values[0]


LISTERS = {".zip": _in_zip, ".parquet": _in_parquet}
LISTERS |= dict.fromkeys((".tar", ".tar.gz", ".tgz"), _in_tar)
