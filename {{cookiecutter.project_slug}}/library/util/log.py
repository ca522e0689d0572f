"""What TensorFlow says of itself: in a log, and not on the terminal."""

import contextlib
import faulthandler
import logging
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

FILE = "log.txt"
"""In a model_dir."""

_held: list[IO[bytes]] = []


@contextlib.contextmanager
def redirect_native_logs() -> Iterator[None]:
    """Keep from the terminal what C++ writes to standard error, and what Python's logging does.

        with redirect_native_logs():
            import tensorflow
            ...
            attach_log("out/current")

    It waits in a file without a name until `attach_log` is called. Python's own standard error,
    tracebacks and the stack of a crash among it, is on the terminal as before.
    """
    before, terminal = sys.stderr, os.dup(2)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"  # all of it: see library/__init__.py
    with (
        tempfile.TemporaryFile() as file,
        os.fdopen(terminal, "w", buffering=1, errors="backslashreplace") as stderr,
    ):
        before.flush()
        os.dup2(file.fileno(), 2)
        _held.append(file)
        sys.stderr = stderr
        logging.basicConfig(stream=before)  # before TensorFlow makes a handler of its own
        logging.captureWarnings(True)
        logging.getLogger("tensorflow").setLevel(logging.INFO)
        faulthandler.enable(stderr)
        try:
            yield
        finally:
            _held.clear()
            faulthandler.disable()
            logging.captureWarnings(False)
            sys.stderr = before
            before.flush()
            os.dup2(terminal, 2)


def attach_log(folder: str | Path) -> None:
    """Append what is held, and all that comes, to FILE in `folder`, where there is that folder."""
    if not _held or not Path(folder).is_dir():
        return
    file = _held.pop()
    file.seek(0)
    with open(Path(folder) / FILE, "ab") as log:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        log.write(f"\n==== {when}  {shlex.join(sys.argv)}\n".encode(errors="replace"))
        log.write(file.read())
        log.flush()
        os.dup2(log.fileno(), 2)
