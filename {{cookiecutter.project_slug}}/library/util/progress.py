"""Progress of long work: one live line on a terminal, a line now and then in a log."""

import contextlib
import re
import shutil
import sys
import time

SECONDS_PER_UPDATE, SECONDS_PER_LINE = 0.2, 10.0
"""Seconds between updates of a live line, and between lines in a log."""


def counted(number: int, noun: str) -> str:
    """A number and what it counts: "1 image", "2 classes"."""
    return f"{number} {re.sub('(?<=ss)es$|s$', '', noun) if number == 1 else noun}"


class StatusLine(contextlib.AbstractContextManager["StatusLine"]):
    """A line that is overwritten on a terminal; elsewhere, or if not `live`, a line each time.

    with StatusLine() as line:
        line.update("step 100 of 800")
        line.print("a line that stays")
    """

    def __init__(self, *, live: bool = True):
        self.live = live and sys.stdout.isatty()
        self.shown = False  # whether there is a line to overwrite
        self.last = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if self.shown:
            print(flush=True)
        self.shown = False

    @property
    def width(self) -> int:
        """Columns of a live line, which leaves room for the ^C that a terminal shows."""
        return shutil.get_terminal_size().columns - 3

    @property
    def due(self) -> bool:
        """Whether it is time to overwrite a live line."""
        return self.live and time.monotonic() - self.last >= SECONDS_PER_UPDATE

    def update(self, text: str) -> None:
        """Show a text on the live line, or else print it."""
        text = "\r" + text[: self.width].ljust(self.width) if self.live else text
        print(text, end="" if self.live else "\n", flush=True)
        self.last, self.shown = time.monotonic(), self.live

    def print(self, text: str) -> None:
        """Print a line that stays; a live line goes on below it."""
        erased = f"\r{' ' * self.width}\r" if self.shown else ""
        print(erased + text, flush=True)
        self.shown = False


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Counts items and their bytes; shows items/s, MB/s and, for a known total, the time left.

    with Progress(1000, "files") as progress:
        progress.update(1, 90_000)
    """

    def __init__(self, total: int | None, unit: str):
        self.total, self.unit, self.line = total, unit, StatusLine()
        self.done = self.bytes = 0
        self.begin = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if self.line.shown:
            self.line.update(self._text())
        self.line.__exit__(*error)

    def update(self, count: int, size: int) -> None:
        """Count finished items, and their bytes."""
        self.done += count
        self.bytes += size
        if self.line.due or time.monotonic() - self.line.last >= SECONDS_PER_LINE:
            self.line.update(self._text())

    def _text(self) -> str:
        secs = max(time.monotonic() - self.begin, 1e-9)
        speed = f"{self.unit}, {self.done / secs:,.0f}/s, {self.bytes / 1e6 / secs:,.1f} MB/s"
        if self.total is None:
            return f"{self.done:,} {speed}"
        left = round((self.total - self.done) * secs / max(self.done, 1))
        return f"{self.done:,} of {self.total:,} {speed}, {left // 60}:{left % 60:02} left"
