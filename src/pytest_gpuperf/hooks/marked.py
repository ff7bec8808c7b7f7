"""The plan of each test that measures, from its markers, and what is known of it until the end."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pytest_gpuperf.config import Plan
from pytest_gpuperf.model.metric import is_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuperf.fixture import GpuPerf
    from pytest_gpuperf.hooks.digests import Digests
    from pytest_gpuperf.model.verdict import Verdict

# The marker keeps a test out of a plugin's threads, which would share the fixture.
_UNSAFE = "thread_unsafe"


class ReadMarkers(NamedTuple):
    """
    What the markers of a test say.

    Attributes:
        plan: The merged requests, without wrong values.

        names_metrics: Whether the plan depends on the parameters of the test, which may
            be names of metrics.

        mistakes: The mistakes, each as a text.

        is_marked: Whether there is a marker.
    """

    plan: Plan
    names_metrics: bool
    mistakes: list[str]
    is_marked: bool


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


def read_markers(
    report: pytest.CollectReport, measuring: Sequence[pytest.Item]
) -> None:
    """
    Give every test its plan, or turn the report into an error if markers are wrong.

    The error lists all mistakes of the report's tests.
    """
    mistakes: list[str] = []
    # A plugin such as pytest-run-parallel registers the marker.
    has_threads = any(
        re.split(r"[:(]", line)[0] == _UNSAFE
        for line in measuring[0].config.getini("markers")
    )
    # The sets of parameters of a function share its markers, and so a plan.
    shared_reads: dict[tuple[object, ...], ReadMarkers] = {}
    for item in measuring:
        names = getattr(item, "fixturenames", ())
        marks = [id(mark) for mark in item.own_markers if mark.name == "gpuperf"]
        shared = getattr(item, "function", item), "gpuperf" in names, *marks
        read = shared_reads.get(shared) or _read(item)
        if not read.names_metrics:
            shared_reads[shared] = read
        plan = read.plan
        # Taken before loadgroup appends the name of the group.
        node_id = item.nodeid
        item.stash[MARKED] = MarkedTest(node_id, plan)
        if not read.is_marked:
            # So that `-m gpuperf` selects the test.
            item.add_marker("gpuperf")
        if has_threads:
            item.add_marker(_UNSAFE)
        if read.mistakes:
            mistakes += [f"{node_id}: {text}" for text in read.mistakes]
        if plan.counters or (
            plan.limits and any(is_counter(limit.metric) for limit in plan.limits)
        ):
            # Few tests ask for counters.
            from pytest_gpuperf.hooks.chip_check import mistakes_of

            mistakes += mistakes_of(item, plan)
    if mistakes:
        report.outcome = "failed"
        report.result = []
        # Every parameter set of a function repeats the same mistakes.
        report.longrepr = "\n".join(dict.fromkeys(mistakes))


def _read(item: pytest.Item) -> ReadMarkers:
    marks = [*item.iter_markers("gpuperf")]
    if [1 for mark in marks if mark.args or mark.kwargs]:
        return ReadMarkers(*_reader_of_keywords()(item, marks), is_marked=True)
    uses_fixture = "gpuperf" in getattr(item, "fixturenames", ())
    return ReadMarkers(
        Plan(uses_fixture=uses_fixture),
        names_metrics=False,
        mistakes=[],
        is_marked=bool(marks),
    )


# Cached, because each function with keywords asks, and many modules have none.
@functools.cache
def _reader_of_keywords() -> Callable[
    [pytest.Item, list[pytest.Mark]], tuple[Plan, bool, list[str]]
]:
    from pytest_gpuperf.hooks.keywords import read_keywords

    return read_keywords
