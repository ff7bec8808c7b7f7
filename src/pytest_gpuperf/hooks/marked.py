"""One object for each test that measures, from its collection to the end of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.fixture import GpuPerf
    from pytest_gpuperf.hooks.digests import Digests
    from pytest_gpuperf.model.verdict import Verdict


class ReadMarkers(NamedTuple):
    """
    What the markers of a test say.

    Attributes:
        plan: The merged requests, without wrong values.

        is_marked: Whether there is a marker.

        names_metrics: Whether the plan depends on the parameters of the test, which may
            be names of metrics.

        mistakes: The mistakes, each as a text.
    """

    plan: Plan
    is_marked: bool
    names_metrics: bool = False
    mistakes: tuple[str, ...] = ()


class MarkedTest:
    """
    A test that measures.

    Args:
        test_id: The node id, without the group that xdist appends.

        plan: The merged requests of the test's markers.

    Attributes:
        test_id: As given. The id of a repeated test has a number, and a child process uses
            the id of its parent.

        plan: As given.

        key: The key of its stored values, or "" if it is the test id.

        typed: The test as a command-line argument, or "" if the test id is one.

        fixture: The fixture from its first use to the end of the test, or None.

        digests: The digests before the test ran, or None.

        verdicts: The verdicts on its limits.

        may_change: Whether the end of the run may change its report, or None before that
            was asked.

        in_body: Whether the body runs. A report made during it belongs to a subtest.

        ended_early: Whether a report other than that of a passed call has measurements.
    """

    __slots__ = (
        "digests",
        "ended_early",
        "fixture",
        "in_body",
        "key",
        "may_change",
        "plan",
        "test_id",
        "typed",
        "verdicts",
    )

    def __init__(self, test_id: str, plan: Plan) -> None:
        self.test_id = test_id
        self.plan = plan
        self.key = self.typed = ""
        self.fixture: GpuPerf | None = None
        self.digests: Digests | None = None
        self.verdicts: tuple[Verdict, ...] = ()
        self.may_change: bool | None = None
        self.in_body = self.ended_early = False

    def copy(self) -> MarkedTest:
        """Return the same test as collected, for another item."""
        return MarkedTest(self.test_id, self.plan)


MARKED = pytest.StashKey[MarkedTest]()


def marked_of(item: pytest.Item) -> MarkedTest | None:
    """Return the object of a test, or None if the test does not measure."""
    return item.stash.get(MARKED, None)
