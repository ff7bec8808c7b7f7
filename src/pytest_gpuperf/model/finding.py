"""What stands in the way of a measurement, and what removes it."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pytest_gpuperf.model.frozen import Frozen

__all__ = ["Concern", "Finding", "Readiness", "Status", "Topic"]

# what a finding is about: the time of GPU work; counters of hardware; launches and
# copies as CUPTI records them; energy, power and clocks; memory of the GPU; the time of
# host code; what is read from binaries; their SASS
Concern = Literal[
    "timing", "counters", "launches", "energy", "memory", "host", "binary", "sass"
]


class Status(str, Enum):
    """What a finding does to measurements; the first is the worst."""

    STOPS = "stops"
    BENDS = "bends"
    UNKNOWN = "unknown"
    OK = "ok"


class Readiness(str, Enum):
    """Whether a machine can measure what its GPUs are there for."""

    READY = "ready"
    DEGRADED = "degraded"
    BLOCKED = "blocked"


class Finding(Frozen, frozen=True, kw_only=True):
    """
    One thing that was looked at.

    Attributes:
        id: Its stable name.

        status: What it does to measurements.

        concerns: The kinds of measurement that it is about, at least one.

        cause: One sentence: what is so and what follows; why it is not known.

        evidence: What was read, each behind the place that it was read from.

        remedy: The command that changes it, or what to do; None: nothing is to be done.
    """

    id: str
    status: Status
    concerns: tuple[Concern, ...]
    cause: str
    evidence: tuple[str, ...] = ()
    remedy: str | None = None


class Topic(Frozen, frozen=True, kw_only=True):
    """
    Something to look at: it makes one finding, whatever is found.

    Attributes:
        id: The finding's stable name.

        concerns: What it is about.
    """

    id: str
    concerns: tuple[Concern, ...]

    def ok(self, cause: str, *evidence: str) -> Finding:
        """Return the finding of what is as it should be."""
        return self.found(Status.OK, cause, evidence)

    def bends(self, cause: str, *evidence: str, remedy: str) -> Finding:
        """Return the finding of what makes numbers worse than they could be."""
        return self.found(Status.BENDS, cause, evidence, remedy)

    def stops(self, cause: str, *evidence: str, remedy: str) -> Finding:
        """Return the finding of what lets nothing be measured."""
        return self.found(Status.STOPS, cause, evidence, remedy)

    def unknown(
        self, reason: str, *evidence: str, remedy: str | None = None
    ) -> Finding:
        """Return the finding of what could not be found out, and why."""
        return self.found(Status.UNKNOWN, reason, evidence, remedy)

    def found(
        self,
        status: Status,
        cause: str,
        evidence: tuple[str, ...],
        remedy: str | None = None,
    ) -> Finding:
        """Return the finding of a status that was decided elsewhere."""
        return Finding(
            id=self.id,
            status=status,
            concerns=self.concerns,
            cause=cause,
            evidence=evidence,
            remedy=remedy,
        )
