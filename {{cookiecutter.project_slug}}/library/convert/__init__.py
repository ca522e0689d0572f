"""Files to a dataset: list, plan, split, write, verify; worker processes; Beam."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.convert.conversion import convert, verify
    from library.convert.duplicates import HashedFile, exact_duplicates, near_duplicates
    from library.convert.duplicates import read_checksums, sha256_of, split_by_content
    from library.convert.duplicates import write_checksums
    from library.convert.listing import FileListing, LabeledFile, list_files
    from library.convert.options import ConvertOptions
    from library.convert.workers import run_jobs

__getattr__ = lazy(__name__, __file__)
