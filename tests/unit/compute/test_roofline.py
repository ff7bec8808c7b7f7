"""compute.roofline: where a call stands under the roof, and how near it came."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_gpuperf.compute.roofline import (
    counted_roofline,
    declared_roofline,
    roofline,
    roofline_gap,
    time_bound,
)
from pytest_gpuperf.errors import MissingPeakError, RecordError, WeakSourceError
from pytest_gpuperf.model.roofline import Peak, Peaks, Roofline, TimeBound, weakest
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.work import Work

GOLD = Path(__file__).parents[2] / "gold" / "vectors" / "roofline.jsonl"
VECTORS = [json.loads(line) for line in GOLD.read_text("utf-8").splitlines()]
ROOFLINES = [v for v in VECTORS if v["kind"] == "roofline"]
LAYERS = [v for v in VECTORS if v["kind"] == "transformer_layer"]
BOTH_PEAKS = ["peak_flop_per_s", "peak_bytes_per_s"]
GIB = 2**30  # what the reference takes a GB for
GB = 1e9

amounts = st.floats(1e-3, 1e18)
times = st.floats(1e-9, 1e6)
rates = st.floats(1e3, 1e17)


def vector_id(vector: dict[str, Any]) -> str:
    return f"{vector['id']}-{vector['tag']}"


def answered(vectors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [v for v in vectors if "ok" in v["output"]]


def refused(vectors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [v for v in vectors if "error" in v["output"]]


def asked(vector: dict[str, Any], gigabyte: float) -> dict[str, float | None]:
    """Return our arguments for the reference's input."""
    given = vector["input"]
    specs = given["hardware_specs"]
    bandwidth = specs["memory_bandwidth_gb_per_second"]
    return {
        "flop": given["operation_flops"],
        "bytes_moved": given["memory_bytes"],
        "time_s": given["execution_time_seconds"],
        "peak_flop_per_s": specs["peak_flops_per_second"],
        "peak_bytes_per_s": None if bandwidth is None else bandwidth * gigabyte,
    }


def placed(**numbers: float | None) -> Roofline:
    """Return the roofline of a call of 1 FLOP, 1 B, 1 s, some of it replaced."""
    plain: dict[str, Any] = {
        "flop": 1.0,
        "bytes_moved": 1.0,
        "time_s": 1.0,
        "peak_flop_per_s": 1.0,
        "peak_bytes_per_s": 1.0,
    }
    return roofline(**plain | numbers)


def peak(
    value: float | None,
    label: SourceLabel = SourceLabel.DATASHEET,
    clock_hz: float | None = None,
) -> Peak:
    return Peak(value=value, label=label, source="a sheet", clock_hz=clock_hz)


def peaks(l2_bytes: int | None = None, **named: Peak) -> Peaks:
    """Return peaks: those of memory by their level, all others by their type."""
    levels = {"dram", "l2", "l1"}
    return Peaks(
        device="a GPU",
        flop_per_s={n: p for n, p in named.items() if n not in levels},
        bytes_per_s={n: p for n, p in named.items() if n in levels},
        unlisted="nobody says it",
        l2_bytes=l2_bytes,
    )


H200 = peaks(
    dram=peak(4.8e12),
    bf16=peak(989.5e12, clock_hz=1830e6),
    l2_bytes=60 * 2**20,
)


# the reference


def test_all_vectors_are_there() -> None:
    """21 rooflines, two of them refused; 5 layers, one of them refused."""
    assert len(answered(ROOFLINES)) == 19
    assert len(answered(LAYERS)) == 4
    assert [v["tag"] for v in refused(VECTORS)] == [
        "missing_and_zero_time_which_error_first",
        "missing/bw_missing",
        "heads_zero",
    ]


@pytest.mark.parametrize("vector", answered(ROOFLINES), ids=vector_id)
def test_a_vector_is_reproduced(vector: dict[str, Any]) -> None:
    """Given the reference's own bytes, every number is the same double."""
    expected = vector["output"]["ok"]
    found = roofline(**asked(vector, GIB))  # type: ignore[arg-type] # peaks are there

    assert found.bound == expected["bottleneck"]
    assert found.fraction == expected["efficiency_ratio"]
    assert found.achieved_flop_per_s == expected["achieved_flops_per_second"]
    assert found.intensity_flop_per_byte == expected["arithmetic_intensity"]
    achieved_gib = expected["achieved_bandwidth_gb_per_second"]
    assert found.achieved_bytes_per_s / GIB == achieved_gib


@pytest.mark.parametrize("vector", answered(ROOFLINES), ids=vector_id)
def test_a_gigabyte_has_nine_zeros(vector: dict[str, Any]) -> None:
    """
    Deviation: a sheet's GB is decimal, which moves the ridge up by 7.4 %.

    What the reference says of a memory-bound call was too little by that; between the
    two ridges it said compute where memory is the bound.
    """
    expected = vector["output"]["ok"]
    found = roofline(**asked(vector, GB))  # type: ignore[arg-type] # peaks are there
    moved = found.bound != expected["bottleneck"]
    factor = GIB / GB if expected["bottleneck"] == "memory" else 1.0

    assert moved == (vector["id"] in {9, 6, 7})
    if not moved:
        assert found.fraction == pytest.approx(
            expected["efficiency_ratio"] * factor, rel=1e-12
        )


@pytest.mark.parametrize("vector", refused(ROOFLINES), ids=vector_id)
def test_what_the_reference_refuses_is_refused(vector: dict[str, Any]) -> None:
    """Deviation: a missing peak is named first, whatever else is wrong."""
    given = asked(vector, GIB)
    missing = tuple(name for name in given if given[name] is None)

    with pytest.raises(MissingPeakError) as caught:
        roofline(**given)  # type: ignore[arg-type] # a peak may be None

    assert caught.value.fields == missing


@pytest.mark.parametrize("vector", answered(LAYERS), ids=vector_id)
def test_a_layers_work_is_the_references(vector: dict[str, Any]) -> None:
    """
    FLOP and bytes of a layer agree, so its roofline under the reference's time does too.

    Deviation: that time is FLOP over peak, so it says nothing; ours is a bound.
    """
    given, expected = vector["input"], vector["output"]["ok"]
    specs = given["hardware_specs"]
    work = layer(given)
    peak_flop_per_s = specs["peak_flops_per_second"]
    peak_bytes_per_s = specs["memory_bandwidth_gb_per_second"] * GIB
    assert work.flop is not None
    assert work.bytes is not None
    circular_s = work.flop / peak_flop_per_s
    found = roofline(
        flop=work.flop,
        bytes_moved=work.bytes,
        time_s=circular_s,
        peak_flop_per_s=peak_flop_per_s,
        peak_bytes_per_s=peak_bytes_per_s,
    )

    assert found.intensity_flop_per_byte == expected["arithmetic_intensity"]
    assert found.bound == expected["bottleneck"]
    assert found.fraction == pytest.approx(expected["efficiency_ratio"], rel=1e-15)
    bound = time_bound(
        work, peaks(dram=peak(peak_bytes_per_s), fp32=peak(peak_flop_per_s))
    )
    assert bound.bound == expected["bottleneck"]
    assert bound.time_s == pytest.approx(circular_s * max(1.0, found.fraction))


@pytest.mark.parametrize("vector", refused(LAYERS), ids=vector_id)
def test_a_layer_without_heads_is_refused(vector: dict[str, Any]) -> None:
    """Deviation: the field is named, where the reference divides by zero."""
    with pytest.raises(RecordError, match="heads: 0 is not a whole"):
        layer(vector["input"])


def layer(given: dict[str, Any]) -> Work:
    """Return the work of a layer that the reference was asked about."""
    return Work.transformer_layer(
        batch=given["batch_size"],
        seq=given["sequence_length"],
        hidden=given["hidden_size"],
        heads=given["num_heads"],
        feedforward=given["feedforward_size"],
        dtype="fp32",
    )


# the geometry


@given(flop=amounts, moved=amounts, time_s=times, compute=rates, memory=rates)
def test_the_roof_is_the_lower_of_two(
    flop: float, moved: float, time_s: float, compute: float, memory: float
) -> None:
    """Attainable is the lesser of the peak and what the memory can feed."""
    found = roofline(
        flop=flop,
        bytes_moved=moved,
        time_s=time_s,
        peak_flop_per_s=compute,
        peak_bytes_per_s=memory,
    )
    lower = min(compute, memory * (flop / moved))

    assert found.ridge_flop_per_byte == compute / memory
    assert found.attainable_flop_per_s == pytest.approx(lower, rel=1e-12)
    assert found.fraction == found.achieved_flop_per_s / found.attainable_flop_per_s
    assert found.bound in {"memory", "compute"}


@given(flop=amounts, moved=amounts, time_s=times, compute=rates, memory=rates)
def test_a_fraction_is_the_roofs_time_over_the_time(
    flop: float, moved: float, time_s: float, compute: float, memory: float
) -> None:
    """What is as fast as the bound has reached 1; nothing slower has."""
    work = Work(flop=flop, bytes=moved, dtype="bf16")
    roofs = peaks(dram=peak(memory), bf16=peak(compute))
    bound = time_bound(work, roofs)
    found = declared_roofline(work, time_s, roofs)

    assert found.fraction == pytest.approx(bound.time_s / time_s, rel=1e-9)
    assert (found.fraction <= 1 + 1e-9) == (time_s >= bound.time_s * (1 - 1e-9)) or (
        found.fraction == pytest.approx(1)
    )


@given(moved=amounts, compute=rates, memory=rates)
def test_the_bound_changes_at_the_ridge(
    moved: float, compute: float, memory: float
) -> None:
    """One step of the intensity below the ridge is memory, the ridge itself compute."""
    ridge = compute / memory
    assume(ridge > 1e-12)
    sides = [
        placed(
            flop=intensity,
            bytes_moved=1.0,
            time_s=moved,
            peak_flop_per_s=compute,
            peak_bytes_per_s=memory,
        ).bound
        for intensity in (math.nextafter(ridge, 0), ridge, math.nextafter(ridge, 1e99))
    ]

    assert sides == ["memory", "compute", "compute"]


@given(
    flop=amounts, moved=amounts, time_s=times, power=st.integers(-20, 20), rate=rates
)
def test_units_do_not_matter(
    flop: float, moved: float, time_s: float, power: int, rate: float
) -> None:
    """In other units of work, bytes or time the fraction is the same double."""
    factor = 2.0**power
    plain = placed(flop=flop, bytes_moved=moved, time_s=time_s, peak_flop_per_s=rate)
    in_flop = placed(
        flop=flop * factor,
        bytes_moved=moved,
        time_s=time_s,
        peak_flop_per_s=rate * factor,
    )
    in_time = placed(
        flop=flop,
        bytes_moved=moved,
        time_s=time_s * factor,
        peak_flop_per_s=rate / factor,
        peak_bytes_per_s=1.0 / factor,
    )

    assert in_time.fraction == plain.fraction
    assert in_time.bound == plain.bound
    if plain.bound == in_flop.bound:
        assert in_flop.fraction == plain.fraction


@given(flop=amounts, moved=amounts, time_s=times, slower=st.floats(1.0, 1e3))
def test_slower_is_never_better(
    flop: float, moved: float, time_s: float, slower: float
) -> None:
    """The fraction falls with the time, and with each peak."""
    first = placed(flop=flop, bytes_moved=moved, time_s=time_s)
    later = placed(flop=flop, bytes_moved=moved, time_s=time_s * slower)
    higher = placed(
        flop=flop, bytes_moved=moved, time_s=time_s, peak_bytes_per_s=slower
    )

    assert later.fraction <= first.fraction
    assert higher.fraction <= first.fraction * (1 + 1e-12)


@given(flop=amounts, time_s=times)
def test_no_bytes_are_no_bound(flop: float, time_s: float) -> None:
    """Where nothing is moved the intensity is infinite, and computing is the bound."""
    found = placed(flop=flop, bytes_moved=0.0, time_s=time_s)

    assert found.intensity_flop_per_byte == math.inf
    assert found.bound == "compute"
    assert found.achieved_bytes_per_s == 0.0
    assert found.fraction == flop / time_s


def test_a_fraction_is_never_clamped() -> None:
    """More than the roof allows is said as it is: something is not what it seems."""
    assert placed(flop=4.0).fraction == 4.0


@given(compute=rates, memory=rates)
def test_at_the_ridge_all_agree_on_the_bound(compute: float, memory: float) -> None:
    """Of two equal times the bound is computing, as the ridge of the roofline is."""
    work = Work(flop=compute, bytes=memory, dtype="bf16")
    bound = time_bound(work, peaks(dram=peak(memory), bf16=peak(compute)))

    assert (bound.time_s, bound.bound) == (1.0, "compute")


def test_the_largest_number_is_a_number() -> None:
    """What a double can hold is taken; only beyond it is infinity."""
    assert placed(time_s=sys.float_info.max).fraction == 1 / sys.float_info.max


# what is refused


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (["peak_flop_per_s"], ("peak_flop_per_s",)),
        (["peak_bytes_per_s"], ("peak_bytes_per_s",)),
        (
            ["peak_bytes_per_s", "peak_flop_per_s"],
            ("peak_flop_per_s", "peak_bytes_per_s"),
        ),
    ],
)
def test_every_missing_peak_is_named(
    missing: list[str], named: tuple[str, ...]
) -> None:
    """Before any arithmetic, and before a time of zero is looked at."""
    nothing: dict[str, float | None] = dict.fromkeys(missing)

    with pytest.raises(MissingPeakError) as caught:
        placed(time_s=0.0, flop=math.nan, **nothing)

    assert caught.value.fields == named
    assert caught.value.metric == "roofline"
    assert caught.value.reason.startswith(f"{' and '.join(named)} of this device ")
    assert caught.value.remedy.startswith(
        "declare it in the ini file (gpuperf_peaks = "
    )


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, -math.inf, 10**400])
@pytest.mark.parametrize(
    "name", ["flop", "time_s", "peak_flop_per_s", "peak_bytes_per_s"]
)
def test_a_number_out_of_range_is_refused(name: str, wrong: float) -> None:
    """Zero, below it, NaN and infinity have no roofline."""
    with pytest.raises(RecordError, match=name):
        placed(**{name: wrong})


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_bytes_out_of_range_are_refused(wrong: float) -> None:
    """Zero bytes are allowed; less than none are not."""
    with pytest.raises(RecordError, match="bytes_moved"):
        placed(bytes_moved=wrong)


def test_all_mistakes_are_told_at_once() -> None:
    """Every number that is wrong stands in the message."""
    names = ["flop", "bytes_moved", "time_s", "peak_bytes_per_s"]
    wrong: dict[str, float | None] = dict.fromkeys(names, -1.0)

    with pytest.raises(RecordError) as caught:
        placed(**wrong)

    said = "; ".join(f"{name}=-1.0 is not a finite number above zero" for name in names)
    assert caught.value.message == f"roofline: {said}"
    assert caught.value.path == "roofline"
    assert caught.value.remedy.startswith("check their units")


@pytest.mark.parametrize("wrong", ["1", True, [], pytest.param(10**5000, id="huge")])
@pytest.mark.parametrize(
    "name",
    ["flop", "bytes_moved", "time_s", "peak_flop_per_s", "peak_bytes_per_s"],
)
def test_what_is_no_number_has_no_roofline(name: str, wrong: Any) -> None:
    """The argument is named, whatever stands there."""
    with pytest.raises(RecordError, match=rf"{name}=.* is not a finite number above"):
        placed(**{name: wrong})


def test_no_amount_is_no_zero_bytes() -> None:
    """Bytes that nobody counted are not the bytes of a call that moves none."""
    with pytest.raises(RecordError, match="bytes_moved=None"):
        placed(bytes_moved=None)
    assert placed(bytes_moved=0).bound == "compute"


def test_a_roof_below_all_numbers_is_refused() -> None:
    """What underflows is an error with its field, never a division by zero."""
    with pytest.raises(RecordError, match=r"attainable_flop_per_s=0\.0") as caught:
        placed(flop=5e-324, bytes_moved=10.0, peak_bytes_per_s=1e-300)
    assert caught.value.remedy == "check their units: FLOP, bytes and seconds"
    with pytest.raises(RecordError, match="ridge_flop_per_byte=inf"):
        placed(peak_flop_per_s=1e300, peak_bytes_per_s=1e-300)


def test_one_missing_peak_is_and_two_are_not_known() -> None:
    """The reason is a sentence that a person reads."""
    for missing, verb in ((["peak_flop_per_s"], "is"), (BOTH_PEAKS, "are")):
        with pytest.raises(MissingPeakError) as caught:
            placed(**dict.fromkeys(missing))
        assert caught.value.reason.endswith(f"of this device {verb} not known")


def test_a_result_beyond_all_numbers_is_refused() -> None:
    """What overflows is an error with its field, never infinity in a record."""
    with pytest.raises(RecordError, match="achieved_flop_per_s"):
        placed(flop=1e300, time_s=1e-300)


# declared work


def test_bytes_alone_are_held_against_the_memory() -> None:
    """No data type is needed, and no intensity follows."""
    found = declared_roofline(Work(bytes=2.4e9), 1e-3, H200)

    assert found.fraction == pytest.approx(0.5)
    assert (found.bound, found.roof) == ("memory", "dram")
    assert found.intensity_flop_per_byte is None


def test_flop_alone_are_held_against_their_type() -> None:
    """No bandwidth is needed."""
    roofs = peaks(bf16=peak(989.5e12))
    found = declared_roofline(Work(flop=989.5e9, dtype="bf16"), 2e-3, roofs)

    assert found.fraction == pytest.approx(0.5)
    assert (found.bound, found.roof) == ("compute", "bf16")


@pytest.mark.parametrize(
    ("flop", "bound", "roof"), [(1e9, "memory", "dram"), (1e12, "compute", "bf16")]
)
def test_both_are_held_against_the_roofline(flop: float, bound: str, roof: str) -> None:
    """The roof is the part that the call stands under."""
    work = Work(flop=flop, bytes=1e9, dtype="bf16")
    found = declared_roofline(work, 1e-3, H200)
    expected = roofline(
        flop=flop,
        bytes_moved=1e9,
        time_s=1e-3,
        peak_flop_per_s=989.5e12,
        peak_bytes_per_s=4.8e12,
    )

    assert found.fraction == expected.fraction
    assert (found.bound, found.roof) == (bound, roof)
    assert found.intensity_flop_per_byte == flop / 1e9
    assert (found.peak_flop_per_s, found.peak_bytes_per_s) == (989.5e12, 4.8e12)


def test_a_missing_peak_says_why() -> None:
    """The reason of the peak is the reason of the refusal; every one is told."""
    work = Work(flop=1e9, bytes=1e9, dtype="fp4")

    with pytest.raises(MissingPeakError) as caught:
        declared_roofline(work, 1e-3, peaks())

    assert caught.value.fields == ("peak_flop_per_s", "peak_bytes_per_s")
    assert caught.value.reason == (
        "the fp4 peak is not known: nobody says it; "
        "the dram peak is not known: nobody says it"
    )
    assert caught.value.remedy.startswith(
        "declare it in the ini file (gpuperf_peaks = "
    )


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["time_s", "clock_hz"])
def test_a_time_or_clock_out_of_range_is_refused(name: str, wrong: float) -> None:
    """Nothing is computed from it."""
    numbers = {"time_s": 1e-3, "clock_hz": 1e9} | {name: wrong}

    with pytest.raises(RecordError, match=name):
        declared_roofline(
            Work(bytes=1.0), numbers["time_s"], H200, clock_hz=numbers["clock_hz"]
        )


def test_the_memory_is_the_one_that_the_data_come_from() -> None:
    """Warm data that fit twice into the L2 never meet DRAM's roof; cold data do."""
    roofs = peaks(dram=peak(1e12), l2=peak(5e12), l2_bytes=1000)
    below, at = Work(bytes=1999.0), Work(bytes=2000.0)

    assert declared_roofline(below, 1.0, roofs, warm=True).roof == "l2"
    assert declared_roofline(at, 1.0, roofs, warm=True).roof == "dram"
    assert declared_roofline(below, 1.0, roofs, warm=False).roof == "dram"


def test_dram_never_stands_in_for_an_unknown_l2() -> None:
    """No sheet prints the L2's bandwidth: without a declaration there is no fraction."""
    roofs = peaks(dram=peak(1e12), l2_bytes=1000)

    with pytest.raises(MissingPeakError, match="l2 peak is not known"):
        declared_roofline(Work(bytes=10.0), 1.0, roofs, warm=True)


def test_an_unknown_size_of_the_l2_is_not_guessed() -> None:
    """Warm data may stay in it: DRAM's roof is not taken in silence, nor the L2's."""
    roofs = peaks(dram=peak(1e12), l2=peak(5e12))

    with pytest.raises(MissingPeakError, match="size of the L2") as caught:
        declared_roofline(Work(bytes=10.0), 1.0, roofs, warm=True)
    assert caught.value.fields == ("l2_bytes",)
    assert "cold" in caught.value.remedy
    assert caught.value.reason == (
        "the size of the L2, which may hold the data, is not known"
    )
    assert declared_roofline(Work(bytes=10.0), 1.0, roofs).roof == "dram"


@pytest.mark.parametrize("l2_bytes", [None, 1000])
def test_warm_work_that_dram_would_feed_needs_no_l2(l2_bytes: int | None) -> None:
    """From DRAM's ridge on the compute peak is the roof, wherever the data are."""
    roofs = peaks(dram=peak(10.0), bf16=peak(100.0), l2_bytes=l2_bytes)
    at_ridge = Work(flop=100.0, bytes=10.0, dtype="bf16")
    below = Work(flop=99.0, bytes=10.0, dtype="bf16")
    found = declared_roofline(at_ridge, 2.0, roofs, warm=True)

    assert (found.roof, found.bound, found.fraction) == ("bf16", "compute", 0.5)
    with pytest.raises(MissingPeakError):
        declared_roofline(below, 2.0, roofs, warm=True)


def test_bytes_of_a_type_are_not_fed_by_dram() -> None:
    """A data type says nothing of how much is computed."""
    roofs = peaks(dram=peak(10.0), l2=peak(50.0), bf16=peak(100.0), l2_bytes=1000)
    found = declared_roofline(Work(bytes=10.0, dtype="bf16"), 2.0, roofs, warm=True)

    assert (found.roof, found.fraction) == ("l2", 0.1)


@pytest.mark.parametrize("known", ["bf16", "dram"])
def test_warm_work_is_not_known_to_be_fed_without_both_peaks(known: str) -> None:
    """It is held against the L2 then, and every peak that lacks is named."""
    roofs = peaks(l2_bytes=1000, **{known: peak(1.0)})
    with pytest.raises(MissingPeakError) as caught:
        declared_roofline(
            Work(flop=1e9, bytes=10.0, dtype="bf16"), 2.0, roofs, warm=True
        )

    assert "the l2 peak is not known: nobody says it" in caught.value.reason
    assert ("the bf16 peak is not known" in caught.value.reason) is (known == "dram")


def test_why_there_is_no_fraction_at_the_clock() -> None:
    """The memory's roof has no clock of a multiprocessor, and a sheet may name none."""
    moved = declared_roofline(Work(bytes=1.0), 1.0, H200, clock_hz=1e9)
    unclocked = peaks(bf16=peak(989.5e12))
    computed = declared_roofline(
        Work(flop=1.0, dtype="bf16"), 1.0, unclocked, clock_hz=1e9
    )

    assert moved.at_clock_reason == (
        "the declared work has no FLOP, and memory does not follow the SM clock"
    )
    assert computed.at_clock_reason == (
        "the clock of the compute peak is not known (a sheet)"
    )


def test_a_clock_gives_a_second_fraction() -> None:
    """The compute roof follows the clock, and the memory's does not."""
    compute = Work(flop=989.5e9, dtype="bf16")
    memory = Work(flop=1.0, bytes=4.8e9, dtype="bf16")

    half = declared_roofline(compute, 2e-3, H200, clock_hz=915e6)
    fed = declared_roofline(memory, 1e-3, H200, clock_hz=915e6)

    assert half.fraction == pytest.approx(0.5)
    assert half.at_clock_fraction == pytest.approx(1.0)
    assert fed.at_clock_fraction == fed.fraction
    unread = declared_roofline(compute, 2e-3, H200)
    assert unread.at_clock_fraction is None
    assert unread.at_clock_reason == "the SM clock was not read during the call"
    assert half.at_clock_reason == ""
    unclocked = peaks(bf16=peak(989.5e12))
    assert (
        declared_roofline(compute, 1e-3, unclocked, clock_hz=1e9).at_clock_fraction
        is None
    )
    assert (
        declared_roofline(Work(bytes=1.0), 1.0, H200, clock_hz=1e9).at_clock_fraction
        is None
    )


@pytest.mark.parametrize(("time_s", "above"), [(1 / 1.05, False), (1 / 1.0501, True)])
def test_more_than_the_roof_is_flagged(time_s: float, above: bool) -> None:
    """Beyond 1.05 noise is not an explanation any more."""
    found = declared_roofline(Work(bytes=1.0), time_s, peaks(dram=peak(1.0)))

    assert found.above_the_roof is above


LABELS = list(SourceLabel)[:-1]  # unavailable has no value


@pytest.mark.parametrize("work", LABELS)
@pytest.mark.parametrize("compute", LABELS)
@pytest.mark.parametrize("memory", LABELS)
def test_the_weakest_label_is_the_results(
    work: SourceLabel, compute: SourceLabel, memory: SourceLabel
) -> None:
    """Of the work and of every peak that had a say, not only of the roof."""
    found = declared_roofline(
        Work(flop=1e12, bytes=1.0, dtype="bf16", label=work),
        1.0,
        peaks(dram=peak(1.0, memory), bf16=peak(1.0, compute)),
    )

    assert found.label is max((work, compute, memory), key=LABELS.index)
    assert found.peak_label is compute


@pytest.mark.parametrize(("flop", "source"), [(1.0, "a sheet"), (1e9, "a guess")])
def test_the_source_is_that_of_the_roof(flop: float, source: str) -> None:
    """Of two peaks the one that the call stands under is cited."""
    guess = Peak(value=1.0, label=SourceLabel.DECLARED, source="a guess")
    work = Work(flop=flop, bytes=1e3, dtype="bf16")
    found = declared_roofline(work, 1.0, peaks(dram=peak(1.0), bf16=guess))

    assert found.source == source


@pytest.mark.parametrize("least", LABELS)
def test_a_least_label_may_be_demanded(least: SourceLabel) -> None:
    """A weaker one is refused with both labels in the error."""
    work = Work(bytes=1.0)  # declared
    roofs = peaks(dram=peak(1.0, SourceLabel.DATASHEET))

    if LABELS.index(least) >= LABELS.index(SourceLabel.DATASHEET):
        assert declared_roofline(work, 1.0, roofs, least=least).label.value
        return
    with pytest.raises(WeakSourceError) as caught:
        declared_roofline(work, 1.0, roofs, least=least)
    assert (caught.value.label, caught.value.least) == ("datasheet", least.value)
    assert caught.value.metric == "roofline.fraction"
    assert caught.value.remedy.startswith(
        "declare it in the ini file (gpuperf_peaks = "
    )


def test_labels_have_an_order() -> None:
    """What was read from the device is the strongest, a guess the weakest."""
    assert weakest(*SourceLabel) is SourceLabel.UNAVAILABLE
    assert weakest(SourceLabel.DETECTED, SourceLabel.MEASURED) is SourceLabel.MEASURED
    assert weakest(SourceLabel.DECLARED, SourceLabel.DATASHEET).value == "datasheet"


def test_a_bound_is_no_efficiency() -> None:
    """It is a time and what it is made of, labelled estimated, and nothing else."""
    bound = time_bound(Work(flop=1.0, bytes=8.0, dtype="bf16"), H200)

    assert bound.label is SourceLabel.ESTIMATED
    assert bound.bound == "memory"
    assert set(TimeBound.__struct_fields__) == {"time_s", "bound", "label"}


def test_a_bound_of_one_kind_of_work() -> None:
    """Bytes alone are moved, FLOP alone computed; the other kind takes no time."""
    assert time_bound(Work(bytes=4.8e6), H200).time_s == pytest.approx(1e-6)
    computing = time_bound(Work(flop=989.5e6, dtype="bf16"), H200)
    assert computing.time_s == pytest.approx(1e-6)
    assert computing.bound == "compute"
    with pytest.raises(MissingPeakError):
        time_bound(Work(flop=1.0, dtype="fp4"), H200)


@pytest.mark.parametrize(
    ("value", "label"),
    [(None, SourceLabel.DATASHEET), (1.0, SourceLabel.UNAVAILABLE)],
)
def test_a_peak_and_its_label_agree(value: float | None, label: SourceLabel) -> None:
    """A peak that is not known is labelled so, and only such a one."""
    with pytest.raises(RecordError, match="labelled"):
        peak(value, label)


COUNTED = {
    "duration_s": 1e-3,
    "sm_clock_hz": 1e9,
    "dram_read_bytes": 3e8,
    "dram_write_bytes": 1e8,
    "dram_peak_bytes_per_cycle_ratio": 1000.0,
    "dram_clock_hz": 8e8,
    **dict.fromkeys(
        (
            "fp32_add_per_cycle_ratio",
            "fp32_mul_per_cycle_ratio",
            "fp32_fma_per_cycle_ratio",
        ),
        0.0,
    ),
    "fp32_peak_fma_per_cycle_ratio": 5000.0,
    "fp64_add_per_cycle_ratio": 100.0,
    "fp64_mul_per_cycle_ratio": 200.0,
    "fp64_fma_per_cycle_ratio": 50.0,
    "fp64_peak_fma_per_cycle_ratio": 2500.0,
}


def test_a_launch_stands_where_its_counters_put_it() -> None:
    """FLOP by data type, the used one; traffic of DRAM; roofs at the clocks it ran at."""
    standing = counted_roofline(COUNTED)

    assert standing is not None
    assert standing.intensity_flop_per_byte == pytest.approx(4e8 / 4e8)
    assert standing.peak_flop_per_s == pytest.approx(2 * 2500 * 1e9)
    assert standing.peak_bytes_per_s == pytest.approx(8e11)
    assert (standing.bound, standing.roof) == ("memory", "dram")
    assert standing.fraction == pytest.approx(4e11 / 8e11)
    assert standing.dtype == "fp64"
    assert roofline_gap(COUNTED) is None


def test_why_a_launch_on_tensor_cores_stands_nowhere_is_said() -> None:
    """Its counters hold neither their FLOP nor their data type."""
    gap = roofline_gap(COUNTED | {"tensor_pipe_fraction": 0.3})

    assert gap is not None
    assert gap.reason == (
        "tensor cores computed: their FLOP and data type are not counted"
    )
    assert roofline_gap(COUNTED | {"tensor_pipe_fraction": 0.005}) is None


@pytest.mark.parametrize(
    ("counter", "value"),
    [
        *((name, None) for name in COUNTED if not name.startswith("fp32")),
        ("tensor_pipe_fraction", 0.3),
        ("dram_read_bytes", -1e8),
    ],
)
def test_a_launch_stands_nowhere_by_a_part_of_its_counters(
    counter: str, value: float | None
) -> None:
    """Nor by FLOP that leave those of tensor cores out, nor without any traffic."""
    values = {k: v for k, v in COUNTED.items() if k != counter}
    if value is not None:
        values[counter] = value

    assert counted_roofline(values) is None
