"""Errors, atomic files, logging, progress."""

from typing import TYPE_CHECKING

from library.util.lazy import lazy

if TYPE_CHECKING:
    from library.util.errors import BadFileError, RunError, UserError, did_you_mean, run
    from library.util.files import check_folder, remove_leftovers, replacing
    from library.util.log import chatter_held, move_log
    from library.util.progress import Progress, StatusLine

__getattr__ = lazy(__name__, __file__)
