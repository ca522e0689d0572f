"""How far a long work is: a bar on a terminal, a plain line now and then elsewhere."""

import shutil
import sys
import time
from types import TracebackType

from tqdm import tqdm

SECONDS_PER_LINE = 10

SECONDS_PER_UPDATE = 0.2
"""Of a line on a terminal that is written over."""


class Progress:
    """Counts items and their bytes; shows items/s, MB/s and, of a known total, the time left.

    with Progress(1000, "files") as progress:
        progress.update(1, 90_000)
    """

    def __init__(self, total: int | None, unit: str):
        self.total, self.unit = total, unit
        self.done = self.bytes = 0
        self.begin = self.last_line = time.monotonic()
        on_terminal = sys.stderr.isatty()
        self.bar = tqdm(total=total, unit=f" {unit}", disable=not on_terminal, mininterval=0.2)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type | None, error: object, trace: TracebackType | None) -> None:
        self.bar.close()

    def update(self, count: int, size: int) -> None:
        self.done += count
        self.bytes += size
        self.bar.update(count)
        now = time.monotonic()
        if now - self.last_line < SECONDS_PER_LINE * (1 if self.bar.disable else 0.02):
            return
        self.last_line = now
        rate = self.done / (now - self.begin)
        mb_per_sec = f"{self.bytes / 1e6 / (now - self.begin):,.1f} MB/s"
        if not self.bar.disable:
            self.bar.set_postfix_str(mb_per_sec)
            return
        speed = f"{self.unit}, {rate:,.0f} a second, {mb_per_sec}"
        if self.total is None:
            print(f"{self.done:,} {speed}", flush=True)
            return
        left = round((self.total - self.done) / max(rate, 1e-9))
        print(
            f"{self.done:,} of {self.total:,} {speed}, {left // 60}:{left % 60:02} left", flush=True
        )


class StatusLine:
    """One line that is written over on a terminal; elsewhere, in a log, a line each time.

    with StatusLine() as line:
        line.update("step 100 of 800")
        line.print("a line that stays")
    """

    def __init__(self, *, live: bool = True):
        """
        Args:
            live: whether a terminal has the live line; else lines, as a log has them.
        """
        self.live = live and sys.stdout.isatty()
        self.shown = False  # whether there is a line to write over
        self.last = time.monotonic()

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, kind: type | None, error: object, trace: TracebackType | None) -> None:
        if self.shown:
            print(flush=True)
            self.shown = False

    @property
    def width(self) -> int:
        """Letters of a live line."""
        return shutil.get_terminal_size().columns - 1

    @property
    def due(self) -> bool:
        """Whether it is time to write over a live line."""
        return self.live and time.monotonic() - self.last >= SECONDS_PER_UPDATE

    def update(self, text: str) -> None:
        """Show a text on the live line, or else print it."""
        if not self.live:
            print(text, flush=True)
            return
        print("\r" + text[: self.width].ljust(self.width), end="", flush=True)
        self.last, self.shown = time.monotonic(), True

    def print(self, text: str) -> None:
        """Print a line that stays; a live line goes on below it."""
        if self.shown:
            print("\r" + " " * self.width + "\r", end="")
            self.shown = False
        print(text, flush=True)
