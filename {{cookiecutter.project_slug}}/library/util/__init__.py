"""Errors, atomic files, logging, progress."""

from typing import TYPE_CHECKING

from library.util.lazy import lazy

if TYPE_CHECKING:
    from library.util.errors import BadFileError, RunError, UserError, did_you_mean, run_main
    from library.util.files import (
        LINK_OUT,
        check_folder,
        files_below,
        is_inside,
        is_junk,
        remove_leftovers,
        replacing,
        write_json,
        write_text,
    )
    from library.util.log import attach_log, redirect_native_logs
    from library.util.progress import Progress, StatusLine

__getattr__ = lazy(__name__, __file__)
