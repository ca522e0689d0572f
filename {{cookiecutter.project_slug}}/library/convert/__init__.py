"""Files to a dataset: list, plan, split, write, verify; worker processes; Beam."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.convert.conversion import convert, verify
    from library.convert.duplicates import equal_files, held_out, merge, near_duplicates
    from library.convert.duplicates import read_checksums, read_seen, write_checksums
    from library.convert.listing import FileListing, Files, LabeledFile, list_files
    from library.convert.options import ConvertOptions
    from library.convert.workers import run_jobs
else:
    __getattr__ = lazy(__name__, __file__)
