"""Stage timing and the verdict on the bottleneck."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.profile.measure import Meter, measure_storage
    from library.profile.profile import bottleneck, measure_stages, profile_training, verdict
else:
    __getattr__ = lazy(__name__, __file__)
