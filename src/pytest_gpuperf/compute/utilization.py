"""How much of a GPU was used, and for what.

A reading becomes percents, the percents a score and one of twelve classes, by ordered
rules of which the first that holds counts. Each reading is judged alone: nothing is
smoothed.

References:
    kempnerpulse 0.5.0, whose scores, classes and health these are, digit for digit.
"""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter

from pytest_gpuperf.compute import thresholds as at
from pytest_gpuperf.compute.workload import (
    CLASSES,
    PRESETS,
    parse_weights,
    preset_of,
    raw_score,
    rules,
)
from pytest_gpuperf.errors import MetricUnavailableError
from pytest_gpuperf.model.telemetry import (
    BottleneckCategory,
    CanonicalRecord,
    ComputedRecord,
    Health,
    Weights,
    WorkloadClass,
)

__all__ = [
    "INPUTS",
    "NEEDED",
    "PRESETS",
    "BottleneckCategory",
    "CanonicalRecord",
    "ComputedRecord",
    "Health",
    "WorkloadClass",
    "asserted_class",
    "compute",
    "graphics_percent",
    "parse_weights",
    "warning_celsius",
]

NEEDED = ("sm_active_fraction", "tensor_active_fraction", "dram_active_fraction")
INPUTS = (
    *NEEDED,
    "fp64_active_fraction",
    "graphics_active_fraction",
    "gpu_busy_fraction",
    "memory_busy_fraction",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "pcie_replay_count",
    "uncorrectable_remapped_row_count",
    "row_remap_failed",
    "temperature_celsius",
    "memory_temperature_celsius",
    "memory_used_bytes",
    "memory_free_bytes",
    "memory_reserved_bytes",
)
_STANDS_IN = "gpu_busy_fraction"  # asked for only where graphics is absent
_inputs = attrgetter(*INPUTS)
_gpu = attrgetter("gpu_index", "gpu_uuid")


def compute(
    record: CanonicalRecord,
    *,
    previous: CanonicalRecord | None = None,
    weights: Weights = PRESETS["ai"],
    preset_name: str | None = None,
    model_name: str | None = None,
) -> ComputedRecord:
    """
    Return what one reading says of its GPU.

    An absent reading counts as 0 in every rule and is named in the answer's `missing`;
    `asserted_class` refuses to take such a class for the truth.

    Args:
        record: The reading. Its fractions may be outside 0 to 1.

        previous: The same GPU's reading before; only its time and its count of PCIe
            replays are asked for, and nothing of another GPU or instance.

        weights: Of sm, tensor, dram and graphics, as they are: what is absent gives its
            weight to nobody.

        preset_name: What to call the weights; by default the preset that they are, or
            `custom`.

        model_name: The product's name, for the temperature at which it is hot.

    Raises:
        RecordError: The weights are not four finite numbers.

    Example:
        >>> record = CanonicalRecord(
        ...     gpu_index=0,
        ...     gpu_uuid="",
        ...     monotonic_s=1.0,
        ...     unix_s=1.75e9,
        ...     sm_active_fraction=0.9,
        ...     tensor_active_fraction=0.6,
        ...     dram_active_fraction=0.4,
        ...     graphics_active_fraction=1.0,
        ... )
        >>> found = compute(record)
        >>> found.real_util, found.workload_class.label, found.bottleneck.value
        (70.5, 'tensor-heavy compute', 'compute')
    """
    known_name = preset_of(*weights)
    sm = _percent(record.sm_active_fraction)
    tensor = _percent(record.tensor_active_fraction)
    dram = _percent(record.dram_active_fraction)
    graphics = graphics_percent(record)
    raw = raw_score(weights, sm, tensor, dram, graphics)
    score = max(0.0, min(at.MOST_UTIL, raw))
    held = rules(
        score=score,
        sm=sm,
        tensor=tensor,
        dram=dram,
        fp64=_percent(record.fp64_active_fraction),
        graphics=graphics,
        memory_busy=_percent(record.memory_busy_fraction),
        rx=record.pcie_rx_bytes_per_s or 0.0,
        tx=record.pcie_tx_bytes_per_s or 0.0,
    )
    workload = CLASSES[held.index(True)]
    rate = _replay_rate(record, previous)
    total = _memory_total(record)
    return ComputedRecord(
        record=record,
        gpu_index=record.gpu_index,
        gpu_uuid=record.gpu_uuid,
        model_name=model_name,
        real_util=score,
        preset_name=known_name if preset_name is None else preset_name,
        weights=(weights[0], weights[1], weights[2], weights[3]),
        workload_class=workload,
        bottleneck=workload.bottleneck,
        health=_health(record, rate, warning_celsius(model_name)),
        memory_total_bytes=total,
        memory_used_fraction=_memory_fraction(record.memory_used_bytes, total),
        pcie_replay_rate_per_s=rate,
        missing=_missing(record),
    )


def asserted_class(computed: ComputedRecord) -> WorkloadClass:
    """
    Return the class of a reading, for a test that stands or falls by it.

    Raises:
        MetricUnavailableError: SM, tensor or DRAM activity is absent: the class then
            says what was not measured, not what the GPU did.
    """
    absent = [name for name in NEEDED if name in computed.missing]
    if absent:
        raise MetricUnavailableError(
            "workload_class",
            f"{', '.join(absent)} not measured on GPU {computed.gpu_index}",
            remedy="read the GPU by DCGM, or by GPM (Hopper and later)",
        )
    return computed.workload_class


def graphics_percent(record: CanonicalRecord) -> float:
    """Return graphics activity [%], or what stands in for it: the driver's GPU busy."""
    if record.graphics_active_fraction is not None:
        return record.graphics_active_fraction * 100.0
    return _percent(record.gpu_busy_fraction)


@lru_cache(maxsize=256)
def warning_celsius(model_name: str | None) -> float:
    """Return the temperature from which a product is hot [°C]."""
    name = (model_name or "").upper()
    known = (limit for part, limit in at.WARNING_CELSIUS if part in name)
    return next(known, at.OTHER_WARNING_CELSIUS)


def _percent(fraction: float | None) -> float:
    """Return a fraction in percent, 0 where it is absent."""
    return 0.0 if fraction is None else fraction * 100.0


def _replay_rate(
    record: CanonicalRecord, previous: CanonicalRecord | None
) -> float | None:
    """Return the PCIe replays of a second; None where two readings do not say."""
    if previous is None or _gpu(previous) != _gpu(record):
        return None
    count, before = record.pcie_replay_count, previous.pcie_replay_count
    elapsed_s = record.monotonic_s - previous.monotonic_s
    if count is None or before is None or elapsed_s <= 0 or count < before:
        return None
    return (count - before) / elapsed_s


def _memory_total(record: CanonicalRecord) -> float | None:
    """Return all memory; None where one of its three parts is absent."""
    used, free = record.memory_used_bytes, record.memory_free_bytes
    reserved = record.memory_reserved_bytes
    if used is None or free is None or reserved is None:
        return None
    return used + free + reserved


def _memory_fraction(used: float | None, total: float | None) -> float | None:
    """Return the memory in use, of all; None where that is not above 0."""
    if used is None or total is None or total <= 0:
        return None
    return used / total


def _health(record: CanonicalRecord, rate: float | None, warning: float) -> Health:
    """Return how the GPU fares; what is absent never speaks against it."""
    rows_lost = record.uncorrectable_remapped_row_count or 0
    if record.row_remap_failed is True or rows_lost > 0:
        return Health.CRIT
    if rate is not None and rate > 0:
        return Health.WARN
    for part in (record.temperature_celsius, record.memory_temperature_celsius):
        if part is not None and part >= warning:
            return Health.HOT
    return Health.OK


def _missing(record: CanonicalRecord) -> tuple[str, ...]:
    """Return the names of the readings that were asked for and are absent."""
    values = _inputs(record)
    if None not in values:
        return ()
    asked = record.graphics_active_fraction is None
    return tuple(
        name
        for name, value in zip(INPUTS, values, strict=True)
        if value is None and (asked or name != _STANDS_IN)
    )
