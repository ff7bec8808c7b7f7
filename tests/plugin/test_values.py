"""The values that a test reads."""

from __future__ import annotations

import json
import operator
import pickle
from importlib.metadata import version

import pytest

import pytest_gpuperf
from fakes.project import Project, lines
from pytest_gpuperf import Figure
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.fixture import Ledger, Pair, Perf
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.sample import Estimate

US = 1e-6


def perf_of(*estimates: Estimate) -> Perf:
    """Return a measurement that gave these values."""
    record = Record(
        key=RecordKey(test_id="test_it.py::test_it"),
        kind=Kind.MEASURE,
        estimates=estimates,
    )
    return Perf(Ledger(), record)


@pytest.fixture
def perf() -> Perf:
    """A time with its 95th percentile."""
    return perf_of(
        Estimate(metric="time", value=41 * US, unit="s", source="host", low=40 * US),
        Estimate(metric="time.p95", value=52 * US, unit="s", source="host"),
        Estimate(metric="launches.count", value=2.0, unit="count", source="host"),
        Estimate(
            metric="registers", value=64.0, unit="count", source="binary", kernel="rms"
        ),
    )


def test_a_value_compares_as_a_float(perf: Perf) -> None:
    """Every comparison is that of the point estimate."""
    assert isinstance(perf.time, float)
    assert perf.time <= 60 * US
    assert not perf.time > 60 * US
    assert perf.time == 41 * US
    assert perf.time == pytest.approx(41.00001 * US, rel=1e-3)
    assert sorted([perf.time.p95, perf.time]) == [41 * US, 52 * US]
    assert {41 * US: "found"}[perf.time] == "found"


def test_arithmetic_gives_plain_floats(perf: Perf) -> None:
    """A sum or a ratio is not a measured value any more."""
    for number in (
        perf.time + 0,
        perf.time * 2,
        2 / perf.time,
        -perf.time,
        abs(perf.time),
        perf.time.p95 - perf.time,
        round(perf.time, 9),
        perf.time**2,
        max(perf.time, 0.0) + 0,
    ):
        assert type(number) is float


def test_a_value_leaves_the_process_as_a_float(perf: Perf) -> None:
    """JSON and pickle see a number; the measurement stays behind."""
    packed = pickle.loads(pickle.dumps(perf.time))  # noqa: S301 - packed right here

    assert json.dumps({"time": perf.time}) == '{"time": 4.1e-05}'
    assert type(packed) is float
    assert packed == 41 * US


def test_a_value_knows_where_it_came_from(perf: Perf) -> None:
    """Unit, interval, longer names and kernels are attributes of the value."""
    assert (perf.time.unit, perf.time.low, perf.time.high) == ("s", 40 * US, 41 * US)
    assert perf.time.p95 == 52 * US
    assert perf.launches.count == 2.0
    assert perf["launches.count"] == 2.0
    assert perf.time.estimate.source == "host"


def test_a_kernel_is_chosen_by_pattern(perf: Perf) -> None:
    """`registers["rm*"]` is the kernel's value; the whole has none here."""
    figure = Figure(perf.record.estimates[3], perf)

    assert figure["rm*"] == 64.0
    with pytest.raises(
        pytest_gpuperf.MetricUnavailableError, match="no kernel is named"
    ):
        figure["gemm*"]


@pytest.mark.parametrize("metric", ["energy", "dram__bytes.sum", "roofline.fraction"])
def test_what_was_not_measured_raises_and_is_remembered(metric: str) -> None:
    """Never 0, never NaN: and the ledger knows of it."""
    ledger = Ledger()
    record = Record(key=RecordKey(test_id="t.py::t"), kind=Kind.MEASURE, estimates=())

    with pytest.raises(pytest_gpuperf.MetricUnavailableError) as raised:
        Perf(ledger, record)[metric]
    assert [error.metric for error in ledger.refusals] == [metric]
    assert raised.value.remedy


def test_a_name_that_is_no_metric_is_an_attribute_error(perf: Perf) -> None:
    """A typing mistake is an error of the test, not an unmeasured metric."""
    with pytest.raises(AttributeError, match="'tme'; did you mean time"):
        _ = perf.tme
    with pytest.raises(AttributeError, match=r"mean launches\.count"):
        _ = perf.launches.cuont
    with pytest.raises(AttributeError, match="in brackets, as perf"):
        _ = perf.dram__bytes
    assert not hasattr(perf, "_private")


def test_a_comparison_that_is_negated_does_not_pass_unmeasured(
    project: Project,
) -> None:
    """`not (perf.launches.count > 3)` is unmeasured where launches are not counted."""
    project.write(
        """
        def test_it(gpuperf):
            perf = gpuperf.measure(int)
            assert not (perf.launches.count > 3)
        """
    )
    ended = project.run("-rs")

    assert ended.parseoutcomes() == {"skipped": 1}
    assert lines(ended, "unmeasured: launches.count")


def test_a_range_is_read_after_its_block(project: Project) -> None:
    """Inside the block there is no value, and that is the test's own error."""
    project.write(
        """
        def test_after(gpuperf):
            with gpuperf.range("block") as perf:
                pass
            assert perf.time >= 0

        def test_inside(gpuperf):
            with gpuperf.range("block") as perf:
                perf.time
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"passed": 1, "failed": 1}
    assert lines(ended, "FAILED", "test_inside", "this range has not ended")


def test_an_assert_on_an_end_of_the_interval_judges_the_test(project: Project) -> None:
    """It is one on the value; one that fails is explained in the same way."""
    project.write(
        """
        def test_low(gpuperf):
            pair = gpuperf.compare(len, sorted, (3, 1, 2))
            assert pair.speedup.low >= 0.001

        def test_high(gpuperf):
            perf = gpuperf.measure(len, (3, 1, 2))
            assert perf.time.high >= 1

        def test_read(gpuperf):
            print(gpuperf.measure(len, (3, 1, 2)).time.low)
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"passed": 2, "failed": 1}
    assert lines(ended, "1 passed its own assert")
    assert lines(ended, "1 without a limit or a baseline")
    assert lines(ended, "assert time.high", ">= 1")


def test_a_limit_in_quotes_is_refused_in_an_assert(perf: Perf) -> None:
    """The marker takes a text with a unit; an assert compares numbers."""
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(
            MeasureError, match=r"time: '5 ms' is not a number; .* 5 \* ms"
        ):
            compare(perf.time, "5 ms")
    assert perf.time != "5 ms"


def test_compare_measures_both_sides(project: Project) -> None:
    """The pair has a speedup with an interval, and each side a time."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(iterations=10)
        def test_it(gpuperf):
            pair = gpuperf.compare(len, sorted, (3, 1, 2))
            assert pair.speedup.low <= pair.speedup <= pair.speedup.high
            assert pair.a.time > 0 < pair.b.time
        """
    )

    assert project.run().parseoutcomes() == {"passed": 1}


def test_compare_gives_each_call_of_either_side_fresh_arguments(
    project: Project,
) -> None:
    """What one side used up, or sorted, is not what the other is called with."""
    project.write(
        """
        import pytest

        def items():
            return (iter([3, 1, 2]),), {"key": abs}

        def drained(values, key):
            assert key is abs
            assert len(list(values)) == 3

        @pytest.mark.gpuperf(iterations=10)
        def test_fresh(gpuperf):
            pair = gpuperf.compare(drained, sorted, setup=items)
            assert pair.speedup > 0

        def test_used_up(gpuperf):
            pair = gpuperf.compare(sum, sorted, iter([3, 1, 2]))
            assert pair.speedup > 0
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"passed": 1, "skipped": 1}
    assert lines(ended, "argument 0 (list_iterator)", "setup= (of measure or compare)")


def test_results_come_back(project: Project) -> None:
    """`perf.result` and the call itself give what the function returned."""
    project.write(
        """
        def test_it(gpuperf):
            assert gpuperf(sorted, [2, 1], reverse=True) == [2, 1]
            assert gpuperf.measure(sorted, [2, 1], name="other").result == [1, 2]
        """
    )

    assert project.run().parseoutcomes() == {"passed": 1}


def test_every_public_name_is_there_and_sorted() -> None:
    """`from pytest_gpuperf import Work, us, GB` works for each name of __all__."""
    names = pytest_gpuperf.__all__

    assert sorted(names) == dir(pytest_gpuperf)
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(pytest_gpuperf, name) is not None
    assert (pytest_gpuperf.us, pytest_gpuperf.GB) == (1e-6, 1e9)
    assert type(pytest_gpuperf.us) is float
    assert pytest_gpuperf.__version__ == version("pytest-gpuperf")
    with pytest.raises(AttributeError, match="no attribute 'hours'"):
        _ = pytest_gpuperf.hours


def test_a_metric_of_a_pair_is_asked_of_its_sides() -> None:
    """A comparison has no time of its own; a mistaken name says where there is one."""
    pair = Pair(perf=perf_of(), a=perf_of(), b=perf_of())
    with pytest.raises(AttributeError, match=r"read a side, as pair\.a\.time"):
        _ = pair.time


def test_garbage_is_in_a_time_of_its_own(project: Project) -> None:
    """Where a call leaves some, and where a test is judged by it; else it says how."""
    project.write(
        """
        import pytest

        def cycles():
            for _ in range(1000):
                each = []
                each.append(each)

        def test_some(gpuperf):
            time = gpuperf.measure(cycles).time
            assert time.with_gc > time.wall

        @pytest.mark.gpuperf(limits=["time.with_gc <= 1 s"])
        def test_none(gpuperf):
            time = gpuperf.measure(sum, range(1000)).time
            assert 1 <= time.with_gc / time.wall < 1.1

        def test_unasked(gpuperf):
            assert gpuperf.measure(sum, range(1000)).time.with_gc > 0

        @pytest.mark.gpuperf(limits=["time.with_gc <= 1 s"])
        def test_pair(gpuperf):
            gpuperf.compare(cycles, cycles)
        """
    )
    ended = project.run("-rs")

    assert ended.parseoutcomes() == {"passed": 2, "skipped": 2}
    assert lines(ended, "unmeasured: time.with_gc")
