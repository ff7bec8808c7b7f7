"""Real utilization, workload class and health of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite, nan
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from pytest_gpuperf.errors import ConfigError, MetricUnavailableError, RecordError
from pytest_gpuperf.model.frozen import no_number, shown
from pytest_gpuperf.model.telemetry import (
    BottleneckCategory,
    CanonicalRecord,
    ComputedRecord,
    Health,
    Weights,
    WorkloadClass,
)

__all__ = [
    "CLASSES",
    "INPUTS",
    "MOST_UTIL",
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
    "has_class",
    "parse_weights",
    "preset_of",
    "raw_score",
    "rules",
    "warning_celsius",
]

Number = Any  # A float, or a numpy array of floats.
Truth = Any  # A bool, or a numpy array of bools.

# The numbers that decide class and health, with their sources. "kempnerpulse" is the
# program of that name, version 0.5.0, and these rules reproduce its answers. Unless noted
# otherwise, its authors chose the numbers by experience.
MOST_UTIL = 100.0  # Of the score (kempnerpulse).

# Thresholds of the classes, in the order of the rules. They are compared with fraction *
# 100, never with a fraction: for 5, 20, 40 and 80, the last double below the fraction
# reaches the threshold too.
_IDLE_PERCENT = 5.0  # Rule 1: score, graphics and DRAM below it (kempnerpulse).
_TENSOR_HEAVY_PERCENT = 50.0  # Rule 2: tensor at least (kempnerpulse).
_TENSOR_HEAVY_SM_PERCENT = 60.0  # Rule 2: with SM at least (kempnerpulse).
_TENSOR_PERCENT = 15.0  # Rule 3: tensor at least (kempnerpulse).
_TENSOR_SM_PERCENT = 40.0  # Rule 3: with SM at least (kempnerpulse).
_FP64_PERCENT = 20.0  # Rule 4: FP64 at least (kempnerpulse).
_FP64_SM_PERCENT = 50.0  # Rule 4: with SM at least (kempnerpulse).
_IO_MEMORY_BUSY_PERCENT = 40.0  # Rules 1 and 5: memory busy at least (kempnerpulse).
_IO_BYTES_PER_S = 1e9  # Rules 1 and 5: one direction of PCIe at least (kempnerpulse).
_IO_SM_PERCENT = 30.0  # Rule 5: with SM below it (kempnerpulse).
_BOUND_DRAM_PERCENT = 50.0  # Rule 6: DRAM at least (kempnerpulse).
_BOUND_SM_PERCENT = 50.0  # Rule 6: with SM below it (kempnerpulse).
_HEAVY_SM_PERCENT = 80.0  # Rule 7: SM at least. NVIDIA's DCGM guide asks for 0.8.
# Rule 8: SM at least. NVIDIA's DCGM guide calls less poor use.
_ACTIVE_SM_PERCENT = 50.0
_ACTIVE_DRAM_PERCENT = 40.0  # Rule 9: DRAM at least (kempnerpulse).
_BUSY_GRAPHICS_PERCENT = 40.0  # Rule 10: graphics at least (kempnerpulse).
_BUSY_SM_PERCENT = 25.0  # Rule 10: with SM below it (kempnerpulse).
_LOW_PERCENT = 15.0  # Rule 11: graphics, SM and DRAM below it (kempnerpulse).

# Tolerances of the weights.
_PRESET_TOLERANCE = 1e-9  # Of a weight that matches a preset's (kempnerpulse).
_SUM_TOLERANCE = 1e-6  # Of a sum of weights that counts as 1 (kempnerpulse).

# Limits of the health. The first entry contained in a product's name, in capital letters,
# counts, so that a GH200 has the limit of an H200.
_WARNING_CELSIUS = (
    ("A100", 93.0),  # kempnerpulse
    ("H100", 95.0),  # kempnerpulse
    ("H200", 95.0),  # kempnerpulse
    ("RTX 6000", 92.0),  # kempnerpulse
)
_OTHER_WARNING_CELSIUS = 93.0  # Every other product (kempnerpulse).

PRESETS: Mapping[str, Weights] = MappingProxyType(
    {
        "ai": (0.35, 0.35, 0.20, 0.10),  # kempnerpulse
        "hpc": (0.45, 0.15, 0.25, 0.15),  # kempnerpulse
        "mem": (0.35, 0.10, 0.40, 0.15),  # kempnerpulse
    }
)
CLASSES = tuple(WorkloadClass)  # In the order of the rules.
_CUSTOM = "custom"
_COUNT = 4
_REMEDY = "give four numbers: sm, tensor, dram, graphics"


def parse_weights(text: str) -> Weights:
    """
    Parse custom weights.

    Args:
        text: Four numbers between commas: sm, tensor, dram, graphics. A number may be below
            0, but the sum must be above 0. The weights are scaled to a sum of 1.

    Raises:
        ConfigError: The text is not four finite numbers with a sum above 0.

    Example:
        >>> parse_weights("3, 0, 0, 1")
        (0.75, 0.0, 0.0, 0.25)
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    numbers, mistakes = [], []
    for part in parts:
        try:
            number = float(part)
        except ValueError:
            number = nan
        if not isfinite(number):
            mistakes.append(f"{part!r} is not a finite number")
        numbers.append(number or 0.0)  # -0 counts as 0.
    if len(parts) != _COUNT:
        mistakes.append(f"there are {len(parts)} of them, not {_COUNT}")
    if mistakes:
        raise _refused(text, mistakes)
    sm, tensor, dram, graphics = numbers
    total = sm + tensor + dram + graphics
    if not (total > 0 and isfinite(total)):
        raise _refused(text, [f"their sum {total:g} is not a finite number above 0"])
    if abs(total - 1) <= _SUM_TOLERANCE:
        return sm, tensor, dram, graphics
    return sm / total, tensor / total, dram / total, graphics / total


@lru_cache(maxsize=64)
def preset_of(*weights: float) -> str:
    """
    Return the name of the first matching preset, or `custom`.

    Raises:
        RecordError: The weights are not four finite numbers.
    """
    if len(weights) != _COUNT or any(map(no_number, weights)):
        message = f"{shown(weights)} are not four finite numbers"
        raise RecordError(message, path="weights", remedy=_REMEDY)
    for name, preset in PRESETS.items():
        pairs = zip(weights, preset, strict=True)
        if all(
            abs(weight - reference) <= _PRESET_TOLERANCE for weight, reference in pairs
        ):
            return name
    return _CUSTOM


def raw_score(
    weights: Weights, sm: Number, tensor: Number, dram: Number, graphics: Number
) -> Number:
    """Return the weighted percents, added from left to right, without bounds."""
    return (
        weights[0] * sm
        + weights[1] * tensor
        + weights[2] * dram
        + weights[3] * graphics
    )


def rules(
    *,
    score: Number,
    sm: Number,
    tensor: Number,
    dram: Number,
    fp64: Number,
    graphics: Number,
    memory_busy: Number,
    rx: Number,
    tx: Number,
) -> tuple[Truth, ...]:
    """
    Evaluate the rules of the classes, in the order of the classes.

    The last rule always holds.

    Args:
        score: 0 to 100.

        sm: Activity [%].

        tensor: Activity [%].

        dram: Activity [%].

        fp64: Activity [%].

        graphics: Activity [%].

        memory_busy: Time in which device memory was used [%].

        rx: PCIe to the GPU [B/s].

        tx: PCIe from the GPU [B/s].
    """
    io = (
        (memory_busy >= _IO_MEMORY_BUSY_PERCENT)
        | (rx >= _IO_BYTES_PER_S)
        | (tx >= _IO_BYTES_PER_S)
    )
    idle = (score < _IDLE_PERCENT) & (graphics < _IDLE_PERCENT)
    low = (graphics < _LOW_PERCENT) & (sm < _LOW_PERCENT)
    return (
        idle & (dram < _IDLE_PERCENT) & (io ^ True),
        (tensor >= _TENSOR_HEAVY_PERCENT) & (sm >= _TENSOR_HEAVY_SM_PERCENT),
        (tensor >= _TENSOR_PERCENT) & (sm >= _TENSOR_SM_PERCENT),
        (fp64 >= _FP64_PERCENT) & (sm >= _FP64_SM_PERCENT),
        io & (sm < _IO_SM_PERCENT),
        (dram >= _BOUND_DRAM_PERCENT) & (sm < _BOUND_SM_PERCENT),
        sm >= _HEAVY_SM_PERCENT,
        sm >= _ACTIVE_SM_PERCENT,
        dram >= _ACTIVE_DRAM_PERCENT,
        (graphics >= _BUSY_GRAPHICS_PERCENT) & (sm < _BUSY_SM_PERCENT),
        low & (dram < _LOW_PERCENT),
        io | True,
    )


def _refused(text: str, mistakes: list[str]) -> ConfigError:
    return ConfigError(
        f"weights {text!r}: {'; '.join(mistakes)}",
        remedy=_REMEDY,
    )


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
_STANDS_IN = "gpu_busy_fraction"  # Needed only if graphics is absent.
_inputs = attrgetter(*INPUTS)


def compute(
    record: CanonicalRecord,
    *,
    previous: CanonicalRecord | None = None,
    weights: Weights = PRESETS["ai"],
    preset_name: str | None = None,
    model_name: str | None = None,
) -> ComputedRecord:
    """
    Calculate the score, class and health of a reading.

    An absent reading counts as 0 in every rule and is named in the result's `missing`.
    `asserted_class` refuses a class that lacks a needed reading.

    Args:
        record: The reading. Its fractions may be outside 0 to 1.

        previous: The previous reading of the same GPU. Only its time and its count of PCIe
            replays are used. A reading of another GPU or instance is ignored.

        weights: Weights of sm, tensor, dram and graphics. The weight of an absent reading is
            not redistributed.

        preset_name: Name of the weights, by default the name of the matching preset, or
            `custom`.

        model_name: Name of the product, for the temperature limit of its health.

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
    score = max(0.0, min(MOST_UTIL, raw))
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
    used, free = record.memory_used_bytes, record.memory_free_bytes
    reserved, total = record.memory_reserved_bytes, record.memory_total_bytes
    if used is not None and free is not None and reserved is not None:
        total = used + free + reserved
    used_fraction = record.memory_used_fraction
    if used is not None and total is not None:
        used_fraction = used / total if total > 0 else None
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
        memory_used_fraction=used_fraction,
        pcie_replay_rate_per_s=rate,
        missing=_missing(record),
    )


def asserted_class(computed: ComputedRecord) -> WorkloadClass:
    """
    Return the class of a reading, for use in an assert.

    Raises:
        MetricUnavailableError: SM, tensor or DRAM activity is absent, so that the class
            reflects the missing reading and not the GPU's activity.
    """
    absent = [name for name in NEEDED if name in computed.missing]
    if absent:
        raise MetricUnavailableError(
            "workload_class",
            f"{', '.join(absent)} not measured on GPU {computed.gpu_index}",
            remedy="read the GPU by DCGM, or by GPM (Hopper and later)",
        )
    return computed.workload_class


def has_class(computed: ComputedRecord) -> bool:
    """Return True if a reading has all inputs of the class."""
    return {*NEEDED}.isdisjoint(computed.missing)


def graphics_percent(record: CanonicalRecord) -> float:
    """Return graphics activity [%], or the driver's GPU-busy share as a substitute."""
    if record.graphics_active_fraction is not None:
        return record.graphics_active_fraction * 100.0
    return _percent(record.gpu_busy_fraction)


@lru_cache(maxsize=256)
def warning_celsius(model_name: str | None) -> float:
    """Return the temperature from which a product is hot [°C]."""
    name = (model_name or "").upper()
    limits = (limit for part, limit in _WARNING_CELSIUS if part in name)
    return next(limits, _OTHER_WARNING_CELSIUS)


def _percent(fraction: float | None) -> float:
    return 0.0 if fraction is None else fraction * 100.0


def _replay_rate(
    record: CanonicalRecord, previous: CanonicalRecord | None
) -> float | None:
    """Return PCIe replays per second, or None without two usable readings."""
    if previous is None or previous.gpu != record.gpu:
        return None
    count, before = record.pcie_replay_count, previous.pcie_replay_count
    elapsed_s = record.monotonic_s - previous.monotonic_s
    if count is None or before is None or elapsed_s <= 0 or count < before:
        return None
    return (count - before) / elapsed_s


def _health(record: CanonicalRecord, rate: float | None, warning: float) -> Health:
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
    values = _inputs(record)
    if None not in values:
        return ()
    needs_stand_in = record.graphics_active_fraction is None
    return tuple(
        name
        for name, value in zip(INPUTS, values, strict=True)
        if value is None and (needs_stand_in or name != _STANDS_IN)
    )
