"""The catalogue of metrics: name, unit, better direction, family."""

from __future__ import annotations

import difflib
import re
from enum import Enum
from types import MappingProxyType

from pytest_gpuperf.errors import UnknownMetricError
from pytest_gpuperf.model.frozen import Frozen

__all__ = [
    "INSTRUCTION_CLASSES",
    "METRICS",
    "Better",
    "Family",
    "Metric",
    "is_compiled",
    "is_counter",
    "metric_named",
]


class Better(str, Enum):
    """Which way a metric gets better."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"  # shown; never a regression by itself


class Family(str, Enum):
    """Which facts two values must share before they can be compared."""

    DEVICE_TIME = "device-time"
    RESOURCE = "resource"  # counts and resources: exact, no noise
    COUNTER = "counter"
    HOST_TIME = "host-time"
    RECORDED = "recorded"  # a number of the user's own


class Metric(Frozen, frozen=True, kw_only=True):
    """
    A named quantity.

    Attributes:
        name: Its dotted name, as limits and reports spell it.

        unit: Its SI unit; for a hardware counter None: the tool says.

        better: Which way it gets better.

        family: What two values of it must share to be compared.

        meaning: One line for a reader.

        exact: Whether equal code gives equal values, so that no spread is expected.
    """

    name: str
    unit: str | None
    better: Better
    family: Family
    meaning: str
    exact: bool = False


_ROWS: tuple[tuple[str, str, Better, Family, str], ...] = (
    ("time", "s", Better.LOWER, Family.DEVICE_TIME, "device span of a call"),
    ("time.p50", "s", Better.LOWER, Family.DEVICE_TIME, "median of the calls"),
    ("time.p95", "s", Better.LOWER, Family.DEVICE_TIME, "95th percentile of the calls"),
    ("time.min", "s", Better.LOWER, Family.DEVICE_TIME, "fastest call"),
    ("time.busy", "s", Better.LOWER, Family.DEVICE_TIME, "union of GPU activity"),
    ("time.wall", "s", Better.LOWER, Family.HOST_TIME, "call to device sync"),
    ("time.host", "s", Better.LOWER, Family.HOST_TIME, "until the call returns"),
    ("time.first_call", "s", Better.LOWER, Family.HOST_TIME, "the first call"),
    ("time.idle_fraction", "fraction", Better.LOWER, Family.DEVICE_TIME, "idle share"),
    ("throughput", "1/s", Better.HIGHER, Family.DEVICE_TIME, "work units per second"),
    (
        "data.wait_fraction",
        "fraction",
        Better.LOWER,
        Family.HOST_TIME,
        "share of the time spent waiting for data",
    ),
    ("mfu", "fraction", Better.HIGHER, Family.DEVICE_TIME, "model FLOP utilisation"),
    ("compile.time", "s", Better.LOWER, Family.HOST_TIME, "time spent compiling"),
    ("compile.count", "count", Better.LOWER, Family.RESOURCE, "compilations"),
    ("compile.graph_breaks", "count", Better.LOWER, Family.RESOURCE, "graph breaks"),
    ("launches.count", "count", Better.LOWER, Family.RESOURCE, "kernels executed"),
    ("launches.host_count", "count", Better.LOWER, Family.RESOURCE, "API launches"),
    ("launches.latency", "s", Better.LOWER, Family.HOST_TIME, "launch to start"),
    ("synchronizations.count", "count", Better.LOWER, Family.RESOURCE, "device syncs"),
    ("allocations.count", "count", Better.LOWER, Family.RESOURCE, "driver allocations"),
    (
        "transfers.host_to_device_bytes",
        "bytes",
        Better.LOWER,
        Family.RESOURCE,
        "bytes copied to the device",
    ),
    (
        "transfers.device_to_host_bytes",
        "bytes",
        Better.LOWER,
        Family.RESOURCE,
        "bytes copied from the device",
    ),
    (
        "transfers.pageable_bytes",
        "bytes",
        Better.LOWER,
        Family.RESOURCE,
        "bytes copied from or to pageable memory",
    ),
    ("memory.peak_bytes", "bytes", Better.LOWER, Family.RESOURCE, "peak memory"),
    ("memory.leaked_bytes", "bytes", Better.LOWER, Family.RESOURCE, "memory not freed"),
    ("registers", "count", Better.NEITHER, Family.RESOURCE, "registers of a thread"),
    ("stack_bytes", "bytes", Better.LOWER, Family.RESOURCE, "local memory of a thread"),
    ("spills_bytes", "bytes", Better.LOWER, Family.RESOURCE, "spilled registers"),
    ("shared_bytes", "bytes", Better.NEITHER, Family.RESOURCE, "shared memory, block"),
    (
        "occupancy.theoretical",
        "fraction",
        Better.NEITHER,
        Family.RESOURCE,
        "warps that fit, of the warps an SM holds",
    ),
    (
        "occupancy.achieved",
        "fraction",
        Better.NEITHER,
        Family.COUNTER,
        "warps that were there, of the warps an SM holds",
    ),
    ("waves", "count", Better.NEITHER, Family.RESOURCE, "full loads of the device"),
    ("dram.bytes", "bytes", Better.LOWER, Family.COUNTER, "bytes to and from DRAM"),
    ("dram.fraction", "fraction", Better.NEITHER, Family.COUNTER, "of DRAM's peak"),
    (
        "dram.excess_ratio",
        "count",
        Better.LOWER,
        Family.COUNTER,
        "DRAM bytes over the declared bytes",
    ),
    ("l2.hit_fraction", "fraction", Better.HIGHER, Family.COUNTER, "L2 hits"),
    (
        "global.uncoalesced_fraction",
        "fraction",
        Better.LOWER,
        Family.COUNTER,
        "sectors beyond what the accesses need",
    ),
    (
        "shared.bank_conflict_fraction",
        "fraction",
        Better.LOWER,
        Family.COUNTER,
        "shared-memory wavefronts lost to conflicts",
    ),
    ("tensor.fraction", "fraction", Better.HIGHER, Family.COUNTER, "of tensor peak"),
    ("instructions.count", "count", Better.LOWER, Family.COUNTER, "instructions"),
    (
        "roofline.fraction",
        "fraction",
        Better.HIGHER,
        Family.DEVICE_TIME,
        "achieved of what the roof allows",
    ),
    (
        "roofline.at_clock_fraction",
        "fraction",
        Better.HIGHER,
        Family.DEVICE_TIME,
        "the same, with the compute peak at the clock of the call",
    ),
    (
        "roofline.intensity",
        "FLOP/B",
        Better.NEITHER,
        Family.DEVICE_TIME,
        "declared FLOP per declared byte",
    ),
    ("energy", "J", Better.LOWER, Family.DEVICE_TIME, "energy of a call"),
    ("speedup", "ratio", Better.HIGHER, Family.DEVICE_TIME, "time of b over a"),
    ("power", "W", Better.NEITHER, Family.DEVICE_TIME, "board power"),
    ("comm.exposed_time", "s", Better.LOWER, Family.DEVICE_TIME, "communication alone"),
)

_MOVED = (1, 2, 4, 8, 16, 32)  # what a thread can move in one access [B]

INSTRUCTION_CLASSES = MappingProxyType(  # of compiled code; `loop.` before it: in loops
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
        "fp64": "arithmetic of 64 bits",
        "fp32": "arithmetic of 32 bits",
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
        family=Family.RESOURCE,
        meaning=f"{meaning}, in loops" if scope else meaning,
        exact=True,
    )
    for scope in ("", "loop.")
    for name, meaning in INSTRUCTION_CLASSES.items()
}

METRICS = MappingProxyType(
    {
        name: Metric(
            name=name,
            unit=unit,
            better=better,
            family=family,
            meaning=meaning,
            exact=family is Family.RESOURCE and not name.startswith("memory."),
        )
        for name, unit, better, family, meaning in _ROWS
    }
    | _IN_CODE
)

_COUNTER = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*__[A-Za-z0-9_]+(?:\.[a-z0-9_]+)*")


def is_counter(name: str) -> bool:
    """Return whether a name has the form of an ncu or CUPTI counter."""
    return _COUNTER.fullmatch(name) is not None


def is_compiled(name: str) -> bool:
    """Return whether a metric counts instructions of compiled code."""
    return name in _IN_CODE


def metric_named(name: str) -> Metric:
    """
    Return the metric of a name of the catalogue, or of a hardware counter.

    Raises:
        UnknownMetricError: There is none; it carries the names that come close.
    """
    known = METRICS.get(name)
    if known is not None:
        return known
    if is_counter(name):
        return Metric(
            name=name,
            unit=None,
            better=Better.NEITHER,
            family=Family.COUNTER,
            meaning="hardware counter",
        )
    close = tuple(difflib.get_close_matches(name, METRICS, n=3, cutoff=0.5))
    known_names = (
        f"did you mean {', '.join(close)}"
        if close
        else "see the metrics in docs/metrics.md"
    )
    raise UnknownMetricError(name, close_matches=close, remedy=known_names)
