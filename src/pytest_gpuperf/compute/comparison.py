"""What is compared, and how sure the answer must be; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_gpuperf.model.change import SessionValue
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import Better

__all__ = ["NOISE_THRESHOLD", "Comparison", "Level", "Shift"]

# docs/judging.md section 2: a change too small to mean anything
NOISE_THRESHOLD = 0.005


class Comparison(Frozen, frozen=True, kw_only=True):
    """
    One metric of one test, now and in stored sessions.

    Attributes:
        current: This session.

        stored: The stored ones, >= 1 of them.

        group: Whose variances are alike: metric and family.

        better: Which way it gets better; NEITHER counts as LOWER.

        exact: Whether it is judged by equality where all stored sessions agree.

        shift_group: What a change of the machine moves together; "" for nothing.
    """

    current: SessionValue
    stored: tuple[SessionValue, ...]
    group: str
    better: Better = Better.LOWER
    exact: bool = False
    shift_group: str = ""


class Shift(Frozen, frozen=True, kw_only=True):
    """
    How far a change of the machine moved a group of tests.

    Attributes:
        log_shift: Log ratio of the current session to the stored ones.

        control_count: Controls that say so; 0: nobody knows the current session's shift,
            so that it is a part of every change and of its spread.

        test_count: Tests whose first values say what the session did before the controls
            were measured again; 0: the controls say it alone.

        widening: How much farther the group's tests lie apart in the current session
            than their spreads let expect, >= 1.

        sessions: The shift of each stored session, by its id; absent: not known.

        common_variance: What the stored sessions' shifts say of one that is not known.

        common_dof: Degrees of freedom of that: of sessions, however many the tests.
    """

    log_shift: float
    control_count: int
    test_count: int = 0
    widening: float = 1.0
    sessions: Mapping[str, float] = MappingProxyType({})
    common_variance: float = 0.0
    common_dof: float = 0.0


class Level(Frozen, frozen=True, kw_only=True):
    """
    How sure a change must be.

    Attributes:
        alpha: Chance of one false alarm in the whole run.

        pair_count: (test, metric) pairs judged in the run, >= 1.

        noise_threshold: The change that is too small to mean anything [fraction].

        power: How often the detectable effect is found.
    """

    alpha: float = 0.01
    pair_count: int = 1
    noise_threshold: float = NOISE_THRESHOLD
    power: float = 0.9
