"""The price of a measured test in Python calls, which are exact on a busy machine, too."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fakes.project import Project
from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import StoredRecord

FEW, MANY = 60, 160  # both hold a run's fixed calls, and list no passed test
# A sample that was interrupted is taken again, which only adds calls: the smallest counts.
RUNS = 3
# Calls of a measured test beyond a plain one: about 600 and 647 on a busy machine, and more
# for samples that were interrupted. Each call is half a microsecond; whoever adds some
# takes others away. A stored session takes 2, which read its line.
MOST_CALLS = {3: 625, 20: 660}
WIDE = "1000000%"  # nothing fails
MEASURED = """
    import pytest

    def body():
        return sum(range(50))

    @pytest.mark.gpuperf(iterations=5)
    @pytest.mark.parametrize("number", range({count}))
    def test_sum(gpuperf, number):
        assert gpuperf(body) == 1225
"""
PLAIN = """
    import pytest

    def body():
        return sum(range(50))

    @pytest.mark.parametrize("number", range({count}))
    def test_sum(number):
        assert body() == 1225
"""
COUNTER = """
    import sys

    from pytest_gpuperf.collect.clock import SystemClock

    calls = 0
    # A value beside a profiler is not compared with values without one.
    SystemClock.conditions = lambda self: {}

    def count(frame, event, argument):
        global calls
        calls += event == "call"

    def pytest_sessionstart():
        sys.setprofile(count)

    def pytest_unconfigure():
        sys.setprofile(None)
        with open("calls.txt", "w") as file:
            file.write(str(calls))
"""


@pytest.mark.parametrize("stored", MOST_CALLS)
def test_a_measured_test_makes_few_calls(project: Project, stored: int) -> None:
    """A run with many tests costs what its tests cost, so their calls are counted."""
    measured = _of_a_test(project, MEASURED, stored)
    plain = _of_a_test(project, PLAIN, 0)
    assert measured - plain <= MOST_CALLS[stored], measured - plain


def _of_a_test(project: Project, text: str, stored: int) -> float:
    """Return the Python calls of a test, without the fixed calls of a run."""
    few, many = (
        min(_of_a_run(project, text, count, stored) for _ in range(RUNS))
        for count in (FEW, MANY)
    )
    return (many - few) / (MANY - FEW)


def _of_a_run(project: Project, text: str, count: int, stored: int) -> int:
    """Return the Python calls of a run that is compared with some stored sessions."""
    project.write(text.format(count=count))
    place = project.path / f"sessions-{count}"
    arguments = ["-q", f"--gpuperf-max-regression={WIDE}"]
    if stored:
        if not place.exists():
            project.spawn(
                *arguments, "--gpuperf-update=all", f"--gpuperf-baseline={place}"
            )
            _copied(place, stored)
        arguments.append(f"--gpuperf-baseline={place}")
    project.write(COUNTER, "conftest.py")
    ended = project.spawn(*arguments)
    (project.path / "conftest.py").unlink()
    assert ended.returncode == 0, ended.stdout
    assert "incomparable" not in ended.stdout, ended.stdout
    return int((project.path / "calls.txt").read_text("utf-8"))


def _copied(place: Path, stored: int) -> None:
    """Store more sessions, a few percent slower or faster than the only one."""
    store = open_store(place.name, place.parent)
    for slug in store.slugs():
        records = [r for several in store.load(slug).values() for r in several]
        for number in range(1, stored):
            store.write(slug, [Append(record=_later(r, number)) for r in records])


def _later(record: StoredRecord, number: int) -> StoredRecord:
    session, ratio = record.session, 1 + 0.05 * math.sin(number)
    return replace(
        record,
        arrival=0,
        session=replace(
            session,
            id=f"{session.id[:-2]}{number:02}",
            started_unix_s=session.started_unix_s + number,
        ),
        values=tuple(
            replace(value, run_values=tuple(v * ratio for v in value.run_values))
            for value in record.values
        ),
    )
