"""The effect of a run against its baseline, and what it was computed from."""

from __future__ import annotations

from enum import Enum

from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite
from pytest_gpuperf.model.metric import Better
from pytest_gpuperf.model.record import SessionValue

__all__ = ["NOISE_THRESHOLD", "Change", "Clock", "Comparison", "Level"]

# docs/judging.md section 2: a change too small to mean anything
NOISE_THRESHOLD = 0.005


class Clock(str, Enum):
    """Whose times values are: sessions of hosts usually differ more than those of devices."""

    HOST = "host"
    DEVICE = "device"


class Change(BulkRecord, frozen=True, kw_only=True):
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

        detectable_effect: Smallest effect found in 9 of 10 tries, beyond the limit if
            there is one; None: not known.

        blind: Whether an effect a little beyond the limit would be taken for noise.

        current: The current value [the metric's unit].

        reference: The baseline's value [the metric's unit].

        session_count: Stored sessions behind the reference; against a revision, blocks.

        run_count: Processes behind the current value.

        exact: Whether it was judged by equality.

        machine_shift: What the machine moved it by, as its controls tell, relative; it is
            not in `effect` any more. None: too few controls tell.

        session_spread: What the sessions, or blocks, of its group usually differ by
            [fraction]; None: it was not asked.

        left_out: Id of the stored session whose value does not fit the others and is no
            part of the reference; "": all fit.
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
    blind: bool = False
    exact: bool = False
    machine_shift: float | None = None
    session_spread: float | None = None
    left_out: str = ""

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("change", self.effect, self.low, self.high, self.current, self.reference)
        finite("change.p", self.p_worse, self.p_better, self.detectable_effect)
        finite("change.machine_shift", self.machine_shift, self.session_spread)


class Comparison(BulkRecord, frozen=True, kw_only=True):
    """
    One metric of one test, now and in stored sessions.

    Attributes:
        current: This session.

        stored: The stored ones, oldest first, >= 1 of them.

        session_ids: The id of each stored session.

        group: Whose variances are alike: metric and family.

        better: Which way it gets better; NEITHER counts as LOWER.

        exact: Whether it is judged by equality where all stored sessions agree.

        shift_group: What a change of the machine moves together; "" for nothing.

        clock: Whose times they are.

        limit: Largest change that passes [fraction]; None: it is only shown.

        fresh: Whether the current values are of fresh processes, whose median decides.
    """

    current: SessionValue
    stored: tuple[SessionValue, ...]
    session_ids: tuple[str, ...]
    group: str
    better: Better = Better.LOWER
    exact: bool = False
    shift_group: str = ""
    clock: Clock = Clock.HOST
    limit: float | None = None
    fresh: bool = False


class Level(Frozen, frozen=True, kw_only=True):
    """
    How sure a change must be.

    Attributes:
        alpha: Nominal chance of a false alarm in the whole run.

        pair_count: (test, metric) pairs judged in the run, >= 1.

        noise_threshold: The change that is too small to mean anything [fraction].

        power: How often the detectable effect is found.
    """

    alpha: float = 0.01
    pair_count: int = 1
    noise_threshold: float = NOISE_THRESHOLD
    power: float = 0.9
