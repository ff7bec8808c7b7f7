"""Readings of a GPU's own sensors: single readings, and spans of time."""

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
    "GpuKey",
    "Health",
    "SecondPass",
    "Sharing",
    "TimeLine",
    "UtilizationWindow",
    "Weights",
    "WorkloadClass",
]

Weights = tuple[float, float, float, float]  # For sm, tensor, dram and graphics.
GpuKey = tuple[str, int, str]  # Hostname, index and uuid of a GPU or of an instance.


class BottleneckCategory(str, Enum):
    """The bottleneck of a GPU."""

    IDLE = "idle"
    COMPUTE = "compute"
    IO = "io"
    MEMORY = "memory"
    MIXED = "mixed"


class WorkloadClass(str, Enum):
    """The kind of work of a GPU, in the order in which the rules are checked."""

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
        """The readable name."""
        return self.value

    @property
    def bottleneck(self) -> BottleneckCategory:
        """The bottleneck of a GPU with that work."""
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
    """Health of a GPU. If several apply, CRIT wins over WARN, and WARN over HOT."""

    OK = "OK"
    WARN = "WARN"
    HOT = "HOT"
    CRIT = "CRIT"


class ClockReason(str, Enum):
    """Reason for a lowered GPU clock."""

    SOFTWARE_POWER_CAP = "software power cap"
    HARDWARE_SLOWDOWN = "hardware slowdown"
    SYNC_BOOST = "sync boost"
    SOFTWARE_THERMAL = "software thermal slowdown"
    HARDWARE_THERMAL = "hardware thermal slowdown"
    POWER_BRAKE = "power brake"
    BOARD_LIMIT = "board limit"
    # Of either kind, because older drivers do not distinguish them.
    THERMAL = "thermal slowdown"


class CanonicalRecord(Frozen, frozen=True, kw_only=True):
    """
    Sensor and counter values of one GPU at one time, in one form for all tools.

    Every reading may be None if the source does not report it. A stored zero is a real
    zero. Values outside the given ranges are kept unchanged, and values that are not
    finite are rejected.

    Attributes:
        gpu_index: Index in the driver's order, from 0.

        gpu_uuid: Permanent id of the GPU, as its UUID, bus id or serial number, or empty
            if not reported. The id of a MIG instance ends with `/GI` and its number.

        monotonic_s: Time of the reading, by a monotonic clock [s]. Only differences are
            meaningful.

        unix_s: Time of the reading, since 1970 [s].

        sm_active_fraction: Cycles in which a multiprocessor held a warp, 0 to 1.

        sm_occupancy_fraction: Resident warps over the maximum, 0 to 1.

        tensor_active_fraction: Cycles in which any tensor pipe worked, 0 to 1.

        tensor_hmma_active_fraction: The same for FP16, BF16 and TF32, 0 to 1.

        tensor_imma_active_fraction: The same for integers, 0 to 1.

        tensor_dfma_active_fraction: The same for FP64 by FMA, 0 to 1.

        tensor_dmma_active_fraction: The same for FP64 by MMA, 0 to 1.

        tensor_qmma_active_fraction: The same for FP8, 0 to 1.

        fp64_active_fraction: Cycles of the FP64 pipe without tensor work, 0 to 1.

        fp32_active_fraction: The same for the FP32 pipe, 0 to 1.

        fp16_active_fraction: The same for the FP16 pipe, 0 to 1.

        graphics_active_fraction: Time in which the graphics or compute engine had work,
            0 to 1.

        dram_active_fraction: Cycles in which DRAM moved data, 0 to 1.

        memory_busy_fraction: Time of the driver's last period in which device memory
            was read or written, 0 to 1. Copy engines are not included, although other
            names of this value suggest so.

        gpu_busy_fraction: Time of the driver's last period in which a kernel ran, 0 to 1.

        pcie_tx_bytes_per_s: Traffic from the GPU to the host [B/s].

        pcie_rx_bytes_per_s: Traffic from the host to the GPU [B/s].

        nvlink_bytes_per_s: Traffic of all links in both directions [B/s].

        pcie_replay_count: PCIe packets sent again since the driver was loaded.

        last_xid: Code of the last XID event, not the number of events.

        uncorrectable_remapped_row_count: Memory rows replaced for an uncorrectable error.

        correctable_remapped_row_count: Memory rows replaced for correctable errors.

        row_remap_failed: Whether a row could not be replaced.

        power_watts: Power of the board [W].

        energy_joules: Energy of the board since the driver was loaded [J].

        power_limit_watts: The limit in force [W].

        power_limit_default_watts: The default limit of the board [W].

        temperature_celsius: Temperature of the die [°C].

        memory_temperature_celsius: Temperature of the memory [°C].

        sm_clock_hz: Clock of the multiprocessors [Hz].

        memory_clock_hz: Clock of the memory [Hz].

        memory_used_bytes: Device memory in use [B].

        memory_free_bytes: Device memory free [B].

        memory_reserved_bytes: Device memory reserved by the driver [B].

        memory_total_bytes: All device memory [B].

        memory_used_fraction: Device memory in use, of all that is not reserved, 0 to 1.

        clock_reasons: Reasons for a lowered clock, or empty if there were none. Not a
            number, so not in `READINGS`.

        hostname: Name of the GPU's machine, or empty if not reported. Not a number, so
            not in `READINGS`.
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
    memory_total_bytes: float | None = None
    memory_used_fraction: float | None = None
    clock_reasons: frozenset[ClockReason] | None = None
    hostname: str = ""

    @property
    def gpu(self) -> GpuKey:
        """The key of all readings of the GPU or the instance."""
        return self.hostname, self.gpu_index, self.gpu_uuid

    def __post_init__(self) -> None:
        """Reject values that are not finite numbers."""
        values, failed = _numbers(self), self.row_remap_failed
        plain = failed in _TRUTHS and {*map(type, values)} <= _PLAIN
        try:  # A sum checks all at once. A run creates a million records.
            if plain and isfinite(sum(filter(None, values))):
                return
        except OverflowError:
            pass  # An integer too large for a float. The fields are checked one by one.
        fields: dict[str, object] = dict(zip(_NUMBERS, values, strict=True))
        if failed not in _TRUTHS:
            fields["row_remap_failed"] = failed
        refuse(list(not_finite("telemetry", stated(fields))))


READINGS = CanonicalRecord.__struct_fields__[4:-2]
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
    Values derived from one reading of a GPU.

    Attributes:
        record: The reading.

        gpu_index: Index in the driver's order.

        gpu_uuid: Permanent id. May be empty.

        model_name: Name of the product, or None if unknown.

        real_util: Used share of the GPU, 0 to 100.

        preset_name: Name of the weights.

        weights: Weights of sm, tensor, dram and graphics in `real_util`.

        workload_class: The kind of work. Absent readings count as 0 here, see
            `missing`.

        bottleneck: The bottleneck of the GPU.

        health: Health of the GPU.

        memory_total_bytes: The sum of used, free and reserved memory [B]. If one of them
            is absent, the reported total, or None if that is absent, too.

        memory_used_fraction: Used over total memory, 0 to 1. Without a total, the
            reported fraction. None if both are absent, or if the total is zero.

        pcie_replay_rate_per_s: PCIe packets sent again [1/s], or None if the previous
            reading is absent or higher than this one.

        missing: Names of the required readings that are absent.
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
    """Use of a GPU by other processes."""

    ALONE = "alone"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


class DeviceDeltas(Frozen, frozen=True, kw_only=True):
    """
    Changes of one GPU's sensors between two moments. None means not reported.

    All values are for the whole GPU, including other users.

    Attributes:
        gpu_uuid: Permanent id of the GPU or its instance.

        gpu_index: Index in the driver's order.

        duration_s: Time between the two moments [s], >= 0.

        energy_joules: Energy of the board [J]. Also None if the time was too short for
            the counter.

        throttled_s: Time with a lowered clock by reason [s], >= 0. Reasons without a
            counter are absent.

        reasons: Reasons in force at the first or the last moment.

        pcie_replay_count: PCIe packets sent again.

        ecc_changes: Change of each count of memory errors and replaced rows.

        xids: Codes of the XID events, in order, or None if they cannot be read.

        memory_used_bytes: Device memory in use at the last moment, without the driver's
            share [B].

        sm_clock_hz: Clock of the multiprocessors at the last moment [Hz].

        temperature_celsius: Temperature of the die at the last moment [°C].

        ring_sm_clocks_hz: The driver's own samples of that clock [Hz], in order.

        ring_power_watts: The driver's own samples of the board's power [W], in order.

        gpm: Averages of hardware counters, by the names of a CanonicalRecord.

        gpm_reason: Why there are no averages, as a fragment. None if there are any, or
            if they were not requested.

        sharing: Use of the GPU by other processes.

        sharing_reason: Why the use is unknown, as a fragment, or None if it is known.

        foreign_pids: Processes of others that computed on the GPU, or may have.

        idle_pids: Processes of others that were on the GPU and did not use it.

        use_unknown: Whether the driver did not tell which of the processes of others
            used the GPU.

        silent: Sensors without a value, as "energy", with reasons.

        lost: Why the GPU is gone, or None if it is there.
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
    idle_pids: tuple[int, ...] = ()
    use_unknown: bool = False
    silent: Mapping[str, Gap] = {}
    lost: Gap | None = None


class SecondPass(Frozen, frozen=True, kw_only=True):
    """
    Energy and power of back-to-back calls, separate from the timed calls.

    Attributes:
        calls_count: Calls behind `energy_joules`, >= 1, or 0 if there is no value.

        duration_s: Duration of the calls [s].

        energy_joules: Energy of a call, including what an idle board draws [J].

        power_watts: Mean power of the board during the pass [W].

        deltas: Sensor changes over the whole pass, including GPM.

        missing: Sensors that were read but gave no value, with reasons.
    """

    calls_count: int
    duration_s: float
    energy_joules: float | None
    power_watts: float | None
    deltas: DeviceDeltas
    missing: Mapping[str, Gap] = {}


class UtilizationWindow(Frozen, frozen=True, kw_only=True):
    """
    Activity of one GPU in a window of time.

    The seconds of the classes, the incomplete and the unobserved seconds add up to the
    window.

    Attributes:
        gpu_index: Index in the driver's order.

        gpu_uuid: Permanent id. May be empty.

        duration_s: Duration of the window [s], >= 0.

        reading_count: Readings that cover a part of the window.

        class_s: Seconds in each class, by its label. Each reading is classified by
            itself.

        incomplete_s: Seconds with readings that lack SM, tensor or DRAM activity [s].

        unobserved_s: Seconds without a reading [s].

        real_util: Mean score, weighted by time, 0 to 100, or None without a complete
            reading.

        real_util_p50: Median of the readings' scores.

        real_util_p95: 95th percentile of the readings' scores.

        average_class: Label of the average reading's class. None if the average reading
            lacks SM, tensor or DRAM activity, or if there is no reading.

        health_s: Seconds of each health, by its value, without readings that lack a
            temperature. Empty in files of earlier versions.
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
        """Reject numbers that are not finite."""
        finite("utilization.duration_s", self.duration_s)
        finite("utilization.class_s", *self.class_s.values())
        finite("utilization.health_s", *self.health_s.values())
        finite("utilization.incomplete_s", self.incomplete_s)
        finite("utilization.unobserved_s", self.unobserved_s)
        scores = self.real_util, self.real_util_p50, self.real_util_p95
        finite("utilization.real_util", *scores)


class TimeLine(Frozen, frozen=True, kw_only=True):
    """
    Sensor readings of one GPU in a window of time, point by point.

    Attributes:
        gpu_index: Index in the driver's order.

        gpu_uuid: Permanent id. May be empty.

        since_s: Time of each reading, from the start of the window [s].

        readings: A value for each reading, by the name in a CanonicalRecord, or None if
            not reported. Sensors without any value are absent.

        classes: Label of the GPU's class for each reading, or "" if unknown.

        throttled_s: Time with a lowered clock by reason [s], from all readings,
            including those left out of `since_s`. Reasons that never applied are
            absent. None if not reported, or in files of earlier versions.

        throttled_spans_s: Start and end of each lowering by reason, from the start of
            the window [s]. If there are many, spans with short gaps are merged.
    """

    gpu_index: int
    gpu_uuid: str
    since_s: tuple[float, ...]
    readings: Mapping[str, tuple[float | None, ...]] = {}
    classes: tuple[str, ...] = ()
    throttled_s: Mapping[ClockReason, float] | None = None
    throttled_spans_s: Mapping[ClockReason, tuple[tuple[float, float], ...]] = {}

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("time_line.since_s", *self.since_s)
        finite("time_line.throttled_s", *(self.throttled_s or {}).values())
        for spans in self.throttled_spans_s.values():
            finite("time_line.throttled_spans_s", *chain(*spans))
        for name, values in self.readings.items():
            finite(f"time_line.{name}", *values)
