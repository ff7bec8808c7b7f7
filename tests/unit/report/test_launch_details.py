"""report.launches: one launch as ncu's Details page shows it."""

from __future__ import annotations

import re

import pytest

from pytest_gpuperf.measure.captured import details
from pytest_gpuperf.model.activity import Occupancy
from pytest_gpuperf.model.counters import LaunchAdvice, RuleResult, StallLine
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.launch import CapturedLaunch, CapturedValue
from pytest_gpuperf.report.launches import DetailedLaunch, details_bytes

ELAPSED = "avg.pct_of_peak_sustained_elapsed"
FMA = "sass_thread_inst_executed_op_ffma_pred_on.sum"
COUNTERS: dict[str, tuple[float, str]] = {
    "gpu__time_duration.sum": (1e6, "ns"),
    "sm__cycles_elapsed.avg.per_second": (1e9, "hz"),
    "device__attribute_clock_rate": (1.4e6, ""),
    "dram__cycles_elapsed.avg.per_second": (2e9, "hz"),
    "dram__bytes.sum": (2e8, "byte"),
    "dram__bytes.sum.peak_sustained": (500.0, "byte/cycle"),
    f"gpu__dram_throughput.{ELAPSED}": (20.0, "%"),
    f"smsp__{FMA}.per_cycle_elapsed": (50.0, "inst/cycle"),
    f"sm__{FMA}.peak_sustained": (1000.0, "inst/cycle"),
    **{
        f"smsp__sass_thread_inst_executed_op_f{op}_pred_on.sum.per_cycle_elapsed": (
            0.0,
            "inst/cycle",
        )
        for op in ("add", "mul")
    },
    "launch__registers_per_thread": (40, "register/thread"),
    "launch__grid_dim_x": (8, ""),
    "launch__grid_dim_y": (4, ""),
    "launch__grid_dim_z": (1, ""),
    "lts__t_sector_hit_rate.pct": (75.0, "%"),
}
ADVICE = LaunchAdvice(
    rules=(
        RuleResult(
            rule="A",
            name="A",
            section="S",
            level="optimization",
            title="Coalesce",
            message="Move less.",
            speedup_fraction=0.25,
            speedup_scope="global",
        ),
    ),
    stalls=(
        StallLine(
            file="/src/a.cu",
            line=7,
            sass=None,
            reason="long_scoreboard",
            samples_count=9,
            samples_fraction=0.9,
        ),
    ),
)


def launch(**counters: tuple[float, str]) -> CapturedLaunch:
    return CapturedLaunch(
        index=3,
        kernel="copy",
        demangled="void copy<int>(int*)",
        nvtx={},
        measured=True,
        metrics={
            name: CapturedValue(value=value, unit=unit)
            for name, (value, unit) in counters.items()
        }
        | {
            "device__attribute_display_name": CapturedValue(
                value="NVIDIA A100", unit=""
            )
        },
    )


def page(captured: CapturedLaunch, form: str = "text") -> str:
    shown = DetailedLaunch(
        launch=captured,
        details=details(captured, ADVICE),
    )
    return details_bytes([shown], form, remarks=["that is all"], width=200).decode()


def test_a_launch_has_a_roofline_of_its_own_report() -> None:
    """At the clocks of the report: 100 GFLOP/s at 1/2 FLOP/B, under 500 GFLOP/s."""
    (dtype, roofline), *others = details(launch(**COUNTERS)).rooflines.items()

    assert (dtype, others) == ("fp32", [])
    assert roofline.achieved_flop_per_s == pytest.approx(1e11)
    assert roofline.intensity_flop_per_byte == pytest.approx(0.5)
    assert roofline.attainable_flop_per_s == pytest.approx(5e11)
    assert roofline.fraction == pytest.approx(0.2)
    for name in ("dram__bytes.sum.peak_sustained", f"sm__{FMA}.peak_sustained"):
        fewer = {n: value for n, value in COUNTERS.items() if n != name}
        assert details(launch(**fewer)).rooflines == {}


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_the_page_says_what_people_look_for_first(form: str) -> None:
    """A clock that was held down is told; what was not collected is left out."""
    text = page(launch(**COUNTERS), form)

    for words in (
        "NVIDIA A100",
        "copy",
        "(launch 3)",
        "SM 1.00 GHz of 1.40 GHz rated, DRAM 2.00 GHz: below its boost clock",
        "grid 8 x 4 x 1, 40 registers",
        "DRAM 20.0 %",
        "200 MB of DRAM at 200 GB/s, L2 hits 75.0 %",
        "100 GFLOP/s, 20.0 % of the 500 GFLOP/s at 0.5 FLOP/B of DRAM",
        "a.cu:7 90.0 %",
        "Coalesce: Move less. (ncu estimates 25.0 % to gain)",
        "that is all",
    ):
        assert words in text.replace("\\_", "_")
    assert "occupancy" not in text
    assert "block" not in text


def test_l1_is_one_number_on_the_whole_page() -> None:
    """Where the cycles with a warp alone were counted, it is of all cycles all the same."""
    text = page(
        launch(
            **COUNTERS,
            **{
                "l1tex__throughput.avg.pct_of_peak_sustained_active": (40.0, "%"),
                "sm__cycles_active.avg": (50.0, "cycle"),
                "sm__cycles_elapsed.max": (100.0, "cycle"),
            },
        )
    )

    assert set(re.findall(r"L1 \d.*? %", text)) == {"L1 20.0 %"}


def test_what_limits_the_blocks_stands_beside_what_else_would() -> None:
    """Who frees registers sees which resource limits the occupancy next."""
    occupancy = Occupancy(
        fraction=0.375,
        active_blocks=6,
        warps=24,
        limiter="registers",
        block_limits={"threads": 16, "registers": 6, "shared": 7},
    )
    captured = launch(**COUNTERS)
    shown = DetailedLaunch(
        launch=captured,
        details=replace(
            details(captured),
            derived={"occupancy.theoretical": 0.375},
            occupancy=occupancy,
        ),
    )
    text = details_bytes([shown], "text", width=200).decode()

    assert (
        "theoretical 37.5 % by registers: 6 blocks, 24 warps on an SM; "
        "other limits: warps 16, shared memory 7"
    ) in text


def test_two_resources_may_limit_the_blocks_together() -> None:
    """Who frees registers alone, because they are named first, gains nothing."""
    counted = {
        "launch__block_size": (128, ""),
        "sm__maximum_warps_per_active_cycle_pct": (12.5, "%"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": (30.0, "%"),
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": (20.0, "%"),
        "launch__waves_per_multiprocessor": (1.0, ""),
        **{
            f"launch__occupancy_limit_{name}": (blocks, "block")
            for name, blocks in (
                ("warps", 16),
                ("blocks", 32),
                ("registers", 2),
                ("shared_mem", 2),
            )
        },
    }
    text = page(launch(**COUNTERS | counted))

    assert (
        "theoretical 12.5 % by registers and shared memory: 2 blocks, 8 warps on an SM; "
        "other limits: warps 16, blocks 32"
    ) in text
    assert "theoretical by registers and shared memory 12.5 %" in text
    assert "1 wave\n" in text


def test_a_graph_is_shown_as_what_it_is() -> None:
    """The grid and the registers beside its counters are those of one of its kernels."""
    text = page(replace(launch(**COUNTERS), workload="graph"))

    assert "a whole graph: ncu counted its kernels as one" in text
    assert "registers" not in text
    assert "grid" not in text


def test_a_boosting_clock_is_no_news() -> None:
    """Only one that is held below the rated clock changes the time."""
    free = COUNTERS | {"sm__cycles_elapsed.avg.per_second": (1.395e9, "hz")}

    assert "boost" not in page(launch(**free))


def test_the_clock_of_a_short_launch_is_not_known() -> None:
    """Its time holds more than its cycles: no other clock of ncu is to blame."""
    short = COUNTERS | {"gpu__time_duration.sum": (13e3, "ns")}

    assert "below its boost clock" in page(launch(**COUNTERS))
    assert "below its boost clock" not in page(launch(**short))
    assert "less than the clock in so short a launch" in page(launch(**short))


def test_a_product_on_tensor_cores_has_no_fp32_roof() -> None:
    """Its few FP32 instructions say nothing of it, and its own FLOP are not counted."""
    tensor = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"

    assert "fp32 roof" in page(launch(**COUNTERS, **{tensor: (0.6, "%")}))
    text = page(launch(**COUNTERS, **{tensor: (14.8, "%")}))
    assert "fp32 roof" not in text
    assert "roof        n/a: tensor cores computed" in text
