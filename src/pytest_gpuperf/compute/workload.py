"""The weights of a GPU's score, and the rules that tell what it was busy with.

Both are written once, for floats and for arrays of them alike, so that many readings at
once get the answers that one gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Any

from pytest_gpuperf.compute import thresholds as at
from pytest_gpuperf.errors import ConfigError, RecordError
from pytest_gpuperf.model.mistakes import no_number, shown
from pytest_gpuperf.model.telemetry import Weights, WorkloadClass

__all__ = ["CLASSES", "PRESETS", "parse_weights", "preset_of", "raw_score", "rules"]

Number = Any  # a float, or an array of numpy of them
Truth = Any  # a bool, or an array of numpy of them

PRESETS: Mapping[str, Weights] = MappingProxyType(
    {
        "ai": (0.35, 0.35, 0.20, 0.10),  # kempnerpulse
        "hpc": (0.45, 0.15, 0.25, 0.15),  # kempnerpulse
        "mem": (0.35, 0.10, 0.40, 0.15),  # kempnerpulse
    }
)
CLASSES = tuple(WorkloadClass)  # in the order of the rules
_CUSTOM = "custom"
_COUNT = 4
_REMEDY = "give four numbers: sm, tensor, dram, graphics"


def parse_weights(text: str) -> Weights:
    """
    Return weights of one's own, as a person writes them.

    Args:
        text: Four numbers between commas: sm, tensor, dram, graphics. One may be below
            0; their sum must be above it, and is made 1.

    Raises:
        ConfigError: They are not four finite numbers with a sum above 0.

    Example:
        >>> parse_weights("3, 0, 0, 1")
        (0.75, 0.0, 0.0, 0.25)
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    numbers = [_number(part) for part in parts]
    bad = [part for part, number in zip(parts, numbers, strict=True) if number is None]
    mistakes = [f"{part!r} is not a finite number" for part in bad]
    if len(parts) != _COUNT:
        mistakes.append(f"there are {len(parts)} of them, not {_COUNT}")
    if mistakes:
        raise _refused(text, mistakes)
    sm, tensor, dram, graphics = (number or 0.0 for number in numbers)
    total = sm + tensor + dram + graphics
    if not (total > 0 and isfinite(total)):
        raise _refused(text, [f"their sum {total:g} is not a finite number above 0"])
    if abs(total - 1) <= at.SUM_TOLERANCE:
        return sm, tensor, dram, graphics
    return sm / total, tensor / total, dram / total, graphics / total


@lru_cache(maxsize=64)
def preset_of(*weights: float) -> str:
    """
    Return the name of the first preset that weights are, or `custom`.

    Raises:
        RecordError: They are not four finite numbers.
    """
    if len(weights) != _COUNT or any(map(no_number, weights)):
        message = f"{shown(weights)} are not four finite numbers"
        raise RecordError(message, path="weights", remedy=_REMEDY)
    for name, preset in PRESETS.items():
        pairs = zip(weights, preset, strict=True)
        if all(abs(own - known) <= at.PRESET_TOLERANCE for own, known in pairs):
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
    Return which rules hold, in the order of the classes; the last always does.

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
        (memory_busy >= at.IO_MEMORY_BUSY_PERCENT)
        | (rx >= at.IO_BYTES_PER_S)
        | (tx >= at.IO_BYTES_PER_S)
    )
    nothing = (score < at.IDLE_PERCENT) & (graphics < at.IDLE_PERCENT)
    low = (graphics < at.LOW_PERCENT) & (sm < at.LOW_PERCENT)
    return (
        nothing & (dram < at.IDLE_PERCENT) & (io ^ True),
        (tensor >= at.TENSOR_HEAVY_PERCENT) & (sm >= at.TENSOR_HEAVY_SM_PERCENT),
        (tensor >= at.TENSOR_PERCENT) & (sm >= at.TENSOR_SM_PERCENT),
        (fp64 >= at.FP64_PERCENT) & (sm >= at.FP64_SM_PERCENT),
        io & (sm < at.IO_SM_PERCENT),
        (dram >= at.BOUND_DRAM_PERCENT) & (sm < at.BOUND_SM_PERCENT),
        sm >= at.HEAVY_SM_PERCENT,
        sm >= at.ACTIVE_SM_PERCENT,
        dram >= at.ACTIVE_DRAM_PERCENT,
        (graphics >= at.BUSY_GRAPHICS_PERCENT) & (sm < at.BUSY_SM_PERCENT),
        low & (dram < at.LOW_PERCENT),
        io | True,
    )


def _number(text: str) -> float | None:
    """Return a finite number; None where a text is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _refused(text: str, mistakes: list[str]) -> ConfigError:
    """Return the error that says all that is wrong with some weights."""
    return ConfigError(
        f"weights {text!r}: {'; '.join(mistakes)}",
        remedy=_REMEDY,
    )
