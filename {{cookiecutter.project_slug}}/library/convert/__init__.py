"""Files to a dataset: scan, plan, split, write, verify; worker processes; Beam."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.convert.beam import run_with_beam
    from library.convert.conversion import Task, write_report
    from library.convert.duplicates import (
        Used,
        exact_duplicates,
        near_duplicates,
        read_checksums,
        sha256_of,
        split_by_content,
        write_checksums,
    )
    from library.convert.scan import (
        Found,
        Layout,
        files_with_csv,
        files_without_labels,
        folder_per_class,
    )
    from library.convert.verification import verify
    from library.convert.workers import Tell, run_tasks

__getattr__ = lazy(__name__, __file__)
