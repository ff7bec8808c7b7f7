"""The catalogue of metrics: descriptions, units and sources."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypedDict

from pytest_gpuperf.errors import UnknownMetricError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.sample import Source


class Kind(str, Enum):
    """Method of the fixture that made a record."""

    MEASURE = "measure"
    RANGE = "range"
    COMPARE = "compare"
    BINARY = "binary"
    CAPTURE = "capture"
    RECORD = "record"
    STEPS = "steps"
    REFERENCE = "reference"  # A workload of the plugin itself, to observe the machine.


class Better(str, Enum):
    """Direction in which a metric improves."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"  # Shown, but never a regression by itself.


class Combine(str, Enum):
    """Rule that combines the values of several launches."""

    LARGEST = "largest"
    SMALLEST = "smallest"
    SUM = "sum"
    MEAN = "mean"  # Weighted by the launches' durations.


class Family(str, Enum):
    """Facts that two values must share to be compared."""

    DEVICE_TIME = "device-time"
    RESOURCE = "resource"  # Counts and resources, exact and without noise.
    COUNTER = "counter"
    HOST_TIME = "host-time"
    RECORDED = "recorded"  # A number recorded by a test.


class Metric(Frozen, frozen=True, kw_only=True):
    """
    A named quantity.

    Attributes:
        name: Dotted name, as in limits and reports.

        unit: SI unit, or None for a hardware counter, whose tool states the unit.

        better: Direction in which the metric improves.

        family: Facts that two values must share to be compared.

        meaning: Short description.

        sources: Collectors by kind of measurement, best first.

        counted_by: Collectors that count the metric in a call if the test declares
            counters.

        exact: Whether equal code gives equal values, without any spread.

        per_kernel: Whether each kernel has its own value.

        gpu: Whether only calls that use a GPU have a value.

        sampled: Whether the metric is computed from the readings of
            --gpuperf-telemetry.

        whole: Whether every value is a whole number.

        bound: Upper bound of the values: "peak" for a roof of the device, or None for
            none or a constant bound. Values under different peaks are not compared.

        combine: Rule that combines the values of several launches.
    """

    name: str
    unit: str | None
    better: Better
    family: Family
    meaning: str
    sources: Mapping[Kind, tuple[Source, ...]]
    counted_by: tuple[Source, ...] = ()
    exact: bool = False
    per_kernel: bool = False
    gpu: bool = False
    sampled: bool = False
    whole: bool = False
    bound: Literal["peak"] | None = None
    combine: Combine = Combine.MEAN

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of measurement that give the metric without declared counters."""
        return tuple(self.sources)

    @property
    def never_negative(self) -> bool:
        """True if all values are at least zero."""
        return self.unit in _NEVER_NEGATIVE


_NEVER_NEGATIVE = frozenset({"s", "bytes", "count"})
_Sources = Mapping[Kind, tuple[Source, ...]]

if TYPE_CHECKING:  # A TypedDict costs every run 0.3 ms.

    class _Always(TypedDict):
        family: Family
        sources: _Sources

    class _Traits(_Always, total=False):
        counted_by: tuple[Source, ...]
        exact: bool
        per_kernel: bool
        gpu: bool
        sampled: bool
        whole: bool
        bound: Literal["peak"]
        combine: Combine


def _call(*sources: Source) -> _Sources:
    return {Kind.MEASURE: sources, Kind.RANGE: sources}


_CLOCKS = (Source.CUPTI, Source.EVENTS, Source.HOST)
_LOOP: _Sources = {Kind.STEPS: (Source.HOST,)}
_CODE: _Sources = {Kind.BINARY: (Source.BINARY,)}
_REPORT: _Sources = {Kind.CAPTURE: (Source.NCU_REPORT,)}
# From the driver, and in loops from torch.
_COMPILER: _Sources = {**_call(Source.CUPTI), **_LOOP}

_TIME: _Traits = {"family": Family.DEVICE_TIME, "sources": {**_call(*_CLOCKS), **_LOOP}}
_TIMES: _Traits = {
    "family": Family.DEVICE_TIME,
    "sources": {Kind.MEASURE: _CLOCKS, **_LOOP},
}
_BUSY: _Traits = {
    "family": Family.DEVICE_TIME,
    "sources": _call(Source.CUPTI),
    "gpu": True,
}
_SENSOR: _Traits = {
    "family": Family.DEVICE_TIME,
    "sources": _call(Source.NVML),
    "gpu": True,
}
_SAMPLED: _Traits = {
    **_SENSOR,
    "sources": dict.fromkeys(
        (Kind.MEASURE, Kind.RANGE, Kind.COMPARE, Kind.STEPS), (Source.NVML,)
    ),
    "sampled": True,
}
_RATE: _Traits = {"family": Family.DEVICE_TIME, "sources": _LOOP}
_MFU: _Traits = {"family": Family.DEVICE_TIME, "sources": _LOOP, "bound": "peak"}
_ROOF: _Traits = {
    "family": Family.DEVICE_TIME,
    "sources": _call(*_CLOCKS),
    "bound": "peak",
}
_WORK: _Traits = {"family": Family.DEVICE_TIME, "sources": _call(*_CLOCKS)}
_PAIR: _Traits = {"family": Family.DEVICE_TIME, "sources": {Kind.COMPARE: _CLOCKS}}

_WALL: _Traits = {
    "family": Family.HOST_TIME,
    "sources": {**_call(Source.HOST), **_LOOP},
}
_HOST: _Traits = {
    "family": Family.HOST_TIME,
    "sources": {Kind.MEASURE: (Source.HOST,)},
    "gpu": True,
}
_GARBAGE: _Traits = {
    "family": Family.HOST_TIME,
    "sources": {Kind.MEASURE: (Source.HOST,)},
}
_FIRST: _Traits = {
    "family": Family.HOST_TIME,
    "sources": {Kind.MEASURE: (Source.HOST,), **_LOOP},
}
_WAIT: _Traits = {"family": Family.HOST_TIME, "sources": _LOOP}
_LATENCY: _Traits = {
    "family": Family.HOST_TIME,
    "sources": _call(Source.CUPTI),
    "gpu": True,
}
_COMPILING: _Traits = {"family": Family.HOST_TIME, "sources": _COMPILER, "gpu": True}

_EXACT: _Traits = {
    "family": Family.RESOURCE,
    "sources": {},
    "exact": True,
    "whole": True,
    "combine": Combine.SUM,
}
_ACTIVITY: _Traits = {**_EXACT, "sources": _call(Source.CUPTI), "gpu": True}
_COMPILED: _Traits = {**_EXACT, "sources": _COMPILER, "gpu": True}
_GRAPHS: _Traits = {**_EXACT, "sources": _LOOP}
_LAUNCHES: _Traits = {
    **_EXACT,
    "sources": {**_call(Source.CUPTI), **_REPORT},
    "counted_by": (Source.NCU,),
    "gpu": True,
}
_ALLOCATED: _Traits = {
    **_EXACT,
    "sources": _call(Source.CUPTI, Source.HOST),
    "gpu": True,
}
_LEAKED: _Traits = {
    **_ALLOCATED,
    "sources": _call(Source.HOST),
    "exact": False,
    "combine": Combine.LARGEST,
}
_PEAK: _Traits = {**_LEAKED, "sources": {**_call(Source.HOST), **_LOOP}}

_KERNEL: _Traits = {
    **_EXACT,
    "sources": _CODE,
    "per_kernel": True,
    "combine": Combine.LARGEST,
}
_BLOCK: _Traits = {
    **_KERNEL,
    "sources": {**_CODE, **_REPORT},
    "counted_by": (Source.NCU,),
}
_OCCUPANCY: _Traits = {**_BLOCK, "whole": False, "combine": Combine.MEAN}
_WAVES: _Traits = {**_BLOCK, "sources": _REPORT, "whole": False}

_COUNTER: _Traits = {
    "family": Family.COUNTER,
    "sources": _REPORT,
    "counted_by": (Source.CUPTI, Source.NCU),
    "per_kernel": True,
}
_AMOUNT: _Traits = {**_COUNTER, "combine": Combine.SUM}
# Only ncu adds up the values of source lines.
_BY_SOURCE_LINE: _Traits = {**_COUNTER, "counted_by": (Source.NCU,)}

# The time of a call and of collecting the garbage that it leaves.
WITH_GARBAGE = "time.with_gc"
# Judged by which kernels ran and how often, not by its value.
KERNEL_SET = "launches.kernels"
_LOWER, _HIGHER, _NEITHER = Better.LOWER, Better.HIGHER, Better.NEITHER
_ROWS: tuple[tuple[str, str, Better, str, _Traits], ...] = (
    ("time", "s", _LOWER, "device span of a call", _TIME),
    ("time.p50", "s", _LOWER, "median of the calls", _TIMES),
    ("time.p95", "s", _LOWER, "95th percentile of the calls", _TIMES),
    ("time.min", "s", _LOWER, "fastest call", _TIMES),
    ("time.busy", "s", _LOWER, "union of GPU activity", _BUSY),
    ("time.wall", "s", _LOWER, "call to device sync", _WALL),
    ("time.host", "s", _LOWER, "until the call returns", _HOST),
    (WITH_GARBAGE, "s", _LOWER, "call to device sync, with its garbage", _GARBAGE),
    ("time.first_call", "s", _LOWER, "the first call", _FIRST),
    ("time.idle_fraction", "fraction", _LOWER, "idle share", _BUSY),
    ("throughput", "1/s", _HIGHER, "work units per second", _RATE),
    (
        "data.wait_fraction",
        "fraction",
        _LOWER,
        "share of the time spent waiting for data",
        _WAIT,
    ),
    ("mfu", "fraction", _HIGHER, "model FLOP utilisation", _MFU),
    ("compile.time", "s", _LOWER, "time spent compiling", _COMPILING),
    ("compile.count", "count", _LOWER, "compilations", _COMPILED),
    ("compile.graph_breaks", "count", _LOWER, "graph breaks", _GRAPHS),
    ("launches.count", "count", _LOWER, "kernels executed", _LAUNCHES),
    ("launches.host_count", "count", _LOWER, "API launches", _ACTIVITY),
    (KERNEL_SET, "count", _NEITHER, "different kernels, judged as a set", _ACTIVITY),
    ("launches.latency", "s", _LOWER, "launch to start", _LATENCY),
    ("synchronizations.count", "count", _LOWER, "device syncs", _ACTIVITY),
    ("allocations.count", "count", _LOWER, "driver allocations", _ALLOCATED),
    (
        "transfers.host_to_device_bytes",
        "bytes",
        _LOWER,
        "bytes copied to the device",
        _ACTIVITY,
    ),
    (
        "transfers.device_to_host_bytes",
        "bytes",
        _LOWER,
        "bytes copied from the device",
        _ACTIVITY,
    ),
    (
        "transfers.pageable_bytes",
        "bytes",
        _LOWER,
        "bytes copied from or to pageable memory",
        _ACTIVITY,
    ),
    ("memory.peak_bytes", "bytes", _LOWER, "peak memory", _PEAK),
    ("memory.leaked_bytes", "bytes", _LOWER, "memory not freed", _LEAKED),
    ("registers", "count", _NEITHER, "registers of a thread", _BLOCK),
    ("stack_bytes", "bytes", _LOWER, "local memory of a thread", _KERNEL),
    ("spills_bytes", "bytes", _LOWER, "registers spilled to local memory", _KERNEL),
    ("shared_bytes", "bytes", _NEITHER, "shared memory of a block", _BLOCK),
    ("scalar_registers", "count", _NEITHER, "registers of a warp of AMD", _KERNEL),
    (
        "accumulation_registers",
        "count",
        _NEITHER,
        "of the registers, AMD's for matrix operations",
        _KERNEL,
    ),
    ("scalar_spills", "count", _LOWER, "scalar registers of AMD spilled", _KERNEL),
    (
        "occupancy.theoretical",
        "fraction",
        _NEITHER,
        "warps that fit, of the warps an SM holds",
        _OCCUPANCY,
    ),
    (
        "occupancy.achieved",
        "fraction",
        _NEITHER,
        "warps resident while the SM is active, of the warps it holds",
        _COUNTER,
    ),
    (
        "waves",
        "count",
        _NEITHER,
        "the grid over the blocks that fit the GPU at once",
        _WAVES,
    ),
    ("dram.bytes", "bytes", _LOWER, "bytes to and from DRAM", _AMOUNT),
    ("dram.fraction", "fraction", _NEITHER, "DRAM throughput, of its peak", _COUNTER),
    (
        "dram.excess_ratio",
        "count",
        _LOWER,
        "DRAM bytes over the declared bytes",
        _AMOUNT,
    ),
    (
        "l2.hit_fraction",
        "fraction",
        _HIGHER,
        "sectors found in the L2, of those looked up",
        _COUNTER,
    ),
    (
        "global.uncoalesced_fraction",
        "fraction",
        _LOWER,
        "sectors beyond what the accesses need",
        _BY_SOURCE_LINE,
    ),
    (
        "shared.bank_conflict_fraction",
        "fraction",
        _LOWER,
        "shared-memory wavefronts lost to conflicts",
        _COUNTER,
    ),
    (
        "tensor.fraction",
        "fraction",
        _HIGHER,
        "share of the cycles in which the tensor pipe worked",
        _COUNTER,
    ),
    ("instructions.count", "count", _LOWER, "warp instructions executed", _AMOUNT),
    (
        "roofline.fraction",
        "fraction",
        _HIGHER,
        "achieved rate, of the rate that the roof allows",
        _ROOF,
    ),
    (
        "roofline.at_clock_fraction",
        "fraction",
        _HIGHER,
        "the same, with the compute peak at the clock of the call",
        _ROOF,
    ),
    (
        "roofline.intensity",
        "FLOP/B",
        _NEITHER,
        "declared FLOP per declared byte",
        _WORK,
    ),
    ("energy", "J", _LOWER, "energy of a call", _SENSOR),
    ("speedup", "ratio", _HIGHER, "time of b over a", _PAIR),
    ("power", "W", _NEITHER, "board power", _SENSOR),
    ("comm.exposed_time", "s", _LOWER, "communication alone", _RATE),
    ("utilization.score", "count", _HIGHER, "real utilization, 0 to 100", _SAMPLED),
    (
        "utilization.idle_fraction",
        "fraction",
        _LOWER,
        "share of the time without work",
        _SAMPLED,
    ),
    (
        "utilization.io_fraction",
        "fraction",
        _LOWER,
        "share of the time in which the GPU waits for data",
        _SAMPLED,
    ),
    (
        "utilization.memory_fraction",
        "fraction",
        _NEITHER,
        "share of the time bound by memory",
        _SAMPLED,
    ),
    (
        "utilization.compute_fraction",
        "fraction",
        _NEITHER,
        "share of the time bound by compute",
        _SAMPLED,
    ),
    (
        "utilization.mixed_fraction",
        "fraction",
        _NEITHER,
        "share of the time in a mixed class",
        _SAMPLED,
    ),
    (
        "utilization.unhealthy_fraction",
        "fraction",
        _LOWER,
        "share of the time in which the GPU's health was not OK",
        _SAMPLED,
    ),
)

_MOVED = (1, 2, 4, 8, 16, 32)  # Sizes of a thread's accesses [B].

# Classes of instructions in compiled code. The prefix `loop.` restricts a class to
# loops.
INSTRUCTION_CLASSES = MappingProxyType(
    {
        "compiled": "all",
        "global_load": "loads from global memory",
        **{f"global_load_{n}": f"of these, {n} bytes a thread" for n in _MOVED},
        "global_store": "stores to global memory",
        **{f"global_store_{n}": f"of these, {n} bytes a thread" for n in _MOVED},
        "generic_load": "loads from memory that the code does not name",
        "generic_store": "stores to memory that the code does not name",
        "shared_load": "loads from shared memory",
        "shared_store": "stores to shared memory",
        "local_load": "loads from local memory",
        "local_store": "stores to local memory",
        "async_copy": "asynchronous copies from and to shared memory",
        "ldgsts": "of these, cp.async",
        "bulk_copy": "of these, cp.async.bulk",
        "tma": "of these, by tensor map",
        "tensor": "tensor core operations",
        "hmma": "of these, HMMA",
        "imma": "of these, IMMA",
        "dmma": "of these, DMMA",
        "bmma": "of these, BMMA",
        "qmma": "of these, QMMA",
        "omma": "of these, OMMA",
        "wgmma": "of these, by a group of four warps",
        "hgmma": "of these, HGMMA",
        "igmma": "of these, IGMMA",
        "qgmma": "of these, QGMMA",
        "bgmma": "of these, BGMMA",
        "tcgen05": "of these, on tensor memory",
        "utchmma": "of these, UTCHMMA",
        "utcimma": "of these, UTCIMMA",
        "utcqmma": "of these, UTCQMMA",
        "utcomma": "of these, UTCOMMA",
        "fma": "fused multiply-adds, of any width",
        "fma_pair": "of these, two of 32 bits at a time",
        "fp64": "arithmetic of 64 bits",
        "fp32": "arithmetic of 32 bits",
        "fp32_pair": "of these, two at a time",
        "fp16": "arithmetic of 16 bits, two at a time",
        "barrier": "barriers of a block or cluster",
        "mbarrier": "operations on barriers in shared memory",
        "atomic": "atomic operations",
        "atomic_global": "of these, on global memory",
        "atomic_shared": "of these, on shared memory",
        "branch": "jumps",
        "call": "calls",
    }
)
_IN_CODE = {
    f"instructions.{scope}{name}": Metric(
        name=f"instructions.{scope}{name}",
        unit="count",
        better=Better.LOWER if name.startswith("local_") else Better.NEITHER,
        meaning=f"{meaning}, in loops" if scope else meaning,
        **_KERNEL,
    )
    for scope in ("", "loop.")
    for name, meaning in INSTRUCTION_CLASSES.items()
}

# What to do where no metric is like a name.
LISTED = "gpuperf explain metrics lists all of them"
METRICS = MappingProxyType(
    {
        name: Metric(name=name, unit=unit, better=better, meaning=meaning, **traits)
        for name, unit, better, meaning, traits in _ROWS
    }
    | _IN_CODE
)

_NAME_OF_COUNTER = re.compile(
    r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*__[A-Za-z0-9_]+(?:\.[a-z0-9_]+)*"
)
_OWN: _Traits = {"family": Family.RECORDED, "sources": {Kind.RECORD: (Source.USER,)}}
_ROLLUPS = {
    "max": Combine.LARGEST,
    "min": Combine.SMALLEST,
    "sum": Combine.SUM,
    "count": Combine.SUM,
}

# Counts of ncu without an ending: instructions and samples of source lines.
_ADDED_UP = re.compile(
    r"sass__(?:thread_)?inst_executed(?!\w*_pct$)\w*|smsp__pcsamp_(?:warps_\w+|sample_count)"
    r"|smsp__sass_inst_executed_memdesc_\w+|smsp__branch_targets_threads_divergent"
    r"|derived__memory_\w+_excessive"
)


def is_counter(name: str) -> bool:
    """Return True if a name has the form of an ncu or CUPTI counter."""
    return _NAME_OF_COUNTER.fullmatch(name) is not None


def is_compiled(name: str) -> bool:
    """Return True if a metric counts instructions of compiled code."""
    return name in _IN_CODE


@functools.cache
def gpu_metrics(source: str, kind: Kind) -> tuple[str, ...]:
    """
    Return the GPU-only metrics that a collector gives in a kind of measurement.

    Metrics computed from telemetry readings are excluded.

    Example:
        >>> gpu_metrics(Source.NVML, Kind.RANGE)
        ('energy', 'power')
    """
    return tuple(
        name
        for name, metric in METRICS.items()
        if metric.gpu and not metric.sampled and source in metric.sources.get(kind, ())
    )


def metric_of(
    name: str, *, unit: str | None = None, better: Better = Better.NEITHER
) -> Metric:
    """
    Return a metric of the catalogue, a hardware counter, or a metric recorded by a
    test.

    Args:
        name: Any name.

        unit: Unit of the metric if the catalogue does not state it.

        better: Direction of the metric if the catalogue does not state it.

    Example:
        >>> metric_of("launch__grid_size").combine
        <Combine.LARGEST: 'largest'>
    """
    if name in METRICS:
        return METRICS[name]
    combine = _ROLLUPS.get(name.rpartition(".")[2], Combine.MEAN)
    if name.startswith("launch__"):
        combine = Combine.LARGEST
    elif _ADDED_UP.fullmatch(name):
        combine = Combine.SUM
    counter = is_counter(name)
    traits: _Traits = {**(_COUNTER if counter else _OWN), "combine": combine}
    return Metric(
        name=name,
        unit=unit,
        better=better,
        meaning="hardware counter" if counter else "a number of the test's own",
        **traits,
    )


def metric_named(name: str) -> Metric:
    """
    Look up a metric of the catalogue or a hardware counter.

    Raises:
        UnknownMetricError: No metric has that name. The error carries close matches.
    """
    if name in METRICS or is_counter(name):
        return metric_of(name)
    close = tuple(difflib.get_close_matches(name, METRICS, n=3, cutoff=0.5))
    remedy = f"did you mean {', '.join(close)}" if close else LISTED
    raise UnknownMetricError(name, close_matches=close, remedy=remedy)
