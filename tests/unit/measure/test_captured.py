"""measure.captured: launches of a report into metrics, gaps and analyses."""

from __future__ import annotations

import pytest

from pytest_gpuperf.compute.derive import FORMULAS
from pytest_gpuperf.measure.captured import (
    ANALYSED,
    analyses,
    capture_side,
    capture_values,
    first_counters,
    kernel_analyses,
    report_counters,
)
from pytest_gpuperf.model.counters import Analysis, CounterGap, Limiter, LimiterName
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.launch import (
    Capture,
    CapturedLaunch,
    CapturedRange,
    CapturedValue,
)
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.sample import Estimate, Unmeasured
from pytest_gpuperf.model.work import Work

DURATION = "gpu__time_duration.sum"
READ, WRITE, OP_READ = (
    f"dram__bytes_{word}.sum" for word in ("read", "write", "op_read")
)
ELAPSED = "avg.pct_of_peak_sustained_elapsed"
DRAM_BUSY = f"dram__throughput.{ELAPSED}"
MAJOR, MINOR = (
    f"device__attribute_compute_capability_{part}" for part in ("major", "minor")
)
HOPPER: dict[str, tuple[float | str, str]] = {MAJOR: (9, ""), MINOR: (0, "")}
BLOCK: dict[str, tuple[float | str, str]] = {
    "launch__registers_per_thread": (77, "register/thread"),
    "launch__block_size": (128, ""),
    "launch__shared_mem_per_block_static": (16, "byte/block"),
    "launch__shared_mem_per_block_dynamic": (2096, "byte/block"),
}


def launch(
    kernel: str = "gemm", /, **metrics: tuple[float | str | None, str]
) -> CapturedLaunch:
    return CapturedLaunch(
        index=0,
        kernel=kernel,
        demangled=f"{kernel}()",
        nvtx={},
        measured=True,
        metrics={
            name: CapturedValue(value=value, unit=unit)
            for name, (value, unit) in metrics.items()
        },
    )


def one(metric: str, *launches: CapturedLaunch, work: Work | None = None) -> Estimate:
    """Return the estimate of a metric over launches."""
    estimates, gaps = capture_values(launches, [metric], work)
    (found,) = (e for e in estimates if (e.metric, e.kernel) == (metric, None))
    assert gaps == ()
    return found


def gap(metric: str, *launches: CapturedLaunch, work: Work | None = None) -> Unmeasured:
    """Return why a metric has no value over launches."""
    estimates, (found,) = capture_values(launches, [metric], work)
    assert [e.metric for e in estimates if e.kernel is None] == ["launches.count"]
    return found


def moved(read: float, write: float) -> dict[str, tuple[float | str, str]]:
    return {READ: (read, "byte"), WRITE: (write, "byte")}


def test_a_metric_of_the_catalogue_is_in_its_unit() -> None:
    """Whatever the report calls its counters, over all launches and by kernel."""
    launches = [launch("gemm", **moved(1e6, 2e6)), launch("relu", **moved(4e6, 0))]
    estimates, _ = capture_values(launches, ["dram.bytes"], None)
    found = {e.kernel: (e.value, e.unit) for e in estimates if e.metric == "dram.bytes"}

    assert found == {
        None: (7e6, "bytes"),
        "gemm": (3e6, "bytes"),
        "relu": (4e6, "bytes"),
    }
    assert {e.source for e in estimates} == {"ncu-report"}


def test_declared_bytes_are_those_of_all_launches() -> None:
    """Two launches that move 3 MB together for 2 MB of work move half too much."""
    both = [launch(**moved(1e6, 0)), launch(**moved(1e6, 1e6))]

    assert one("dram.excess_ratio", *both, work=Work(bytes=2e6)).value == 1.5


@pytest.mark.parametrize("work", [None, Work(flop=1.0, dtype="bf16")])
def test_without_declared_bytes_nothing_is_in_excess(work: Work | None) -> None:
    """Measured bytes never stand in for declared ones."""
    found = gap("dram.excess_ratio", launch(**moved(1e6, 0)), work=work)

    assert "declares no bytes" in found.reason
    assert "Work(bytes=" in found.remedy


@pytest.mark.parametrize(
    ("metric", "chip", "remedy"),
    [
        ("dram.bytes", HOPPER, "ncu --metrics dram__bytes.sum"),
        (
            "shared.bank_conflict_fraction",
            HOPPER,
            "ncu --metrics memory_l1_wavefronts_shared,memory_l1_wavefronts_shared_ideal",
        ),
        ("dram.excess_ratio", HOPPER, "ncu --metrics dram__bytes.sum"),
    ],
)
def test_a_missing_counter_is_named(
    metric: str, chip: dict[str, tuple[float | str, str]], remedy: str
) -> None:
    """By the name that the tool knows it by."""
    found = gap(metric, launch(**chip))

    assert found.reason == "no launch in the report has it"
    assert found.remedy == f"collect it: {remedy}"


@pytest.mark.parametrize(
    ("metric", "counters", "reason"),
    [
        ("dram.bytes", {READ: (1e6, ""), WRITE: (0, "")}, f"{READ} without a unit"),
        (
            "dram.bytes",
            {READ: (1e6, "inst")},
            f"{READ} in inst, which is not a unit of",
        ),
        (READ, {READ: (None, "byte")}, f"{READ} without a value"),
        (
            "registers",
            {"launch__registers_per_thread": (None, "")},
            "without a value",
        ),
        ("a__name", {"a__name": ("A40", "")}, "a__name as a text"),
    ],
)
def test_a_counter_of_the_report_is_not_called_absent(
    metric: str, counters: dict[str, tuple[float | str | None, str]], reason: str
) -> None:
    """Also where other launches have its value; to collect it again would bring nothing."""
    usable = launch(**moved(1e6, 1e6), **BLOCK)
    counted = replace(launch(**HOPPER, **counters), index=4)

    for launches in ([counted], [usable, counted]):
        found = gap(metric, *launches)
        assert "launch 4 has " in found.reason
        assert reason in found.reason
        assert "collect it" not in found.remedy


def test_a_report_of_2019_has_the_metrics_of_its_counters() -> None:
    """Its counters have other names and no units, and the remedy knows its names."""
    counters: dict[str, tuple[float | str, str]] = {
        "gpu__time_duration": (1.5e9, ""),
        "gpc__frequency": (1.7e9, ""),
        "dram__read_bytes": (406560.0, ""),
        "dram__write_bytes": (96.0, ""),
        "launch__shared_mem_per_block_static": (16.0, ""),
        "launch__shared_mem_per_block_dynamic": (35.0, ""),
    }
    old = launch(**counters)
    side = capture_side(Capture(ranges=(CapturedRange(launches=(old,)),)))

    assert one("dram.bytes", old).value == 406656
    assert one("shared_bytes", old).value == 51
    assert one("launch__shared_mem_per_block_static", old).unit == "byte"
    assert side is not None
    assert side.clock_hz == 1.7e9
    assert side.kernels["gemm()"].values["time"] == (1.5, "s")
    assert gap("time", old).remedy.endswith("as gpu__time_duration")
    assert counters.keys() <= {*first_counters()}


def test_a_chip_without_the_counter_is_told() -> None:
    """No command of the tool would bring it."""
    spark: dict[str, tuple[float | str, str]] = {MAJOR: (12, ""), MINOR: (1, "")}
    found = gap("dram.bytes", launch(**spark))

    assert found.reason == "this chip has no counter of it"


def test_a_hit_rate_of_nothing_is_told() -> None:
    """All counters are there, and they say nothing."""
    looked_up: dict[str, tuple[float | str, str]] = {
        "lts__t_sectors_lookup_hit.sum": (0, "sector"),
        "lts__t_sectors_lookup_miss.sum": (0, "sector"),
    }

    assert "nothing was looked up" in gap("l2.hit_fraction", launch(**looked_up)).reason


@pytest.mark.parametrize("metric", ["registers", "waves", "launches.count"])
def test_a_range_or_a_graph_is_not_a_launch(metric: str) -> None:
    """What ncu writes there is of one kernel of it, and how many it had nobody says."""
    counted = {"launch__waves_per_multiprocessor": (0.2, ""), **BLOCK, **moved(5, 6)}
    graph = replace(launch("graph", **counted), workload="graph")
    estimates, gaps = capture_values([graph], [metric, "dram.bytes"], None)

    assert {e.metric for e in estimates} == {"dram.bytes"}
    assert [found.metric for found in gaps] == [metric]
    assert gaps[0].reason == "ncu counted the kernels of a graph as one"
    assert "--graph-profiling=node" in gaps[0].remedy


def test_a_range_has_no_grid_that_is_too_small() -> None:
    """The waves beside its counters are those of one kernel."""
    counted: dict[str, tuple[float | str, str]] = {
        "launch__waves_per_multiprocessor": (0.2, ""),
        f"sm__throughput.{ELAPSED}": (8.0, "%"),
        f"gpu__compute_memory_throughput.{ELAPSED}": (9.0, "%"),
    }
    small = launch(**counted)
    whole = replace(small, workload="range")
    captured = Capture(ranges=(CapturedRange(launches=(small, whole)),))
    ((kernels, ranges),) = analyses(captured)

    assert kernels is not None
    assert ranges is not None
    assert isinstance(kernels.limiter, Limiter)
    assert kernels.limiter.name is LimiterName.GRID
    assert isinstance(ranges.limiter, CounterGap)
    assert ranges.limiter.missing == (
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    )


def test_occupancy_follows_from_the_launch_where_it_was_not_collected() -> None:
    """Registers, shared memory and the block decide it, as for a binary."""
    told = {"sm__maximum_warps_per_active_cycle_pct": (40.0, "%")}

    assert one("occupancy.theoretical", launch(**HOPPER, **BLOCK)).value == 0.375
    assert one("occupancy.theoretical", launch(**HOPPER, **BLOCK, **told)).value == 0.4


@pytest.mark.parametrize("absent", [*BLOCK, MAJOR])
def test_half_a_launch_has_no_occupancy(absent: str) -> None:
    """The remedy is the counter that would say it at once."""
    metrics = {**HOPPER, **BLOCK}
    del metrics[absent]
    found = gap("occupancy.theoretical", launch(**metrics))

    assert "sm__maximum_warps_per_active_cycle_pct" in found.remedy


def test_a_chip_that_nobody_knows_has_no_occupancy() -> None:
    """Its limits are in no table of ours."""
    unknown: dict[str, tuple[float | str, str]] = {MAJOR: (99, ""), MINOR: (0, "")}

    found = gap("occupancy.theoretical", launch(**unknown, **BLOCK))

    assert found.reason == "no launch in the report has it"


def test_what_only_explains_is_no_metric() -> None:
    """`l1.fraction` is evidence; asked for as a metric it is a counter nobody has."""
    internal = FORMULAS.keys() - METRICS.keys()

    assert "l1.fraction" in internal
    assert gap("l1.fraction", launch()).reason == "no launch in the report has it"


def test_a_report_is_asked_for_what_is_needed_and_no_more() -> None:
    """Both names of all chips, the counters by their own names, and the weights."""
    names = report_counters(["dram.bytes", "a__b.sum", "launches.count", "time"])

    assert {OP_READ, READ, WRITE, "a__b.sum", DURATION} <= set(names)
    assert not any(name.startswith(("lts__", "launch__", "smsp__")) for name in names)
    assert len(names) == len(set(names))
    assert set(BLOCK) <= set(report_counters(["occupancy.theoretical"]))


# analyses


def test_each_launch_of_each_range_is_analysed() -> None:
    """One that was not measured has no analysis, and one of few counters says so."""
    busy = launch(**{f"gpu__dram_throughput.{ELAPSED}": (91.0, "%")})
    failed = CapturedLaunch(
        index=1, kernel="k", demangled="k()", nvtx={}, measured=False, metrics={}
    )
    capture = Capture(
        ranges=(
            CapturedRange(launches=(busy, failed)),
            CapturedRange(launches=(launch(),)),
        )
    )
    (first, second), (third,) = analyses(capture)

    assert isinstance(first, Analysis)
    assert isinstance(first.limiter, Limiter)
    assert first.limiter.name is LimiterName.DRAM
    assert second is None
    assert isinstance(third, Analysis)
    assert isinstance(third.limiter, CounterGap)


def test_what_would_say_the_limiter_is_named_as_the_tool_does() -> None:
    """A reader pastes it into the next command."""
    ((found,),) = analyses(Capture(ranges=(CapturedRange(launches=(launch(),)),)))

    assert found is not None
    assert isinstance(found.limiter, CounterGap)
    assert f"sm__throughput.{ELAPSED}" in found.limiter.missing


def test_each_kernel_is_analysed_by_its_longest_launch() -> None:
    """The kernel that takes longest comes first; its launches add up."""
    short = launch("relu", **{DURATION: (3000.0, "ns"), DRAM_BUSY: (10.0, "%")})
    long = launch("relu", **{DURATION: (5000.0, "ns"), DRAM_BUSY: (95.0, "%")})
    other = launch("gemm", **{DURATION: (7000.0, "ns")})
    unmeasured = replace(launch("skipped"), measured=False)
    found = kernel_analyses([short, other, long, unmeasured])

    assert [(e.kernel, e.demangled, e.launches_count) for e in found] == [
        ("relu", "relu()", 2),
        ("gemm", "gemm()", 1),
    ]
    assert [each.total_s for each in found] == [pytest.approx(8e-6), 7e-6]
    limiter = found[0].analysis.limiter
    assert isinstance(limiter, Limiter)
    assert (limiter.name, limiter.evidence[0].value) == (LimiterName.DRAM, 0.95)


def test_launches_that_were_not_timed_come_last() -> None:
    """One of them is enough; what takes no name is called as the driver does."""
    untimed = launch("a", **{DRAM_BUSY: (95.0, "%")})
    timed = launch("a", **{DURATION: (9000.0, "ns")})
    other = launch("b", **{DURATION: (1.0, "ns")})
    found = kernel_analyses([untimed, timed, other])

    assert [(each.kernel, each.total_s) for each in found] == [("b", 1e-9), ("a", None)]
    assert kernel_analyses([replace(untimed, demangled="")])[0].demangled == "a"


def test_instances_of_one_template_are_kernels_of_their_own() -> None:
    """Nsight Compute gives both the base name: neither has the other's time."""
    fused, plain = (
        replace(
            launch("Kernel", **{DURATION: (time_ns, "ns")}),
            demangled=f"void cutlass::Kernel<{gemm}>(T1::Params)",
        )
        for gemm, time_ns in (("B2bGemm", 26100.0), ("Gemm", 10900.0))
    )
    found = kernel_analyses([plain, fused, plain])

    assert [(each.demangled, each.launches_count) for each in found] == [
        (fused.demangled, 1),
        (plain.demangled, 2),
    ]
    assert [each.total_s for each in found] == [
        pytest.approx(26.1e-6),
        pytest.approx(21.8e-6),
    ]


def test_asking_what_limits_asks_for_every_counter_of_it() -> None:
    """And for no counter of that name."""
    counters = report_counters([ANALYSED])

    assert DRAM_BUSY in counters
    assert ANALYSED not in counters
    assert capture_values([launch()], [ANALYSED], None)[1] == ()
