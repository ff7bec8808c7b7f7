"""What a GPU's own sensors say: one reading, and a span of time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import chain
from math import isfinite
from operator import attrgetter

from pytest_gpuperf.model.frozen import Frozen, finite, not_finite, refuse, stated
from pytest_gpuperf.model.gap import Gap

__all__ = [
    "READINGS",
    "BottleneckCategory",
    "CanonicalRecord",
    "ClockReason",
    "ComputedRecord",
    "DeviceDeltas",
    "Health",
    "SecondPass",
    "Sharing",
    "TimeLine",
    "UtilizationWindow",
    "Weights",
    "WorkloadClass",
]

Weights = tuple[float, float, float, float]  # of sm, tensor, dram and graphics


class BottleneckCategory(str, Enum):
    """What keeps a GPU from doing more."""

    IDLE = "idle"
    COMPUTE = "compute"
    IO = "io"
    MEMORY = "memory"
    MIXED = "mixed"


class WorkloadClass(str, Enum):
    """What a GPU was busy with, in the order in which the rules are asked."""

    IDLE = "idle"
    TENSOR_HEAVY_COMPUTE = "tensor-heavy compute"
    TENSOR_COMPUTE = "tensor compute"
    FP64_HPC_COMPUTE = "FP64 / HPC compute"
    IO_OR_DATA_LOADING = "I/O or data-loading"
    MEMORY_BOUND = "memory-bound"
    COMPUTE_HEAVY = "compute-heavy"
    COMPUTE_ACTIVE = "compute-active"
    MEMORY_ACTIVE = "memory-active"
    BUSY_LOW_SM_USE = "busy, low SM use"
    LOW_UTILIZATION = "low utilization"
    MIXED_OR_MODERATE = "mixed / moderate"

    @property
    def label(self) -> str:
        """The text by which people know it."""
        return self.value

    @property
    def bottleneck(self) -> BottleneckCategory:
        """What keeps such a GPU from doing more."""
        return _BOTTLENECKS[self]


_OTHERS = {
    WorkloadClass.IDLE: BottleneckCategory.IDLE,
    WorkloadClass.IO_OR_DATA_LOADING: BottleneckCategory.IO,
    WorkloadClass.MEMORY_BOUND: BottleneckCategory.MEMORY,
    WorkloadClass.MEMORY_ACTIVE: BottleneckCategory.MEMORY,
    WorkloadClass.BUSY_LOW_SM_USE: BottleneckCategory.MIXED,
    WorkloadClass.LOW_UTILIZATION: BottleneckCategory.MIXED,
    WorkloadClass.MIXED_OR_MODERATE: BottleneckCategory.MIXED,
}
_BOTTLENECKS = {
    workload: _OTHERS.get(workload, BottleneckCategory.COMPUTE)
    for workload in WorkloadClass
}


class Health(str, Enum):
    """How a GPU fares; of several that hold CRIT goes before WARN, WARN before HOT."""

    OK = "OK"
    WARN = "WARN"
    HOT = "HOT"
    CRIT = "CRIT"


class ClockReason(str, Enum):
    """What held a GPU's clock down."""

    SOFTWARE_POWER_CAP = "software power cap"
    HARDWARE_SLOWDOWN = "hardware slowdown"
    SYNC_BOOST = "sync boost"
    SOFTWARE_THERMAL = "software thermal slowdown"
    HARDWARE_THERMAL = "hardware thermal slowdown"
    POWER_BRAKE = "power brake"
    BOARD_LIMIT = "board limit"
    THERMAL = "thermal slowdown"  # of either kind: older drivers do not tell them apart


class CanonicalRecord(Frozen, frozen=True, kw_only=True):
    """
    What one GPU's counters said at one time, whichever tool read them.

    Every reading may be None: the source did not say. A stored zero is a zero. A value
    outside the range that is given here is kept as it came; one that is not finite is
    refused.

    Attributes:
        gpu_index: The GPU's place in the driver's order, from 0.

        gpu_uuid: Its name for life, or that of its instance; empty where the source did
            not say.

        monotonic_s: When, by a clock that never goes back [s]; only differences mean
            something.

        unix_s: When, since 1970 [s].

        sm_active_fraction: Cycles in which a multiprocessor held a warp, 0 to 1.

        sm_occupancy_fraction: Resident warps of those that fit, 0 to 1.

        tensor_active_fraction: Cycles in which any tensor pipe worked, 0 to 1.

        tensor_hmma_active_fraction: The same for FP16, BF16 and TF32, 0 to 1.

        tensor_imma_active_fraction: The same for integers, 0 to 1.

        tensor_dfma_active_fraction: The same for FP64 by FMA, 0 to 1.

        tensor_dmma_active_fraction: The same for FP64 by MMA, 0 to 1.

        tensor_qmma_active_fraction: The same for FP8, 0 to 1.

        fp64_active_fraction: Cycles of the FP64 pipe, tensor work left out, 0 to 1.

        fp32_active_fraction: The same of the FP32 pipe, 0 to 1.

        fp16_active_fraction: The same of the FP16 pipe, 0 to 1.

        graphics_active_fraction: Time in which the graphics or compute engine had work,
            0 to 1.

        dram_active_fraction: Cycles in which DRAM moved data, 0 to 1.

        memory_busy_fraction: Time of the driver's last period in which device memory was
            read or written, 0 to 1; not the copy engines, whatever its names elsewhere.

        gpu_busy_fraction: Time of the driver's last period in which a kernel ran, 0 to 1.

        pcie_tx_bytes_per_s: From the GPU to the host [B/s].

        pcie_rx_bytes_per_s: From the host to the GPU [B/s].

        nvlink_bytes_per_s: Both directions of all links [B/s].

        pcie_replay_count: PCIe packets sent again since the driver was loaded.

        last_xid: The code of the last XID event, not their number.

        uncorrectable_remapped_row_count: Memory rows replaced for an uncorrectable error.

        correctable_remapped_row_count: Memory rows replaced for correctable errors.

        row_remap_failed: Whether a row could not be replaced.

        power_watts: What the board draws [W].

        energy_joules: What it drew since the driver was loaded [J].

        power_limit_watts: The limit in force [W].

        power_limit_default_watts: The limit the board came with [W].

        temperature_celsius: Of the die [°C].

        memory_temperature_celsius: Of the memory [°C].

        sm_clock_hz: Clock of the multiprocessors [Hz].

        memory_clock_hz: Clock of the memory [Hz].

        memory_used_bytes: Device memory in use [B].

        memory_free_bytes: Device memory free [B].

        memory_reserved_bytes: Device memory that the driver keeps [B].

        clock_reasons: What held the clock down; empty: nothing did. It is not a number,
            and not among `READINGS`.
    """

    gpu_index: int
    gpu_uuid: str
    monotonic_s: float
    unix_s: float
    sm_active_fraction: float | None = None
    sm_occupancy_fraction: float | None = None
    tensor_active_fraction: float | None = None
    tensor_hmma_active_fraction: float | None = None
    tensor_imma_active_fraction: float | None = None
    tensor_dfma_active_fraction: float | None = None
    tensor_dmma_active_fraction: float | None = None
    tensor_qmma_active_fraction: float | None = None
    fp64_active_fraction: float | None = None
    fp32_active_fraction: float | None = None
    fp16_active_fraction: float | None = None
    graphics_active_fraction: float | None = None
    dram_active_fraction: float | None = None
    memory_busy_fraction: float | None = None
    gpu_busy_fraction: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_bytes_per_s: float | None = None
    pcie_replay_count: int | None = None
    last_xid: int | None = None
    uncorrectable_remapped_row_count: int | None = None
    correctable_remapped_row_count: int | None = None
    row_remap_failed: bool | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    power_limit_watts: float | None = None
    power_limit_default_watts: float | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    memory_used_bytes: float | None = None
    memory_free_bytes: float | None = None
    memory_reserved_bytes: float | None = None
    clock_reasons: frozenset[ClockReason] | None = None

    def __post_init__(self) -> None:
        """Refuse what is not a finite number."""
        values, failed = _numbers(self), self.row_remap_failed
        plain = failed in _TRUTHS and {*map(type, values)} <= _PLAIN
        try:  # a sum tells of all at once; a million records are made in a run
            if plain and isfinite(sum(filter(None, values))):
                return
        except OverflowError:
            pass  # an integer that no float holds: the fields are asked one by one
        fields: dict[str, object] = dict(zip(_NUMBERS, values, strict=True))
        if failed not in _TRUTHS:
            fields["row_remap_failed"] = failed
        refuse(list(not_finite("telemetry", stated(fields))))


READINGS = CanonicalRecord.__struct_fields__[4:-1]
_NUMBERS = (
    "monotonic_s",
    "unix_s",
    *(name for name in READINGS if name != "row_remap_failed"),
)
_PLAIN = frozenset({float, int, type(None)})
_TRUTHS = (None, False, True)
_numbers = attrgetter(*_NUMBERS)


class ComputedRecord(Frozen, frozen=True, kw_only=True):
    """
    What one reading says of a GPU.

    Attributes:
        record: The reading.

        gpu_index: The GPU's place in the driver's order.

        gpu_uuid: Its name for life; may be empty.

        model_name: The product's name; None: not known.

        real_util: How much of the GPU was used, 0 to 100.

        preset_name: What the weights are called.

        weights: Of sm, tensor, dram and graphics in `real_util`.

        workload_class: What it was busy with. What is absent counts as 0 here: see
            `missing`.

        bottleneck: What keeps it from doing more.

        health: How it fares.

        memory_total_bytes: All of its memory [B]; None where a part of it is absent.

        memory_used_fraction: In use, of all, 0 to 1; None where that is absent or zero.

        pcie_replay_rate_per_s: PCIe packets sent again [1/s]; None where the reading
            before says nothing, or more than this one.

        missing: Names of the readings that were asked for and absent.
    """

    record: CanonicalRecord
    gpu_index: int
    gpu_uuid: str
    model_name: str | None
    real_util: float
    preset_name: str
    weights: Weights
    workload_class: WorkloadClass
    bottleneck: BottleneckCategory
    health: Health
    memory_total_bytes: float | None
    memory_used_fraction: float | None
    pcie_replay_rate_per_s: float | None
    missing: tuple[str, ...]


class Sharing(str, Enum):
    """Who else computed on a GPU."""

    ALONE = "alone"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


class DeviceDeltas(Frozen, frozen=True, kw_only=True):
    """
    What the sensors of one GPU counted between two moments; None: they did not say.

    All of it is of the whole GPU, whoever used it.

    Attributes:
        gpu_uuid: The GPU's name for life, or that of its instance.

        gpu_index: Its place in the driver's order.

        duration_s: Time between the two moments [s], >= 0.

        energy_joules: What the board drew [J]; None also where the time was too short
            for the counter.

        throttled_s: Time in which each reason held the clock down [s], >= 0; a reason
            that is not in it has no counter here.

        reasons: Those that held at the first or the last moment.

        pcie_replay_count: PCIe packets sent again.

        ecc_changes: By how much each count of memory errors and replaced rows moved.

        xids: Codes of the XID events, as they came; None: they cannot be read.

        memory_used_bytes: Device memory in use at the last moment, what the driver keeps
            left out [B].

        sm_clock_hz: Clock of the multiprocessors at the last moment [Hz].

        temperature_celsius: Of the die at the last moment [°C].

        ring_sm_clocks_hz: The driver's own samples of that clock [Hz], in order.

        ring_power_watts: Its samples of the board's power [W], in order.

        gpm: Averages of hardware counters, by the names of a CanonicalRecord.

        gpm_reason: Why there are none, as a fragment; None: there are, or they were not
            asked for.

        sharing: Who else computed on the GPU.

        sharing_reason: Why that is not known, as a fragment; None: it is.

        foreign_pids: Processes of others that were seen on it.

        silent: Sensors that say nothing, as "energy", and why.

        lost: Why the GPU is gone; None: it is there.
    """

    gpu_uuid: str
    gpu_index: int
    duration_s: float
    energy_joules: float | None = None
    throttled_s: Mapping[ClockReason, float] = {}
    reasons: frozenset[ClockReason] = frozenset()
    pcie_replay_count: int | None = None
    ecc_changes: Mapping[str, int] = {}
    xids: tuple[int, ...] | None = None
    memory_used_bytes: int | None = None
    sm_clock_hz: float | None = None
    temperature_celsius: float | None = None
    ring_sm_clocks_hz: tuple[float, ...] = ()
    ring_power_watts: tuple[float, ...] = ()
    gpm: Mapping[str, float | None] = {}
    gpm_reason: str | None = None
    sharing: Sharing = Sharing.UNKNOWN
    sharing_reason: str | None = None
    foreign_pids: tuple[int, ...] = ()
    silent: Mapping[str, Gap] = {}
    lost: Gap | None = None


class SecondPass(Frozen, frozen=True, kw_only=True):
    """
    What calls cost that follow each other without a gap, apart from those timed.

    Attributes:
        calls_count: Calls behind `energy_joules`, >= 1; 0 where there is none.

        duration_s: Time that they took [s].

        energy_joules: Energy of a call, with what an idle board draws in that time [J].

        power_watts: The board's mean power meanwhile [W].

        deltas: What the sensors counted over the whole pass, GPM included.

        missing: Sensors that were asked and gave no value, and why.
    """

    calls_count: int
    duration_s: float
    energy_joules: float | None
    power_watts: float | None
    deltas: DeviceDeltas
    missing: Mapping[str, Gap] = {}


class UtilizationWindow(Frozen, frozen=True, kw_only=True):
    """
    What one GPU did in a window of time.

    The seconds of the classes, the incomplete and the unobserved ones add up to it.

    Attributes:
        gpu_index: The GPU's place in the driver's order.

        gpu_uuid: Its name for life; may be empty.

        duration_s: The window [s], >= 0.

        reading_count: Readings that describe a part of it.

        class_s: Seconds in each class, by its label; each reading judged by itself.

        incomplete_s: Seconds whose readings lack SM, tensor or DRAM activity [s].

        unobserved_s: Seconds that no reading describes [s].

        real_util: Mean score, weighed with time, 0 to 100; None: no complete reading.

        real_util_p50: Median of the readings' scores.

        real_util_p95: Their 95th percentile.

        average_class: The class of the average reading, by its label; None where it
            lacks SM, tensor or DRAM activity, or there is no reading.

        health_s: Seconds of each health, by its value; readings without a temperature
            left out. Empty in files of earlier versions.
    """

    gpu_index: int
    gpu_uuid: str
    duration_s: float
    reading_count: int
    class_s: Mapping[str, float]
    incomplete_s: float
    unobserved_s: float
    real_util: float | None = None
    real_util_p50: float | None = None
    real_util_p95: float | None = None
    average_class: str | None = None
    health_s: Mapping[str, float] = {}

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("utilization.duration_s", self.duration_s)
        finite("utilization.class_s", *self.class_s.values())
        finite("utilization.health_s", *self.health_s.values())
        finite("utilization.incomplete_s", self.incomplete_s)
        finite("utilization.unobserved_s", self.unobserved_s)
        scores = self.real_util, self.real_util_p50, self.real_util_p95
        finite("utilization.real_util", *scores)


class TimeLine(Frozen, frozen=True, kw_only=True):
    """
    What the sensors of one GPU said in a window of time, point by point.

    Attributes:
        gpu_index: The GPU's place in the driver's order.

        gpu_uuid: Its name for life; may be empty.

        since_s: When each reading was taken, from the start of the window [s].

        readings: A value for each of them, by the name in a CanonicalRecord; None: the
            sensor did not say. A sensor that never said anything is left out.

        classes: What the GPU was busy with, by the class's label; "": not known.

        throttled_s: How long each reason held the clock down [s], by all readings, those
            left out of `since_s` too; a reason that never did is left out. None: the
            sensor did not say, or the file is of an earlier version.

        throttled_spans_s: From when to when each did, from the start of the window [s];
            where that is often, spans with little time in between are one.
    """

    gpu_index: int
    gpu_uuid: str
    since_s: tuple[float, ...]
    readings: Mapping[str, tuple[float | None, ...]] = {}
    classes: tuple[str, ...] = ()
    throttled_s: Mapping[ClockReason, float] | None = None
    throttled_spans_s: Mapping[ClockReason, tuple[tuple[float, float], ...]] = {}

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("time_line.since_s", *self.since_s)
        finite("time_line.throttled_s", *(self.throttled_s or {}).values())
        for spans in self.throttled_spans_s.values():
            finite("time_line.throttled_spans_s", *chain(*spans))
        for name, values in self.readings.items():
            finite(f"time_line.{name}", *values)
