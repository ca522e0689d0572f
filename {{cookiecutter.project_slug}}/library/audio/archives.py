"""Recordings in HDF5 archives: their windows by number.

A data set of recordings of the name `train` in the folder `data` consists of

    data/train-00000-of-00002.h5    a dataset 000000/waveform for each recording, int16 [samples];
                                    its group has the attributes file, label and class
    data/train.index                the label and the length of each (a NumPy file of INDEX rows)
    data/train.json                 the card; it is written last: no card, no data set
"""

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

from library.config import URL
from library.data import Card, DamagedRecordError, Shard
from library.util import UserError, replacing

INDEX = np.dtype([("shard", "<u4"), ("label", "<i4"), ("length", "<i8")])
OPEN_FILES, OPEN_RECORDINGS = 32, 1024
"""Of each thread, kept open between reads."""


def write_archive(
    path: Path, recordings: Iterable[tuple[str, int, str, tuple[np.ndarray, int]]]
) -> Shard:
    """Write one file of recordings.

    Args:
        path: of the file.
        recordings: name of the file, label, name of the class and, together, the waveform, int16
            [samples], and how many samples of it are stored together: those of a window.

    Returns:
        Its entry for the card.
    """
    number = -1
    with replacing(path) as temporary:
        with _created(temporary) as archive:
            for number, (file, label, class_name, recording) in enumerate(recordings):
                waveform, chunk = recording
                name, without_time = _name_of(number).encode(), _untimed(h5py.h5p.GROUP_CREATE)
                group = h5py.Group(h5py.h5g.create(archive.id, name, gcpl=without_time))
                chunks = (min(chunk, len(waveform)),)
                group.create_dataset("waveform", data=waveform, chunks=chunks)
                group.attrs["file"] = file.encode(errors="surrogateescape")
                group.attrs["label"] = label
                group.attrs["class"] = class_name
        size, checksum = temporary.stat().st_size, sha256_of_file(temporary)
    return Shard(path.name, number + 1, size, checksum)


def _created(path: Path) -> h5py.File:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    # Not the latest: what HDF5 2.0 writes then, 1.14 does not read.
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    name, without_time = os.fsencode(path), _untimed(h5py.h5p.FILE_CREATE)
    return h5py.File(h5py.h5f.create(name, h5py.h5f.ACC_TRUNC, without_time, access))


def _untimed(kind: int) -> h5py.h5p.PropOCID:
    """Of a file or group without the time: the same recordings are always the same bytes."""
    properties = h5py.h5p.create(kind)
    properties.set_obj_track_times(False)
    return properties


def sha256_of_file(path: str | Path) -> str:
    """The checksum, hexadecimal, of a file that may be larger than memory."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def index_of(archives: Sequence[str | Path]) -> np.ndarray:
    """Look at all recordings: rows of INDEX, in their order.

    Raises:
        DamagedRecordError: a file is no archive, or one of its recordings has no waveform or label.
    """
    rows = []
    for number, path in enumerate(archives):
        with _opened(path) as archive, _damage_told(functools.partial(str, path)):
            for name in map(_name_of, range(len(archive))):
                length = len(_waveform(archive, name))
                label = archive[name].attrs.get("label")
                if not isinstance(label, np.integer):
                    raise DamagedRecordError(f"{path}: recording {name} has no label")
                rows.append((number, label, length))
    return np.array(rows, INDEX)


def _name_of(number: int) -> str:
    """Of a recording, in its file."""
    return f"{number:06}"


@contextlib.contextmanager
def _damage_told(place: Callable[[], object]) -> Iterator[None]:
    """What HDF5 says of bytes that have changed becomes a line, which begins with the place."""
    try:
        yield
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = error.args[0] if error.args else error
        raise DamagedRecordError(f"{place()} is damaged: {reason}") from error


def _opened(path: str | Path) -> h5py.File:
    try:
        return h5py.File(path, rdcc_nbytes=0)  # no cache of chunks: a window comes by lot
    except OSError as error:
        raise DamagedRecordError(f"{path}: not an HDF5 file that can be read: {error}") from error


def _waveform(archive: h5py.File, name: str) -> h5py.Dataset:
    with _damage_told(lambda: f"{archive.filename}: recording {name}"):
        waveform = archive.get(f"{name}/waveform")
    if not isinstance(waveform, h5py.Dataset):
        raise DamagedRecordError(f"{archive.filename}: recording {name} has no dataset waveform")
    if waveform.dtype != np.int16 or waveform.ndim != 1:
        raise DamagedRecordError(
            f"{archive.filename}: {name}/waveform is {waveform.dtype} {list(waveform.shape)}, not "
            "int16 [samples]"
        )
    return waveform


class Archive:
    """The recordings of a data set by their number, in any order, from several threads.

    Files stay open from read to read, each thread with handles of its own.
    """

    def __init__(self, path: str | Path):
        """Open the data set `path`, as "data/train".

        An index that is missing, or does not fit the card, is written anew.

        Raises:
            UserError: a file is missing, or is not the one that the card describes, or is not on
                this machine.
        """
        if URL.match(str(path)):
            raise UserError(f"{path}: recordings are read from files of this machine only")
        self.card = Card.load(f"{path}.json")
        self.shards = self.card.files(path)
        index = Path(f"{path}.index")
        if not self._open_index(index):
            self.index = np.empty(0, INDEX)  # Windows replaces no file that is open
            write_index(path, self.shards)
            if not self._open_index(index):
                raise UserError(f"{path}.json: its shards hold other recordings")
            print(f"{index}: written anew, since it was missing or did not fit the shards")
        self.opened: dict[int, Callable[[int], h5py.Dataset]] = {}

    def _open_index(self, path: Path) -> bool:
        """Whether the index has a row for each recording of each shard."""
        try:
            self.index = np.load(path, mmap_mode="r")
        except (FileNotFoundError, EOFError, ValueError):
            return False
        counts = [shard.examples for shard in self.card.shards]
        self.first = np.cumsum([0, *counts[:-1]])
        numbers = np.repeat(np.arange(len(counts)), counts)
        return self.index.dtype == INDEX and np.array_equal(self.index["shard"], numbers)

    @property
    def num_examples(self) -> int:
        return len(self.index)

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each waveform."""
        return self.index["length"] * 2

    def read(self, ids: np.ndarray) -> list[np.ndarray]:
        """The waveforms of these numbers, int16 [samples] each."""
        return [self._part(number, 0) for number in ids.tolist()]

    def read_one(self, number: np.int64) -> np.ndarray:
        """The waveform of this number, int16 [samples]."""
        return self._part(int(number), 0)

    def read_windows(self, ids: np.ndarray, starts: np.ndarray, win_len: int) -> np.ndarray:
        """Parts of recordings, with zeros before their beginning and behind their end.

        Args:
            ids: numbers of recordings, int64 [n].
            starts: the sample where each window begins, int64 [n]; it may be below 0.
            win_len: samples in a window.

        Returns:
            int16 [n, win_len].

        Raises:
            DamagedRecordError: a recording is not what was written.
        """
        windows = np.zeros([len(ids), win_len], np.int16)
        for window, number, start in zip(windows, ids.tolist(), starts.tolist(), strict=True):
            part = self._part(number, max(start, 0), max(start + win_len, 0))
            window[max(-start, 0) :][: len(part)] = part
        return windows

    def names(self, ids: np.ndarray) -> list[str]:
        """The names of the files that these recordings come from."""
        names = []
        for number in ids.tolist():
            recording = self._recording(number)
            with _damage_told(functools.partial(self._place_of, number)):
                file = recording.parent.attrs["file"]
            names.append(file.encode(errors="surrogateescape").decode(errors="replace"))
        return names

    def _part(self, number: int, begin: int, end: int | None = None) -> np.ndarray:
        """Samples of a recording, as many as there are."""
        recording = self._recording(number)
        with _damage_told(functools.partial(self._place_of, number)):
            return recording[begin:end]

    def _place_of(self, number: int) -> str:
        """The archive of a recording, and its number there, for an error."""
        shard = self.index["shard"][number]
        return f"{self.shards[shard]}: recording {_name_of(number - self.first[shard])}"

    def _recording(self, number: int) -> h5py.Dataset:
        # Not threading.local: Python meets TensorFlow's threads anew at each call, and forgets it.
        find = self.opened.get(threading.get_ident())
        if find is None:
            open_file = functools.lru_cache(OPEN_FILES)(_opened)

            @functools.lru_cache(OPEN_RECORDINGS)
            def recording(number: int) -> h5py.Dataset:
                shard, _, length = self.index[number]
                file = open_file(self.shards[shard])
                waveform = _waveform(file, _name_of(number - self.first[shard]))
                if len(waveform) != length:
                    raise DamagedRecordError(
                        f"{self._place_of(number)} has {len(waveform)} samples, but the index says "
                        f"{length}: delete that, and it is written anew"
                    )
                return waveform

            find = self.opened[threading.get_ident()] = recording
        return find(number)


def write_index(path: str | Path, archives: Sequence[str | Path]) -> None:
    """Write the index of the data set `path`."""
    rows = index_of(archives)
    write_rows(path, [rows[rows["shard"] == number] for number in range(len(archives))])


def write_rows(path: str | Path, rows_by_shard: Iterable[np.ndarray]) -> None:
    """Write the index of the data set `path`: the rows of each shard in the order of the shards."""
    rows_by_shard = list(rows_by_shard)
    for number, rows in enumerate(rows_by_shard):
        rows["shard"] = number
    with replacing(f"{path}.index") as temporary, open(temporary, "wb") as file:
        np.save(file, np.concatenate(rows_by_shard))
