"""Rules of collect.ncu.factories."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gpuperf.collect import ncu
from pytest_gpuperf.collect.ncu.factories import (
    ChipUnit,
    L1TEXCache,
    LaunchBlock,
    LaunchGrid,
    WarpStall,
)
from pytest_gpuperf.collect.ncu.metrics import Metric, MetricCounter, gather
from pytest_gpuperf.errors import ConfigError

Load, Store = L1TEXCache.GlobalLoad, L1TEXCache.GlobalStore
Local = L1TEXCache.LocalStore
LSU = "pipe_lsu_mem_global_op"


@pytest.mark.parametrize(
    ("create", "name", "pretty"),
    [
        (
            Load.Instructions.create,
            "smsp__sass_inst_executed_op_global_ld",
            "load instructions sass",
        ),
        (Load.Requests.create, f"l1tex__t_requests_{LSU}_ld", "load requests"),
        (Load.Sectors.create, f"l1tex__t_sectors_{LSU}_ld", "load sectors"),
        (
            Load.SectorHits.create,
            f"l1tex__t_sectors_{LSU}_ld_lookup_hit",
            "load sectors hit",
        ),
        (
            Load.SectorMisses.create,
            f"l1tex__t_sectors_{LSU}_ld_lookup_miss",
            "load sectors miss",
        ),
        (
            Load.Wavefronts.create,
            f"l1tex__t_output_wavefronts_{LSU}_ld",
            "load wavefronts",
        ),
        (
            Store.Instructions.create,
            "smsp__sass_inst_executed_op_global_st",
            "store instructions sass",
        ),
        (Store.Requests.create, f"l1tex__t_requests_{LSU}_st", "store requests"),
        (Store.Sectors.create, f"l1tex__t_sectors_{LSU}_st", "store sectors"),
    ],
)
def test_a_factory_makes_one_counter(
    create: Callable[[], MetricCounter], name: str, pretty: str
) -> None:
    """The sum of the counter, under a readable key."""
    metric = create()

    assert type(metric) is MetricCounter
    assert metric.gather() == (f"{name}.sum",)
    assert metric.labels() == (f"L1/TEX cache global {pretty}.sum",)
    assert gather((*create(),)) == metric.gather()


def test_local_stores_are_named_as_global_ones() -> None:
    """Local memory has its own counter."""
    metric = Local.Instructions.create()

    assert metric.gather() == ("smsp__sass_inst_executed_op_local_st.sum",)
    assert metric.labels() == ("L1/TEX cache local store instructions sass.sum",)


def test_the_hardware_counts_without_a_mode() -> None:
    """mode=None is the counter that needs no patched code; its key ends as in 1.0.x."""
    metric = Load.Instructions.create(mode=None, unit=ChipUnit.SM)

    assert metric.name == "sm__inst_executed_op_global_ld"
    assert metric.pretty_name == "L1/TEX cache global load instructions "


def test_a_suffix_is_a_factory_of_its_own() -> None:
    """Hits and misses are spelled in two ways that say the same."""
    assert Load.Sectors.create(suffix="hit") == Load.SectorHits.create()
    assert Load.Sectors.create(suffix="miss") == Load.SectorMisses.create()


def test_roll_ups_can_be_chosen() -> None:
    """subs goes to the metric as it is."""
    metric = Store.Sectors.create(subs=("avg", ("sum", "per_second")))

    assert [name.partition(".")[2] for name in metric.gather()] == [
        "avg",
        "sum.per_second",
    ]


@pytest.mark.parametrize(
    ("size", "prefix"),
    [(LaunchBlock, "launch__block_dim_"), (LaunchGrid, "launch__grid_dim_")],
)
def test_a_launch_has_three_sizes(
    size: type[LaunchBlock | LaunchGrid], prefix: str
) -> None:
    """All three where none is chosen."""
    whole = (*size.create(),)

    assert whole == tuple(Metric(f"{prefix}{dim}") for dim in "xyz")
    assert (*size.create(()),) == whole
    assert next(size.create("y")) == Metric(f"{prefix}y")
    assert size.prefix == size.PREFIX == prefix


@pytest.mark.parametrize(
    ("stall", "reason"),
    [
        (WarpStall.LGThrottle, "lg_throttle"),
        (WarpStall.LongScoreboard, "long_scoreboard"),
        (WarpStall.MIOThrottle, "mio_throttle"),
        (WarpStall.ShortScoreboard, "short_scoreboard"),
    ],
)
def test_a_stall_is_a_ratio(stall: type[WarpStall.LGThrottle], reason: str) -> None:
    """Waiting warps in each cycle that issued."""
    name = f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"

    assert stall.create().gather() == (name,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Load.Instructions.create(mode="ptx"),
        lambda: Load.Instructions.create(unit="tpc"),
        lambda: Load.Instructions.create(unit=ChipUnit.L1TEX),
        lambda: Load.Sectors.create(suffix="hits"),
        lambda: LaunchBlock.create("w"),
    ],
)
def test_what_there_is_not_is_refused(make: Callable[[], object]) -> None:
    """The choices are told."""
    with pytest.raises(ConfigError, match="is not an allowed value") as caught:
        make()
    assert "write one of" in caught.value.remedy


def test_the_key_of_a_result_has_the_names_of_cache_and_access() -> None:
    """So that a reader of results can be written without spelling them."""
    names = [access.NAME for access in (Load, Store, Local)]

    assert L1TEXCache.NAME == "L1/TEX cache"
    assert names == ["global load", "global store", "local store"]
    for access in (Load, Store, Local):
        (key,) = access.Instructions.create().labels()
        assert key.startswith(f"{L1TEXCache.NAME} {access.NAME} instructions")


def test_each_class_of_the_cache_has_a_flat_name() -> None:
    """The words of its place, without dots; nothing else begins like them."""
    flat: dict[str, type] = {"L1TEXCache": L1TEXCache}
    for access in (Load, Store, Local):
        flat[f"L1TEXCache{access.__name__}"] = access
        for kind in vars(access).values():
            if isinstance(kind, type):
                flat[f"L1TEXCache{access.__name__}{kind.__name__}"] = kind

    public = {n: getattr(ncu, n) for n in ncu.__all__ if n.startswith("L1TEXCache")}
    assert public == flat
    assert len(flat) == 14
