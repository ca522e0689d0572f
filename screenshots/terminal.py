"""Programs on a terminal of 80 columns: recorded as they run, and drawn as they stood."""

import fcntl
import html
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

COLUMNS, ROWS = 80, 24
MANY_BYTES = 65536

Chunks = list[tuple[float, str]]
"""What was written, each part with the seconds since the begin."""

PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; }}
pre {{ width: {columns}ch; margin: 0; padding: 16px 20px; color: #d7dbe0; background: #1d2229;
  font: 14px/1.38 "DejaVu Sans Mono", "Liberation Mono", monospace; }}
b {{ color: #fff; }}
i {{ font-style: normal; background: #d7dbe0; }}
</style><pre>{text}</pre>"""


def record(words: str, folder: Path) -> Chunks:
    """Run `python WORDS` in a folder, on a pseudo-terminal, and return what it writes.

    Raises:
        SystemExit: it failed; what it wrote goes before.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *shlex.split(words)],
        cwd=folder,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    begin, chunks = time.monotonic(), []
    while content := _read(ours):
        chunks.append((time.monotonic() - begin, content.decode(errors="replace")))
    os.close(ours)
    if process.wait():
        sys.exit("\n".join([*screen(chunks), f"python {words}: status {process.returncode}"]))
    return chunks


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, MANY_BYTES)
    except OSError:  # Linux, where nobody has the other end any more
        return b""


def screen(chunks: Chunks, *, share: float = 1) -> list[str]:
    """The lines that were written in this share of the time; what was written over is gone."""
    end = share * chunks[-1][0]
    text = "".join(part for seconds, part in chunks if seconds <= end)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text).replace("\r\n", "\n")
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def page(lines: list[str]) -> str:
    """A terminal with the last ROWS of these lines, those that begin with `$ ` typed by hand.

    Returns:
        HTML; the window is its only `pre`.
    """
    rows = [html.escape(line) for line in lines[-ROWS:]]
    text = "\n".join(f"<b>{row}</b>" if row.startswith("$ ") else row for row in rows)
    return PAGE.format(columns=COLUMNS, text=f"{text}<i> </i>")
