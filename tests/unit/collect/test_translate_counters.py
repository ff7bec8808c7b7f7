"""collect.translate.counters: a tool's counters into standard ones, chip by chip."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.ncu.launches import read_capture
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.translate.counters import (
    SPELLINGS,
    captured_values,
    spelled,
    standard_counters,
    unusable,
    vendor_names,
)
from pytest_gpuperf.compute.derive import stall_shares, value_of
from pytest_gpuperf.compute.limiter import ANALYSIS_COUNTERS, analyse
from pytest_gpuperf.model.counters import (
    DECLARED_BYTES,
    STANDARD,
    CounterGap,
    CounterMode,
    Limiter,
    LimiterName,
)
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.launch import CapturedLaunch, CapturedValue
from pytest_gpuperf.model.metric import is_counter

Written = tuple[float | str | None, str | None]

CAPABILITY = "device__attribute_compute_capability_"
# the names of all chips are the same but for these
BY_OPERATION, NO_DRAM = (12, 0), [(11, 0), (12, 1)]
ELAPSED = "avg.pct_of_peak_sustained_elapsed"


def launch(
    capability: tuple[int, int] | None = None, /, **metrics: Written
) -> CapturedLaunch:
    """Return a launch with some metrics, each a value and its unit."""
    major, minor = capability or (None, None)
    given: dict[str, Written] = {
        f"{CAPABILITY}major": (major, ""),
        f"{CAPABILITY}minor": (minor, ""),
        **metrics,
    }
    return CapturedLaunch(
        index=0,
        kernel="k",
        demangled="k()",
        nvtx={},
        measured=True,
        metrics={
            name: CapturedValue(value=value, unit=unit)
            for name, (value, unit) in given.items()
        },
    )


def test_every_standard_counter_is_spelled() -> None:
    """And nothing else is; the declared bytes are not a counter."""
    assert set(SPELLINGS) == set(STANDARD) - {DECLARED_BYTES}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_has_the_form_of_a_counter(name: str) -> None:
    """Percent becomes a fraction, and nothing else is divided by a hundred."""
    sources = {"inst_executed"}  # counters of the source page have names of their own
    for spelling in SPELLINGS[name]:
        counter = spelling.counter

        assert (
            is_counter(counter) or counter.startswith("memory_") or counter in sources
        )
        assert (spelling.per == 100) == name.endswith("_fraction")
        assert (".pct" in counter or counter.endswith("_pct")) == (spelling.per == 100)


@pytest.mark.parametrize(
    ("counter", "written", "name", "value"),
    [
        (
            "launch__registers_per_thread",
            (48, "register/thread"),
            "registers_count",
            48,
        ),
        ("dram__bytes.sum", (1.5, "Gbyte"), "dram_bytes", 1.5e9),
        ("dram__bytes.sum", (7, "byte"), "dram_bytes", 7),
        ("gpu__time_duration.sum", (1600, "ns"), "duration_s", 1.6e-6),
        ("gpu__time_duration.sum", (1.6, "usecond"), "duration_s", 1.6e-6),
        (
            "launch__shared_mem_per_block_static",
            (2, "Kbyte/block"),
            "static_shared_bytes",
            2000,
        ),
        ("sm__cycles_elapsed.avg.per_second", (1.2, "Ghz"), "sm_clock_hz", 1.2e9),
        (
            "smsp__cycles_elapsed.avg.per_second",
            (1.2, "cycle/nsecond"),
            "sm_clock_hz",
            1.2e9,
        ),
        ("lts__t_sector_hit_rate.pct", (57, "%"), "l2_hit_fraction", 0.57),
        # reports of 2019 have other names, and state no unit
        ("gpu__time_duration", (1600, ""), "duration_s", 1.6e-6),
        ("gpu__time_duration", (1.6, "usecond"), "duration_s", 1.6e-6),
        ("gpc__frequency", (1.7e9, ""), "sm_clock_hz", 1.7e9),
        ("dram__read_bytes", (406560, ""), "dram_read_bytes", 406560),
        ("dram__write_bytes", (96, ""), "dram_write_bytes", 96),
        (
            "launch__shared_mem_per_block_static",
            (51, ""),
            "static_shared_bytes",
            51,
        ),
        (
            "launch__shared_mem_per_block_dynamic",
            (0, ""),
            "dynamic_shared_bytes",
            0,
        ),
        # older versions write another word beside the same number
        ("lts__t_sector_hit_rate.pct", (57, "sector"), "l2_hit_fraction", 0.57),
        (
            "memory_l2_theoretical_sectors_global",
            (49152, "byte"),
            "global_sectors_count",
            49152,
        ),
    ],
)
def test_a_number_is_in_the_standard_unit(
    counter: str, written: Written, name: str, value: float
) -> None:
    """Prefixes are read where the tool writes them; a count is a count."""
    found = standard_counters(launch(**{counter: written})).values

    assert found == {name: pytest.approx(value, rel=1e-12)}


@pytest.mark.parametrize("unit", ["", None, "sector", "%", "furlong"])
def test_a_unit_that_does_not_fit_is_no_value(unit: str | None) -> None:
    """Bytes without the word for them may be kilobytes."""
    found = standard_counters(launch(**{"dram__bytes.sum": (7, unit)}))

    assert found.values == {}


@pytest.mark.parametrize(
    ("counter", "name"),
    [
        ("launch__shared_mem_per_block_static", "static_shared_bytes"),
        ("gpu__time_duration", "duration_s"),
    ],
)
def test_a_stated_unit_is_not_replaced(counter: str, name: str) -> None:
    """Only where none is stated does the name of a counter say what it is."""
    found = unusable(launch(**{counter: (7, "furlong")}), [name])

    assert standard_counters(launch(**{counter: (7, "furlong")})).values == {}
    assert found is not None
    assert found.code is GapCode.UNIT_MISMATCH
    assert f"launch 0 has {counter} in furlong" in found.reason


@pytest.mark.parametrize(
    ("written", "code", "words"),
    [
        ((7, ""), GapCode.NOT_STATED, "without a unit"),
        (
            (7, "sector"),
            GapCode.UNIT_MISMATCH,
            "in sector, which is not a unit of bytes",
        ),
        ((math.nan, "byte"), GapCode.NOT_STATED, "without a value"),
        ((None, "byte"), GapCode.NOT_STATED, "without a value"),
        (("many", "byte"), GapCode.NOT_DEFINED, "as a text"),
    ],
)
def test_a_counter_that_gives_no_number_is_not_absent(
    written: Written, code: GapCode, words: str
) -> None:
    """Who collected it need not collect it again."""
    found = unusable(launch(**{"dram__bytes.sum": written}), ["dram_bytes"])

    assert found is not None
    assert (found.code, found.reason) == (code, f"launch 0 has dram__bytes.sum {words}")
    assert found.remedy


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        ({}, ["dram_bytes"]),
        ({"dram__bytes.sum": (None, None)}, ["dram_bytes", "dram__bytes.sum"]),
        ({"dram__bytes.sum": (7, "byte")}, ["dram_bytes"]),
        ({"dram__bytes.sum": (7, "")}, ["dram__bytes.sum"]),
        (
            {
                "gpu__time_duration.sum": (None, "ns"),
                "gpu__time_duration.avg": (7, "ns"),
            },
            ["duration_s"],
        ),
    ],
)
def test_a_counter_that_is_absent_or_a_number_is_usable(
    metrics: dict[str, Written], names: list[str]
) -> None:
    """By its own name a counter needs no unit; one of several spellings is enough."""
    assert unusable(launch(**metrics), names) is None


@pytest.mark.parametrize(
    "name", ["gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration"]
)
def test_rates_are_weighted_by_the_time_of_any_name(name: str) -> None:
    """Reports of 2019 have the time by its old name."""
    rates = [
        launch(**{"a__b.pct": (rate, "%"), name: (time, "")})
        for rate, time in ((10.0, 1.0), (40.0, 3.0))
    ]

    assert captured_values("a__b.pct", rates).weights == (1.0, 3.0)


@pytest.mark.parametrize("value", [None, "yes", math.nan, math.inf, 1e308, 10**400])
def test_what_is_no_number_is_absent(value: float | str | None) -> None:
    """Absent, and so never 0."""
    given = launch(**{"smsp__inst_executed.sum": (value, "inst")})

    assert standard_counters(given).values == {}
    assert captured_values("smsp__inst_executed.sum", [given]).values == ()


def test_the_best_spelling_that_is_there_counts() -> None:
    """One that has no number does not hide the next."""
    given = launch(
        **{
            "smsp__inst_executed.sum": (None, "inst"),
            "sm__inst_executed.sum": (5, "inst"),
            "inst_executed": (6, "inst"),
        }
    )

    assert standard_counters(given).values == {"instructions_count": 5}


@pytest.mark.parametrize(
    ("given", "fraction"),
    [
        ({"_v2": 62.0}, 0.62),  # the sections of ncu ask for it alone
        ({"_v2": 62.0, "": 31.0}, 0.62),
        ({"": 31.0}, 0.31),
    ],
)
def test_ada_counts_its_tensor_pipe_by_another_name(
    given: dict[str, float], fraction: float
) -> None:
    """NVIDIA calls the old counter deprecated there; one that was collected counts."""
    metrics: dict[str, Written] = {
        f"sm__pipe_tensor_cycles_active{version}.{ELAPSED}": (percent, "%")
        for version, percent in given.items()
    }
    values = standard_counters(launch((8, 9), **metrics)).values

    assert value_of("tensor.fraction", values) == fraction


def test_the_busier_half_of_alu_is_a_pipe_of_blackwell() -> None:
    """The mean of both halves hides it: without its name the whole SM is told."""
    metrics: dict[str, Written] = {
        f"sm__pipe_aluheavy_cycles_active.{ELAPSED}": (91.0, "%"),
        f"sm__pipe_alu_cycles_active.{ELAPSED}": (64.0, "%"),
        f"sm__throughput.{ELAPSED}": (91.0, "%"),
    }
    found = analyse(standard_counters(launch((12, 0), **metrics)).values)

    assert isinstance(found.limiter, Limiter)
    assert (found.limiter.name, found.limiter.detail) == (LimiterName.PIPE, "aluheavy")


def test_only_what_is_wanted_is_read() -> None:
    """And how it was read travels with it."""
    mode = CounterMode(replay="kernel")
    given = launch(
        **{"smsp__inst_executed.sum": (5, "inst"), "launch__grid_size": (8, "")}
    )
    found = standard_counters(given, ["grid_blocks_count", DECLARED_BYTES], mode=mode)

    assert (found.values, found.mode) == ({"grid_blocks_count": 8}, mode)


@given(st.floats(min_value=0, max_value=1e15), st.sampled_from(["", "K", "M", "G"]))
def test_the_prefix_of_a_unit_changes_nothing(number: float, prefix: str) -> None:
    """However the tool writes so many bytes, they are so many bytes."""
    factor = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}[prefix]
    written = launch(**{"dram__bytes.sum": (number / factor, f"{prefix}byte")})

    assert standard_counters(written).values["dram_bytes"] == pytest.approx(number)


# chips


@pytest.mark.parametrize(
    ("name", "capability", "counter"),
    [
        ("dram_read_bytes", (9, 0), "dram__bytes_read.sum"),
        ("dram_read_bytes", BY_OPERATION, "dram__bytes_op_read.sum"),
        ("dram_write_bytes", BY_OPERATION, "dram__bytes_op_write.sum"),
        ("dram_bytes", BY_OPERATION, "dram__bytes.sum"),
        *(("dram_bytes", each, None) for each in NO_DRAM),
        *(("dram_read_bytes", each, None) for each in NO_DRAM),
        *(("dram_throughput_fraction", each, None) for each in NO_DRAM),
        ("l2_hit_fraction", NO_DRAM[0], "lts__t_sector_hit_rate.pct"),
        ("tensor_pipe_fraction", (8, 9), f"sm__pipe_tensor_cycles_active_v2.{ELAPSED}"),
        ("tensor_pipe_fraction", (9, 0), f"sm__pipe_tensor_cycles_active.{ELAPSED}"),
        ("dram_read_bytes", None, "dram__bytes_read.sum"),
        (DECLARED_BYTES, (9, 0), None),
    ],
)
def test_the_counter_to_collect_is_one_that_the_chip_has(
    name: str, capability: tuple[int, int] | None, counter: str | None
) -> None:
    """A remedy that the tool refuses would be none."""
    assert spelled(name, launch(capability)) == counter


def test_a_report_is_asked_for_the_names_of_all_chips() -> None:
    """Nobody knows the chip before the report is read; a name it lacks costs nothing."""
    names = vendor_names(["dram_read_bytes", "dram_read_bytes", DECLARED_BYTES])

    assert names == (
        "dram__bytes_read.sum",
        "dram__bytes_op_read.sum",
        "dram__read_bytes",
        f"{CAPABILITY}major",
        f"{CAPABILITY}minor",
    )


# real reports


def real_launches() -> Iterator[CapturedLaunch]:
    """Yield the measured launches of the reports in a folder, all chips."""
    folder = os.environ.get("GPUPERF_CAPTURES")
    if not folder:
        pytest.skip("needs real reports: name their folder in GPUPERF_CAPTURES")
    if find_spec("ncu_report") is None:
        pytest.skip("needs the package ncu-report")
    for path in sorted(Path(folder).glob("*.ncu-rep")):
        for each in read_capture(path, runner=ProcessRunner()).ranges:
            yield from (one for one in each.launches if one.measured)


def test_real_launches_are_analysed() -> None:
    """Each has a bound between nothing and all, and a limiter or what would tell it."""
    for each in real_launches():
        found = analyse(standard_counters(each, ANALYSIS_COUNTERS).values)

        assert found.bound is None or 0.1 <= found.bound.fraction <= 1.01
        if isinstance(found.limiter, CounterGap):
            assert found.limiter.missing
        else:
            assert isinstance(found.limiter, Limiter)
            assert found.limiter.evidence


def test_real_launches_agree_with_the_tools_own_sums() -> None:
    """What a formula makes of parts is what the tool says of the whole."""
    for each in real_launches():
        values = dict(standard_counters(each).values)
        waves = values.pop("waves_count")
        l1 = values.pop("l1_throughput_fraction", None)
        shares = stall_shares(values)

        assert value_of("waves", values) == pytest.approx(waves)
        assert l1 is None or value_of("l1.fraction", values) == pytest.approx(l1)
        assert shares is None or sum(shares.values()) == pytest.approx(1)


def test_real_excess_is_the_tools_own() -> None:
    """The tool derives the excessive sectors itself."""
    for each in real_launches():
        excess = each.metrics.get(
            "derived__memory_l2_theoretical_sectors_global_excessive"
        )
        values = standard_counters(each).values
        found = value_of("global.uncoalesced_fraction", values)
        if excess is not None and excess.value is not None and found is not None:
            sectors = values["global_sectors_count"]

            assert found * sectors == pytest.approx(excess.value)
