"""Read the plan of a test from its markers, and check its counters against the chip."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.config import Plan
from pytest_gpuperf.hooks.marked import MARKED, MarkedTest, ReadMarkers
from pytest_gpuperf.model.metric import is_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The marker keeps a test out of a plugin's threads, which would share the fixture.
_UNSAFE = "thread_unsafe"


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
        return _reader_of_keywords()(item, marks)
    uses_fixture = "gpuperf" in getattr(item, "fixturenames", ())
    return ReadMarkers(Plan(uses_fixture=uses_fixture), is_marked=bool(marks))


# Cached, because each function with keywords asks, and many modules have none.
@functools.cache
def _reader_of_keywords() -> Callable[[pytest.Item, list[pytest.Mark]], ReadMarkers]:
    from pytest_gpuperf.hooks.keywords import read_keywords

    return read_keywords
