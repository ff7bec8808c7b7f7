"""pipeline.isolation: what is counted, by whatever way the processes end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.ncu.nvtx import range_name
from pytest_gpuperf.config import Plan
from pytest_gpuperf.measure.counters import (
    CountedTest,
    NcuCounters,
    RangeLaunches,
)
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.launch import CapturedLaunch, CapturedValue
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.run import ChildAnswer, ProfiledRange
from pytest_gpuperf.pipeline.isolation import (
    CounterRequest,
    ProfilerRun,
    count,
    isolate,
)

COUNTER = "dram__bytes.sum"
NO = Gap(
    code=GapCode.COUNTER_PERMISSION,
    reason="the driver lets only administrators",
    remedy="be one",
)


def wanted(*names: str, metric: str = COUNTER) -> list[CounterRequest]:
    """Return tests of these names."""
    return [
        CounterRequest(
            test_id=name,
            path="t.py",
            metrics=(metric,),
            counters=(metric,),
            cache_control="all",
        )
        for name in names
    ]


def launch(value: float = 64.0, *, measured: bool = True) -> CapturedLaunch:
    """Return a launch with a counter and one that another test has asked for."""
    metrics = {COUNTER: value, "lts__t_bytes.sum": 1.0}
    return CapturedLaunch(
        index=0,
        kernel="gemm",
        demangled="gemm()",
        nvtx={},
        measured=measured,
        metrics={n: CapturedValue(value=v, unit="byte") for n, v in metrics.items()},
    )


class Machine:
    """
    Runs tests under an ncu that is not there.

    Args:
        endings: What each test does to its process: "crash", "hang"; else it ends.

        report: Whether there is a report after a crash.

        modes: The cache controls that each test's measurements want.
    """

    def __init__(
        self,
        endings: Mapping[str, str],
        *,
        report: bool = True,
        modes: Sequence[str] = ("all",),
    ) -> None:
        self.endings = endings
        self.report = report
        self.modes = modes
        self.runs: list[list[str]] = []

    def profile(self, tests: Sequence[CounterRequest], _: str = "all") -> ProfilerRun:
        """Run some tests in one process."""
        self.runs.append([each.test_id for each in tests])
        answers: dict[str, ChildAnswer] = {}
        ending = ""
        for each in tests:
            ending = self.endings.get(each.test_id, "")
            if ending:
                answers[each.test_id] = ChildAnswer(test_id=each.test_id)
                break
            reached = tuple(
                ProfiledRange(
                    name=mode,
                    range=range_name(each.test_id, mode),
                    cache_control=mode,
                )
                for mode in self.modes
            )
            answers[each.test_id] = ChildAnswer(
                test_id=each.test_id, reached=reached, ended=True
            )
        launches = {r.range: (launch(),) for a in answers.values() for r in a.reached}
        whole = not ending or (self.report and ending == "crash")
        return ProfilerRun(
            answers=answers,
            launches=launches if whole else None,
            failure="Segmentation fault",
            hung=ending == "hang",
        )


def counted_ids(found: Mapping[str, CountedTest]) -> set[str]:
    """Return the tests that have values."""
    return {name for name, each in found.items() if each.refusal is None}


@given(
    st.dictionaries(
        st.sampled_from("abcdefgh"), st.sampled_from(["crash", "hang"]), max_size=3
    ),
    st.booleans(),
)
def test_up_to_three_bad_tests_cost_nobody_else_a_value(
    endings: dict[str, str], report: bool
) -> None:
    """Each is named, the others are counted, and no process is started for ever."""
    machine = Machine(endings, report=report)
    found = isolate(wanted(*"abcdefgh"), machine.profile)

    assert counted_ids(found) == set("abcdefgh") - endings.keys()
    assert len(machine.runs) <= 2 * len(endings) + 1
    for name, ending in endings.items():
        refusal = found[name].refusal
        assert refusal is not None
        told = "did not end" if ending == "hang" else "ended"
        assert refusal.reason == f"its process {told} under ncu: Segmentation fault"


def test_after_some_restarts_the_rest_is_left() -> None:
    """A suite in which every test crashes does not start a process for each of them."""
    names = [str(number) for number in range(50)]
    machine = Machine(dict.fromkeys(names, "crash"))
    found = isolate(wanted(*names), machine.profile)

    assert set(found) == set(names)
    assert not counted_ids(found)
    assert len(machine.runs) == 7


def test_a_hang_is_not_waited_for_twice() -> None:
    """A test that stopped its process is not tried alone."""
    machine = Machine({"b": "hang"})
    isolate(wanted("a", "b", "c"), machine.profile)

    assert machine.runs == [["a", "b", "c"], ["a", "c"]]


def test_a_crash_that_does_not_come_again_costs_nothing() -> None:
    """A test that crashed among others, and not alone, has its values."""
    machine = Machine({"b": "crash"})

    def once(tests: Sequence[CounterRequest]) -> ProfilerRun:
        profiled = machine.profile(tests)
        machine.endings = {}
        return profiled

    assert counted_ids(isolate(wanted("a", "b", "c"), once)) == {"a", "b", "c"}


def test_what_ncu_refuses_is_refused_once() -> None:
    """No permission for one test is none for all; nothing is tried again."""
    runs = []

    def refuse(tests: Sequence[CounterRequest]) -> ProfilerRun:
        runs.append(tests)
        return ProfilerRun(refused=NO)

    found = isolate(wanted("a", "b"), refuse)

    assert {each.refusal for each in found.values()} == {NO}
    assert len(runs) == 1


def test_a_counter_that_no_gpu_has_is_left_out() -> None:
    """The tests that ask for it are refused, and the others go on."""
    wrong = Gap(
        code=GapCode.UNKNOWN_COUNTER,
        reason="ncu has no metric dram__bites.sum",
        remedy="look it up",
    )

    def run(tests: Sequence[CounterRequest]) -> ProfilerRun:
        if any("dram__bites.sum" in each.metrics for each in tests):
            return ProfilerRun(refused=wrong, unknown="dram__bites.sum")
        return Machine({}).profile(tests)

    tests = [*wanted("a"), *wanted("b", metric="dram__bites.sum"), *wanted("c")]
    found = isolate(tests, run)

    assert counted_ids(found) == {"a", "c"}
    assert found["b"].refusal == wrong


def test_a_process_that_reached_no_test_is_no_tests_fault() -> None:
    """An error while collecting: all are refused, with the last lines, at once."""
    runs = []

    def run(tests: Sequence[CounterRequest]) -> ProfilerRun:
        runs.append(tests)
        return ProfilerRun(
            launches={}, failure="one\n\ntwo\nthree\nE  ImportError: x\n"
        )

    found = isolate(wanted("a", "b"), run)

    assert len(runs) == 1
    reason = "its process ended under ncu: two | three | E ImportError: x"
    assert [each.refusal and each.refusal.reason for each in found.values()] == [
        reason
    ] * 2


def test_a_range_is_counted_with_the_caches_that_it_wants() -> None:
    """A test with both kinds runs in two groups, and has each value once."""
    machine = Machine({}, modes=("all", "none"))
    modes = []

    def profile(tests: Sequence[CounterRequest], mode: str) -> ProfilerRun:
        modes.append(mode)
        return machine.profile(tests)

    (found,) = count(wanted("a"), profile)

    assert modes == ["all", "none"]
    assert [each.name for each in found.ranges] == ["all", "none"]


def test_a_test_keeps_its_own_counters_alone() -> None:
    """What others of its group have asked for would be another value of the cache."""
    found = isolate(wanted("a"), Machine({}).profile)
    (each,) = found["a"].ranges

    assert COUNTER in each.launches[0].metrics
    assert "lts__t_bytes.sum" not in each.launches[0].metrics


@pytest.mark.parametrize(
    ("counted", "complete"),
    [
        (CountedTest(test_id="a"), True),
        (CountedTest(test_id="a", refusal=NO), False),
        (
            CountedTest(
                test_id="a", ranges=(RangeLaunches(name="", cache_control="all"),)
            ),
            False,
        ),
    ],
)
def test_only_what_would_be_the_same_again_is_kept(
    counted: CountedTest, complete: bool
) -> None:
    """Neither a refusal nor a measurement without kernels."""
    assert counted.complete is complete


def joined(*ranges: RangeLaunches, refusal: Gap | None = None) -> Record:
    """Return the record of a test with what was counted for it."""
    counted = CountedTest(
        test_id="a", ranges=ranges, refusal=refusal, tool_version="1.2"
    )
    record = Record(key=RecordKey(test_id="a"), kind=Kind.MEASURE, estimates=())
    counts = NcuCounters([counted], collectors=())
    plan = Plan(counters=(COUNTER,))
    return counts.joined(record, plan, work=None, facts={"gpu_name": "X"})


def test_a_record_gets_values_with_their_conditions() -> None:
    """The tool, its version and its modes are hard facts of a counter."""
    both = (launch(), launch(36.0))
    record = joined(RangeLaunches(name="", cache_control="all", launches=both))
    values = {e.metric: e.value for e in record.estimates if e.kernel is None}

    assert values[COUNTER] == 100
    assert values["launches.count"] == 2
    assert values["dram.bytes"] == 100  # what it becomes, unasked
    assert {e.source for e in record.estimates} == {"ncu"}
    assert record.facts["counter"] == {
        "gpu_name": "X",
        "tool_version": "1.2",
        "replay_mode": "kernel",
        "cache_control": "all",
        "clock_control": "none",
    }


@pytest.mark.parametrize(
    ("ranges", "told"),
    [
        ((), "was not reached"),
        ((RangeLaunches(name="", cache_control="all"),), "no kernel was launched"),
        (
            (
                RangeLaunches(
                    name="", cache_control="all", launches=(launch(measured=False),)
                ),
            ),
            "could not profile a launch of gemm",
        ),
    ],
)
def test_a_record_without_values_says_why(
    ranges: tuple[RangeLaunches, ...], told: str
) -> None:
    """Each counter that the test asks for is unmeasured, by name."""
    (gap,) = joined(*ranges).unmeasured

    assert gap.metric == COUNTER
    assert told in gap.reason


def test_a_refusal_is_the_reason_of_what_is_missing_alone() -> None:
    """What was counted before a test failed stays."""
    whole = RangeLaunches(name="", cache_control="all", launches=(launch(),))

    assert joined(whole, refusal=NO).unmeasured == ()
    assert joined(refusal=NO).unmeasured[0].reason == NO.reason


def test_ranges_of_different_measurements_have_different_names() -> None:
    """The test and the measurement may not run into one another."""
    parts = [("a", "bc"), ("ab", "c"), ("a", "b"), ("a", "")]

    assert len({range_name(*each) for each in parts}) == len(parts)
    assert len(range_name("\udc80[β]", "x")) == 16
