"""The user's mistakes, and what a command line answers to them."""

import difflib
import os
import signal
import sys
from collections.abc import Callable, Iterable


class UserError(Exception):
    """A mistake that the user can mend: one line each, without a traceback."""

    def __init__(self, *lines: str):
        self.lines = tuple(" ".join(line.splitlines()) for line in lines)
        super().__init__("\n".join(self.lines))


class RunError(Exception):
    """A run that cannot go on through no mistake in the command: one line, without a traceback."""


class BadFileError(Exception):
    """A file of a data set or a prediction that cannot be used; the text says why."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question to end an error line with, or nothing where no known word is near."""
    known = list(known)
    near = (
        difflib.get_close_matches(word, known, n=1, cutoff=0.85)
        or [name for name in known if word and name.startswith(word)]
        or difflib.get_close_matches(word, known, n=1)
    )
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def run(main: Callable[[], None]) -> None:
    """Run a program's `main` and exit: 0 done, 2 the user's mistake, 130 interrupted.

    A RunError exits with 1. So does anything else, which is our mistake, and keeps its traceback.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as ctrl-C
    try:
        main()
    except UserError as error:
        for line in error.lines:
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except RunError as error:
        sys.exit(f"error: {error}")
    except BrokenPipeError:  # whoever reads what we print has had enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        sys.exit(1)
    except (PermissionError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        print(f"interrupted{f': {interrupt}' if interrupt.args else ''}", file=sys.stderr)
        sys.exit(130)
