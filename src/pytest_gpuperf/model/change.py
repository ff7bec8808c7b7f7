"""The effect of a run against its baseline, and what it was computed from; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from pytest_gpuperf.model.border import finite
from pytest_gpuperf.model.frozen import BulkRecord, Frozen

__all__ = ["Change", "SessionValue"]


class SessionValue(BulkRecord, frozen=True, kw_only=True):
    """
    One metric of one test in one session.

    Attributes:
        session_id: The session.

        run_values: The value of each of its processes [the metric's unit], >= 1 of them.

        half_widths: Half-width of each process's order-statistic interval, relative to
            its value; empty where there was none.
    """

    session_id: str
    run_values: tuple[float, ...]
    half_widths: tuple[float, ...] = ()


class Change(Frozen, frozen=True, kw_only=True):
    """
    The effect of the current session against the stored ones.

    Positive is more: slower for a time, more for a count. All effects are relative: 0.05
    is 5 % more than the baseline.

    Attributes:
        effect: Relative difference; None where the baseline is 0 and nothing is relative.

        low: Lower end of its two-sided 99 % interval; None where there is none.

        high: Its upper end.

        p_worse: One-sided probability of such an effect without a worsening beyond the
            noise threshold; None for exact metrics.

        p_better: The same for an improvement.

        detectable_effect: Smallest effect found in 9 of 10 tries; None: not known.

        current: The current value [the metric's unit].

        reference: The baseline's value [the metric's unit].

        session_count: Stored sessions behind the reference.

        run_count: Processes behind the current value.

        exact: Whether it was judged by equality.

        machine_shift: What the controls moved, relative; it is not in `effect` any
            more. None: there were no controls.
    """

    effect: float | None
    current: float
    reference: float
    session_count: int
    run_count: int
    low: float | None = None
    high: float | None = None
    p_worse: float | None = None
    p_better: float | None = None
    detectable_effect: float | None = None
    exact: bool = False
    machine_shift: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("change", self.effect, self.low, self.high, self.current, self.reference)
        finite("change.p", self.p_worse, self.p_better, self.detectable_effect)
        finite("change.machine_shift", self.machine_shift)
