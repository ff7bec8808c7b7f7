"""Compute's share of a roof: how much was reached, or why that is not known."""

from __future__ import annotations

import pytest

from pytest_gpuperf.compute.roofline import Roof, peak_fact, roof_of
from pytest_gpuperf.model.roofline import Peak, Peaks
from pytest_gpuperf.model.sample import Estimate, SourceLabel
from pytest_gpuperf.model.work import Work

TIME = Estimate(
    metric="time",
    value=2.0,
    unit="s",
    source="events",
    low=1.0,
    high=4.0,
    sample_count=9,
)


def peaks(*notes: str, l2_bytes: int | None = None, **values: float) -> Peaks:
    every = {
        name: Peak(value=value, label=SourceLabel.DATASHEET, source="a sheet")
        for name, value in values.items()
    }
    return Peaks(
        device="a GPU",
        flop_per_s={n: p for n, p in every.items() if n not in {"dram", "l2"}},
        bytes_per_s={n: p for n, p in every.items() if n in {"dram", "l2"}},
        unlisted="nobody says it",
        l2_bytes=l2_bytes,
        notes=notes,
    )


def held(
    work: Work | None, known: Peaks | None, time: Estimate = TIME, *, warm: bool = False
) -> Roof:
    return roof_of(work, time, known, warm=warm)


@pytest.mark.parametrize("work", [None, Work(bytes=1e12)])
def test_what_nobody_saw_use_the_device_is_roof_of_nothing(
    work: Work | None,
) -> None:
    """Not even where peaks are given; a test that declares no work is told that first."""
    roof = roof_of(work, TIME, peaks(dram=1e12), warm=False, use_unknown=True)

    assert (roof.attained, roof.estimates) == (None, ())
    reason = roof.unmeasured[0].reason
    assert ("declares no work" in reason) is (work is None)
    assert ("whether it used the GPU" in reason) is (work is not None)


def test_a_fraction_has_the_interval_of_its_time() -> None:
    """Upside down: the longest time is the smallest fraction."""
    roof = held(Work(bytes=1e12), peaks(dram=1e12))
    (fraction,) = roof.estimates

    assert (fraction.low, fraction.value, fraction.high) == (0.25, 0.5, 1.0)
    assert (fraction.source, fraction.sample_count) == ("events", 9)
    assert fraction.label is SourceLabel.DATASHEET
    assert roof.attained is not None
    assert roof.attained.grade is None  # who knows the thresholds gives it


def test_a_time_without_an_interval_gives_none() -> None:
    """One sample has no spread, and neither has what is made of it."""
    alone = Estimate(metric="time", value=2.0, unit="s", source="host")
    (fraction,) = held(Work(bytes=1e12), peaks(dram=1e12), alone).estimates

    assert (fraction.low, fraction.high) == (None, None)


def test_an_intensity_is_as_well_known_as_the_work() -> None:
    """It is made of nothing else; where one kind is not declared there is none."""
    both = held(Work.matmul(8, 8, 8, "bf16"), peaks(dram=1e12, bf16=1e14))
    intensity = both.estimates[1]

    assert (intensity.metric, intensity.unit) == ("roofline.intensity", "FLOP/B")
    assert intensity.value == 2 * 8**3 / (3 * 64 * 2)
    assert intensity.label is SourceLabel.ESTIMATED
    gap, _ = held(Work(bytes=1.0), peaks(dram=1.0)).unmeasured
    assert gap.reason == "the declared work has no FLOP"
    gap, _ = held(Work(flop=1.0, dtype="bf16"), peaks(bf16=1.0)).unmeasured
    assert gap.reason == "the declared work has no bytes"


def test_warm_data_need_the_roof_of_the_l2() -> None:
    """A fraction of DRAM's would flatter what never left the cache."""
    known = peaks(dram=1e12, l2=5e12, l2_bytes=2**20)
    cold, warm = (held(Work(bytes=1e6), known, warm=each) for each in (False, True))

    assert cold.attained is not None
    assert warm.attained is not None
    assert (cold.attained.roof, warm.attained.roof) == ("dram", "l2")


@pytest.mark.parametrize(
    ("work", "known", "reason"),
    [
        (None, peaks(dram=1.0), "the test declares no work"),
        (Work(bytes=1.0), None, "the peaks of this device are not known"),
        (
            Work(bytes=1.0),
            peaks("It is odd."),
            "the dram peak is not known: nobody says it; It is odd",
        ),
    ],
)
def test_without_a_roof_the_fraction_says_why(
    work: Work | None, known: Peaks | None, reason: str
) -> None:
    """A reason and a remedy, and no estimate."""
    roof = held(work, known)

    assert roof.estimates == ()
    assert roof.attained is None
    assert [gap.metric for gap in roof.unmeasured] == [
        "roofline.fraction",
        "roofline.intensity",
        "roofline.at_clock_fraction",
    ]
    assert roof.unmeasured[0].reason == roof.unmeasured[2].reason == reason
    assert all(gap.remedy for gap in roof.unmeasured)


@pytest.mark.parametrize("known", [None, peaks(), peaks(dram=1e12)])
def test_an_intensity_needs_no_peak(known: Peaks | None) -> None:
    """It is the declared work's alone, whatever is not known of the device."""
    work = Work(flop=6e9, bytes=2e9, dtype="bf16")
    roof = held(work, known)
    (intensity,) = roof.estimates
    gap, at_clock = roof.unmeasured

    assert (intensity.metric, intensity.value) == ("roofline.intensity", 3.0)
    assert intensity.label is SourceLabel.DECLARED
    assert gap.metric == "roofline.fraction"
    assert at_clock.metric == "roofline.at_clock_fraction"


def test_an_intensity_beyond_all_numbers_is_unmeasured() -> None:
    """A record holds no infinity: the reason says what is wrong with the work."""
    roof = held(Work(flop=1e308, bytes=1e-300, dtype="bf16"), None)

    assert roof.estimates == ()
    assert "inf is not a finite number" in roof.unmeasured[1].reason


def test_a_clock_that_was_read_gives_a_second_fraction() -> None:
    """Of the roof at that clock, with an interval that is as wide in proportion."""
    known = Peaks(
        device="d",
        flop_per_s={
            "bf16": Peak(
                value=1e12, label=SourceLabel.DATASHEET, source="s", clock_hz=2e9
            )
        },
        bytes_per_s={},
        unlisted="nobody says it",
    )
    time = Estimate(
        metric="time", value=2.0, unit="s", source="events", low=1.6, high=2.5
    )
    work = Work(flop=1e12, dtype="bf16")
    half = roof_of(work, time, known, warm=False, clock_hz=1e9)
    unread = roof_of(work, time, known, warm=False)
    fraction, at_clock = half.estimates

    assert (fraction.value, at_clock.value) == (0.5, 1.0)
    assert (at_clock.metric, at_clock.source) == (
        "roofline.at_clock_fraction",
        "events",
    )
    assert [at_clock.low, at_clock.high] == pytest.approx([0.8, 1.25])
    assert at_clock.label is SourceLabel.DATASHEET
    (gap,) = (g for g in unread.unmeasured if g.metric == at_clock.metric)
    assert gap.reason == "the SM clock was not read during the call"
    assert unread.attained is not None
    assert unread.attained.at_clock_reason == gap.reason


def test_bytes_alone_follow_no_clock() -> None:
    """The reason says so, and says where the clock of a peak is not known."""
    for work, why in (
        (Work(bytes=1.0), "memory does not follow the SM clock"),
        (Work(flop=1.0, dtype="bf16"), "the clock of the compute peak is not known"),
    ):
        roof = held(work, peaks(dram=1.0, bf16=1.0))
        (gap,) = (g for g in roof.unmeasured if "at_clock" in g.metric)
        assert why in gap.reason


def test_a_time_of_zero_has_no_fraction() -> None:
    """It is a clock's limit, not a result: the reason names the time."""
    nothing = Estimate(metric="time", value=0.0, unit="s", source="host")
    roof = held(Work(bytes=1.0), peaks(dram=1.0), nothing)

    assert roof.estimates == ()
    assert "time_s=0.0" in roof.unmeasured[0].reason


PEAKS = Peaks(
    device="NVIDIA H200",
    flop_per_s={
        "bf16": Peak(value=989e12, label=SourceLabel.DATASHEET, source="its page")
    },
    bytes_per_s={
        "dram": Peak(value=4.8e12, label=SourceLabel.DECLARED, source="the ini file")
    },
    unlisted="it is not listed",
)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dram", "dram 4800 GB/s (declared)"),
        ("bf16", "bf16 989000 GFLOP/s (datasheet)"),
    ],
)
def test_a_peak_is_told_with_its_value_and_its_label(name: str, said: str) -> None:
    """A share of another peak is not a comparable share, and neither is one of a guess."""
    assert peak_fact(PEAKS, name) == {"peak": said}


def test_without_a_peak_there_is_no_fact() -> None:
    """A time that is held against nothing shares no peak with anything."""
    assert peak_fact(None, "dram") == {}
    assert peak_fact(PEAKS, None) == {}
    assert peak_fact(PEAKS, "fp8") == {}
