"""The peak that a share is a share of, as a hard fact; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpuperf.model.roofline import Peaks

__all__ = ["peak_fact"]

_GIGA = 1e9


def peak_fact(peaks: Peaks | None, name: str | None) -> dict[str, str]:
    """
    Return what a share is a share of, as `dram 3350 GB/s (datasheet)`.

    Args:
        peaks: The roofs of what it ran on; None: not known.

        name: The level of memory or the data type; None: there is no share.

    Returns:
        One fact with its name; none where the peak is not known.
    """
    if peaks is None or name is None:
        return {}
    memory = name in peaks.bytes_per_s
    peak = peaks.of_memory(name) if memory else peaks.of_dtype(name)
    if peak.value is None:
        return {}
    unit = "GB/s" if memory else "GFLOP/s"
    return {"peak": f"{name} {peak.value / _GIGA:.6g} {unit} ({peak.label.value})"}
