"""Audio clips in HDF5 archives: their windows by number.

A dataset of audio clips called `train` in the folder `data` consists of

    data/train-00000-of-00002.h5    a dataset 000000/waveform for each clip, int16 [samples]; its
                                    group has the attributes file, and label and class, or labels,
                                    or value
    data/train.index                label and length of each clip (a NumPy file, see index_dtype)
    data/train.json                 the card; it is written last: no card, no dataset
"""

import contextlib
import functools
import io
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, SupportsInt

import h5py
import numpy as np

from library.audio.remote import Pages, RemoteArchive, RemoteClip
from library.config import URL
from library.data import (
    NO_CACHE,
    BlockCache,
    Card,
    DamagedRecordError,
    Examples,
    RemoteFiles,
    Target,
    content_of,
    write_index,
)
from library.util import RunError, UserError

OPEN_FILES, OPEN_CLIPS = 32, 1024
"""Of each thread, kept open between reads."""
READS, KNOWN_CLIPS = 32, 2**16
"""At a URL: clips that are read at the same time; clips whose place there is kept."""


def index_dtype(target: Target) -> np.dtype:
    """A row of the index; one bit for each of several classes."""
    kinds = {"value": ("<f8",), "labels": ("u1", (-(-len(target.classes) // 8),))}
    label = kinds.get(target.label, ("<i4",))
    return np.dtype([("shard", "<u4"), ("label", *label), ("length", "<i8")])


def index_row(label: Any, length: int, target: Target) -> tuple[int, Any, int]:
    """Of a clip, in its shard."""
    if target.label == "labels":
        label = np.packbits(np.isin(np.arange(len(target.classes)), label))
    return 0, label, length


def labels_and_lengths(path: str | Path, target: Target) -> Iterator[tuple[Any, int]]:
    """Of each clip of an archive; None for a label that does not fit the target."""
    with _opened(path) as archive, _translate_errors(functools.partial(str, path)):
        for name in map(name_of, range(len(archive))):
            length = len(_waveform(archive, name))
            yield _label_in(archive[name].attrs, target), length


def _label_in(attributes: h5py.AttributeManager, target: Target) -> Any:
    name = target.label if target.label in ("labels", "value") else "label"
    label = np.asarray(attributes.get(name))
    if target.label == "value":
        return float(label) if label.dtype.kind == "f" and np.isfinite(label) else None
    if label.dtype.kind != "i" or label.ndim != (target.label == "labels"):
        return None
    in_range = np.all((label >= 0) & (label < len(target.classes)))
    return label.tolist() if in_range or target.label == "none" else None


def no_label(number: int, target: Target) -> str:
    """What is wrong with a clip whose label is None."""
    what = "value" if target.label == "value" else f"label from 0 to {len(target.classes) - 1}"
    return f"clip {number} has no {what}"


def _rows_of(path: str | Path, target: Target) -> np.ndarray:
    """The index rows of an archive, read from it."""
    rows = []
    for number, (label, length) in enumerate(labels_and_lengths(path, target)):
        if label is None:
            raise DamagedRecordError(f"{path}: {no_label(number, target)}")
        rows.append(index_row(label, length, target))
    return np.array(rows, index_dtype(target))


def name_of(number: int) -> str:
    """Of a clip, in its file."""
    return f"{number:06}"


@contextlib.contextmanager
def _translate_errors(place: Callable[[], object]) -> Iterator[None]:
    """HDF5's errors about bytes that have changed become one line, which begins with the place."""
    try:
        yield
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = error.args[0] if error.args else error
        raise DamagedRecordError(f"{place()} is damaged: {reason}") from error


def _opened(path: str | Path | RemoteArchive) -> h5py.File:
    try:
        return h5py.File(path, rdcc_nbytes=0)  # no cache of chunks: windows are read at random
    except OSError as error:
        raise DamagedRecordError(f"{path}: not a readable HDF5 file: {error}") from error


def _waveform(archive: h5py.File, name: str) -> h5py.Dataset:
    with _translate_errors(lambda: f"{archive.filename}: clip {name}"):
        waveform = archive.get(f"{name}/waveform")
    if not isinstance(waveform, h5py.Dataset):
        raise DamagedRecordError(f"{archive.filename}: clip {name} has no dataset waveform")
    if waveform.dtype != np.int16 or waveform.ndim != 1:
        raise DamagedRecordError(
            f"{archive.filename}: {name}/waveform is {waveform.dtype} {list(waveform.shape)}, not "
            "int16 [samples]"
        )
    return waveform


class Archive(Examples):
    """The clips of a dataset by their number; a record is a whole waveform, as bytes.

    Files stay open from read to read, each thread with handles of its own.
    """

    index: np.ndarray[Any, Any]

    def __init__(
        self, path: str | Path, cache: BlockCache = NO_CACHE, *, sample_rate: int | None = None
    ):
        """Open the dataset `path`, as "data/train", whose index is rebuilt if it does not fit.

        A dataset at a URL is read through the cache, and its index has to fit.

        Raises:
            UserError: a file is missing, or not that of the card, or has another sample rate.
        """
        url = bool(URL.match(str(path)))
        self.card = Card.load(f"{path}.json")
        rate = self.card.options.get("sample_rate")
        if sample_rate not in (None, rate):
            raise UserError(
                f"sample_rate: {sample_rate}, but {path} has {rate}: set it, or convert the data "
                "again with --sample_rate"
            )
        self.shards = self.card.files(path)
        fits = self._open_index(f"{path}.index")
        if url and not fits:
            raise UserError(f"{path}.index: does not fit the shards: copy the dataset there again")
        if not fits:
            vars(self).pop("index", None)  # Windows replaces no file that is open
            write_index(path, [_rows_of(shard, self.card.target) for shard in self.shards])
            if not self._open_index(f"{path}.index"):
                raise UserError(f"{path}.json: its shards hold other audio clips")
            print(f"{path}.index: rebuilt, since it was missing or did not fit the shards")
        self.opened: dict[int, Callable[[int], h5py.Dataset]] = {}
        self.remote: list[RemoteFiles | None] = [None] * len(self.shards)
        self.each: Callable[..., Iterable[np.ndarray]] = map
        if url:
            self.remote = [RemoteFiles(self.shards, self.card.shards, cache)] * len(self.shards)
            self.each = ThreadPoolExecutor(READS).map
        self.pages: Pages = {}
        self.remote_clip = functools.lru_cache(KNOWN_CLIPS)(self._remote_clip)

    @classmethod
    def of(
        cls, *paths: str | Path, cache: BlockCache = NO_CACHE, sample_rate: int | None = None
    ) -> "Archive":
        """One or more datasets as one: the numbers of each follow on those of the one before."""
        whole, *others = (cls(path, cache, sample_rate=sample_rate) for path in paths)
        for other in others:
            index = np.array(other.index)
            index["shard"] += len(whole.shards)
            whole.first = np.append(whole.first, other.first + whole.num_examples)
            whole.index = np.concatenate([whole.index, index])
            whole.shards = [*whole.shards, *other.shards]
            whole.remote = [*whole.remote, *other.remote]
            whole.each = other.each if any(other.remote) else whole.each
        return whole

    def _open_index(self, path: str) -> bool:
        """Whether the index has a row for each clip of each shard, with a label that may be its."""
        try:
            if URL.match(path):
                self.index = np.load(io.BytesIO(content_of(path)))
            else:
                self.index = np.load(path, mmap_mode="r")
        except (PermissionError, UserError, RunError):
            raise
        except Exception:  # of NumPy, which has many names for what is no array
            return False
        counts = [shard.examples for shard in self.card.shards]
        self.first = np.cumsum([0, *counts[:-1]])
        numbers = np.repeat(np.arange(len(counts)), counts)
        fits = self.index.dtype == index_dtype(self.card.target)
        fits = fits and np.array_equal(self.index["shard"], numbers)
        return fits and self.card.may_have(self.index["label"])

    @property
    def num_examples(self) -> int:
        return len(self.index)

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each waveform."""
        return self.index["length"] * 2

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The waveforms of these numbers: int64 [n] -> bytes objects [n], of int16 each."""
        records = np.empty(len(ids), object)
        records[:] = [waveform.tobytes() for waveform in self.each(self.waveform, ids)]
        return records

    def read_windows(self, ids: np.ndarray, starts: np.ndarray, win_len: int) -> np.ndarray:
        """Parts of clips, with zeros before their beginning and behind their end.

        Of the clips `ids`, int64 [n], from the samples `starts` on, int64 [n], which may be below
        0: int16 [n, win_len]; DamagedRecordError if a clip is not what was written.
        """
        windows = np.zeros([len(ids), win_len], np.int16)
        begins, ends = np.maximum(starts, 0), np.maximum(starts + win_len, 0)
        parts = self.each(self.waveform, ids, begins, ends)
        for window, start, part in zip(windows, starts.tolist(), parts, strict=True):
            window[max(-start, 0) :][: len(part)] = part
        return windows

    def labels(self, ids: np.ndarray) -> np.ndarray:
        """int64 [n]; float32 [n, classes], 0 or 1, for several classes; float32 [n] for a value."""
        target, labels = self.card.target, self.index["label"][ids]
        if target.label == "labels":
            labels = np.unpackbits(labels, axis=-1, count=len(target.classes))
        return labels.astype(np.float32 if target.label in ("labels", "value") else np.int64)

    def name(self, number: SupportsInt) -> str:
        """The name of the file that a clip comes from."""
        clip = self._clip(int(number))
        with _translate_errors(functools.partial(self._place_of, int(number))):
            file = clip.file if isinstance(clip, RemoteClip) else clip.parent.attrs["file"]
        return file.encode(errors="surrogateescape").decode(errors="replace")

    def waveform(
        self, number: SupportsInt, begin: SupportsInt = 0, end: SupportsInt | None = None
    ) -> np.ndarray:
        """The waveform of this number, or a part of it, as long as there is: int16 [samples]."""
        clip = self._clip(int(number))
        with _translate_errors(functools.partial(self._place_of, int(number))):
            return clip[int(begin) : None if end is None else int(end)]

    def _place_of(self, number: int) -> str:
        """The archive of a clip, and its number there, for an error."""
        shard = self.index["shard"][number]
        return f"{self.shards[shard]}: clip {name_of(number - self.first[shard])}"

    def _clip(self, number: int) -> h5py.Dataset | RemoteClip:
        if self.remote[self.index["shard"][number]]:
            return self.remote_clip(number)
        # Not threading.local: Python meets TensorFlow's threads anew at each call, and forgets it.
        find = self.opened.get(threading.get_ident())
        if find is None:
            open_file = functools.lru_cache(OPEN_FILES)(_opened)

            @functools.lru_cache(OPEN_CLIPS)
            def clip(number: int) -> h5py.Dataset:
                return self._find(number, open_file(self.shards[self.index["shard"][number]]))

            find = self.opened[threading.get_ident()] = clip
        return find(number)

    def _find(self, number: int, file: h5py.File) -> h5py.Dataset:
        shard, length = self.index["shard"][number], self.index["length"][number]
        waveform = _waveform(file, name_of(number - self.first[shard]))
        if len(waveform) != length:
            raise DamagedRecordError(
                f"{self._place_of(number)} has {len(waveform)} samples, but the index says "
                f"{length}: delete the index, and it is rebuilt"
            )
        return waveform

    def _remote_clip(self, number: int) -> RemoteClip:
        shard = self.index["shard"][number]
        files = self.remote[shard]
        assert files
        source = RemoteArchive(files, files.urls.index(self.shards[shard]), self.pages)
        while True:
            try:
                with _opened(source) as file, _translate_errors(lambda: self._place_of(number)):
                    return RemoteClip(source, self._find(number, file))
            except DamagedRecordError:
                if not source.missing:
                    raise
            source.fetch()
