"""The record of a measurement, and the form of it that a baseline stores."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import msgspec

from pytest_gpuperf import model
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.environment import Device, Host, Session
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.kernel import KernelTotal
from pytest_gpuperf.model.metric import Kind
from pytest_gpuperf.model.sample import CoreSpeed, Estimate, Series, Source, Unmeasured

if TYPE_CHECKING:
    pass

__all__ = [
    "COMPARED_SESSIONS",
    "FILES",
    "KEYED_SINCE",
    "QUANTILES",
    "REFERENCES",
    "STORE_VERSION",
    "AcceptedLevel",
    "BoundClass",
    "FileList",
    "Kind",
    "Note",
    "Record",
    "RecordKey",
    "Role",
    "SessionValue",
    "StoredRecord",
    "Void",
    "VoidCode",
    "module_of",
]

# Test id of the reference workloads. No test of a project has this id.
REFERENCES = "gpuperf::references"
# Beginning of the names under which REFERENCES holds the files of a session.
FILES = "files."

STORE_VERSION = 3  # Version of the format of StoredRecords.
KEYED_SINCE = 3  # Earlier versions stored pytest ids as keys.

# docs/judging.md section 2: the newest sessions of a test and choice, which a comparison
# uses at most.
COMPARED_SESSIONS = 20

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # Of the samples of a SessionValue.


class Role(str, Enum):
    """The role of the process that made a record."""

    MAIN = "main"  # The process, or worker, that ran the reported test.
    REPEAT = "repeat"  # A fresh process of --gpuperf-runs.
    CONFIRM = "confirm"  # A fresh process for a suspect or a control.
    ALONE = "alone"  # A fresh process of a storing run. It confirms nothing.

    @property
    def of_suite(self) -> bool:
        """True if the process ran all tests, so that the value belongs to the suite."""
        return self in {Role.MAIN, Role.REPEAT}


class BoundClass(str, Enum):
    """A class of measurements that machine drift moves together."""

    COMPUTE = "compute"
    MEMORY = "memory"
    HOST = "host"
    # Waits for a lock, a timer or a network, unlike any reference workload.
    WAIT = "wait"
    DISK = "disk"
    # Reads beyond a core's own caches. No test has this class.
    CACHE = "cache"
    # Kernels of the plugin, for both classes of a GPU's times. No test has this class.
    GPU = "gpu"


class RecordKey(Frozen, frozen=True, kw_only=True, order=True):
    """
    The key that identifies the same measurement in different runs.

    Attributes:
        test_id: The node id, without suffixes of xdist.

        name: The measurement inside the test, or "" for the first.
    """

    test_id: str
    name: str = ""

    def __str__(self) -> str:
        """Return the test id, followed by the name if not empty."""
        return f"{self.test_id} {self.name}" if self.name else self.test_id

    @property
    def sides(self) -> tuple[RecordKey, RecordKey]:
        """The keys of the two sides of a comparison."""
        first, second = (f"{self.name}.{side}".lstrip(".") for side in "ab")
        return (
            RecordKey(test_id=self.test_id, name=first),
            RecordKey(test_id=self.test_id, name=second),
        )


# The note on a time by events that is mostly the host's launch.
HOLDS_LAUNCH = "holds-launch"
# The note on samples during which something else ran on their processor.
INTERRUPTED = "interrupted"
# The note on threads of a call that had to share the cores with those of other programs.
OVERSUBSCRIBED = "oversubscribed"
# The doubt about work of other threads and processes.
WORK_ELSEWHERE = "work-elsewhere"
# Doubts that a call did the work that its test means. With `--gpuperf-strict` a limit is
# not kept by such a value, unless the marker accepts the doubt.
WORK_DOUBTS = frozenset(
    {
        "lazy-result",
        "leaves-garbage",
        "less-work",
        "new-content",
        "replaced-code",
        "sides-differ",
        "swallowed-error",
        "uneven-calls",
        "used-up",
        WORK_ELSEWHERE,
        "wrong-result",
    }
)


class Note(Frozen, frozen=True, kw_only=True):
    """
    A note about a measurement, for its reader.

    Attributes:
        code: Stable name of the note, as "trend" or "mutates-its-inputs".

        text: One sentence.

        doubt: Whether the value may belong to something other than intended. A reader
            must not miss such a note.

        full_s: Time of a call that does all the work [s], or None if unknown or not in
            doubt.
    """

    code: str
    text: str
    doubt: bool = False
    full_s: float | None = None

    def __post_init__(self) -> None:
        """Reject a time that is not finite."""
        finite("note.full_s", self.full_s)


class VoidCode(str, Enum):
    """
    The reason that voids a measurement.

    Programs branch on the code only. The codes are part of the run JSON. Codes may be
    added, but are never renamed.
    """

    CLOCK_CONTROL_MOVED = "clock-control-moved"
    CLOCK_DRIFT = "clock-drift"
    USERS_UNKNOWN = "company-unknown"  # Use by other processes is unknown.
    CUPTI_CLOSED = "cupti-closed"
    CUPTI_FAILED = "cupti-failed"
    DEVICE_LOST = "device-lost"
    DISABLED = "disabled"
    DROPPED_RANGES = "dropped-ranges"
    DROPPED_RECORDS = "dropped-records"
    ECC_CHANGED = "ecc-changed"
    EVENTS_FAILED = "events-failed"
    FOREIGN_PROCESS = "foreign-process"
    HARDWARE_SLOWDOWN = "hardware-slowdown"
    HARDWARE_THERMAL = "hardware-thermal-slowdown"
    LOOP_ENDED = "loop-ended"
    MUTATES_ITS_INPUTS = "mutates-its-inputs"
    NOT_RECORDED = "not-recorded"
    NO_STREAM = "no-stream"
    NO_WHOLE_STEP = "no-whole-step"
    OTHER_DEVICE = "other-device"
    OTHER_FACTS = "other-facts"  # In a fresh process, unlike the suite.
    OTHER_MACHINE = "other-machine"  # In a fresh process, unlike the suite.
    OTHER_TRACER = "other-tracer"  # In a fresh process, unlike the suite.
    OUTLIVES_EVENTS = "outlives-events"
    PASSES_MISSING = "passes-missing"
    POWER_BRAKE = "power-brake"
    TOO_MANY_RECORDS = "too-many-records"
    USES_UP_ITS_INPUTS = "uses-up-its-inputs"


class Void(Frozen, frozen=True, kw_only=True, rename={"reason": "text"}):
    """
    Why a measurement must not be judged or stored.

    Attributes:
        code: The kind of reason.

        reason: The reason, as a fragment. In JSON its name is `text`. "" if `judge`
            found it, because then `report` chooses the words by the code.

        remedy: The remedy. "" if unknown, or if it is part of the text in a file of an
            earlier version.
    """

    code: VoidCode
    reason: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """Reason and remedy as a sentence, or only the reason without a remedy."""
        return self.gap.text

    @property
    def gap(self) -> Gap:
        """The void as a gap."""
        return Gap(code=GapCode.VOID, reason=self.reason, remedy=self.remedy)


class Record(BulkRecord, frozen=True, kw_only=True):
    """
    The measurements of one process for one test and range.

    Attributes:
        key: Key of the measurement.

        kind: Method of the fixture that made the record.

        estimates: The estimates by metric, source and kernel.

        series: Samples behind the estimates. Empty in a summary for another process.

        unmeasured: Requested metrics that were unavailable.

        kernels: Resources of the kernels of a binary.

        device: The GPU, or None if none was used.

        facts: Hard facts that two records must share, by the name of their family.

        soft_facts: Facts that are printed with a change if they differ.

        work: The work of a call as declared by the test.

        choice: Hash of the kernels that ran, or None if unknown.

        parameters_digest: Digest of the values of the test's parameters, or None if
            there are none or they have no digest.

        test_digest: Digest of the test function's syntax tree, or None if unknown.

        code_digest: Digest of the machine code of its kernels, or None if unknown.

        function: Qualified name of the measured callable, or None for other
            measurements.

        bound_class: Class of measurements that machine drift moves together.

        role: Role of the process that made the record.

        process_index: 0 for the main process, from 1 for the fresh processes.

        host: Host of an xdist worker that is not on the run's own host. None for the
            host of the session.

        void: Why the record must not be judged, or None.

        notes: Notes for the reader.

        steps: Summary of a loop, or None for other measurements.

        roofline: Reached share of the roof, or None if unknown or without declared
            work.

        activity: Device activity in a call, or None if not recorded.

        analyses: Limiters of the kernels, the longest kernel first, or empty without
            counters.

        utilization: Utilization of the GPU during the measurement, or empty if not
            sampled.

        time_lines: Sensor readings during the measurement, or empty if not sampled.
    """

    key: RecordKey
    kind: Kind
    estimates: tuple[Estimate, ...]
    series: tuple[Series, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    kernels: tuple[model.activity.KernelResources, ...] = ()
    device: Device | None = None
    facts: Mapping[str, Mapping[str, str]] = {}
    soft_facts: Mapping[str, str] = {}
    work: model.work.Work | None = None
    choice: str | None = None
    parameters_digest: str | None = None
    test_digest: str | None = None
    code_digest: str | None = None
    function: str | None = None
    bound_class: BoundClass = BoundClass.HOST
    role: Role = Role.MAIN
    process_index: int = 0
    host: Host | None = None
    void: Void | None = None
    notes: tuple[Note, ...] = ()
    steps: model.steps.StepSummary | None = None
    roofline: model.roofline.Attainment | None = None
    activity: model.activity.ActivitySummary | None = None
    analyses: tuple[model.counters.KernelAnalysis, ...] = ()
    utilization: tuple[model.telemetry.UtilizationWindow, ...] = ()
    time_lines: tuple[model.telemetry.TimeLine, ...] = ()


class AcceptedLevel(BulkRecord, array_like=True, frozen=True, kw_only=True):
    """
    The level of a series when it was last accepted. In a file, a list.

    Attributes:
        value: Mean of the following sessions [the series's unit].

        session_count: Number of these sessions.

        started_unix_s: Start of the first of them, since the epoch [s].
    """

    value: float
    session_count: Annotated[int, msgspec.Meta(ge=1)]
    started_unix_s: float

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("accepted", self.value, self.started_unix_s)


class SessionValue(BulkRecord, array_like=True, frozen=True, kw_only=True):
    """
    The values of a session's processes for one metric. In a file, a list.

    Attributes:
        metric: Name of the metric.

        unit: The unit of `run_values`.

        source: The collector of the values.

        run_values: The value of each process [unit], >= 1 of them.

        half_widths: Relative half-width of each process's interval, >= 0, or empty if
            there was no interval.

        better: "lower", "higher" or "neither". Kept for metrics recorded by tests.

        quantiles: The 5, 25, 50, 75 and 95 % quantiles of the first process's samples
            [unit], or empty without samples.

        cores: Core speed of each process, or empty if one is unknown.

        sm_clocks_hz: Clock of the multiprocessors in each process [Hz], or empty if one
            is unknown.

        series: Number of times that the metric's series was restarted. Stored values of
            earlier series do not count.

        alone_values: The value of each fresh process of the session that ran the test
            alone [unit], or empty if there was none.

        alone_cores: Core speed of each of these processes, or empty if one is unknown.

        suspected: Whether the test ran alone because it was a suspect of the session,
            as opposed to a random choice.

        accepted: The level of the series when it was last accepted, or None if unknown.

        interrupted: Whether most processes had to count interrupted samples, by the time
            of the processor, or had threads that shared the cores with other programs.
    """

    metric: str
    unit: str
    source: str
    run_values: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    half_widths: tuple[Annotated[float, msgspec.Meta(ge=0)], ...] = ()
    better: str | None = None
    quantiles: tuple[float, ...] = ()
    cores: tuple[CoreSpeed, ...] = ()
    sm_clocks_hz: tuple[float, ...] = ()
    series: Annotated[int, msgspec.Meta(ge=0)] = 0
    alone_values: tuple[float, ...] = ()
    alone_cores: tuple[CoreSpeed, ...] = ()
    suspected: bool = False
    accepted: AcceptedLevel | None = None
    interrupted: bool = False

    def __post_init__(self) -> None:
        """Reject non-finite numbers, clocks <= 0, and wrong counts of cores or clocks."""
        # A decoder makes new texts for each value, of which a store has 100,000. Without
        # a loop, because each line is one for each of them.
        metric, unit, source = self.metric, self.unit, self.source
        if type(metric) is str:
            msgspec.structs.force_setattr(self, "metric", sys.intern(metric))
        if type(unit) is str:
            msgspec.structs.force_setattr(self, "unit", sys.intern(unit))
        if type(source) is str:  # Not a Source.
            msgspec.structs.force_setattr(self, "source", sys.intern(source))
        try:  # The usual case, without a call for each of 100,000 stored values.
            is_usual = isfinite(
                sum(self.run_values + self.half_widths + self.quantiles)
            )
        except (TypeError, OverflowError):
            is_usual = False
        is_usual = is_usual and len(self.cores) in {0, len(self.run_values)}
        if not is_usual or self.sm_clocks_hz or self.alone_values or self.alone_cores:
            self._check()

    def _check(self) -> None:
        finite("session.run_values", *self.run_values)
        finite("session.half_widths", *self.half_widths)
        finite("session.quantiles", *self.quantiles)
        finite("session.sm_clocks_hz", *self.sm_clocks_hz)
        finite("session.alone_values", *self.alone_values)
        run_count = len(self.run_values)
        for name, several, process_count in (
            ("cores", self.cores, run_count),
            ("sm_clocks_hz", self.sm_clocks_hz, run_count),
            ("alone_cores", self.alone_cores, len(self.alone_values)),
        ):
            if several and len(several) != process_count:
                message = f"{len(several)} {name} of {process_count} processes"
                raise RecordError(message, path=f"session.{name}")
        if self.sm_clocks_hz and min(self.sm_clocks_hz) <= 0:
            message = f"a clock of {min(self.sm_clocks_hz):g} Hz"
            raise RecordError(message, path="session.sm_clocks_hz")

    @classmethod
    def of(
        cls, estimates: Sequence[Estimate], records: Iterable[Record] = ()
    ) -> SessionValue:
        """
        Create the value of a session from a non-empty sequence, with an estimate per
        process.

        Args:
            estimates: The estimates.

            records: The records of the estimates, if the value shows interrupted samples.
        """
        first = estimates[0]
        values: list[float] = []
        widths: list[float] = []
        cores: list[CoreSpeed] = []
        clocks_hz: list[float] = []
        # A loop, because each comprehension of each test is a call.
        for estimate in estimates:
            values.append(estimate.value)
            width = estimate.half_width
            if width is not None:
                widths.append(width)
            if estimate.core is not None:
                cores.append(estimate.core)
            if estimate.sm_clock_hz is not None:
                clocks_hz.append(estimate.sm_clock_hz)
        return cls(
            metric=first.metric,
            unit=first.unit,
            source=first.source,
            run_values=tuple(values),
            half_widths=tuple(widths),
            better=first.better,
            cores=tuple(cores) if len(cores) == len(estimates) else (),
            sm_clocks_hz=tuple(clocks_hz) if len(clocks_hz) == len(estimates) else (),
            interrupted=first.source == Source.HOST and _are_interrupted(records),
        )


def _are_interrupted(records: Iterable[Record]) -> bool:
    balance = 0
    for record in records:
        balance -= 1
        for note in record.notes:
            # A call with several threads has the one note, any other call the other.
            if note.code in {INTERRUPTED, OVERSUBSCRIBED}:
                balance += 2
    return balance > 0


class FileList(Frozen, frozen=True, kw_only=True):
    """
    The files of a repository that a session has opened.

    Paths are relative to the root of the repository. Those of folders end with a slash.

    Attributes:
        positions: The number of tests that had ended before a file or folder was opened,
            by path.

        listed: The folders that were opened before the first test began.

        ended: The number of tests that had ended before a test, by key.

        surroundings: Digest of the interpreter, the installed packages and the GPU.

        digests: Digest of the content of each file that git does not have, by path, and of
            code outside of the repository, by absolute path. A file without a digest, or
            with "", may have been another one when it was opened.

        entries: The names in each opened folder when the session began, by path of the
            folder. Folders with very many names are left out.

        measured: Digest of the parameters of each test with a good value in the session, or
            "" without a digest, by key.
    """

    positions: Mapping[str, int]
    listed: tuple[str, ...]
    ended: Mapping[str, int]
    surroundings: str
    digests: Mapping[str, str] = {}
    entries: Mapping[str, tuple[str, ...]] = {}
    measured: Mapping[str, str] = {}


def module_of(test_id: str) -> str:
    """Return the module of a test, from its key or id."""
    return test_id.partition("::")[0]


class StoredRecord(BulkRecord, frozen=True, kw_only=True):
    """
    A measurement in one session, which is a line of the baseline.

    Attributes:
        key: Key of the measurement.

        session: Time and place of the session.

        values: The values by metric and source.

        choice: Hash of the kernels that ran, or None if unknown.

        facts: Hard facts by family, which a comparable record must share.

        soft_facts: Facts that are printed if they differ.

        bound_class: Class of measurements that machine drift moves together.

        arrival: The number of the session in its store. Later sessions have higher
            numbers, regardless of the clock. 0 if not stored yet, or stored before
            there were numbers.

        kernels: All kernels of the first process, most time first. Empty if there are
            many or they are unknown.

        parameters_digest: Digest of the values of the test's parameters, or None if not
            stored.

        test_digest: Digest of the test function's syntax tree, or None if not stored.

        code_digest: Digest of the machine code of its kernels, or None if not stored.

        schema_version: The format version in which the record was first written. Fields
            that this version does not have were not stored.

        node_id: The pytest id of the test when the record was first written, if the key
            has replaced it, else "".

        files: The files of the session. None for a measurement.

        unknown: Fields of a later version, as names and JSON texts. They are kept when
            a store is rewritten.
    """

    key: RecordKey
    session: Session
    values: tuple[SessionValue, ...]
    choice: str | None = None
    facts: Mapping[str, Mapping[str, str]] = {}
    soft_facts: Mapping[str, str] = {}
    bound_class: BoundClass = BoundClass.HOST
    arrival: int = 0
    kernels: tuple[KernelTotal, ...] = ()
    parameters_digest: str | None = None
    test_digest: str | None = None
    code_digest: str | None = None
    schema_version: int = STORE_VERSION
    node_id: str = ""
    files: FileList | None = None
    unknown: tuple[tuple[str, str], ...] = ()

    @property
    def has_node_id(self) -> bool:
        """True if the key is a pytest id, relative to the root folder of a run."""
        return self.schema_version < KEYED_SINCE and not self.node_id


def without_samples(record: Record) -> Record:
    """Return a record without the samples, for sending between processes."""
    if not record.series:
        return record
    return replace(record, series=())
