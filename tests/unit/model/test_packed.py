"""Values of many sessions in little memory, which are the same records when asked for."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest

from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.packed import SessionValues
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.sample import CoreSpeed

CORE = CoreSpeed(loop_s=2e-5, slope=0.9, precision=10.0)


def value(*runs: float, **fields: Any) -> SessionValue:
    """A host time of some processes."""
    given = {"metric": "time", "unit": "s", "source": "host"} | fields
    return SessionValue(run_values=runs, **given)


PLAIN = [value(0.1 * n, half_widths=(0.01,), cores=(CORE,)) for n in range(1, 5)]


@pytest.mark.parametrize(
    "different",
    [
        pytest.param(value(1.0, 2.0, 3.0), id="processes"),
        pytest.param(value(1.0, 2.0, cores=(CORE, CORE)), id="cores of processes"),
        pytest.param(value(1.0), id="no core"),
        pytest.param(value(1.0, 2.0, half_widths=(0.1,)), id="a width is missing"),
        pytest.param(value(1.0, sm_clocks_hz=(1e9,)), id="clock"),
        pytest.param(value(1.0, interrupted=True), id="interrupted"),
        pytest.param(value(1.0, alone_values=(2.0, 3.0)), id="alone"),
        pytest.param(value(1.0, suspected=True), id="suspected"),
        pytest.param(value(1.0, series=3), id="series"),
        pytest.param(value(1.0, quantiles=(1.0, 2.0, 3.0, 4.0, 5.0)), id="quantiles"),
        pytest.param(value(1.0, unit="cycle"), id="unit"),
    ],
)
@pytest.mark.parametrize("place", [0, 2, 4])
def test_packed_values_are_the_same_records(
    different: SessionValue, place: int
) -> None:
    """Whatever a session has that the others lack, and wherever it stands."""
    values = [*PLAIN]
    values.insert(place, different)

    packed = SessionValues.of(values)

    assert [*packed] == values
    assert packed[place] == different
    assert packed[1:3] == tuple(values[1:3])
    assert packed.run_values() == [each.run_values for each in values]
    assert packed == SessionValues.of(packed) == tuple(values)


def test_whole_numbers_stay_whole() -> None:
    """A count may be larger than the numbers that a float can tell apart."""
    count = 2**53 + 1
    packed = SessionValues.of([value(count), value(2.0)])

    assert packed.runs[0] == count
    assert packed[0].run_values == (count,)


def test_other_values_leave_the_rest() -> None:
    """Values at one speed of the core keep widths, cores and what was measured alone."""
    alone = value(2.0, alone_values=(3.0,), cores=(CORE,))
    values = [*PLAIN, alone]

    changed = SessionValues.of(values).with_runs([7.0] * 5, {4: (9.0,)})

    expected = [replace(each, run_values=(7.0,)) for each in values]
    expected[4] = replace(expected[4], alone_values=(9.0,))
    assert [*changed] == expected


def test_a_session_without_cores_has_no_loop() -> None:
    """Of sessions before the core loop existed the speed is unknown, not 0."""
    loops, slopes, precisions = SessionValues.of([*PLAIN, value(1.0)]).cores

    assert [*loops[:-1]] == [CORE.loop_s] * 4
    assert all(map(math.isnan, (loops[-1], slopes[-1], precisions[-1])))
    assert [*map(len, SessionValues.of([value(1.0)]).cores)] == [0, 0, 0]


def test_no_sessions_are_no_values() -> None:
    """A new test has nothing to compare with."""
    nothing = SessionValues.of(())

    assert (len(nothing), [*nothing], [*nothing.runs]) == (0, [], [])


def test_packed_values_are_small() -> None:
    """A usual session takes its numbers, and no records of them."""
    few, many = (
        SessionValues.of([value(0.1 * n) for n in range(1, count)])
        for count in (11, 111)
    )

    assert size_of(many) - size_of(few) <= 100 * 9


def size_of(values: SessionValues) -> int:
    """The bytes of what one series has alone."""
    return sys.getsizeof(values.runs) + sum(map(sys.getsizeof, values.cores))
