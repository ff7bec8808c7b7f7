"""Profiled launches as a tool tells them, before any name is ours; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

__all__ = ["CAPABILITY", "ForeignLaunch", "ForeignValue", "capability_of", "number_of"]

CAPABILITY = (
    "device__attribute_compute_capability_major",
    "device__attribute_compute_capability_minor",
)


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


def number_of(launch: ForeignLaunch, name: str) -> float | None:
    """Return a number of a launch; None where it has no finite one of that name."""
    found = launch.metrics.get(name)
    if found is None or not isinstance(found.value, (int, float)):
        return None
    return float(found.value) if math.isfinite(found.value) else None


def capability_of(launch: ForeignLaunch) -> tuple[int, int] | None:
    """Return the compute capability that a launch ran on; None where it is not told."""
    major, minor = (number_of(launch, name) for name in CAPABILITY)
    return None if major is None or minor is None else (int(major), int(minor))
