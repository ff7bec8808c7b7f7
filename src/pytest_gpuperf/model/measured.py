"""What one test gave, as it travels to the process that judges; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.border import finite
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import Verdict

__all__ = ["Measured"]


class Measured(Frozen, frozen=True, kw_only=True):
    """
    All that a test measured, and the verdicts of its limits.

    Attributes:
        test_id: The node id, without what xdist appends.

        records: One for each measurement; without samples where they travel by spool.

        verdicts: One for each limit of its markers; empty where its body failed.

        refusals: Values it asked for in vain.

        max_regression: Largest change by metric [fraction]; empty: what the run says.

        body_failed: Whether it failed for another reason than its limits.

        group: A heading in reports.
    """

    test_id: str
    records: tuple[Record, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    refusals: tuple[Unmeasured, ...] = ()
    max_regression: Mapping[str, float | None] = {}
    body_failed: bool = False
    group: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("measured.max_regression", *self.max_regression.values())
