"""Reasons for missing values, and obstacles to measurements."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Literal

from pytest_gpuperf.model.frozen import BulkRecord, Frozen

if TYPE_CHECKING:
    from pytest_gpuperf.errors import GpuPerfError


class GapCode(str, Enum):
    """
    The kind of a gap. Programs branch on the code only, never on a sentence.

    The codes are part of the run JSON. Codes may be added, but are never renamed. The
    codes of the first group are slugs of errors.
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
    EDITED_FILE = "edited-file"  # A file changed while its side was measured.
    FAILED = "failed"  # Any other error.
    FOREIGN_FILE = "foreign-file"  # A side loaded a file of the other side.
    INCOMPLETE = "incomplete"  # The parts do not form a whole.
    LOST_FILE = "lost-file"  # A side lacks a module or test of the user's run.
    NOT_ASKED = "not-asked"  # The run's options exclude it.
    NOT_COLLECTED = "not-collected"  # A tool that can count it did not, or not always.
    NOT_DECLARED = "not-declared"  # Neither declared nor recorded by the test.
    NOT_IN_REPORT = "not-in-report"  # No launch of a report has the counter.
    NOT_INSTALLED = "not-installed"  # A package or a tool is missing.
    NOT_REACHED = "not-reached"  # The counting process did not reach it.
    NOT_SAMPLED = "not-sampled"  # No GPU sensor was read during the measurement.
    NOT_STATED = "not-stated"  # The source does not state it.
    NOT_DEFINED = "not-defined"  # Meaningless for this measurement.
    NO_DEVICE = "no-device"
    NO_KERNEL = "no-kernel"  # No kernel was launched or selected.
    NO_SUCH_KERNEL = "no-such-kernel"  # A pattern matches no existing kernel.
    OTHER_LAUNCHER = "other-launcher"  # No process can be started like the suite.
    OTHER_WAY = "other-way"  # Another method of the fixture gives it.
    NO_OWN_CODE = "no-own-code"  # The tests load no code of the repository.
    SHARED_FILE = "shared-file"  # Both sides loaded the same project file.
    TEMPORARY = "temporary"  # It may be over at the next try.
    UNIT_MISMATCH = "unit-mismatch"
    UNSPECIFIED = "unspecified"  # Files of versions without codes.
    UNSUPPORTED = "unsupported"  # Not available on the chip, driver or tool.
    VOID = "void"  # Measured, but must not be judged.


_CODES = frozenset(code.value for code in GapCode)


class Gap(BulkRecord, frozen=True, kw_only=True):
    """
    A missing value or result, with a reason.

    Attributes:
        code: The kind of gap.

        reason: The reason, as a fragment.

        remedy: The remedy, as a sentence without its full stop.
    """

    code: GapCode
    reason: str
    remedy: str

    @property
    def text(self) -> str:
        """Reason and remedy as a sentence, or only the reason without a remedy."""
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason

    @staticmethod
    def of(error: GpuPerfError) -> Gap:
        """
        Create the gap of an error. The code is the slug of the error or the nearest
        base class.
        """
        slugs = (getattr(kind, "slug", "") for kind in type(error).__mro__)
        code = next((slug for slug in slugs if slug in _CODES), GapCode.FAILED)
        return Gap(code=GapCode(code), reason=error.message, remedy=error.remedy)


# Subjects of a finding: times of GPU work, hardware counters, launches and copies as
# recorded by CUPTI, energy with power and clocks, GPU memory, times of host code, data
# from binaries, and their SASS.
Concern = Literal[
    "timing", "counters", "launches", "energy", "memory", "host", "binary", "sass"
]


class Status(str, Enum):
    """Effect of a finding on measurements, worst first."""

    STOPS = "stops"
    DISTORTS = "bends"
    UNKNOWN = "unknown"
    OK = "ok"


class Readiness(str, Enum):
    """Ability of a machine to measure its GPUs."""

    READY = "ready"
    DEGRADED = "degraded"
    BLOCKED = "blocked"


class Obstacle(str, Enum):
    """Reason why a machine is not ready."""

    PEAKS_FAILED = "peaks-failed"  # Measuring peaks was requested, but failed.
    NO_GPU = "no-gpu"
    NO_TIMING = "no-timing"  # The existing GPU cannot be timed.
    LOST = "lost"  # Timing works, but another concern does not.


class Condition(Frozen, frozen=True, kw_only=True):
    """
    Readiness of a machine, with reasons.

    Attributes:
        state: The readiness.

        obstacle: Reason why the machine is not ready, or None.

        lost: The concerns that cannot be measured, if the obstacle is `LOST`.

        of_host: Whether only host times are requested.
    """

    state: Readiness
    obstacle: Obstacle | None = None
    lost: tuple[Concern, ...] = ()
    of_host: bool = False


class Finding(Frozen, frozen=True, kw_only=True):
    """
    The result of one check.

    Attributes:
        id: Stable name of the finding.

        status: Effect on measurements.

        concerns: The affected kinds of measurement, at least one.

        cause: One sentence with the fact and its effect, or why the fact is unknown.

        evidence: The values that were read, each after its location.

        remedy: A command or another action, or None if nothing needs to be done.
    """

    id: str
    status: Status
    concerns: tuple[Concern, ...]
    cause: str
    evidence: tuple[str, ...] = ()
    remedy: str | None = None


class Topic(Frozen, frozen=True, kw_only=True):
    """
    A subject of a check. Every check gives one finding.

    Attributes:
        id: Stable name of the finding.

        concerns: The affected kinds of measurement.
    """

    id: str
    concerns: tuple[Concern, ...]

    def ok(self, cause: str, *evidence: str) -> Finding:
        """Create a finding without an effect on measurements."""
        return self.found(Status.OK, cause, evidence)

    def distorts(self, cause: str, *evidence: str, remedy: str) -> Finding:
        """Create a finding about distorted measurements."""
        return self.found(Status.DISTORTS, cause, evidence, remedy)

    def stops(self, cause: str, *evidence: str, remedy: str) -> Finding:
        """Create a finding about impossible measurements."""
        return self.found(Status.STOPS, cause, evidence, remedy)

    def unknown(
        self, reason: str, *evidence: str, remedy: str | None = None
    ) -> Finding:
        """Create a finding about a failed check, with the reason."""
        return self.found(Status.UNKNOWN, reason, evidence, remedy)

    def found(
        self,
        status: Status,
        cause: str,
        evidence: tuple[str, ...],
        remedy: str | None = None,
    ) -> Finding:
        """Create a finding with any status."""
        return Finding(
            id=self.id,
            status=status,
            concerns=self.concerns,
            cause=cause,
            evidence=evidence,
            remedy=remedy,
        )
