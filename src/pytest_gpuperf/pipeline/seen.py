"""What was seen of a measurement besides its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from pytest_gpuperf.collect.base import TimedCall, Timing
    from pytest_gpuperf.collect.memory import MemoryUse
    from pytest_gpuperf.collect.registry import Absence
    from pytest_gpuperf.model.activity import Trace
    from pytest_gpuperf.model.deltas import DeviceDeltas, SecondPass
    from pytest_gpuperf.model.record import Void
    from pytest_gpuperf.pipeline.telemetry import Span

__all__ = ["Again", "Observed"]


def _nobody() -> None:
    """Tell nobody."""


class Observed(msgspec.Struct, kw_only=True):
    """
    What was seen of a measurement besides its time; None: nobody looked, or could.

    Attributes:
        device_used: Whether a device was in use at the end.

        memory: What a call, or the block, took.

        trace: What the GPU did in a call, or in the block.

        void: Why that must not be judged; None: it may.

        blind: Why nobody sees what the GPU does; None: CUPTI does.

        deltas: What its sensors counted over the whole measurement.

        second: What calls without a gap between them cost.

        span: Its part of the device's time line.

        unrepeated: Why there were none, as a fragment; "": nobody asked.

        begins: Called right before the body: what waited for the device until then was
            not the body.

        returned: Called right after it, likewise.
    """

    device_used: bool = False
    memory: MemoryUse | None = None
    trace: Trace | None = None
    void: Void | None = None
    blind: Absence | None = None
    deltas: DeviceDeltas | None = None
    second: SecondPass | None = None
    span: Span | None = None
    unrepeated: str = ""
    begins: Callable[[], None] = _nobody
    returned: Callable[[], None] = _nobody


class Again(NamedTuple):
    """
    What it takes to make a measured call once more.

    Attributes:
        request: What to call.

        timing: What its timed calls gave.

        observed: What was seen of it besides.
    """

    request: TimedCall
    timing: Timing
    observed: Observed
