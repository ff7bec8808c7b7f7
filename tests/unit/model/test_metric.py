"""model.metric: the catalogue, and names that are not in it."""

from __future__ import annotations

import re
from types import MappingProxyType

import pytest

from pytest_gpuperf.errors import UnknownMetricError
from pytest_gpuperf.model.metric import (
    METRICS,
    Better,
    Combine,
    Family,
    Kind,
    gpu_metrics,
    is_counter,
    metric_named,
    metric_of,
)
from pytest_gpuperf.model.quantity import UNITS

UNITS_OF_METRICS = {unit.si for unit in UNITS.values()} | {"ratio"}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_says_what_it_is(name: str) -> None:
    """It is filed under its own name, has a unit that limits can be written in, a line."""
    metric = METRICS[name]

    assert metric.name == name
    assert metric.unit in UNITS_OF_METRICS
    assert metric.meaning
    assert re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", name)
    assert metric_named(name) is metric
    assert not is_counter(name)


@pytest.mark.parametrize(
    ("ending", "unit"),
    [("_bytes", "bytes"), ("_fraction", "fraction"), (".count", "count")],
)
def test_the_last_word_of_a_name_is_its_unit(ending: str, unit: str) -> None:
    """A name that ends with a unit is in that unit."""
    ended = [metric for metric in METRICS.values() if metric.name.endswith(ending)]

    assert ended
    assert {metric.unit for metric in ended} == {unit}


def test_what_is_exact_has_no_noise() -> None:
    """Counts and resources are exact; times, counters and memory are not."""
    exact = {name for name, metric in METRICS.items() if metric.exact}

    assert {"registers", "stack_bytes", "launches.count"} <= exact
    assert {METRICS[name].family for name in exact} == {Family.RESOURCE}
    assert not exact & {"time", "energy", "dram.bytes", "memory.peak_bytes"}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("instructions.global_load", (Kind.BINARY,)),
        ("registers", (Kind.BINARY, Kind.CAPTURE)),
        ("dram.bytes", (Kind.CAPTURE,)),
        ("dram__bytes.sum", (Kind.CAPTURE,)),
        ("time.host", (Kind.MEASURE,)),
        ("tokens", (Kind.RECORD,)),
    ],
)
def test_a_metric_says_which_measurements_give_it(
    name: str, kinds: tuple[Kind, ...]
) -> None:
    """A counter is read from reports; a name that nobody knows is the user's own."""
    assert metric_of(name).kinds == kinds


def test_sources_differ_by_kind() -> None:
    """The driver compiles in a call, torch in a loop; allocators count beside CUPTI."""
    compiled = METRICS["compile.count"].sources

    assert compiled[Kind.MEASURE] == ("cupti",)
    assert compiled[Kind.STEPS] == ("host",)
    assert METRICS["allocations.count"].sources[Kind.RANGE] == ("cupti", "host")


def test_what_only_cupti_sees_of_a_gpu_is_one_list() -> None:
    """Clocks and roofs have other sources, and a loop is not traced."""
    names = gpu_metrics("cupti", Kind.RANGE)

    assert {"compile.count", "allocations.count", "time.busy"} <= {*names}
    assert not {"time", "roofline.fraction", "energy"} & {*names}
    assert gpu_metrics("cupti", Kind.STEPS) == ()


@pytest.mark.parametrize(
    ("name", "combine"),
    [
        ("registers", Combine.LARGEST),
        ("waves", Combine.LARGEST),
        ("dram.bytes", Combine.SUM),
        ("l2.hit_fraction", Combine.MEAN),
        ("dram__bytes.sum", Combine.SUM),
        ("dram__bytes.max", Combine.LARGEST),
        ("dram__bytes.min", Combine.SMALLEST),
        ("launch__grid_size", Combine.LARGEST),
        ("sass__inst_executed_global_loads", Combine.SUM),
        ("smsp__pcsamp_warps_issue_stalled_wait", Combine.SUM),
        ("derived__memory_l2_theoretical_sectors_global_excessive", Combine.SUM),
        ("derived__memory_l1_conflicts_shared_nway", Combine.MEAN),
        ("derived__smsp__inst_executed_op_branch_pct", Combine.MEAN),
        ("smsp__pcsamp_interval_cycles", Combine.MEAN),
    ],
)
def test_launches_are_combined_by_the_catalogue(name: str, combine: Combine) -> None:
    """Resources are the largest, amounts are sums; a counter's roll-up says it."""
    assert metric_of(name).combine is combine


def test_directions_are_as_the_design_says() -> None:
    """Time falls, throughput rises, registers are only shown."""
    assert METRICS["time"].better is Better.LOWER
    assert METRICS["throughput"].better is Better.HIGHER
    assert METRICS["registers"].better is Better.NEITHER


def test_the_catalogue_is_read_only() -> None:
    """No test can change it for the next one."""
    assert isinstance(METRICS, MappingProxyType)


@pytest.mark.parametrize(
    "name",
    [
        "dram__bytes.sum",
        "gpu__time_duration.sum",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "launch__registers_per_thread",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
        "device__attribute_compute_capability_major",
        "FE__x.sum".lower(),
    ],
)
def test_a_counter_is_known_by_its_form(name: str) -> None:
    """Two underscores after the unit: no list of names is needed."""
    assert is_counter(name)
    counter = metric_named(name)

    assert (counter.name, counter.unit) == (name, None)
    assert (counter.family, counter.better) == (Family.COUNTER, Better.NEITHER)
    assert not counter.exact


@pytest.mark.parametrize(
    "name",
    [
        "",
        "time",
        "dram_bytes.sum",
        "__bytes.sum",
        "dram__",
        "dram__bytes.",
        "dram__bytes..sum",
        "dram__bytes.sum ",
        "Dram__bytes.sum",
        "1dram__bytes",
        "dram__bytes.SUM",
        "dram__bytes.sum\n",
    ],
)
def test_other_names_are_no_counters(name: str) -> None:
    """The whole name must have the form."""
    assert not is_counter(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tme", "time"),
        ("time_p95", "time.p95"),
        ("register", "registers"),
        ("spills", "spills_bytes"),
        ("launch.count", "launches.count"),
        ("roofline_fraction", "roofline.fraction"),
    ],
)
def test_a_misspelt_metric_is_answered_with_what_was_meant(
    name: str, meant: str
) -> None:
    """The closest names come first, in the error and in its remedy."""
    with pytest.raises(UnknownMetricError) as caught:
        metric_named(name)

    assert caught.value.name == name
    assert caught.value.close_matches[0] == meant
    assert caught.value.remedy.startswith(f"did you mean {meant}")


def test_a_metric_like_no_other_is_answered_with_the_list() -> None:
    """Where nothing is close, the reader learns where all names are."""
    with pytest.raises(UnknownMetricError) as caught:
        metric_named("zzzzqqqq")

    assert caught.value.close_matches == ()
    assert caught.value.remedy == "gpuperf explain metrics lists all of them"
