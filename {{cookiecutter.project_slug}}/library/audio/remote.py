"""Audio clips in HDF5 archives at a URL: where their samples are, and the samples."""

import io
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from library.data import RemoteFiles

PAGE, MOST_PAGES = 2**20, 64
"""Bytes that are asked for together where an archive is searched for a clip; pages in memory."""
Pages = dict[tuple[str, int], bytes]
"""By the URL of the archive, and the number there."""


class RemoteArchive(io.RawIOBase):
    """An archive as a file for h5py, of which the pages are read that are in memory.

    h5py has one lock for all threads while it reads: none may wait there, for a server or for what
    another thread has. So a page that is not in memory is an error, and `fetch` gets it, without
    that lock; then the question is asked again. It keeps what it asked for until it has an answer.
    """

    def __init__(self, files: RemoteFiles, number: int, pages: Pages):
        self.files, self.number, self.pages = files, number, pages
        self.url, self.size = files.urls[number], files.shards[number].bytes
        self.at, self.missing, self.fetched = 0, list[int](), dict[int, bytes]()

    def __repr__(self) -> str:
        return self.url

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        begin, end = self.at, min(self.at + len(buffer), self.size)
        numbers = range(begin // PAGE, -(-end // PAGE))
        pages = [self.fetched.get(n) or self.pages.get((self.url, n), b"") for n in numbers]
        if absent := [n for n, page in zip(numbers, pages, strict=True) if not page]:
            self.missing += absent
            raise OSError("not in memory")
        found = b"".join(pages)[begin % PAGE : begin % PAGE + end - begin]  # not a copy of a page
        buffer[: len(found)] = found
        self.at += len(found)
        return len(found)

    def fetch(self) -> None:
        """Read the pages that were missing, in place of the oldest ones."""
        spans = [(self.number, n * PAGE, min(PAGE, self.size - n * PAGE)) for n in self.missing]
        self.fetched.update(zip(self.missing, read_whole(self.files, spans), strict=True))
        self.pages.update({(self.url, n): self.fetched[n] for n in self.missing})
        self.missing.clear()
        for key in [*self.pages][:-MOST_PAGES]:
            self.pages.pop(key, None)


class RemoteClip:
    """What is needed of a waveform; its samples are read past HDF5, by many threads at once."""

    def __init__(self, source: RemoteArchive, waveform: h5py.Dataset):
        self.files, self.number = source.files, source.number
        self.length, self.chunk = len(waveform), waveform.chunks[0]
        self.file = waveform.parent.attrs["file"]
        begins = np.zeros(-(-self.length // self.chunk), np.int64)

        def note(chunk: Any) -> None:
            if chunk.filter_mask or chunk.size != 2 * self.chunk:
                raise ValueError("is compressed")
            begins[chunk.chunk_offset[0] // self.chunk] = chunk.byte_offset

        waveform.id.chunk_iter(note)
        self.begins = begins

    def __getitem__(self, part: slice) -> np.ndarray:
        """int16 [samples]."""
        begin, end, _ = part.indices(self.length)
        spans = []
        for number in range(begin // self.chunk, -(-end // self.chunk)) if begin < end else ():
            first = number * self.chunk
            low, high = max(begin - first, 0), min(end - first, self.chunk)
            spans.append((self.number, int(self.begins[number]) + 2 * low, 2 * (high - low)))
        return np.frombuffer(b"".join(read_whole(self.files, spans)), "<i2")


def read_whole(files: RemoteFiles, spans: Sequence[tuple[int, int, int]]) -> list[bytes]:
    """The bytes of each span, also where a file in the cache is cut off."""
    found = files.read(spans)
    if any(len(data) != size for data, (*_, size) in zip(found, spans, strict=True)):
        found = files.read(spans, again=True)
    return found
