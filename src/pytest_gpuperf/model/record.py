"""What was measured for one test and range, and what a baseline keeps of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated

import msgspec

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.activity import (
    ActivitySummary,
    KernelResources,
    KernelTotal,
)
from pytest_gpuperf.model.counters import KernelAnalysis
from pytest_gpuperf.model.environment import Device, Host, Session
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, all_finite, finite
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import Kind
from pytest_gpuperf.model.roofline import Attainment
from pytest_gpuperf.model.sample import CoreSpeed, Estimate, Series, Unmeasured
from pytest_gpuperf.model.steps import StepSummary
from pytest_gpuperf.model.telemetry import TimeLine, UtilizationWindow
from pytest_gpuperf.model.work import Work

__all__ = [
    "QUANTILES",
    "REFERENCES",
    "STORE_VERSION",
    "AcceptedLevel",
    "BoundClass",
    "Kind",
    "Note",
    "Record",
    "RecordKey",
    "Role",
    "SessionValue",
    "StoredRecord",
    "Void",
    "VoidCode",
]

# the test id of the reference workloads, which no test of a project has
REFERENCES = "gpuperf::references"

STORE_VERSION = 3  # of the format that StoredRecords are written in
_KEYED_SINCE = 3  # earlier versions stored ids of pytest for keys

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the samples of a SessionValue


class Role(str, Enum):
    """Which process of a run made a record."""

    MAIN = "main"  # the process, or worker, that ran the test for everybody to see
    REPEAT = "repeat"  # a fresh process of --gpuperf-runs
    CONFIRM = "confirm"  # a fresh process that confirms a suspect, or a control
    ALONE = "alone"  # a fresh process of a run that stores; it confirms nothing

    @property
    def of_suite(self) -> bool:
        """Whether the process ran all tests, so that its value is the suite's."""
        return self in {Role.MAIN, Role.REPEAT}


class BoundClass(str, Enum):
    """What a change of the machine would move together."""

    COMPUTE = "compute"
    MEMORY = "memory"
    HOST = "host"
    WAIT = "wait"  # a lock, a timer or a network: no reference workload waits for them
    DISK = "disk"


class RecordKey(Frozen, frozen=True, kw_only=True, order=True):
    """
    The name under which records of different runs are the same thing.

    Attributes:
        test_id: The node id, without what xdist appends.

        name: The measurement inside the test; "" for its first.
    """

    test_id: str
    name: str = ""

    def __str__(self) -> str:
        """Return the test id, with the name behind it where there is one."""
        return f"{self.test_id} {self.name}" if self.name else self.test_id

    @property
    def sides(self) -> tuple[RecordKey, RecordKey]:
        """The keys of the two sides of a comparison."""
        first, second = (f"{self.name}.{side}".lstrip(".") for side in "ab")
        return (
            RecordKey(test_id=self.test_id, name=first),
            RecordKey(test_id=self.test_id, name=second),
        )


class Note(Frozen, frozen=True, kw_only=True):
    """
    Something about a measurement that its reader should know.

    Attributes:
        code: Its stable name, as "trend" or "mutates-its-inputs".

        text: One sentence.

        doubt: Whether the value may be of another thing than was meant, which a reader
            must not miss.
    """

    code: str
    text: str
    doubt: bool = False


class VoidCode(str, Enum):
    """
    What voids a measurement.

    Programs branch on it alone. The codes are part of the run JSON: one may be added, none
    is renamed.
    """

    CLOCK_CONTROL_MOVED = "clock-control-moved"
    CLOCK_DRIFT = "clock-drift"
    USERS_UNKNOWN = "company-unknown"  # whether others use the GPU
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
    OTHER_FACTS = "other-facts"  # of a fresh process than of the suite
    OTHER_MACHINE = "other-machine"  # the same
    OTHER_TRACER = "other-tracer"  # in a fresh process than in the suite
    OUTLIVES_EVENTS = "outlives-events"
    PASSES_MISSING = "passes-missing"
    POWER_BRAKE = "power-brake"
    TOO_MANY_RECORDS = "too-many-records"
    USES_UP_ITS_INPUTS = "uses-up-its-inputs"


class Void(Frozen, frozen=True, kw_only=True, rename={"reason": "text"}):
    """
    Why a measurement must not be judged or stored.

    Attributes:
        code: What voids it.

        reason: Why, as a fragment; in JSON its name is `text`. "": judge found it, which
            has no words: report has them by the code.

        remedy: What to do about it; "": not known, or it stands in the text of a file
            of an earlier version.
    """

    code: VoidCode
    reason: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """Reason and remedy, as far as there is one, as one sentence."""
        return self.gap.text

    @property
    def gap(self) -> Gap:
        """Why what was measured is of no use."""
        return Gap(code=GapCode.VOID, reason=self.reason, remedy=self.remedy)


class Record(BulkRecord, frozen=True, kw_only=True):
    """
    All that one process measured for one test and range.

    Attributes:
        key: What it is a measurement of.

        kind: Which way of the fixture made it.

        estimates: One for each metric, source and kernel.

        series: The samples behind the estimates; empty in a summary that travels.

        unmeasured: What was asked for and could not be had.

        kernels: Resources of the kernels of a binary.

        device: The GPU; None where none was used.

        facts: Hard facts that two records must share, by the name of their family.

        soft_facts: Facts that are printed beside a change when they moved.

        work: What the test declared for a call.

        choice: Hash of the kernels that ran; None: not known.

        parameters_digest: Digest of the values of the test's parameters; None: it has none,
            or they have no digest.

        test_digest: Digest of the test function's syntax tree; None: not known.

        code_digest: Digest of the machine code of its kernels; None: not known.

        bound_class: What moves together with it when the machine moves.

        role: Which process of the run made it.

        process_index: 0 for the main process, from 1 for the fresh ones.

        host: Where an xdist worker measured it that is not on the run's own host; None:
            there, as the session says.

        void: Why it must not be judged; None: it may.

        notes: What its reader should know.

        steps: What a loop amounts to; None: it is not a loop.

        roofline: How much of its roof it reached; None: not known, or no work declared.

        activity: What the device did in a call; None: it was not recorded.

        analyses: What limits its kernels, the longest first; empty: no counters.

        utilization: What the GPU was busy with meanwhile; empty: it was not sampled.

        time_lines: What its sensors said meanwhile; empty: they were not sampled.
    """

    key: RecordKey
    kind: Kind
    estimates: tuple[Estimate, ...]
    series: tuple[Series, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    kernels: tuple[KernelResources, ...] = ()
    device: Device | None = None
    facts: Mapping[str, Mapping[str, str]] = {}
    soft_facts: Mapping[str, str] = {}
    work: Work | None = None
    choice: str | None = None
    parameters_digest: str | None = None
    test_digest: str | None = None
    code_digest: str | None = None
    bound_class: BoundClass = BoundClass.HOST
    role: Role = Role.MAIN
    process_index: int = 0
    host: Host | None = None
    void: Void | None = None
    notes: tuple[Note, ...] = ()
    steps: StepSummary | None = None
    roofline: Attainment | None = None
    activity: ActivitySummary | None = None
    analyses: tuple[KernelAnalysis, ...] = ()
    utilization: tuple[UtilizationWindow, ...] = ()
    time_lines: tuple[TimeLine, ...] = ()


class AcceptedLevel(BulkRecord, array_like=True, frozen=True, kw_only=True):
    """
    The level of a series when it was last accepted; in a file, a list.

    Attributes:
        value: Mean of the sessions that followed [the series's unit].

        session_count: How many these are.

        started_unix_s: When the first of them began, since the epoch [s].
    """

    value: float
    session_count: Annotated[int, msgspec.Meta(ge=1)]
    started_unix_s: float

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("accepted", self.value, self.started_unix_s)


class SessionValue(BulkRecord, array_like=True, frozen=True, kw_only=True):
    """
    The values of a session's processes, of one metric; in a file, a list.

    Attributes:
        metric: The metric's name.

        unit: The unit of `run_values`.

        source: The collector that gave them.

        run_values: The value of each process [unit], >= 1 of them.

        half_widths: Half-width of each process's interval over its value, >= 0; empty
            where there was no interval.

        better: "lower", "higher" or "neither"; kept for the user's own metrics.

        quantiles: The 5, 25, 50, 75 and 95 % quantiles of the samples of its first process
            [unit]; empty where there are none.

        cores: How fast the core of each process was; empty where one of them cannot tell.

        sm_clocks_hz: The clock of the multiprocessors in each process [Hz], likewise.

        series: How often its metric's series has been started anew; a stored value of an
            earlier series does not count.

        alone_values: The value of each fresh process of the session that ran the test
            alone [unit]; empty where there was none.

        alone_cores: How fast the core of each of these was; empty where one of them cannot
            tell.

        suspected: Whether the test ran alone because it was a suspect of the session, and
            not because it was drawn.

        accepted: The level that its series had when it was last accepted; None: unknown.
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

    def __post_init__(self) -> None:
        """Refuse what is not finite, and cores and clocks of other processes."""
        numbers = (
            *self.half_widths,
            *self.quantiles,
            *self.sm_clocks_hz,
            *self.alone_values,
        )
        # nearly all are: a report holds tens of thousands
        if not all_finite((*self.run_values, *numbers)):
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
    def of(cls, estimates: Sequence[Estimate]) -> SessionValue:
        """Return the values of some processes; `estimates`: one of each, >= 1 of them."""
        first = estimates[0]
        widths = (estimate.half_width for estimate in estimates)
        cores = tuple(e.core for e in estimates if e.core is not None)
        clocks_hz = tuple(e.sm_clock_hz for e in estimates if e.sm_clock_hz is not None)
        return cls(
            metric=first.metric,
            unit=first.unit,
            source=first.source,
            run_values=tuple(estimate.value for estimate in estimates),
            half_widths=tuple(width for width in widths if width is not None),
            better=first.better,
            cores=cores if len(cores) == len(estimates) else (),
            sm_clocks_hz=clocks_hz if len(clocks_hz) == len(estimates) else (),
        )


class StoredRecord(BulkRecord, frozen=True, kw_only=True):
    """
    One measurement in one session: a line of the baseline.

    Attributes:
        key: What it is a measurement of.

        session: When and where.

        values: One for each metric and source.

        choice: Hash of the kernels that ran; None: not known.

        facts: Hard facts by family: what a comparable record must share.

        soft_facts: Facts that are printed when they moved.

        bound_class: What moves together with it when the machine moves.

        arrival: The number of the session in its store: a later one has a higher number,
            whatever the clock said; 0: not stored yet, or stored before there were numbers.

        kernels: Those that ran in the first process, most time first: all of them, or
            none where they are many or not known.

        parameters_digest: Digest of the values of the test's parameters; None: not stored.

        test_digest: Digest of the test function's syntax tree; None: not stored.

        code_digest: Digest of the machine code of its kernels; None: not stored.

        schema_version: The version of the format that it was first written in: what that
            version had no field for was not stored.

        node_id: The id that pytest gave to the test when it was first written, where the
            key has replaced it; "": the key was never another.

        unknown: Fields of a later version, as names and JSON texts: kept when a store
            is rewritten.
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
    unknown: tuple[tuple[str, str], ...] = ()

    @property
    def has_node_id(self) -> bool:
        """Whether its key is an id of pytest, relative to the root folder of its run."""
        return self.schema_version < _KEYED_SINCE and not self.node_id
