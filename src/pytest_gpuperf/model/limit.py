"""What a test or the ini file allows."""

from __future__ import annotations

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.mistakes import finite

__all__ = ["Limit", "Operator"]

Operator = str  # one of "<=", "<", ">=", ">", "=="; the grammar lets no other through


class Limit(Frozen, frozen=True, kw_only=True):
    """
    One bound on one metric, read from its text.

    Attributes:
        text: The limit as it was written.

        metric: The metric's name.

        operator: One of <=, <, >=, >, ==.

        threshold: The number on the right, in `unit`.

        unit: The SI unit of `threshold`; None where a bare number was written.

        kernel: A pattern of kernel names that it is for; None: the whole record.
    """

    text: str
    metric: str
    operator: Operator
    threshold: float
    unit: str | None
    kernel: str | None = None

    def __post_init__(self) -> None:
        """Refuse a threshold that is not finite."""
        finite("limit.threshold", self.threshold)
