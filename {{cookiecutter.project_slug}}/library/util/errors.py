"""Errors for the user, and how a program reports them."""

import difflib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

PATH_ERRORS = (PermissionError, FileExistsError, NotADirectoryError, IsADirectoryError)
PATH_ERRNOS = (errno.EROFS, errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT)
"""Errors of the operating system that the user can mend."""


class UserError(Exception):
    """Mistakes that the user can mend: one line each, without a traceback."""

    def __init__(self, *lines: str):
        self.lines = tuple(" ".join(line.splitlines()) for line in lines)
        super().__init__("\n".join(self.lines))


def refuse(mistakes: Mapping[str, Any]) -> None:
    """Raise a UserError with the lines, if any, whose values are true."""
    if lines := [line for line, is_there in mistakes.items() if is_there]:
        raise UserError(*lines)


class RunError(Exception):
    """A run cannot go on, and the command is not to blame: one line, without a traceback."""


class BadFileError(Exception):
    """An input file that cannot be used; the text says why."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error line: the known name nearest to `word`, or nothing."""
    known = list(known)
    near = (
        difflib.get_close_matches(word, known, n=1, cutoff=0.85)
        or [name for name in known if word and name.startswith(word)]
        or difflib.get_close_matches(word, known, n=1)
    )
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def run_main(main: Callable[[], None]) -> None:
    """Run a program's `main` and exit: 0 done, 2 the user's mistake, 130 interrupted, else 1.

    Of a UserError, or any exception with a tuple `lines`, these are printed; of what is neither
    the user's mistake nor a RunError, the traceback.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as ctrl-C
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a console may lack letters of a name
            stream.reconfigure(errors="backslashreplace")
    try:
        main()
    except RunError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt as interrupt:
        print(f"interrupted{f': {interrupt}' if interrupt.args else ''}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        sys.exit(1)
    except Exception as error:
        lines = getattr(error, "lines", None)
        is_path_error = isinstance(error, PATH_ERRORS)
        if isinstance(error, OSError) and (is_path_error or error.errno in PATH_ERRNOS):
            lines = (f"{error.filename}: " * bool(error.filename) + f"{error.strerror}",)
        if not isinstance(lines, tuple):
            raise
        for line in lines:
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
