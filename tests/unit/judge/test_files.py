"""judge.files: what is decided of runs, captures and scorecards in files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from fakes import runs
from pytest_gpuperf.judge.files import (
    CapturedKernel,
    CaptureSide,
    Difference,
    Direction,
    FailOn,
    Mismatch,
    ValuePair,
    captures_pass,
    differences,
    is_compared,
    is_held_clock,
    mismatch,
    run_passes,
    scorecard_passes,
    value_pairs,
)
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.scorecard import (
    Basis,
    Decision,
    InvariantResult,
    MeasuredScorecard,
)
from pytest_gpuperf.model.verdict import Limit, Outcome, Reason, Verdict
from unit.judge.building import KEY


def side(
    kernels: Mapping[str, CapturedKernel] | None = None,
    *,
    gpu: str = "NVIDIA A40",
    clock_hz: float | None = 1e9,
    clock_ratio: float | None = None,
) -> CaptureSide:
    return CaptureSide(
        device={"gpu": gpu},
        clock_hz=clock_hz,
        clock_ratio=clock_ratio,
        kernels=kernels or {},
    )


def kernel(
    time_s: float = 1e-3,
    *,
    launches: int = 1,
    clock_hz: float | None = None,
    **values: float,
) -> CapturedKernel:
    """Return a kernel with totals of its launches; a time of 0 was not collected."""
    named = {name.replace("_", "."): (value, "") for name, value in values.items()}
    timed = {"time": (time_s, "s")} if time_s else {}
    counted = {"launches.count": (float(launches), "count")}
    return CapturedKernel(
        launches_count=launches, values={**timed, **counted, **named}, clock_hz=clock_hz
    )


def direction(metric: str, was: float, now: float, unit: str = "") -> Direction | None:
    return Difference(
        kernel="copy", metric=metric, unit=unit, was=was, now=now
    ).direction


@pytest.mark.parametrize(
    ("metric", "unit", "now", "expected"),
    [
        ("dram.bytes", "B", 102.0, Direction.SAME),
        ("dram.bytes", "B", 102.1, Direction.WORSE),
        ("dram.bytes", "B", 97.9, Direction.BETTER),
        ("launches.count", "", 101.0, Direction.CAPTURED),
        ("launches.count", "", 99.0, Direction.CAPTURED),
        ("registers", "", 101.0, Direction.CHANGED),
        ("stack_bytes", "B", 101.0, Direction.WORSE),
    ],
)
def test_counts_are_exact_and_other_amounts_have_a_tolerance(
    metric: str, unit: str, now: float, expected: Direction
) -> None:
    """Two passes over one launch differ by up to 2 % of the larger value."""
    assert direction(metric, 100.0, now, unit) is expected


def test_shares_have_a_tolerance_in_points() -> None:
    """A small share may move by more than 2 % of itself."""
    assert direction("dram.fraction", 0.01, 0.03, "fraction") is Direction.SAME
    assert direction("dram.fraction", 0.01, 0.031, "fraction") is Direction.CHANGED


def test_a_few_kilobytes_of_dram_are_no_change() -> None:
    """A fill that stays in the L2 moved 4,350 and 5,376 B on an H200."""
    assert direction("dram.bytes", 4350.0, 5376.0, "bytes") is Direction.SAME
    assert direction("dram.bytes", 4350.0, 70_000.0, "bytes") is Direction.WORSE
    assert direction("shared_bytes", 4096.0, 4224.0, "bytes") is Direction.CHANGED


@pytest.mark.parametrize(
    ("time_s", "clocks_hz", "expected"),
    [
        (1.04e-3, (1e9, 1.009e9), Direction.SLOWER),
        (0.96e-3, (1e9, 0.991e9), Direction.FASTER),
        (1.03e-3, (1e9, 1e9), Direction.SAME),
        (2e-3, (1e9, 1.02e9), None),
        (2e-3, (1e9, None), None),
        (2e-3, (None, None), None),
        (2e-3, (0.0, 0.0), None),
    ],
)
def test_times_are_compared_at_the_same_clock(
    time_s: float,
    clocks_hz: tuple[float | None, float | None],
    expected: Direction | None,
) -> None:
    """Equal launches differ by up to 3 % there; at other or unknown clocks a time says little."""
    was, now = (
        side({"a": kernel(seconds, clock_hz=hertz)})
        for seconds, hertz in zip((1e-3, time_s), clocks_hz, strict=True)
    )
    (time, count) = differences(was, now)

    assert (time.metric, time.direction) == ("time", expected)
    assert count.direction is Direction.SAME


def test_totals_of_different_numbers_of_launches_are_compared_per_launch() -> None:
    """How many launches were captured is a setting of the profiler, not a change of the kernel."""
    totals = {"instructions_count": 3e6, "dram_bytes": 3e9, "dram_fraction": 0.5}
    was = side({"a": kernel(3e-3, launches=3, **totals)})
    totals = {"instructions_count": 3.2e6, "dram_bytes": 4.04e9, "dram_fraction": 0.5}
    now = side({"a": kernel(3.2e-3, launches=4, **totals)})

    rows = {d.metric: (d.was, d.now, d.per_launch) for d in differences(was, now)}
    assert rows == {
        "time": (pytest.approx(1e-3), pytest.approx(0.8e-3), True),
        "launches.count": (3, 4, False),
        "instructions.count": (1e6, 0.8e6, True),
        "dram.bytes": (1e9, 1.01e9, True),
        "dram.fraction": (0.5, 0.5, False),
    }
    verdicts = {d.metric: d.direction for d in differences(was, now)}
    assert verdicts["dram.bytes"] is Direction.SAME
    assert verdicts["instructions.count"] is Direction.BETTER
    in_total = {d.metric: d for d in differences(was, now, total=True)}
    assert not any(d.per_launch for d in in_total.values())
    assert in_total["dram.bytes"].direction is Direction.WORSE
    assert in_total["launches.count"].direction is Direction.CAPTURED


def test_equal_numbers_of_launches_are_compared_in_total() -> None:
    """So are the other kernels of captures in which one kernel has another number."""
    was = side({"a": kernel(launches=2, dram_bytes=2e9), "b": kernel(launches=1)})
    now = side({"a": kernel(launches=2, dram_bytes=2e9), "b": kernel(launches=100)})

    assert {d.kernel for d in differences(was, now) if d.per_launch} == {"b"}


def of(direction: Direction) -> Difference:
    """Return a difference with a direction, of the metric that can have it."""
    clocks = tuple(kernel(clock_hz=1e9) for _ in range(2))
    metric, was, now = {
        Direction.SLOWER: ("time", 1.0, 2.0),
        Direction.FASTER: ("time", 2.0, 1.0),
        Direction.WORSE: ("instructions.count", 1.0, 2.0),
        Direction.BETTER: ("instructions.count", 2.0, 1.0),
        Direction.CHANGED: ("registers", 1.0, 2.0),
        Direction.SAME: ("registers", 1.0, 1.0),
        Direction.CAPTURED: ("launches.count", 1.0, 2.0),
        Direction.NEW: ("launches.count", None, 1.0),
        Direction.GONE: ("launches.count", 1.0, None),
    }[direction]
    difference = Difference(
        kernel="a",
        metric=metric,
        unit="",
        was=was,
        now=now,
        sides=(clocks[0], clocks[1]),
    )
    assert difference.direction is direction
    return difference


@pytest.mark.parametrize(
    ("fail_on", "failing", "passing"),
    [
        (FailOn.SLOWER, {"slower"}, {"faster"}),
        (FailOn.WORSE, {"worse"}, {"better", "same"}),
        (
            FailOn.ANY,
            {"slower", "faster", "worse", "better", "changed", "new", "gone"},
            {"same"},
        ),
        (FailOn.NEVER, set(), {"better", "same"}),
    ],
)
def test_what_fails_a_comparison_of_captures_is_chosen(
    fail_on: FailOn, failing: set[str], passing: set[str]
) -> None:
    """A difference that is not of the chosen kind decides nothing."""
    for one in Direction:
        passes = captures_pass([of(one)], fail_on)
        expected = True if one.value in passing else None
        assert passes is (False if one.value in failing else expected), one


def test_a_failing_difference_outweighs_the_others() -> None:
    """Wherever it stands."""
    both = [of(Direction.SLOWER), of(Direction.FASTER)]

    assert captures_pass(both, FailOn.SLOWER) is False
    assert captures_pass(both[::-1], FailOn.SLOWER) is False
    assert captures_pass(both) is None


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        (side(), side(), None),
        (side(), side(gpu="NVIDIA A10G", clock_hz=2e9), Mismatch.DEVICE),
        (side(), side(clock_hz=1.11e9), None),  # by less than a tenth of the higher one
        (side(), side(clock_hz=1.12e9), Mismatch.CLOCK),
        (side(clock_hz=1.12e9), side(), Mismatch.CLOCK),
        (side(), side(clock_hz=None), None),
    ],
)
def test_captures_of_different_gpus_or_clocks_are_not_compared(
    was: CaptureSide, now: CaptureSide, expected: Mismatch | None
) -> None:
    """Their values come from two experiments; an unknown clock is no reason."""
    assert mismatch(was, now) is expected


def test_clocks_that_read_low_by_one_factor_are_of_one_setting() -> None:
    """Of launches of 10 us both clocks read low, by 908 and by 999 MHz of 1,300."""
    short = side(clock_hz=908e6, clock_ratio=0.1755)

    assert mismatch(short, side(clock_hz=1300e6, clock_ratio=0.1800)) is None
    boosting = side(clock_hz=1300e6, clock_ratio=0.2500)
    assert mismatch(short, boosting) is Mismatch.CLOCK
    assert mismatch(short, side(clock_hz=1300e6)) is Mismatch.CLOCK
    assert mismatch(short, side(clock_hz=None, clock_ratio=0.25)) is None


def test_a_kernel_alone_in_its_capture_needs_no_name() -> None:
    """A variant under another name is compared all the same."""
    was, now = (side({name: kernel(0, registers=32)}) for name in ("old", "new"))

    assert {(d.was_kernel, d.kernel, d.direction) for d in differences(was, now)} == {
        ("old", "new", Direction.SAME)
    }
    assert {d.was_kernel for d in differences(was, was)} == {None}


def test_of_a_kernel_in_one_capture_only_its_launches_are_listed() -> None:
    """The longest kernel comes first; new and gone ones have one line each."""
    was = side({"a": kernel(1e-3, registers=32)})
    now = side(
        {
            "b": kernel(2e-3, registers=32),
            "c": kernel(3e-3, launches=2, registers=32),
        }
    )

    assert [(d.kernel, d.metric, d.direction) for d in differences(was, now)] == [
        ("c", "launches.count", Direction.NEW),
        ("b", "launches.count", Direction.NEW),
        ("a", "launches.count", Direction.GONE),
    ]


def test_a_metric_of_one_capture_is_new_or_gone() -> None:
    """The time comes first, then the metrics of the newer capture."""
    was = side({"a": kernel(1e-3, registers=32, dram_bytes=1e6)})
    now = side({"a": kernel(1e-3, registers=32, l2_bytes=1e6)})

    assert [(d.metric, d.direction) for d in differences(was, now)] == [
        ("time", None),
        ("launches.count", Direction.SAME),
        ("registers", Direction.SAME),
        ("l2.bytes", Direction.NEW),
        ("dram.bytes", Direction.GONE),
    ]


OTHER = replace(KEY, test_id="test_other")


def held(value: float = 1.0, source: str = "cupti", **fields: Any) -> SessionValue:
    """A stored device time."""
    given: dict[str, Any] = {"metric": "time", "unit": "s", "run_values": (value,)}
    return SessionValue(source=source, **(given | fields))


def shown(
    current: list[SessionValue],
    stored: list[SessionValue],
    verdict: Verdict | None = None,
) -> list[ValuePair]:
    """What is shown of one measurement."""
    verdicts = {} if verdict is None else {(KEY, "time"): verdict}
    return value_pairs({KEY: current}, {KEY: stored}, verdicts)


def test_files_show_the_means_of_both_sides() -> None:
    """Of the processes of a session, then of the sessions; times by their ratios."""
    (pair,) = shown([held(run_values=(1.0, 3.0))], [held(1.0), held(4.0)])

    assert (pair.now, pair.unit) == (2.0, "s")
    assert pair.was == pytest.approx(2.0)
    assert pair.ratio == pytest.approx(1.0)
    assert (pair.half_width, pair.interval) == (None, None)


def test_a_mean_with_zeros_is_the_plain_one() -> None:
    """No ratio of zero has a logarithm; without a first value there is no ratio."""
    counts = {"metric": "spills_bytes", "unit": "bytes"}
    (pair,) = shown([held(8.0, **counts)], [held(0.0, **counts), held(4.0, **counts)])

    assert (pair.was, pair.ratio) == (2.0, 4.0)
    assert shown([held(8.0, **counts)], [held(0.0, **counts)])[0].ratio is None


def test_the_interval_of_files_is_that_of_their_samples() -> None:
    """Both sides add to it, and each session makes its side surer."""
    sides = [held(half_widths=(0.03,))], [held(half_widths=(0.04, 0.0))]
    (pair,) = shown(*sides)

    assert pair.half_width == pytest.approx(math.hypot(0.03, 0.02))
    assert pair.interval is not None
    assert [end - 1 for end in pair.interval] == pytest.approx(
        [-math.hypot(0.03, 0.02), math.hypot(0.03, 0.02)]
    )


def test_what_was_decided_replaces_what_the_files_say() -> None:
    """Value, baseline and interval are those of the decision."""
    decided = Change(
        effect=0.2,
        current=1.2,
        reference=1.0,
        session_count=3,
        run_count=1,
        low=0.1,
        high=0.3,
    )
    verdict = Verdict(
        key=KEY,
        outcome=Outcome.REGRESSED,
        reason=Reason.SLOWER_THAN_LIMIT,
        metric="time",
        change=decided,
    )
    (pair,) = shown([held(5.0)], [held(7.0)], verdict)

    assert (pair.was, pair.now) == (1.0, 1.2)
    assert pair.interval == (1.1, 1.3)
    assert pair.verdict is verdict


def test_files_are_compared_by_the_best_source_of_both() -> None:
    """One of a single side says nothing of a change."""
    (pair,) = shown([held(1.0, "cupti"), held(2.0, "event")], [held(3.0, "event")])

    assert (pair.was, pair.now) == (3.0, 2.0)


def test_files_are_compared_by_time_and_by_what_is_exact() -> None:
    """A metric with noise of its own, or without a better direction, is not."""
    names = ("time", "stack_bytes", "registers", "dram.bytes", "of.a.phase")
    compared = [name for name in names if is_compared(name, "host")]

    assert compared == ["time", "stack_bytes"]


@pytest.mark.parametrize(
    ("better", "worse"),
    [("lower", 1.2), ("higher", 0.8), ("neither", 1.2), (None, 1.2)],
)
def test_a_number_of_a_test_is_compared_by_its_own_direction(
    better: str | None, worse: float
) -> None:
    """Whoever recorded it wants to see it; without a direction less is better."""
    own: dict[str, Any] = {"metric": "ttft", "source": "user", "better": better}
    (pair,) = shown([held(worse, **own)], [held(1.0, **own)])

    assert pair.ratio == pytest.approx(worse)
    assert pair.worsening > 0


def test_a_change_that_is_only_shown_decides_nothing_of_files() -> None:
    """It stands beside the values, without an outcome."""
    moved = Change(effect=0.6, current=1.6, reference=1.0, session_count=3, run_count=1)
    verdict = Verdict(
        key=KEY,
        outcome=Outcome.UNCHANGED,
        reason=Reason.WITHIN_NOISE,
        metric="time",
        change=moved,
    )
    (seen,) = shown([held(1.6)], [held(1.0)], verdict)
    (gated,) = shown([held(1.6)], [held(1.0)], replace(verdict, threshold=0.05))

    assert seen.outcome is None
    assert gated.outcome is Outcome.UNCHANGED


def test_the_worst_comes_first_and_what_a_side_lacks_before_it() -> None:
    """However the metrics and the tests came."""
    pairs = value_pairs(
        {KEY: [held(1.0)], OTHER: [held(2.0)]},
        {
            KEY: [held(2.0)],
            OTHER: [held(1.0), held(3.0, metric="compile.count", unit="count")],
        },
        {},
    )

    assert [(p.key, p.metric, p.now) for p in pairs] == [
        (OTHER, "compile.count", None),
        (OTHER, "time", 2.0),
        (KEY, "time", 1.0),
    ]


def verdict(outcome: Outcome, **fields: Any) -> Verdict:
    """A verdict on the time."""
    given: dict[str, Any] = {
        "key": KEY,
        "reason": Reason.WITHIN_LIMIT,
        "metric": "time",
    }
    return Verdict(outcome=outcome, **(given | fields))


LIMIT = Limit(text="time < 1 s", metric="time", operator="<", threshold=1.0, unit="s")


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], None),
        ([verdict(Outcome.NEW)], None),
        ([verdict(Outcome.INCONCLUSIVE, threshold=0.05)], None),
        ([verdict(Outcome.UNCHANGED, threshold=0.05)], True),
        ([verdict(Outcome.REGRESSED, threshold=0.05)], False),
        ([verdict(Outcome.FAILED, limit=LIMIT), verdict(Outcome.PASSED)], False),
        ([verdict(Outcome.REGRESSED)], True),  # decided, and gates nothing
        ([verdict(Outcome.REGRESSED, change=runs.change(0.5, 1.0))], None),  # shown
    ],
)
def test_a_run_fails_by_what_is_gated_alone(
    verdicts: list[Verdict], *, expected: bool | None
) -> None:
    """Where no verdict is decided, the files say nothing."""
    assert run_passes(verdicts) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([("time", 2.0)], None),
        ([("registers", 2.0)], None),
        ([("dram.bytes", 1.0)], True),
        ([("dram.bytes", 0.5)], True),
        ([("dram.bytes", 0.5), ("stack_bytes", 2.0)], False),
    ],
)
def test_captures_fail_by_a_metric_that_is_worse(
    values: list[tuple[str, float]], *, expected: bool | None
) -> None:
    """Times of single launches and metrics without a direction decide nothing."""
    compared = [
        Difference(kernel="copy", metric=metric, unit="", was=1.0, now=now)
        for metric, now in values
    ]

    assert captures_pass(compared) is expected


@pytest.mark.parametrize(
    ("outcome", "passes"),
    [
        (Outcome.REGRESSED, False),
        (Outcome.FAILED, False),
        (Outcome.UNMEASURED, False),
        (Outcome.UNCHANGED, True),
        (Outcome.NEW, True),
    ],
)
def test_a_quantity_that_is_lost_does_not_pass(
    outcome: Outcome, *, passes: bool
) -> None:
    """What the baseline has and this run lacks is as bad as what regressed."""
    decision = Decision(metric="step", outcome=outcome, basis=Basis.NOTHING)
    invariant = InvariantResult(name="ratio", outcome=outcome)

    for fields in ({"decisions": (decision,)}, {"invariants": (invariant,)}):
        scorecard = MeasuredScorecard(unit="token", **fields)
        assert scorecard_passes(scorecard) is passes


def test_a_clock_below_the_boost_clock_is_held() -> None:
    """A boost clock varies by less than a twentieth."""
    assert is_held_clock(0.949e9, 1e9)
    assert not is_held_clock(0.95e9, 1e9)
