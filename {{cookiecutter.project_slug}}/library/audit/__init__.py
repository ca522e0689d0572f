"""Suspicious labels of the training data."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.audit.audit import audit_labels
    from library.audit.confident import cross_validate, label_issues
else:
    __getattr__ = lazy(__name__, __file__)
