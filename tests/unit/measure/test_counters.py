"""Rules of pipeline.counting: what a test needs a profiler for."""

from __future__ import annotations

import pytest

from fakes import runs
from pytest_gpuperf.collect.ncu.catalogue import made_by_ncu
from pytest_gpuperf.config import Plan
from pytest_gpuperf.measure.counters import (
    cache_control_of,
    counter_metrics,
    made_of,
    may_count_here,
    with_counters,
)
from pytest_gpuperf.model.activity import ActivitySummary
from pytest_gpuperf.model.counters import Limiter, LimiterName
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.launch import CapturedLaunch, CapturedValue
from pytest_gpuperf.model.sample import CacheMode
from pytest_gpuperf.model.verdict import Limit

ELAPSED = "avg.pct_of_peak_sustained_elapsed"


def limiter_of(activity: ActivitySummary | None) -> Limiter:
    """Return what limits a kernel at DRAM's roof, in a call of which CUPTI saw so much."""
    launch = CapturedLaunch(
        index=0,
        kernel="gemm",
        demangled="gemm()",
        nvtx={},
        measured=True,
        metrics={f"dram__throughput.{ELAPSED}": CapturedValue(value=95.0, unit="%")},
    )
    record = replace(runs.record("test_a"), activity=activity)
    joined = with_counters(record, [launch], [], work=None, facts={})
    (kernel,) = joined.analyses
    assert isinstance(kernel.analysis.limiter, Limiter)
    return kernel.analysis.limiter


def test_a_call_that_waits_between_its_kernels_is_limited_by_that() -> None:
    """CUPTI recorded the call, a profiler its kernels alone."""
    waiting = ActivitySummary(span_s=1.0, busy_s=0.4, copying_s=0.0, waited_s=0.5)

    assert limiter_of(waiting).name is LimiterName.SYNCHRONIZATION
    assert limiter_of(replace(waiting, busy_s=0.9)).name is LimiterName.DRAM
    assert limiter_of(None).name is LimiterName.DRAM


def limit(metric: str) -> Limit:
    """Return a limit on a metric."""
    return Limit(
        text=f"{metric} <= 1", metric=metric, operator="<=", threshold=1.0, unit=None
    )


@pytest.mark.parametrize(
    ("plan", "collectors", "wanted"),
    [
        (Plan(), ("host", "ncu"), ()),
        (Plan(limits=(limit("time"),)), ("host", "ncu"), ()),
        (Plan(limits=(limit("dram.bytes"),)), (), ()),
        (Plan(limits=(limit("dram.bytes"),)), ("host", "ncu"), ("dram.bytes",)),
        (Plan(max_regression={"waves": 0.1}), ("ncu",), ("waves",)),
        (Plan(limits=(limit("launches.count"),)), ("ncu",), ("launches.count",)),
        (Plan(limits=(limit("dram.bytes"),)), ("host", "cupti"), ("dram.bytes",)),
        (Plan(limits=(limit("launches.count"),)), ("host", "cupti"), ()),
        (Plan(limits=(limit("dram.bytes"),)), ("host", "events"), ()),
        (Plan(limits=(limit("lts__t_bytes.sum"),)), (), ("lts__t_bytes.sum",)),
        (Plan(max_regression={"lts__t_bytes.sum": None}), (), ("lts__t_bytes.sum",)),
        (
            Plan(
                counters=("dram__bytes.sum",),
                limits=(limit("dram.bytes"), limit("dram__bytes.sum"), limit("time")),
            ),
            (),
            ("dram__bytes.sum", "dram.bytes"),
        ),
    ],
)
def test_a_counter_is_wanted_where_it_is_named(
    plan: Plan, collectors: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    """What counters become is so where what counts was asked for, or counts anyway."""
    assert counter_metrics(plan, collectors) == wanted


@pytest.mark.parametrize(
    ("plan", "mode"),
    [
        (Plan(), "all"),
        (Plan(cache=CacheMode.COLD), "all"),
        (Plan(cache=CacheMode.WARM), "none"),
        (Plan(uses_fixture=False), "none"),
    ],
)
def test_caches_are_as_the_markers_say(plan: Plan, mode: str) -> None:
    """A test without the fixture is one block, which comes as it is."""
    assert cache_control_of(plan) == mode


def test_what_a_chip_lacks_is_not_asked_for() -> None:
    """One name that it does not know, and ncu counts nothing."""
    assert made_of(("dram.bytes",), (9, 0)) == ("dram__bytes.sum",)
    assert made_of(("dram.bytes",), None) == ("dram__bytes.sum",)
    assert made_of(("dram.bytes",), (11, 0)) == ()
    assert made_of(("dram.excess_ratio",), (9, 0)) == ("dram__bytes.sum",)


def test_what_a_tool_does_not_know_is_not_asked_for() -> None:
    """Another way to the same metric is taken, where there is one."""
    metrics = ("shared.bank_conflict_fraction", "waves", "launch__grid_size")
    conflicts = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
    wavefronts = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"

    assert made_of(metrics, (9, 0), lacks=made_by_ncu) == (conflicts, wavefronts)
    assert conflicts not in made_of(metrics, (9, 0))


@pytest.mark.parametrize(
    ("collectors", "may"),
    [
        ((), True),
        (("host", "cupti"), True),
        (("host", "ncu"), False),
        (("host", "events"), False),
    ],
)
def test_this_process_may_count_unless_cupti_is_left_out(
    collectors: tuple[str, ...], may: bool
) -> None:
    """And where there is no GPU it never does."""
    device = Device(index=0, uuid="GPU-1", name="NVIDIA H200")

    assert may_count_here(collectors, device) == may
    assert not may_count_here(collectors, None)


def test_each_counter_is_asked_for_once() -> None:
    """By its own name and for a metric, in the order in which they were named."""
    metrics = ("lts__t_bytes.sum", "dram__bytes.sum", "dram.bytes", "time")

    assert made_of(metrics, (9, 0)) == ("lts__t_bytes.sum", "dram__bytes.sum")


def test_every_metric_of_counters_can_be_asked_for() -> None:
    """On a common chip none of them is made of nothing."""
    for metric in ("l2.hit_fraction", "tensor.fraction", "instructions.count", "waves"):
        assert made_of((metric,), (9, 0)), metric
