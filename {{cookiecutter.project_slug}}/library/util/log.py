"""TensorFlow's own messages: in a log file, not on the terminal."""

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
"""Name of the log, in a run's model_dir."""

_pending: list[IO[bytes]] = []


@contextlib.contextmanager
def redirect_native_logs() -> Iterator[None]:
    """Keep what C++ and Python's logging write to standard error off the terminal.

        with redirect_native_logs():
            import tensorflow
            attach_log("runs/default/checkpoints")

    It stays in an unnamed file until `attach_log` is called. Tracebacks, the stack of a crash and
    all that Python itself writes to standard error still go to the terminal.
    """
    before, terminal = sys.stderr, os.dup(2)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"  # all messages: see library/__init__.py
    with (
        tempfile.TemporaryFile() as file,
        os.fdopen(terminal, "w", buffering=1, errors="backslashreplace") as stderr,
    ):
        before.flush()
        os.dup2(file.fileno(), 2)
        _pending.append(file)
        sys.stderr = stderr
        logging.basicConfig(stream=before)  # before TensorFlow makes a handler of its own
        logging.captureWarnings(True)
        logging.getLogger("tensorflow").setLevel(logging.INFO)
        faulthandler.enable(stderr)
        try:
            yield
        finally:
            _pending.clear()
            faulthandler.disable()
            logging.captureWarnings(False)
            sys.stderr = before
            before.flush()
            os.dup2(terminal, 2)


def attach_log(folder: str | Path) -> None:
    """Append the messages so far, and all that follow, to FILE in `folder`, if that is possible."""
    if not _pending:
        return
    with contextlib.suppress(OSError), open(Path(folder) / FILE, "ab") as log:
        file = _pending.pop()
        file.seek(0)
        header = f"\n==== {time.strftime('%Y-%m-%d %H:%M:%S')}  {shlex.join(sys.argv)}\n"
        log.write(header.encode(errors="replace") + file.read())
        log.flush()
        os.dup2(log.fileno(), 2)
