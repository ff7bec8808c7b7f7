"""Room model: the frozen records that every room uses.

In: values from a collector or a file.
Out: records with finite numbers, whose units are part of the field name or stored with
them.
Never: I/O, a clock, a GPU library, arithmetic beyond a check at the border.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpuperf.model.telemetry import (
        BottleneckCategory,
        CanonicalRecord,
        ComputedRecord,
        Health,
        WorkloadClass,
    )

__all__ = [
    "BottleneckCategory",
    "CanonicalRecord",
    "ComputedRecord",
    "Health",
    "WorkloadClass",
]


# Modules of records that few runs hold. The fields of a record name them as
# `model.work.Work`, and a run imports them when it makes or decodes one.
_RARE = frozenset({"activity", "counters", "roofline", "steps", "telemetry", "work"})


def __getattr__(name: str) -> object:
    """Import a telemetry record, or a module of rare records, on first use."""
    if name in _RARE:
        __import__(f"{__name__}.{name}")  # `from` would ask this function again.
        return globals()[name]
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from pytest_gpuperf.model import telemetry

    return getattr(telemetry, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
