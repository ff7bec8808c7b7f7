"""Rules of compute.parity."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.parity import ParityPolicy, compare_parity, measured_parity
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.codec import encode_parity
from pytest_gpuperf.model.parity import ParityProfile

NAMES = st.text(max_size=3)
TIMES = st.floats(min_value=0, max_value=1e6)
OPS = st.dictionaries(NAMES, TIMES, max_size=8)


def side(
    ops: dict[str, float] | None = None,
    *,
    throughput: float = 100.0,
    launches: int = 10,
    runtime: str = "ours",
) -> ParityProfile:
    """Return one side of a comparison."""
    return ParityProfile(
        runtime=runtime,
        throughput_tok_s=throughput,
        step_time_ms=10.0,
        kernel_launches_per_step=launches,
        ops={} if ops is None else ops,
    )


@pytest.mark.parametrize(
    ("ours", "other", "achieved"),
    [
        (1.1, 1.0, True),
        (11.0, 10.0, True),
        (3.3, 3.0, True),
        (math.nextafter(1.1, 2.0), 1.0, False),
        (0.002, 0.001, False),
        (1.0, 9.0, True),
    ],
)
def test_a_tenth_slower_is_still_parity(
    ours: float, other: float, achieved: bool
) -> None:
    """The next double above is not, however short the operation is."""
    comparison = compare_parity(side({"a": ours}), side({"a": other}))

    assert comparison.parity_achieved is achieved


def test_nothing_shared_is_parity() -> None:
    """By the rules in the wild: whatever the throughput says."""
    comparison = compare_parity(
        side({"a": 9.0}, throughput=1.0), side({"b": 1.0}, throughput=100.0)
    )

    assert comparison.parity_achieved
    assert comparison.throughput_ratio == 100.0


@pytest.mark.parametrize(
    ("ours", "other"), [(0.0, 1.0), (1.0, 0.0), (-2.0, 1.0), (9.0, -1.0)]
)
def test_an_operation_without_time_is_passed_over(ours: float, other: float) -> None:
    """On either side."""
    assert compare_parity(side({"a": ours}), side({"a": other})).top_gaps == ()


def test_only_five_gaps_are_kept_and_all_are_judged() -> None:
    """The sixth still breaks parity; equal ratios stand by name."""
    base = dict.fromkeys("fedcba", 1.0)
    slow = compare_parity(side(dict.fromkeys("fedcba", 1.2)), side(base))

    assert [gap.op for gap in slow.top_gaps] == list("abcde")
    assert not slow.parity_achieved


@pytest.mark.parametrize(
    ("ours", "other", "ratio"), [(0.0, 5.0, 0.0), (-1.0, 5.0, 0.0), (2.0, 5.0, 2.5)]
)
def test_no_throughput_of_ours_is_no_ratio(
    ours: float, other: float, ratio: float
) -> None:
    """Above 1 the other is faster."""
    comparison = compare_parity(side(throughput=ours), side(throughput=other))

    assert comparison.throughput_ratio == ratio


def test_launches_are_ours_over_the_others() -> None:
    """As floats: beyond 2**53 whole numbers are rounded first."""
    many = compare_parity(side(launches=2**53 + 1), side(launches=3))

    assert compare_parity(side(launches=5), side(launches=0)).launch_ratio == 0.0
    assert compare_parity(side(launches=5), side(launches=4)).launch_ratio == 1.25
    assert many.launch_ratio == float(2**53) / 3.0


@given(ours=OPS, other=OPS)
def test_swapping_the_sides_turns_the_ratios(
    ours: dict[str, float], other: dict[str, float]
) -> None:
    """What one side loses the other wins, of the same operations."""
    there = compare_parity(side(ours), side(other))
    back = compare_parity(side(other), side(ours))
    ratios = {gap.op: (gap.ours_ms, gap.reference_ms) for gap in there.top_gaps}

    for gap in back.top_gaps:
        if gap.op in ratios:
            assert ratios[gap.op] == (gap.reference_ms, gap.ours_ms)
    assert there.throughput_ratio == back.throughput_ratio == 1.0


@given(ours=OPS, other=OPS, order=st.randoms(use_true_random=False))
def test_the_order_of_a_file_changes_nothing(
    ours: dict[str, float], other: dict[str, float], order: Random
) -> None:
    """Neither by the rules in the wild nor by ours."""
    items = list(ours.items())
    order.shuffle(items)
    mixed = side(dict(items))

    assert compare_parity(mixed, side(other)) == compare_parity(side(ours), side(other))
    assert measured_parity(mixed, side(other)) == measured_parity(
        side(ours), side(other)
    )


@given(ours=OPS, other=OPS, power=st.integers(min_value=-10, max_value=10))
def test_the_unit_of_time_does_not_matter(
    ours: dict[str, float], other: dict[str, float], power: int
) -> None:
    """Ratios and the verdict are the same in any unit that is a power of two."""
    scale = 2.0**power
    kept = [name for name in ours if ours[name] > 1e-200]  # below, floats lose digits
    mine = {name: ours[name] for name in kept}
    base = {name: ms for name, ms in other.items() if ms > 1e-200}
    plain = compare_parity(side(mine), side(base))
    scaled = compare_parity(
        side({name: ms * scale for name, ms in mine.items()}),
        side({name: ms * scale for name, ms in base.items()}),
    )

    assert scaled.parity_achieved == plain.parity_achieved
    assert [gap.ratio for gap in scaled.top_gaps] == [
        gap.ratio for gap in plain.top_gaps
    ]


def test_a_comparison_is_written_under_the_names_of_others() -> None:
    """Ours is apr there."""
    comparison = compare_parity(
        side({"a": 2.0}), side({"a": 1.0}, runtime="other", launches=5)
    )

    assert encode_parity(comparison) == {
        "apr_runtime": "ours",
        "baseline_runtime": "other",
        "throughput_ratio": 1.0,
        "launch_ratio": 2.0,
        "top_gaps": [{"op": "a", "apr_ms": 2.0, "baseline_ms": 1.0, "ratio": 2.0}],
        "parity_achieved": False,
    }


# -- the measured policy


def test_a_short_operation_does_not_decide() -> None:
    """Two microseconds at twice the time are reported, and cost nothing."""
    ours = {"gemm": 10.0, "cast": 0.004}
    comparison = measured_parity(side(ours), side({"gemm": 10.0, "cast": 0.002}))

    assert comparison.achieved is True
    assert [(gap.op, gap.counts) for gap in comparison.gaps] == [
        ("cast", False),
        ("gemm", True),
    ]


def test_gaps_are_weighed_by_what_they_cost() -> None:
    """The largest loss stands first, with its share of all losses."""
    ours = {"gemm": 13.0, "norm": 3.0, "add": 1.0}
    base = {"gemm": 10.0, "norm": 2.0, "add": 2.0}
    comparison = measured_parity(side(ours), side(base))

    assert comparison.achieved is False
    assert comparison.reasons == (
        "time in shared operations",
        "operation gemm",
        "operation norm",
    )
    assert [(g.op, g.gap_ms, g.gap_fraction) for g in comparison.gaps] == [
        ("gemm", 3.0, 0.75),
        ("norm", 1.0, 0.25),
        ("add", -1.0, None),
    ]


def test_nothing_shared_decides_nothing() -> None:
    """Neither parity nor its absence can be seen, and what was unmatched is named."""
    comparison = measured_parity(side({"a": 9.0, "z": 9.5}), side({"b": 1.0}))

    assert comparison.achieved is None
    assert comparison.reasons == ("shared operations take too little of the time",)
    assert list(comparison.ours_only.items()) == [("z", 9.5), ("a", 9.0)]
    assert comparison.reference_only == {"b": 1.0}
    assert comparison.ours_overlap == comparison.reference_overlap == 0.0


def test_a_fused_operation_is_not_overlooked() -> None:
    """Most of the other's time is in an operation that ours does not have."""
    comparison = measured_parity(side({"gemm": 1.0}), side({"gemm": 1.0, "fused": 50}))

    assert comparison.achieved is None
    assert comparison.reference_overlap == pytest.approx(1 / 51)


def test_throughput_decides_too() -> None:
    """The same operations with a slower whole are not parity."""
    slow = measured_parity(
        side({"a": 1.0}, throughput=50.0), side({"a": 1.0}, throughput=100.0)
    )

    assert (slow.achieved, slow.reasons) == (False, ("throughput",))
    assert slow.throughput_ratio == 2.0


@pytest.mark.parametrize(("ours", "reference"), [(0.0, 100.0), (100.0, 0.0)])
def test_parity_with_no_throughput_is_unknown(ours: float, reference: float) -> None:
    """Whichever side lacks it: nobody is infinitely faster than the other."""
    unknown = measured_parity(
        side({"a": 1.0}, throughput=ours), side({"a": 1.0}, throughput=reference)
    )

    assert (unknown.achieved, unknown.reasons) == (
        None,
        ("the throughput of a side is unknown",),
    )
    assert unknown.throughput_ratio is None


def test_launches_decide_where_they_are_asked_to() -> None:
    """They are always shown; more of them alone are not slower."""
    ours, base = side({"a": 1.0}, launches=30), side({"a": 1.0}, launches=10)
    policy = ParityPolicy(launch_tolerance=0.5)

    assert measured_parity(ours, base).achieved is True
    assert measured_parity(ours, base).launch_ratio == 3.0
    assert measured_parity(ours, base, policy=policy).reasons == ("launches",)
    assert measured_parity(ours, side(launches=0)).launch_ratio is None


@pytest.mark.parametrize(
    ("ours", "reasons"),
    [
        ({}, ()),
        ({"throughput": 79.9}, ("throughput",)),
        ({"launches": 16}, ("launches",)),
        ({"launches": 10}, ()),
        ({"ops": {"a": 1.26, "b": 1.24}}, ("operation a",)),
        ({"ops": {"a": 1.26, "b": 1.25}}, ("time in shared operations", "operation a")),
    ],
)
def test_what_is_as_slow_as_is_tolerated_passes(
    ours: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    """A quarter more of everything and half the launches more; what is above does not."""
    given = {"ops": {"a": 1.25, "b": 1.25}, "throughput": 80.0, "launches": 15, **ours}
    reference = side({"a": 1.0, "b": 1.0}, throughput=100.0, runtime="theirs")
    policy = ParityPolicy(tolerance=0.25, launch_tolerance=0.5)
    comparison = measured_parity(side(**given), reference, policy=policy)

    assert comparison.reasons == reasons
    assert comparison.achieved is not bool(reasons)
    assert (comparison.ours_runtime, comparison.reference_runtime) == ("ours", "theirs")
    assert {gap.op: gap.ratio for gap in comparison.gaps} == given["ops"]


@pytest.mark.parametrize(
    ("mine", "others", "counts"),
    [(2.0, 0.0, True), (1.9, 0.0, False), (0.0, 1.0, True), (0.0, 0.9, False)],
)
def test_an_operation_counts_from_its_share_of_either_side(
    mine: float, others: float, *, counts: bool
) -> None:
    """Of its own side's time, which is 8 ms on ours and 4 ms on the other."""
    policy = ParityPolicy(least_op_fraction=0.25)
    comparison = measured_parity(
        side({"a": mine, "b": 8.0 - mine}),
        side({"a": others, "b": 4.0 - others}),
        policy=policy,
    )
    counted = {gap.op: gap.counts for gap in comparison.gaps}

    assert counted == {"a": counts, "b": True}


@pytest.mark.parametrize(("alone", "known"), [(1.0, True), (1.01, False)])
def test_as_much_as_must_be_shared_is_enough(alone: float, *, known: bool) -> None:
    """Half of the time, where half is asked for."""
    policy = ParityPolicy(least_overlap=0.5)
    comparison = measured_parity(
        side({"a": 1.0}), side({"a": 1.0, "b": alone}), policy=policy
    )

    assert comparison.achieved is (True if known else None)


def test_a_ratio_that_no_float_holds_is_none() -> None:
    """The operation is slower all the same; no longer time is one of a step."""
    comparison = measured_parity(side({"a": 1e15}), side({"a": 1e-300}))

    assert comparison.gaps[0].ratio is None
    assert "operation a" in comparison.reasons


def test_names_can_be_mapped() -> None:
    """Two of our kernels may be one operation of the other."""
    policy = ParityPolicy(aliases={"k1": "gemm", "k2": "gemm"})
    comparison = measured_parity(
        side({"k1": 1.0, "k2": 2.0}), side({"gemm": 3.0}), policy=policy
    )

    assert comparison.achieved is True
    assert comparison.gaps[0].ours_ms == 3.0


def test_a_zero_is_a_time() -> None:
    """An operation that one side does in no time is shared, without a ratio."""
    comparison = measured_parity(side({"a": 1.0, "b": 9.0}), side({"a": 0.0, "b": 9.0}))
    gaps = {gap.op: gap for gap in comparison.gaps}

    assert gaps["a"].ratio is None
    assert comparison.reasons == ("time in shared operations", "operation a")


def test_a_negative_time_is_refused() -> None:
    """All of them are named."""
    with pytest.raises(RecordError, match=r"ours\.ops\.a.*reference\.ops\.b"):
        measured_parity(side({"a": -1.0}), side({"b": -2.0}))


@given(ours=OPS, other=OPS)
def test_what_one_side_loses_the_other_wins(
    ours: dict[str, float], other: dict[str, float]
) -> None:
    """Swapped, every gap changes its sign and the overlaps their side."""
    there = measured_parity(side(ours), side(other))
    back = measured_parity(side(other), side(ours))

    assert {gap.op: -gap.gap_ms for gap in there.gaps} == {
        gap.op: gap.gap_ms for gap in back.gaps
    }
    assert there.ours_overlap == back.reference_overlap
    assert there.ours_only == back.reference_only
