"""Doubts about the work of a call: shown always, undecided when strict, accepted by a marker."""

from __future__ import annotations

import pytest

from fakes.project import Project, lines

HEAD = """
    import time

    import pytest

    def promise(items):
        time.sleep(0.002)
        return map(abs, items)

    KEPT = {}

    def remember():
        if "x" not in KEPT:
            time.sleep(0.05)
            KEPT["x"] = 7
        time.sleep(0.001)
        return KEPT["x"]

    def add(a, b):
        time.sleep(0.001)
        return a + b

    def forget(a, b):
        return a

"""


def test_a_doubt_is_shown_and_undecided_when_strict(project: Project) -> None:
    """A value that may be of no work meets no limit."""
    project.write(
        HEAD
        + """
    @pytest.mark.gpuperf(limits=["time <= 1 s"])
    def test_it(gpuperf):
        gpuperf.measure(promise, [1, 2])
    """
    )
    mild, strict = project.run(), project.run("--gpuperf-strict")

    assert (mild.ret, strict.ret) == (0, 1)
    assert lines(mild, "the call returns a map, whose work may not be done yet")
    assert lines(strict, "1 inconclusive (in doubt)")


def test_an_accepted_doubt_is_none(project: Project) -> None:
    """Its note stays, and is shown with -v."""
    project.write(
        HEAD
        + """
    @pytest.mark.gpuperf(limits=["time <= 1 s"], accept="lazy-result")
    def test_it(gpuperf):
        gpuperf.measure(promise, [1, 2])
    """
    )
    quiet, verbose = project.run("--gpuperf-strict"), project.run("-v")

    assert (quiet.ret, verbose.ret) == (0, 0)
    assert not lines(quiet, "the call returns a map")
    assert lines(verbose, "the call returns a map")


@pytest.mark.parametrize(("limit", "status"), [("20 ms", 1), ("1 s", 0)])
def test_a_limit_that_all_the_work_meets_is_met(
    project: Project, limit: str, status: int
) -> None:
    """Code that keeps results by design passes without a word in its marker."""
    project.write(
        HEAD
        + f"""
    @pytest.mark.gpuperf(limits=["time <= {limit}"])
    def test_it(gpuperf):
        gpuperf.measure(remember)
    """
    )
    ended = project.run("--gpuperf-strict")

    assert ended.ret == status
    assert lines(ended, "and changed KEPT, so that they may find its work done")


def test_a_speedup_over_other_work_is_undecided(project: Project) -> None:
    """A function that returns something else may be faster for that reason."""
    project.write(
        HEAD
        + """
    @pytest.mark.gpuperf(limits=["speedup >= 2"])
    def test_it(gpuperf):
        gpuperf.compare(forget, add, 1, 2)
    """
    )
    ended = project.run("--gpuperf-strict")

    assert ended.ret == 1
    assert lines(ended, "the two functions return different results")


def test_an_unknown_doubt_is_a_mistake(project: Project) -> None:
    """The message has all codes."""
    project.write(
        HEAD
        + """
    @pytest.mark.gpuperf(accept=["cached"])
    def test_it(gpuperf):
        gpuperf.measure(remember)
    """
    )
    ended = project.run()

    assert ended.ret == 2
    assert lines(ended, "'cached': not a doubt that can be accepted; write")


@pytest.mark.parametrize(
    ("bound", "asked"),
    [
        ("1000", "did you mean 1000 us (1000e-6)?"),
        ("900000", "did you mean 900000 ns (900000e-9)?"),
        ("2500", "did you mean 2500 us (2500e-6)?"),
        ("5", "did you mean 5 ms (5e-3)?"),
        ("5.0", ""),
        ("1", ""),
        ("0.1", ""),
        ("float('inf')", ""),
    ],
)
def test_an_assert_in_another_unit_is_asked_about(
    project: Project, bound: str, asked: str
) -> None:
    """Times are in seconds, so `time <= 100` allows a call of 0.5 ms to become 200,000 times as slow."""
    project.write(
        HEAD
        + f"""
    @pytest.mark.gpuperf(iterations=5)
    def test_it(gpuperf):
        perf = gpuperf.measure(time.sleep, 0.0005)
        assert perf.time <= {bound}
        assert perf.time < {bound}
    """
    )
    ended = project.run()

    assert ended.ret == 0
    assert bool(lines(ended, "did you mean")) is bool(asked)
    assert len(lines(ended, asked)) == 1 if asked else True
