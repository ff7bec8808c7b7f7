"""One reading of a GPU's counters, and what it says."""

from __future__ import annotations

from enum import Enum
from math import isfinite
from operator import attrgetter

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.mistakes import not_finite, refuse, stated

__all__ = [
    "READINGS",
    "BottleneckCategory",
    "CanonicalRecord",
    "ComputedRecord",
    "Health",
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

    def __post_init__(self) -> None:
        """Refuse what is not a finite number."""
        values, failed = _numbers(self), self.row_remap_failed
        plain = failed in _TRUTHS and {*map(type, values)} <= _PLAIN
        try:  # a sum tells of all at once; a million records are made in a run
            if plain and isfinite(sum(filter(None, values))):
                return
        except OverflowError:
            pass  # an integer that no float holds: the fields are asked one by one
        found: dict[str, object] = dict(zip(_NUMBERS, values, strict=True))
        if failed not in _TRUTHS:
            found["row_remap_failed"] = failed
        refuse(list(not_finite("telemetry", stated(found))))


READINGS = CanonicalRecord.__struct_fields__[4:]
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

        model_name: The product's name; None where nobody said.

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
