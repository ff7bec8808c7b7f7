"""Why something is not there, and what stands in the way of a measurement."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Literal

from pytest_gpuperf.model.frozen import BulkRecord, Frozen

if TYPE_CHECKING:
    from pytest_gpuperf.errors import GpuPerfError

__all__ = [
    "Concern",
    "Condition",
    "Finding",
    "Gap",
    "GapCode",
    "Obstacle",
    "Readiness",
    "Status",
    "Topic",
]


class GapCode(str, Enum):
    """
    What kind of gap it is: programs branch on it alone, never on a sentence.

    The codes are part of the run JSON: one may be added, none is renamed. Those of the
    first group are the slugs of errors.
    """

    CAPTURE_FORMAT = "capture-format"
    COLLECTOR_FAILED = "collector-failed"
    COLLECTOR_TIMEOUT = "collector-timeout"
    COLLECTOR_UNAVAILABLE = "collector-unavailable"
    CONFIG = "config"
    COUNTERS_BUSY = "counters-busy"
    COUNTER_PERMISSION = "counter-permission"
    DEVICE_HELD = "device-held"
    MEASURE = "measure"
    METRIC_UNAVAILABLE = "metric-unavailable"
    MISSING_PEAK = "missing-peak"
    NOTHING_PROFILED = "nothing-profiled"
    RECORD = "record"
    REVISION = "revision"
    SIDES_REFUSED = "sides-refused"
    UNKNOWN_COUNTER = "unknown-counter"
    UNKNOWN_METRIC = "unknown-metric"
    UNKNOWN_TEST = "unknown-test"
    WEAK_SOURCE = "weak-source"

    DEVICE_LOST = "device-lost"
    EDITED_FILE = "edited-file"  # a file changed while its side was measured
    FAILED = "failed"  # any other error
    FOREIGN_FILE = "foreign-file"  # a side loaded a file of the other side
    INCOMPLETE = "incomplete"  # its parts cannot be put together
    LOST_FILE = "lost-file"  # a side lacks a module or test that the user's run has
    NOT_ASKED = "not-asked"  # the run's options leave it out
    NOT_COLLECTED = "not-collected"  # a tool that can count it has not, or not always
    NOT_DECLARED = "not-declared"  # the test neither declares nor records it
    NOT_IN_REPORT = "not-in-report"  # no launch of a report has the counter
    NOT_INSTALLED = "not-installed"  # a package or a tool is missing
    NOT_REACHED = "not-reached"  # the process that counts did not come to it
    NOT_SAMPLED = "not-sampled"  # no sensor of a GPU was read meanwhile
    NOT_STATED = "not-stated"  # the source does not say
    NOT_DEFINED = "not-defined"  # of what was measured it has no meaning
    NO_DEVICE = "no-device"
    NO_KERNEL = "no-kernel"  # none was launched, or none is meant
    NO_SUCH_KERNEL = "no-such-kernel"  # a pattern fits none of those that are there
    OTHER_LAUNCHER = "other-launcher"  # no process can be started as the suite was
    OTHER_WAY = "other-way"  # another way of the fixture gives it
    NO_OWN_CODE = "no-own-code"  # the tests load no code of the repository
    SHARED_FILE = "shared-file"  # both sides loaded one file of the project
    TEMPORARY = "temporary"  # it may be over at the next try
    UNIT_MISMATCH = "unit-mismatch"
    UNSPECIFIED = "unspecified"  # in files of versions without codes
    UNSUPPORTED = "unsupported"  # the chip, the driver or the tool has no such value
    VOID = "void"  # it was measured, and must not be judged


_CODES = frozenset(code.value for code in GapCode)


class Gap(BulkRecord, frozen=True, kw_only=True):
    """
    Why something is not there.

    Attributes:
        code: What kind of gap it is.

        reason: Why, as a fragment.

        remedy: What to do about it, as a sentence without its full stop.
    """

    code: GapCode
    reason: str
    remedy: str

    @property
    def text(self) -> str:
        """Reason and remedy, as far as there is one, as one sentence."""
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason

    @staticmethod
    def of(error: GpuPerfError) -> Gap:
        """Return what an error says, under its slug or the nearest of its bases'."""
        slugs = (getattr(kind, "slug", "") for kind in type(error).__mro__)
        code = next((slug for slug in slugs if slug in _CODES), GapCode.FAILED)
        return Gap(code=GapCode(code), reason=error.message, remedy=error.remedy)


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


class Obstacle(str, Enum):
    """What keeps a machine from being ready."""

    PEAKS_FAILED = "peaks-failed"  # they were to be measured
    NO_GPU = "no-gpu"
    NO_TIMING = "no-timing"  # of the GPU that is there
    LOST = "lost"  # timing works, another concern of a GPU does not


class Condition(Frozen, frozen=True, kw_only=True):
    """
    Whether a machine is ready, and why it is not.

    Attributes:
        state: Its readiness.

        obstacle: What keeps it from being ready; None: it is.

        lost: The concerns that cannot be measured, where the obstacle is `LOST`.

        of_host: Whether it is asked for times of the host alone.
    """

    state: Readiness
    obstacle: Obstacle | None = None
    lost: tuple[Concern, ...] = ()
    of_host: bool = False


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
