"""Rules of the records of scorecards, profiles and parity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import Mistake, refuse
from pytest_gpuperf.model.parity import ParityProfile
from pytest_gpuperf.model.roofline import TRAINING_BANDS, Bands, Grade
from pytest_gpuperf.model.scorecard import (
    BOTTLENECK_LIMITS,
    HARDWARE,
    Bottleneck,
    Hardware,
)
from pytest_gpuperf.model.steps import Layer, Phase, StepProfile

NOT_FINITE = (math.nan, math.inf, -math.inf)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_grades_order_from_f_to_a() -> None:
    """F is the worst and A the best, though A is the first letter."""
    assert [str(grade) for grade in sorted(Grade)] == list("FDCBA")
    assert max(Grade) is Grade.A


def test_grades_compare_with_text_on_either_side() -> None:
    """A test writes `grade >= "B"`; the text may stand on the left too."""
    assert Grade.B >= "B"
    assert Grade.A > "B"
    assert Grade.C < "B"
    assert Grade.C <= "C"
    assert "D" < Grade.C  # noqa: SIM300 - the text on the left is what is tested
    assert Grade.B == "B"
    assert Grade.B != "A"
    assert {"B": 1}[Grade.B] == 1  # type: ignore[index]


@pytest.mark.parametrize("text", ["E", "b", "", "AB", None])
def test_what_is_no_grade_has_no_place(text: str) -> None:
    """It equals no grade and cannot be ordered: there is no E between D and F."""
    assert text not in list(Grade)
    with pytest.raises(RecordError, match="not a grade; write one of A, B, C, D, F"):
        assert text <= Grade.B


@pytest.mark.parametrize(
    ("limit", "at", "below"),
    [
        (0.60, Grade.A, Grade.B),
        (0.40, Grade.B, Grade.C),
        (0.20, Grade.C, Grade.D),
        (0.10, Grade.D, Grade.F),
    ],
)
def test_a_limit_belongs_to_the_better_grade(
    limit: float, at: Grade, below: Grade
) -> None:
    """The next double below it is the worse grade, the next above is not better."""
    assert Grade.from_efficiency(limit) is at
    assert Grade.from_efficiency(math.nextafter(limit, 2.0)) is at
    assert Grade.from_efficiency(math.nextafter(limit, 0.0)) is below


@given(one=FINITE, other=FINITE)
def test_more_is_never_graded_worse(one: float, other: float) -> None:
    """Grades rise with the efficiency, with any bands."""
    low, high = sorted((one, other))
    bands = Bands(a=3.0, b=2.0, c=1.0, d=0.0)

    assert Grade.from_efficiency(low) <= Grade.from_efficiency(high)
    assert Grade.from_efficiency(low, bands) <= Grade.from_efficiency(high, bands)


@pytest.mark.parametrize("efficiency", NOT_FINITE)
def test_nothing_that_is_not_finite_is_graded(efficiency: float) -> None:
    """A NaN is not a F: nobody measured it."""
    with pytest.raises(RecordError, match="not a finite number") as raised:
        Grade.from_efficiency(efficiency)

    assert raised.value.path == "efficiency"
    assert raised.value.remedy


@pytest.mark.parametrize("wrong", [None, "0.5", True, 10**400, {}])
def test_what_is_no_number_is_not_graded(wrong: Any) -> None:
    """The error names the field and says what to do, of a grade and of its bands."""
    with pytest.raises(RecordError) as raised:
        Grade.from_efficiency(wrong)
    assert raised.value.path == "efficiency"
    with pytest.raises(RecordError, match=r"bands\.a: .*; bands\.d: ") as raised:
        Bands(a=wrong, b=0.4, c=0.2, d=wrong)
    assert raised.value.remedy


def test_all_shares_that_are_none_are_named() -> None:
    """What was not measured has no bottleneck."""
    shares: dict[str, Any] = {
        "transfer_fraction": None,
        "launch_fraction": 0.1,
        "compute_utilization": "0.5",
    }

    with pytest.raises(RecordError) as raised:
        Bottleneck.classify(**shares)

    assert raised.value.message == (
        "transfer_fraction: None is not a number; "
        "compute_utilization: '0.5' is not a number"
    )
    assert raised.value.remedy


@pytest.mark.parametrize("wrong", ["1", True, 10**400, []])
@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda bad: Phase(total_ms=bad, pct=1.0, avg_ms=1.0), "phase.total_ms"),
        (
            lambda bad: Phase(total_ms=1.0, pct=1.0, avg_ms=1.0, exclusive_ms=bad),
            "phase.exclusive_ms",
        ),
        (lambda bad: Layer(layer=0, fwd_ms=1.0, bwd_ms=bad), "layer.bwd_ms"),
        (
            lambda bad: Layer(layer=0, fwd_ms=1.0, bwd_ms=1.0, ops={"a": bad}),
            "layer.ops.a",
        ),
        (lambda bad: Layer(layer=0, fwd_ms=1.0, bwd_ms=1.0, ops=bad), "layer.ops"),
        (lambda bad: StepProfile(steps=bad), "profile.steps"),
        (lambda bad: StepProfile(step_ms=(1.0, bad)), "profile.step_ms[1]"),
        (
            lambda bad: Hardware(peak_bw_gb_s=bad, bytes_per_token=1.0),
            "hardware.peak_bw_gb_s",
        ),
        (
            lambda bad: Hardware(
                peak_bw_gb_s=1.0, bytes_per_token=1.0, flop_per_token=bad
            ),
            "hardware.flop_per_token",
        ),
        (
            lambda bad: ParityProfile(
                runtime="a",
                throughput_tok_s=1.0,
                step_time_ms=1.0,
                kernel_launches_per_step=bad,
            ),
            "parity.kernel_launches_per_step",
        ),
    ],
)
def test_what_is_no_number_makes_no_record(
    make: Callable[[Any], object], path: str, wrong: Any
) -> None:
    """A text, a truth and an integer that no float holds are refused by their field."""
    with pytest.raises(RecordError) as raised:
        make(wrong)

    assert raised.value.path == path
    assert raised.value.remedy


def test_a_bottleneck_is_its_word() -> None:
    """Printed as it is written in JSON, as a grade is."""
    assert str(Bottleneck.LAUNCH) == f"{Bottleneck.LAUNCH}" == "launch"
    assert str(Grade.A) == f"{Grade.A}" == "A"


@pytest.mark.parametrize("d", [0.2, 0.3])
def test_bands_must_fall(d: float) -> None:
    """Bands that do not fall would grade nobody with one of their letters."""
    with pytest.raises(RecordError, match="do not fall"):
        Bands(a=0.6, b=0.4, c=0.2, d=d)
    assert TRAINING_BANDS.grade(0.5) is Grade.B


@pytest.mark.parametrize(
    ("share", "limit", "found"),
    [
        ("transfer_fraction", 0.30, Bottleneck.TRANSFER),
        ("launch_fraction", 0.40, Bottleneck.LAUNCH),
        ("compute_utilization", 0.50, Bottleneck.COMPUTE),
    ],
)
def test_a_share_must_pass_its_limit(
    share: str, limit: float, found: Bottleneck
) -> None:
    """At its limit a share is not named; the next double above is."""

    def classified(number: float) -> Bottleneck:
        shares = dict.fromkeys(
            ("transfer_fraction", "launch_fraction", "compute_utilization"), 0.0
        )
        shares[share] = number
        return Bottleneck.classify(
            transfer_fraction=shares["transfer_fraction"],
            launch_fraction=shares["launch_fraction"],
            compute_utilization=shares["compute_utilization"],
        )

    assert classified(limit) is Bottleneck.MEMORY_BW
    assert classified(math.nextafter(limit, 1.0)) is found


def test_the_first_share_above_its_limit_counts() -> None:
    """Copies come before launches, and launches before arithmetic."""
    found = [
        Bottleneck.classify(
            transfer_fraction=copies, launch_fraction=0.9, compute_utilization=0.9
        )
        for copies in (0.31, 0.3)
    ]

    assert found == [Bottleneck.TRANSFER, Bottleneck.LAUNCH]
    assert BOTTLENECK_LIMITS.launch_fraction == 0.4


def test_all_shares_that_are_not_finite_are_named() -> None:
    """One message names every mistake."""
    with pytest.raises(RecordError) as raised:
        Bottleneck.classify(
            transfer_fraction=math.nan,
            launch_fraction=0.1,
            compute_utilization=math.inf,
        )

    assert raised.value.path == "transfer_fraction"
    assert "compute_utilization: inf is not a finite number" in str(raised.value)
    assert "launch_fraction" not in str(raised.value)


def test_the_peak_of_hardware_is_bandwidth_over_bytes() -> None:
    """Every token reads all of its bytes once."""
    assert HARDWARE["rtx-4060-laptop"].peak_throughput_tok_s == 1620.253164556962
    assert HARDWARE["gb10"].peak_throughput_tok_s == 273e9 / 158e6


@pytest.mark.parametrize(
    ("bandwidth", "size", "peak"),
    [
        (1.0, 0.0, math.inf),
        (1.0, -0.0, -math.inf),
        (-1.0, 0.0, -math.inf),
        (1e308, 1.0, math.inf),
        (-2.0, 1e9, -2.0),
    ],
)
def test_a_peak_follows_the_floats(bandwidth: float, size: float, peak: float) -> None:
    """Division by zero gives infinity with the signs of both, as IEEE 754 says."""
    hardware = Hardware(peak_bw_gb_s=bandwidth, bytes_per_token=size)

    assert hardware.peak_throughput_tok_s == peak


def test_no_bandwidth_over_no_bytes_is_nothing() -> None:
    """Zero over zero is NaN, which is above no other number."""
    hardware = Hardware(peak_bw_gb_s=0.0, bytes_per_token=0.0)

    assert math.isnan(hardware.peak_throughput_tok_s)


@pytest.mark.parametrize("wrong", NOT_FINITE)
def test_no_record_holds_what_is_not_finite(wrong: float) -> None:
    """Every number of every record is checked when it is built."""
    phase = {"total_ms": 1.0, "pct": 1.0, "avg_ms": 1.0, "exclusive_ms": 1.0}
    layer = {"fwd_ms": 1.0, "bwd_ms": 1.0}
    for name in phase:
        with pytest.raises(RecordError, match=f"phase.{name}"):
            Phase(**{**phase, name: wrong})  # type: ignore[arg-type]
    for name in layer:
        with pytest.raises(RecordError, match=f"layer.{name}"):
            Layer(layer=0, **{**layer, name: wrong})  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=r"layer\.ops\.gemm"):
        Layer(layer=0, fwd_ms=1.0, bwd_ms=1.0, ops={"gemm": wrong})
    for name in ("avg_step_ms", "wall_coverage", "gemm_pct", "total_ms"):
        with pytest.raises(RecordError, match=f"profile.{name}"):
            StepProfile(**{name: wrong})  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=r"profile.step_ms\[1\]"):
        StepProfile(step_ms=(1.0, wrong))
    for name in ("peak_bw_gb_s", "bytes_per_token", "flop_per_token"):
        numbers = {"peak_bw_gb_s": 1.0, "bytes_per_token": 1.0, name: wrong}
        with pytest.raises(RecordError, match=f"hardware.{name}"):
            Hardware(**numbers)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=r"parity.throughput_tok_s.*parity.ops.a"):
        ParityProfile(
            runtime="x",
            throughput_tok_s=wrong,
            step_time_ms=1.0,
            kernel_launches_per_step=1,
            ops={"a": wrong},
        )


def test_an_empty_profile_is_a_profile() -> None:
    """All fields of a step profile may be missing; it says which ones were."""
    assert StepProfile().steps == 0
    assert StepProfile(absent=frozenset({"steps"})).absent == {"steps"}


def test_mistakes_are_told_together() -> None:
    """The first gives the path; the others stand behind it with theirs."""
    with pytest.raises(RecordError) as raised:
        refuse([Mistake(path="a", text="bad"), Mistake(path="", text="worse")])

    assert raised.value.path == "a"
    assert raised.value.message == "a: bad; worse"
