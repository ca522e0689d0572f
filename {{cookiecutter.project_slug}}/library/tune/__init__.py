"""Settings in a budget: a search by successive halving."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.tune.search import tune
else:
    __getattr__ = lazy(__name__, __file__)
