"""Files of object stores, written whole, read whole or in blocks, which a cache on this disk keeps.

A URL is one of any file system of fsspec, as s3://bucket/train or https://host/train. Credentials
come from the environment, in the way of each file system.
"""

import contextlib
import itertools
import logging
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from library.config import Settings
from library.util import RunError, UserError, check_folder

if TYPE_CHECKING:
    from library.data.card import Shard

try:
    import fcntl
except ImportError:  # Windows, where two processes may exceed the limit of a cache by a block
    fcntl = None  # type: ignore[assignment]

os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # or each request asks twice
for client in ("azure", "gcsfs"):
    logging.getLogger(client).setLevel(logging.CRITICAL)  # what they log is reported here

T = TypeVar("T")
Span = tuple[int, int, int]
"""Number of a file, first byte, number of bytes."""
Block = tuple[int, int]
"""Number of a file, number of the block in it."""
Part = tuple[int, int]
"""Of a block: from a byte up to another one."""

BLOCK = 2**20
"""Bytes of a request, and of a file in the cache."""
FETCHES = 32
"""Requests at the same time: at 20 ms each, 1.6 GB/s."""
STALL_SECS, UPLOAD_SECS_PER_MB = 60.0, 10.0
"""After which a request without an answer has failed; more, as many may write on a slow line."""
TRIES, FIRST_PAUSE_SECS = 6, 0.5
"""Of a request, and the first of the pauses between, each twice as long as the one before."""
BLOCK_NAME = re.compile("[0-9a-f]{32}-[0-9]+")
"""Of a file in the folder of a cache."""
NO_ACCESS = re.compile("Credential|Auth|Sign|Forbid|Access|NotImpl|Param|.*resource name")
"""In the name of an error, or at the beginning of its text."""


def read_file(url: str) -> bytes:
    """All of a file. Errors, here and below: UserError, or RunError where asking again is vain."""
    size = size_of(url)
    return read_range(url, 0, size) if size else b""


def size_of(url: str) -> int:
    size: int | None = _ask(url, lambda files, path, **limit: files.info(path, **limit)["size"])
    if size is None:
        raise UserError(f"{url}: the server does not tell the size of the file")
    return size


def read_range(url: str, begin: int, end: int) -> bytes:
    """The bytes of a file from `begin` up to `end`."""

    def read(files: Any, path: str, **limit: float) -> bytes:
        data: bytes = files.cat_file(path, start=begin, end=end, **limit)
        if len(data) > end - begin:
            raise ValueError("the server sends whole files: it has to answer range requests")
        if len(data) != end - begin:
            raise OSError(f"{len(data)} bytes instead of {end - begin}")
        return data

    return _ask(url, read)


def copy_file(url: str, path: Path) -> None:
    """Copy a file to this machine."""
    size = size_of(url)
    begins = range(0, size, BLOCK)
    with ThreadPoolExecutor(FETCHES) as threads, open(path, "wb") as file:
        ends = (min(begin + BLOCK, size) for begin in begins)
        file.writelines(threads.map(read_range, itertools.repeat(url), begins, ends))


def write_file(url: str, path: Path) -> None:
    """Copy a file of this machine there, whole or not at all where the file system can do so."""
    size = path.stat().st_size

    def write(files: Any, target: str, **limit: float) -> None:
        longer = {name: secs + size / 1e6 * UPLOAD_SECS_PER_MB for name, secs in limit.items()}
        try:
            files.put_file(str(path), target, **longer)
        except FileNotFoundError as error:
            raise ValueError(f"no such bucket or folder: {_reason(error)}") from error
        except FileExistsError:  # as adlfs says: of a conversion that was killed
            files.rm_file(target)
            raise
        if (found := files.info(target, **limit)["size"]) != size:
            raise OSError(f"{found} bytes instead of {size}")

    _ask(url, write)


def names_in(url: str) -> set[str]:
    """What is in a folder, which may be missing."""

    def names(files: Any, path: str, **limit: float) -> set[str]:
        files.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            found = files.ls(path, detail=False, **limit)
            return {name.rstrip("/").rpartition("/")[2] for name in found}
        return set()

    return _ask(url, names)


def _ask(url: str, question: Callable[..., T]) -> T:
    """The answer of a file system to a question about a file, asked again where it fails."""
    for failures in itertools.count(1):
        try:
            files, path = _open(url)
            return question(files, path, **{"timeout": STALL_SECS} if files.async_impl else {})
        except Exception as error:
            cause = (url.startswith("http") and error.__cause__) or error  # all are "not found"
            if mistake := _mistake(cause):
                raise UserError(f"{url}: {mistake}") from error
            reason = _reason(cause)
            if failures == TRIES:
                raise RunError(f"{url}: {reason}, {TRIES} times in a row") from error
        if failures > 2:  # now and then, a request fails
            print(f"{url}: {reason}: trying again", file=sys.stderr)
        time.sleep(FIRST_PAUSE_SECS * 2 ** (failures - 1) * random.SystemRandom().uniform(0.5, 1))
    raise AssertionError


def _open(url: str) -> tuple[Any, str]:
    """The file system of a URL, which tries once, as `_ask` tries again; and the path in it."""
    import fsspec

    of_s3 = {"max_pool_connections": FETCHES, "retries": {"total_max_attempts": 1}}
    more = {"config_kwargs": of_s3} if url.startswith("s3:") else {}
    files, path = fsspec.core.url_to_fs(url, **more)
    if "gcsfs.retry" in sys.modules:
        sys.modules["gcsfs.retry"].is_retriable = lambda error: False  # type: ignore[attr-defined]
    with contextlib.suppress(AttributeError):  # adlfs
        files.service_client._config.retry_policy.total_retries = 0
    return files, path


def _mistake(error: BaseException) -> str:
    """What is said of an error where asking again is vain; file systems have none in common."""
    names = ("status", "status_code", "code")
    status = next((getattr(error, name) for name in names if hasattr(error, name)), None)
    if isinstance(error, FileNotFoundError) or status == 404:
        return "there is no such file"
    if isinstance(error, ImportError | ValueError):  # also: no such file system, no account
        return _reason(error) + ": pip install -e .[remote]" * isinstance(error, ImportError)
    named = NO_ACCESS.search(type(error).__name__) or NO_ACCESS.match(str(error))
    refused = named or isinstance(error, PermissionError) or status in (401, 403)
    return f"no access: {_reason(error)}" if refused else ""


def _reason(error: BaseException) -> str:
    """What an error says in two lines, in one, without what may be secret in a URL."""
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return "no answer in time"
    text = re.sub(r"\?\S*|(?<=//)[^/\s]*@", "", str(error)) or type(error).__name__
    return " ".join(text.strip().split("\n")[:2])[:200]


# ---- blocks ------------------------------------------------------------------------------------


class BlockCache:
    """Blocks of remote files in a folder within a limit, which the processes of a machine share.

    A block has its name when it is whole; the checksum of a record finds a damaged one. With random
    reads, no choice of what to drop is better than a random one.
    """

    def __init__(self, folder: str | Path, gigabytes: float):
        self.folder, self.room = Path(folder) / "blocks", int(gigabytes * 1e9 / BLOCK)

    @classmethod
    def of(cls, settings: Settings) -> "BlockCache":
        return cls(settings.cache_dir, settings.cache_gb)

    def read(self, name: str, parts: Iterable[Part]) -> list[bytes]:
        """Some parts of a block; none: it is not here."""
        found = []
        with contextlib.suppress(OSError), open(f"{self.folder}/{name}", "rb", 0) as file:
            for begin, end in parts:
                file.seek(begin)
                found.append(file.read(end - begin))
        return found

    def write(self, name: str = "", block: bytes = b"") -> None:
        """Keep a block, if any, within the limit; where the disk is full, none from now on."""
        if self.room < 1:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / ".count", "a+b") as file:
                if fcntl:
                    fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
                file.seek(0)
                text = file.read()
                count = bool(name) + (int(text) if text.isdigit() else self.room + 1)
                if count > self.room:
                    count = bool(name) + self._make_room()
                file.truncate(0)
                file.write(b"%d" % count)
                file.flush()  # first, so that there are never more than it says
                if name:
                    new = self.folder / ".new"
                    new.write_bytes(block)
                    os.replace(new, self.folder / name)
        except OSError as error:
            self.room = 0
            print(f"cache_dir: {self.folder}: {error.strerror}: no more blocks are kept")

    def _make_room(self) -> int:
        """Drop some blocks at random, at least one, if there is no room; how many are left."""
        names = [each.name for each in os.scandir(self.folder) if BLOCK_NAME.fullmatch(each.name)]
        random.SystemRandom().shuffle(names)
        kept = self.room - 1 - self.room // 64  # for a while: counting takes time
        for name in names[kept:]:
            (self.folder / name).unlink(missing_ok=True)
        return min(len(names), kept)


NO_CACHE = BlockCache(tempfile.gettempdir(), 0)


class RemoteFiles:
    """Bytes of remote files, many blocks fetched at the same time; for several threads."""

    def __init__(self, urls: Sequence[str], shards: Sequence["Shard"], cache: BlockCache):
        """The checksum of a file is its name in the cache: wherever it comes from."""
        check_folder("cache_dir", cache.folder)
        cache.write()  # its limit may be smaller than it was
        self.urls, self.shards, self.cache = urls, shards, cache
        self.threads = ThreadPoolExecutor(FETCHES)
        self.failure: UserError | RunError | None = None
        self.locks = [threading.Lock() for _ in range(8 * FETCHES)]  # each for some of the blocks

    def read(self, spans: Iterable[Span], *, again: bool = False) -> list[bytes]:
        """The bytes of each span; `again`: not from the cache, where they are damaged."""
        spans = list(spans)
        wanted: dict[Block, list[Part]] = defaultdict(list)
        for file, begin, size in spans:
            for number in _blocks_of(begin, size):
                at = begin - number * BLOCK
                wanted[file, number].append((max(at, 0), min(at + size, BLOCK)))
        found = {} if again else {b: self.cache.read(self._name(b), p) for b, p in wanted.items()}
        missing = [block for block in wanted if not found.get(block)]
        fetched = self.threads.map(lambda block: self._fetch(block, wanted[block], again), missing)
        found.update(zip(missing, fetched, strict=True))
        parts = {block: iter(parts) for block, parts in found.items()}  # in the order of the spans
        return [
            b"".join(next(parts[file, number]) for number in _blocks_of(begin, size))
            for file, begin, size in spans
        ]

    def _fetch(self, block: Block, parts: Sequence[Part], again: bool) -> list[bytes]:
        """Parts of a block that the cache does not have, unless another thread was faster."""
        (file, number), name = block, self._name(block)
        with self.locks[hash(block) % len(self.locks)]:
            if not again and (found := self.cache.read(name, parts)):
                return found
            begin = number * BLOCK
            end = min(begin + BLOCK, self.shards[file].bytes)
            try:
                if self.failure:  # the last one of another thread: this one does not try, too
                    raise self.failure
                data = read_range(self.urls[file], begin, end)
            except (UserError, RunError) as error:
                self.failure = error
                raise
            self.cache.write(name, data)
        return [data[begin:end] for begin, end in parts]

    def _name(self, block: Block) -> str:
        return f"{self.shards[block[0]].sha256[:32]}-{block[1]}"


def _blocks_of(begin: int, size: int) -> range:
    """The numbers of the blocks that some bytes of a file are in."""
    return range(begin // BLOCK, (begin + size - 1) // BLOCK + 1)
