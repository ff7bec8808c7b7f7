"""Names and units of Nsight Compute and of compilers into ours; PYTEST_DONT_REWRITE.

The only place that spells a vendor's metric for one of the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_gpuperf.model.launch import KernelResources

__all__ = [
    "CAPTURED",
    "Captured",
    "Vendor",
    "captured_facts",
    "captured_values",
    "kernel_values",
    "needed_counters",
]


class ForeignValue(Protocol):
    """A number or a text in a tool's own words."""

    @property
    def value(self) -> float | str | None:
        """The number or the text; None: the tool did not say."""

    @property
    def unit(self) -> str | None:
        """The tool's own unit."""


class ForeignLaunch(Protocol):
    """A profiled launch, as far as names and units go."""

    @property
    def metrics(self) -> Mapping[str, ForeignValue]:
        """Values by the tool's own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """
    How Nsight Compute spells one metric of the catalogue.

    Attributes:
        counter: Its name there.

        factor: What to multiply its number with to get the catalogue's unit.

        unit: The catalogue's unit.
    """

    counter: str
    factor: float
    unit: str


_PERCENT = 0.01  # Nsight Compute writes fractions as percent

CAPTURED: Mapping[str, Vendor] = {
    "registers": Vendor(
        counter="launch__registers_per_thread", factor=1.0, unit="count"
    ),
    "waves": Vendor(
        counter="launch__waves_per_multiprocessor", factor=1.0, unit="count"
    ),
    "occupancy.theoretical": Vendor(
        counter="sm__maximum_warps_per_active_cycle_pct",
        factor=_PERCENT,
        unit="fraction",
    ),
    "occupancy.achieved": Vendor(
        counter="sm__warps_active.avg.pct_of_peak_sustained_active",
        factor=_PERCENT,
        unit="fraction",
    ),
}

_WEIGHT = "gpu__time_duration.sum"  # weighs a rate of one launch against another's
_NAME = "device__attribute_display_name"
_MAJOR = "device__attribute_compute_capability_major"
_MINOR = "device__attribute_compute_capability_minor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """
    One metric over launches.

    Attributes:
        values: One for each launch that has it [unit].

        weights: The launches' durations where every one says it; else empty.

        unit: The catalogue's unit, or the tool's own.

        absent_count: Launches that lack it.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    unit: str
    absent_count: int


def captured_values(metric: str, launches: Sequence[ForeignLaunch]) -> Captured:
    """
    Return a metric, or a counter by its own name, of some launches.

    Args:
        metric: A name of CAPTURED, or a counter's.

        launches: Launches that were measured.
    """
    vendor = CAPTURED.get(metric)
    name = metric if vendor is None else vendor.counter
    factor = 1.0 if vendor is None else vendor.factor
    found = [launch.metrics[name] for launch in launches if name in launch.metrics]
    numbers = [v for v in found if isinstance(v.value, (int, float))]
    unit = (numbers[0].unit if numbers else None) or "count"
    weights = [_number(launch, _WEIGHT) for launch in launches]
    known = [weight for weight in weights if weight is not None]
    return Captured(
        values=tuple(
            factor * v.value for v in numbers if isinstance(v.value, (int, float))
        ),
        weights=tuple(known) if len(known) == len(launches) else (),
        unit=unit if vendor is None else vendor.unit,
        absent_count=len(launches) - len(numbers),
    )


def captured_facts(launch: ForeignLaunch) -> dict[str, str]:
    """Return what a launch says of the device it ran on, by the fingerprint's names."""
    facts = {}
    name = launch.metrics.get(_NAME)
    if name is not None and isinstance(name.value, str):
        facts["gpu_name"] = name.value
    major, minor = _number(launch, _MAJOR), _number(launch, _MINOR)
    if major is not None and minor is not None:
        facts["compute_capability"] = f"{major:.0f}.{minor:.0f}"
    return facts


def needed_counters(metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the counters to ask a report for, so that `metrics` can be read."""
    names = [CAPTURED[m].counter if m in CAPTURED else m for m in metrics]
    return tuple(dict.fromkeys((*names, _WEIGHT, _NAME, _MAJOR, _MINOR)))


def kernel_values(kernel: KernelResources) -> dict[str, tuple[float | None, str]]:
    """Return the metrics of a compiled kernel by name, each with its unit."""
    shared = kernel.shared_bytes + (kernel.dynamic_shared_bytes or 0)
    return {
        "registers": (kernel.registers_count, "count"),
        "stack_bytes": (kernel.stack_bytes, "bytes"),
        "spills_bytes": (kernel.spills_bytes, "bytes"),
        "shared_bytes": (shared, "bytes"),
    }


def _number(launch: ForeignLaunch, name: str) -> float | None:
    """Return a number of a launch; None where it has none of that name."""
    value = launch.metrics.get(name)
    if value is None or not isinstance(value.value, (int, float)):
        return None
    return float(value.value)
