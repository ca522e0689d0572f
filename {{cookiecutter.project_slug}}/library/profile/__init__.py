"""Stage timing and the verdict on the bottleneck."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.profile.profiling import Meter, Speed, Stored

__getattr__ = lazy(__name__, __file__)
