"""What keeps a kernel from being faster; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from enum import Enum

from pytest_gpuperf.model.frozen import Frozen

__all__ = [
    "Analysis",
    "Bound",
    "BoundSide",
    "Evidence",
    "Limiter",
    "LimiterName",
    "Unknown",
]


class LimiterName(str, Enum):
    """The kinds of limiter, in the order in which they are looked for."""

    LAUNCH = "launch"
    SYNCHRONIZATION = "synchronization"
    TRANSFER = "transfer"
    DRAM = "dram"
    L2 = "l2"
    L1 = "l1"
    MEMORY = "memory"  # one of them, and the counters do not say which
    TENSOR = "tensor"
    PIPE = "pipe"
    GRID = "grid too small"
    LATENCY = "latency"


class BoundSide(str, Enum):
    """The side of the machine that is busier."""

    MEMORY = "memory"
    COMPUTE = "compute"


class Evidence(Frozen, frozen=True, kw_only=True):
    """
    One number that a decision rests on.

    Attributes:
        name: What it measures: a roof (`dram`, `l2`, a pipe), `waves`, `occupancy`…

        value: The number.

        unit: `fraction` or `count`.
    """

    name: str
    value: float
    unit: str = "fraction"


class Limiter(Frozen, frozen=True, kw_only=True):
    """
    What keeps a kernel from being faster, and why we think so.

    Attributes:
        name: Its kind.

        detail: Which pipe, or the stall that takes the most; None: there is no more to
            say, or it was not collected.

        evidence: The numbers that decided, the deciding one first.
    """

    name: LimiterName
    detail: str | None = None
    evidence: tuple[Evidence, ...] = ()


class Unknown(Frozen, frozen=True, kw_only=True):
    """
    Why the counters of some launches do not say what was asked.

    Attributes:
        reason: As a fragment.

        missing: Counters that would say it, by standard names; empty: all are there.

        remedy: What to do about it, as a sentence; empty: collect what is missing.
    """

    reason: str
    missing: tuple[str, ...] = ()
    remedy: str = ""


class Bound(Frozen, frozen=True, kw_only=True):
    """
    The roof that a kernel comes closest to, reached or not.

    Attributes:
        side: Whether it is one of memory or one of computing.

        roof: `dram`, `l2`, `l1`, `tensor`, or a pipe.

        fraction: How much of that roof was used, 0 to 1 and, where counters of several
            passes differ, a little more.
    """

    side: BoundSide
    roof: str
    fraction: float


class Analysis(Frozen, frozen=True, kw_only=True):
    """
    What the counters of one launch say together.

    Attributes:
        duration_s: Time of the kernel as it was profiled [s]; None: not collected.

        bound: The roof it comes closest to; None: none was collected, or none is near.

        limiter: What limits it, or why the counters do not say.
    """

    limiter: Limiter | Unknown
    duration_s: float | None = None
    bound: Bound | None = None
