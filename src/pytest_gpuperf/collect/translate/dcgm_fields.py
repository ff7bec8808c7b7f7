"""DCGM's fields by their numbers and names, in our names and units.

References:
    dcgm_fields.h and dcgm_fields.cpp of DCGM 3.3 to 4.6: numbers, names old and new, the
    tags that head dcgmi's columns, units. dcgm_structs.h: the blank values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from math import isfinite

from pytest_gpuperf.model.frozen import Frozen

__all__ = ["Field", "Unit", "Value", "field_named", "number", "readings"]

Value = float | int | bool

_MIB_BYTES = 1024.0**2  # DCGM writes MB where it means MiB
_MHZ = 1e6
# DCGM takes the difference of a counter of KiB and divides by 1000 for its "MB/s".
_NVLINK_BYTES_PER_S = 1000 * 1024.0
_NVLINK_TX, _NVLINK_RX = "nvlink transmitted", "nvlink received"  # two halves of one
_BLANKS = frozenset(  # dcgm_structs.h: blank, not found, not supported, not permitted
    float(base + i)
    for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 2**47)
    for i in range(4)
)


class Unit(Enum):
    """What a field's number means."""

    RATIO = "ratio"
    PERCENT = "percent"
    NVLINK = "1000 KiB/s"
    BYTES_PER_S = "B/s"
    MILLIJOULES = "mJ"
    MHZ = "MHz"
    MIB = "MiB"
    WATTS = "W"
    CELSIUS = "C"
    COUNT = "count"
    FLAG = "flag"


_CONVERT: Mapping[Unit, Callable[[float], Value]] = {
    Unit.RATIO: lambda v: min(1.0, max(0.0, v)),
    Unit.PERCENT: lambda v: min(1.0, max(0.0, v / 100.0)),
    Unit.NVLINK: lambda v: max(0.0, v * _NVLINK_BYTES_PER_S),
    Unit.BYTES_PER_S: float,
    Unit.MILLIJOULES: lambda v: v / 1000.0,
    Unit.MHZ: lambda v: v * _MHZ,
    Unit.MIB: lambda v: v * _MIB_BYTES,
    Unit.WATTS: float,
    Unit.CELSIUS: float,
    Unit.COUNT: int,
    Unit.FLAG: lambda v: v > 0,
}
# Clamped below, or free to be below 0: the others never are, if they are read at all.
_MAY_BE_NEGATIVE = {Unit.RATIO, Unit.PERCENT, Unit.NVLINK, Unit.CELSIUS, Unit.FLAG}


class Field(Frozen, frozen=True, kw_only=True):
    """
    One of DCGM's fields.

    Attributes:
        reading: Our name for it, or for one half of it.

        unit: What its number means.

        number: DCGM's own number; None: it has none, only a name.

        names: DCGM's names, old and new, without `DCGM_FI_`.

        tag: The head of its column in `dcgmi dmon`; empty: not known.
    """

    reading: str
    unit: Unit
    number: int | None
    names: tuple[str, ...]
    tag: str


def field_named(text: str) -> Field | None:
    """
    Return the field of a number, a name or a column's head; None: not one of ours.

    Example:
        >>> field_named("DCGM_FI_PROF_SM_ACTIVE") is field_named("1002")
        True
    """
    return _BY_NAME.get(text.upper().removeprefix("DCGM_FI_"))


def number(text: str) -> float | None:
    """Return a number; None for no number, one that is not finite, and DCGM's blanks."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value not in _BLANKS else None


def readings(
    values: Mapping[Field, float | None],
) -> tuple[dict[str, Value | None], list[str]]:
    """
    Return readings of one GPU, by the names of a CanonicalRecord.

    Args:
        values: By field, in DCGM's units; None: absent.

    Returns:
        The readings in our units, and a sentence for each that could not be taken. The
        rate of all NVLinks is field 449, or the sum of 1011 and 1012 where it is absent
        and both are there.
    """
    found: dict[str, Value | None] = {}
    notes = []
    for field, value in values.items():
        converted, why_not = _converted(field, value)
        if why_not:
            notes.append(f"{field.names[0]} is {why_not}, left out")
        if found.get(field.reading) is None:
            found[field.reading] = converted
    sent, received = found.pop(_NVLINK_TX, None), found.pop(_NVLINK_RX, None)
    whole = "nvlink_bytes_per_s"
    if found.get(whole) is None and sent is not None and received is not None:
        found[whole] = max(0.0, sent + received)
    return found, notes


def _converted(field: Field, value: float | None) -> tuple[Value | None, str]:
    """Return a number in our unit, or None and why it could not be taken."""
    if value is None:
        return None, ""
    if value < 0 and field.unit not in _MAY_BE_NEGATIVE:
        return None, "below 0"
    converted = _CONVERT[field.unit](value)
    return (converted, "") if isfinite(converted) else (None, "beyond all numbers")


def _field(
    reading: str, unit: Unit, number: int | None, names: str, tag: str = ""
) -> Field:
    """Return a row of the table."""
    return Field(
        reading=reading, unit=unit, number=number, names=tuple(names.split()), tag=tag
    )


_R, _P, _C, _B = Unit.RATIO, Unit.PERCENT, Unit.COUNT, Unit.BYTES_PER_S
_FIELDS = (
    _field("sm_clock_hz", Unit.MHZ, 100, "DEV_SM_CLOCK", "SMCLK"),
    _field("memory_clock_hz", Unit.MHZ, 101, "DEV_MEM_CLOCK", "MMCLK"),
    _field(
        "memory_temperature_celsius",
        Unit.CELSIUS,
        140,
        "DEV_MEMORY_TEMP DEV_MEMORY_TEMP_CELSIUS",
        "MMTMP",
    ),
    _field(
        "temperature_celsius",
        Unit.CELSIUS,
        150,
        "DEV_GPU_TEMP DEV_GPU_TEMP_CELSIUS",
        "TMPTR",
    ),
    _field(
        "power_watts",
        Unit.WATTS,
        155,
        "DEV_POWER_USAGE DEV_BOARD_POWER_WATTS",
        "POWER",
    ),
    _field(
        "energy_joules",
        Unit.MILLIJOULES,
        156,
        "DEV_TOTAL_ENERGY_CONSUMPTION",
        "TOTEC",
    ),
    _field(
        "power_limit_default_watts",
        Unit.WATTS,
        163,
        "DEV_POWER_MGMT_LIMIT_DEF DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS",
        "PMDEF",
    ),
    _field(
        "power_limit_watts",
        Unit.WATTS,
        164,
        "DEV_ENFORCED_POWER_LIMIT DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS",
        "EPLMT",
    ),
    _field(
        "pcie_replay_count",
        _C,
        202,
        "DEV_PCIE_REPLAY_COUNTER DEV_PCIE_REPLAY_TOTAL",
        "RPCTR",
    ),
    _field("gpu_busy_fraction", _P, 203, "DEV_GPU_UTIL DEV_GPU_UTIL_RATIO", "GPUTL"),
    _field("memory_busy_fraction", _P, 204, "DEV_MEM_COPY_UTIL", "MCUTL"),
    _field("last_xid", _C, 230, "DEV_XID_ERRORS DEV_XID_ERROR", "XIDER"),
    _field("memory_free_bytes", Unit.MIB, 251, "DEV_FB_FREE", "FBFRE"),
    _field("memory_used_bytes", Unit.MIB, 252, "DEV_FB_USED", "FBUSD"),
    _field("memory_reserved_bytes", Unit.MIB, 253, "DEV_FB_RESERVED", "FBRSV"),
    _field(
        "uncorrectable_remapped_row_count",
        _C,
        393,
        "DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
        "URMPS",
    ),
    _field(
        "correctable_remapped_row_count",
        _C,
        394,
        "DEV_CORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_CORRECTABLE_TOTAL",
        "CRMPS",
    ),
    _field(
        "row_remap_failed",
        Unit.FLAG,
        395,
        "DEV_ROW_REMAP_FAILURE DEV_ROW_REMAP_FAILED",
        "RRF",
    ),
    _field(
        "nvlink_bytes_per_s",
        Unit.NVLINK,
        449,
        "DEV_NVLINK_BANDWIDTH_TOTAL DEV_NVLINK_THROUGHPUT_TOTAL",
        "NBWLT",
    ),
    _field(
        "graphics_active_fraction",
        _R,
        1001,
        "PROF_GR_ENGINE_ACTIVE PROF_GR_ENGINE_UTIL_RATIO",
        "GRACT",
    ),
    _field(
        "sm_active_fraction", _R, 1002, "PROF_SM_ACTIVE PROF_SM_UTIL_RATIO", "SMACT"
    ),
    _field(
        "sm_occupancy_fraction",
        _R,
        1003,
        "PROF_SM_OCCUPANCY PROF_SM_OCCUPANCY_RATIO",
        "SMOCC",
    ),
    _field(
        "tensor_active_fraction",
        _R,
        1004,
        "PROF_PIPE_TENSOR_ACTIVE PROF_TENSOR_UTIL_RATIO",
        "TENSO",
    ),
    _field(
        "dram_active_fraction",
        _R,
        1005,
        "PROF_DRAM_ACTIVE PROF_DRAM_UTIL_RATIO",
        "DRAMA",
    ),
    _field(
        "fp64_active_fraction",
        _R,
        1006,
        "PROF_PIPE_FP64_ACTIVE PROF_FP64_UTIL_RATIO",
        "FP64A",
    ),
    _field(
        "fp32_active_fraction",
        _R,
        1007,
        "PROF_PIPE_FP32_ACTIVE PROF_FP32_UTIL_RATIO",
        "FP32A",
    ),
    _field(
        "fp16_active_fraction",
        _R,
        1008,
        "PROF_PIPE_FP16_ACTIVE PROF_FP16_UTIL_RATIO",
        "FP16A",
    ),
    _field("pcie_tx_bytes_per_s", _B, 1009, "PROF_PCIE_TX_BYTES", "PCITX"),
    _field("pcie_rx_bytes_per_s", _B, 1010, "PROF_PCIE_RX_BYTES", "PCIRX"),
    _field(_NVLINK_TX, _B, 1011, "PROF_NVLINK_TX_BYTES", "NVLTX"),
    _field(_NVLINK_RX, _B, 1012, "PROF_NVLINK_RX_BYTES", "NVLRX"),
    _field(
        "tensor_imma_active_fraction",
        _R,
        1013,
        "PROF_PIPE_TENSOR_IMMA_ACTIVE PROF_IMMA_UTIL_RATIO",
        "TIMMA",
    ),
    _field(
        "tensor_hmma_active_fraction",
        _R,
        1014,
        "PROF_PIPE_TENSOR_HMMA_ACTIVE PROF_HMMA_UTIL_RATIO",
        "THMMA",
    ),
    _field(
        "tensor_dfma_active_fraction",
        _R,
        1015,
        "PROF_PIPE_TENSOR_DFMA_ACTIVE PROF_DFMA_UTIL_RATIO",
        "TDFMA",
    ),
    _field("tensor_dmma_active_fraction", _R, None, "PROF_PIPE_TENSOR_DMMA_ACTIVE"),
    _field("tensor_qmma_active_fraction", _R, None, "PROF_PIPE_TENSOR_QMMA_ACTIVE"),
)
_BY_NAME = {
    name: field
    for field in _FIELDS
    for name in (*field.names, field.tag, str(field.number))
    if name not in {"", "None"}
}
