"""Why resident warps did not issue; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum

from pytest_gpuperf.model.counters import STALLS

__all__ = ["STALL_COUNTERS", "missing_stalls", "stall_shares", "top_stall"]

# per issued instruction from the hardware, else by sampling the program counter
_KINDS = tuple(
    {reason: f"stall_{reason}_{unit}" for reason in STALLS}
    for unit in ("ratio", "samples_count")
)
# what some chips have no stall of (base metrics of libnvperf_host, GV100 to GR100)
_OF_SOME = frozenset({"gmma", "imc_miss", "tex_throttle", "warpgroup_arrive"})
_CORE = tuple(reason for reason in STALLS if reason not in _OF_SOME)
# such a warp could have issued and another one did: it costs nothing
_HARMLESS = "not_selected"

STALL_COUNTERS = tuple(name for kind in _KINDS for name in kind.values())


def stall_shares(values: Mapping[str, float]) -> dict[str, float] | None:
    """
    Return how the stalls of a launch's warps divide.

    Args:
        values: Standard counters of the launch.

    Returns:
        The share of each stall that the chip has, their sum 1; None where a stall that
        every chip has was not collected, or no warp ever stalled.

    References:
        Nsight Compute, Kernel Profiling Guide, section "Statistical Sampler".
    """
    for kind in _KINDS:
        found = {
            reason: values[name] for reason, name in kind.items() if name in values
        }
        total = fsum(found.values())
        if total > 0 and all(reason in found for reason in _CORE):
            return {reason: number / total for reason, number in found.items()}
    return None


def missing_stalls(values: Mapping[str, float]) -> tuple[str, ...]:
    """Return the stalls that every chip has and that were not collected, by counter."""
    lacks = (
        tuple(kind[reason] for reason in _CORE if kind[reason] not in values)
        for kind in _KINDS
    )
    return min(lacks, key=len)


def top_stall(shares: Mapping[str, float]) -> tuple[str, float] | None:
    """
    Return the stall that takes most, and its share; None where none takes anything.

    A warp that was ready while another one issued is left out: it costs nothing.
    """
    costly = {name: share for name, share in shares.items() if name != _HARMLESS}
    name = max(sorted(costly), key=costly.__getitem__, default=None)
    return (name, costly[name]) if name is not None and costly[name] > 0 else None
