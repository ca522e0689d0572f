"""A folder that one process at a time writes to, on one machine or several."""

import contextlib
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from library.util.errors import UserError
from library.util.files import check_folder, make_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HEARTBEAT_SECS = 10.0
"""Seconds between the signs of life of a process that holds a lock."""
MISSING_HEARTBEATS = 3
"""After so many without a sign of life, a process counts as ended."""


@contextlib.contextmanager
def locked(
    option: str, folder: str | Path, file: str = ".lock", *, remedy: str = ""
) -> Iterator[None]:
    """Make a folder, and keep other processes out of such a block for it: they get a UserError.

    The lock ends with the process, however that ends. Where the system has no locks, or another
    machine had this one, its process counts as ended after half a minute without a sign of life.
    A new folder that is still empty is removed at the end. The error names the `option`, and ends
    with the `remedy`: what to do instead.
    """
    check_folder(option, folder)
    made, path, ended = make_folder(folder), Path(folder) / file, threading.Event()
    owner = f"process {os.getpid()} on {platform.node()}, since {time.strftime('%Y-%m-%d %H:%M')}"
    try:
        try:
            handle = _acquire(path, owner)
        except BlockingIOError as error:
            holder = ""
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                holder = _owner(path)
            message = f"{option}: {folder} is in use by {holder or 'another process'}"
            raise UserError(message + f": {remedy}" * bool(remedy)) from error
        heart = threading.Thread(target=_beat, args=(handle, owner, ended), daemon=True)
        heart.start()
        try:
            yield
        finally:
            ended.set()
            heart.join()
            with contextlib.suppress(OSError):  # Windows deletes no open file
                os.ftruncate(handle, 0)
                path.unlink()
            os.close(handle)
    finally:
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()


def _acquire(path: Path, owner: str) -> int:
    """Open a lock's file, the owner in it; BlockingIOError: it is that of another process."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        granted, last = _lock(handle), _owner(path)
        here = f" on {platform.node()}, " in last
        if last and not (granted and here) and _beats(path, last):
            raise BlockingIOError
        if not os.path.samestat(os.fstat(handle), os.stat(path)):
            raise FileNotFoundError
        _write(handle, owner, 0)
        if not granted:
            time.sleep(HEARTBEAT_SECS / 10)  # another one may start at the same moment
            if _owner(path) != owner:
                raise BlockingIOError
        return handle
    except FileNotFoundError:  # its owner has just ended
        os.close(handle)
        return _acquire(path, owner)
    except BaseException:
        os.close(handle)
        raise


def _lock(handle: int) -> bool:
    """Lock an open file; False where the system cannot. BlockingIOError: another process has it."""
    try:
        if fcntl:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fcntl is not None
    except BlockingIOError:
        raise
    except OSError:
        return False


def _owner(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]


def _beats(path: Path, owner: str) -> bool:
    """Wait for a sign of life of the process that a lock names."""
    wait, before = HEARTBEAT_SECS * MISSING_HEARTBEATS, path.read_bytes()
    print(f"waiting {wait:.0f} s: {path.parent} was in use by {owner}", file=sys.stderr)
    end = time.monotonic() + wait
    while time.monotonic() < end:
        time.sleep(HEARTBEAT_SECS / 10)
        if path.read_bytes() != before:
            return True
    return False


def _beat(handle: int, owner: str, ended: threading.Event) -> None:
    """Write signs of life until the lock is given back."""
    beat = 0
    while not ended.wait(HEARTBEAT_SECS):
        beat += 1
        _write(handle, owner, beat)


def _write(handle: int, owner: str, beat: int) -> None:
    with contextlib.suppress(OSError):  # the disk may be full, or away for a while
        os.lseek(handle, 0, os.SEEK_SET)
        size = os.write(handle, f"{owner}\n{beat}\n".encode())
        os.ftruncate(handle, size)
        os.fsync(handle)  # other machines do not see it before
