"""Names and units of Nsight Compute and of compilers into ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_gpuperf.collect.translate.counters import (
    ForeignLaunch,
    capability_of,
    number_of,
    vendor_names,
)
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.launch import KernelResources

__all__ = [
    "Captured",
    "captured_facts",
    "captured_values",
    "kernel_values",
    "needed_counters",
]

_WEIGHT = "gpu__time_duration.sum"  # weighs a rate of one launch against another's
_NAME = "device__attribute_display_name"


class Captured(Frozen, frozen=True, kw_only=True):
    """
    One counter over launches.

    Attributes:
        values: One for each launch that has it [unit].

        weights: The launches' durations where every one says it; else empty.

        unit: The tool's own.

        absent_count: Launches that lack it.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    unit: str
    absent_count: int


def captured_values(counter: str, launches: Sequence[ForeignLaunch]) -> Captured:
    """
    Return a counter, by its own name and in its own unit, of some launches.

    Args:
        counter: Its name.

        launches: Launches that were measured.
    """
    found = [
        launch.metrics[counter] for launch in launches if counter in launch.metrics
    ]
    numbers = [v for v in found if isinstance(v.value, (int, float))]
    weights = [number_of(launch, _WEIGHT) for launch in launches]
    known = [weight for weight in weights if weight is not None]
    return Captured(
        values=tuple(v.value for v in numbers if isinstance(v.value, (int, float))),
        weights=tuple(known) if len(known) == len(launches) else (),
        unit=(numbers[0].unit if numbers else None) or "count",
        absent_count=len(launches) - len(numbers),
    )


def captured_facts(launch: ForeignLaunch) -> dict[str, str]:
    """Return what a launch says of the device it ran on, by the fingerprint's names."""
    facts = {}
    name = launch.metrics.get(_NAME)
    if name is not None and isinstance(name.value, str):
        facts["gpu_name"] = name.value
    capability = capability_of(launch)
    if capability is not None:
        facts["compute_capability"] = "{}.{}".format(*capability)
    return facts


def needed_counters(
    counters: Iterable[str], standard: Iterable[str] = ()
) -> tuple[str, ...]:
    """
    Return what to ask a report for, each once.

    Args:
        counters: Counters by the tool's own names.

        standard: Standard counters, by ours.
    """
    return tuple(dict.fromkeys((*counters, *vendor_names(standard), _WEIGHT, _NAME)))


def kernel_values(kernel: KernelResources) -> dict[str, tuple[float | None, str]]:
    """Return the metrics of a compiled kernel by name, each with its unit."""
    shared = kernel.shared_bytes + (kernel.dynamic_shared_bytes or 0)
    return {
        "registers": (kernel.registers_count, "count"),
        "stack_bytes": (kernel.stack_bytes, "bytes"),
        "spills_bytes": (kernel.spills_bytes, "bytes"),
        "shared_bytes": (shared, "bytes"),
    }
