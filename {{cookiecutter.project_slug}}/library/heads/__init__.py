"""What is learned about each example: outputs, loss, metrics and predictions, by kind of label."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.heads.base import ClassesHead, Head, Metrics, running_count
    from library.heads.kinds import HEADS, ClassificationHead, MultiLabelHead, RegressionHead
    from library.heads.kinds import head_for
else:
    __getattr__ = lazy(__name__, __file__)
