"""What a child process of a run answers."""

from __future__ import annotations

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.sample import Unmeasured

__all__ = ["ChildAnswer", "ProfiledRange"]


class ProfiledRange(Frozen, frozen=True, kw_only=True):
    """
    One measurement of a test that ran under a profiler.

    Attributes:
        name: Its name inside the test.

        range: What the profiler calls it.

        cache_control: What the profiler should do about caches for it.
    """

    name: str
    range: str
    cache_control: str


class ChildAnswer(Frozen, frozen=True, kw_only=True):
    """
    What a child says of one test.

    Attributes:
        test_id: The test.

        records: What it measured.

        failure: The last lines of why it failed there; "" where it did not.

        unmeasured: What it asked for and could not have there, so that it was skipped.

        reached: The measurements that it came to, under a profiler.

        ended: Whether it came to its end, under a profiler.
    """

    test_id: str
    records: tuple[Record, ...] = ()
    failure: str = ""
    unmeasured: tuple[Unmeasured, ...] = ()
    reached: tuple[ProfiledRange, ...] = ()
    ended: bool = False
