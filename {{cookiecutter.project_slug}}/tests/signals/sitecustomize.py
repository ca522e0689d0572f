"""Python imports this at its start where it is on the path: the program sends itself signals.

It does so at a known moment, however fast or busy the machine is (see `run_signaled`):

SIGNALS: their numbers; they go to the process that was started, each once.
AT_LINE: the moment is when it prints a line that begins like this.
AT_FILES: the moment is when it renames a file, and finds so many of a pattern: "folder/*.json 3".
"""

import glob
import os
import sys
from typing import Any

STARTED = int(os.environ.setdefault("STARTED_PROCESS", str(os.getpid())))
LINE = os.environ.get("AT_LINE")
PATTERN, _, COUNT = os.environ.get("AT_FILES", "").rpartition(" ")

replace, write = os.replace, sys.stdout.write


def send() -> None:
    for number in os.environ.pop("SIGNALS", "").split():
        os.kill(STARTED, int(number))


def watched_write(text: str) -> int:
    written = write(text)
    if LINE and text.startswith(LINE):
        send()
    return written


def watched_replace(*paths: Any, **options: Any) -> None:
    replace(*paths, **options)
    if PATTERN and len(glob.glob(PATTERN)) >= int(COUNT):
        send()


setattr(sys.stdout, "write", watched_write)  # noqa: B010
os.replace = watched_replace
