"""The command compare: which of several runs is better, and what differs between them."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.compare.compare import compare_runs
else:
    __getattr__ = lazy(__name__, __file__)
