"""Every exception of the plugin.

GpuPerfError(Exception)               .remedy: one imperative sentence; .slug: its name
├── ConfigError                       an option, ini value or marker is wrong
│   ├── LimitSyntaxError              .text .column
│   └── UnknownMetricError            .name .close_matches
├── CollectError                      no samples could be collected
│   ├── CollectorUnavailableError     a tool, library or device is not there
│   │   ├── CounterPermissionError    the driver restricts counters to administrators
│   │   ├── CountersBusyError         another program holds the GPU's counters
│   │   └── DeviceHeldError           .path .holder; another run holds the GPU
│   ├── CollectorTimeoutError         a tool did not end in time
│   ├── CollectorFailedError          .argv .exit_code .log_tail
│   │   ├── NothingProfiledError      a profiler ended well and saw no kernel
│   │   └── UnknownCounterError       .counter; a profiler does not know the name
│   ├── CaptureFormatError            .path .is_whole; of another format, or damaged
│   ├── RevisionError                 .revision; a revision that cannot be used
│   └── SidesRefusedError             .findings; the sides may not run their own files
│       └── UnknownTestError          pytest does not collect a test there
├── MeasureError                      a measurement without meaning
│   ├── MissingEntryError(KeyError)   results have no entry of that name
│   ├── WrongEntryError(TypeError)    a launch where a node is needed, or a node
│   └── EntryCountError(RuntimeError) several entries where one was requested, or none
├── MetricUnavailableError            .metric .reason .code; a metric without a value
│   ├── MissingPeakError              .fields; the peak of a roof is unknown
│   └── WeakSourceError               .label .least; a weaker source than required
├── RecordError(ValueError)           .path; a record broke an invariant
│   ├── UnitError                     a unit that is unknown or does not match
│   └── SchemaVersionError            .schema .supported
├── BaselineError                     the store could not be used
│   ├── BaselineMissingError          the named store is not there
│   └── BaselineCorruptError          .path; a damaged file of the store
└── ReportError                       a report could not be written

PerfAssertionError(AssertionError)    .verdict; a failed limit is a test failure

docs/messages.md has an entry for each error, under its slug.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

__all__ = [
    "SITE",
    "BaselineCorruptError",
    "BaselineError",
    "BaselineMissingError",
    "CaptureFormatError",
    "CollectError",
    "CollectorFailedError",
    "CollectorTimeoutError",
    "CollectorUnavailableError",
    "ConfigError",
    "CounterPermissionError",
    "CountersBusyError",
    "DeviceHeldError",
    "EntryCountError",
    "GpuPerfError",
    "LimitSyntaxError",
    "MeasureError",
    "MetricUnavailableError",
    "MissingEntryError",
    "MissingPeakError",
    "NothingProfiledError",
    "PerfAssertionError",
    "RecordError",
    "ReportError",
    "RevisionError",
    "SchemaVersionError",
    "SidesRefusedError",
    "UnitError",
    "UnknownCounterError",
    "UnknownMetricError",
    "UnknownTestError",
    "WeakSourceError",
    "WrongEntryError",
]

# Documentation pages that remedies link to.
SITE = "https://pytest-gpuperf.readthedocs.io/en/stable"


class VerdictLike(Protocol):
    """The part of a verdict that this module needs."""

    @property
    def reason(self) -> str:
        """The stable reason code."""


class GpuPerfError(Exception):
    """
    Base of every error of the plugin.

    Attributes:
        remedy: One imperative sentence: what the reader can do.

        slug: The error's stable name, as reports print it.
    """

    slug: ClassVar[str] = "gpuperf"

    def __init_subclass__(cls) -> None:
        """
        Derive the slug from the class name: CollectorFailedError becomes
        collector-failed.
        """
        super().__init_subclass__()
        name = cls.__name__.removesuffix("Error")
        cls.slug = "".join(f"-{c}" if c.isupper() else c for c in name)[1:].lower()

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the message and the remedy."""
        return f"{self.args[0]}; {self.remedy}"

    @property
    def message(self) -> str:
        """The message without the remedy."""
        return str(self.args[0])


class ConfigError(GpuPerfError):
    """An option, an ini value or a marker is wrong."""


class LimitSyntaxError(ConfigError):
    """
    The text of a limit does not parse.

    Attributes:
        text: The whole limit as it was written.

        column: The 0-based column of the mistake.
    """

    def __init__(self, message: str, *, remedy: str, text: str, column: int) -> None:
        super().__init__(message, remedy=remedy)
        self.text = text
        self.column = column

    def __str__(self) -> str:
        """Return the message, the text with a caret under the place, the remedy."""
        caret = " " * self.column + "^"
        return f"{self.message}\n    {self.text}\n    {caret}\n{self.remedy}"


class UnknownMetricError(ConfigError):
    """
    No metric has the given name.

    Attributes:
        name: The name as it was written.

        close_matches: Names that may have been meant, best first.
    """

    def __init__(
        self, name: str, *, remedy: str, close_matches: tuple[str, ...] = ()
    ) -> None:
        super().__init__(f"unknown metric {name!r}", remedy=remedy)
        self.name = name
        self.close_matches = close_matches


class CollectError(GpuPerfError):
    """No samples could be collected."""


class CollectorUnavailableError(CollectError):
    """A tool, a library or a device is not available."""


class CounterPermissionError(CollectorUnavailableError):
    """The driver lets only administrators read the GPU's counters."""


class CountersBusyError(CollectorUnavailableError):
    """Another program holds the GPU's counters, which have one user at a time."""


class DeviceHeldError(CollectorUnavailableError):
    """
    Another run held the GPU for longer than the lock timeout.

    Attributes:
        path: The lock file.

        holder: Id of the process that holds the lock, or None if unknown.
    """

    def __init__(
        self, message: str, *, remedy: str, path: str, holder: int | None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.path = path
        self.holder = holder


class CollectorTimeoutError(CollectError):
    """A tool did not finish within its time limit."""


class CollectorFailedError(CollectError):
    """
    A tool ended without the requested output.

    Attributes:
        argv: The command that was run.

        exit_code: Exit status of the command, or None if the command never started.

        log_tail: The last lines of the command's output.
    """

    def __init__(
        self,
        message: str,
        *,
        remedy: str,
        argv: tuple[str, ...],
        exit_code: int | None,
        log_tail: str,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.argv = argv
        self.exit_code = exit_code
        self.log_tail = log_tail


class NothingProfiledError(CollectorFailedError):
    """A profiler succeeded and saw no kernel: none was launched, or none passed a filter."""


class UnknownCounterError(CollectorFailedError):
    """
    A profiler does not know a counter and therefore counts nothing.

    Attributes:
        counter: The requested name.
    """

    def __init__(
        self,
        message: str,
        *,
        counter: str,
        remedy: str,
        argv: tuple[str, ...],
        exit_code: int | None,
        log_tail: str,
    ) -> None:
        super().__init__(
            message, remedy=remedy, argv=argv, exit_code=exit_code, log_tail=log_tail
        )
        self.counter = counter


class CaptureFormatError(CollectError):
    """
    A file is damaged, or its format does not match its name.

    Attributes:
        path: The file.

        is_whole: True if the file can be read and has no kernel that was requested.
    """

    def __init__(
        self, message: str, *, remedy: str, path: str, is_whole: bool = False
    ) -> None:
        super().__init__(f"{path}: {message}", remedy=remedy)
        self.path = path
        self.is_whole = is_whole


class RevisionError(CollectError):
    """
    A revision cannot be checked out or compared.

    Attributes:
        revision: The revision as it was written.
    """

    def __init__(self, message: str, *, remedy: str, revision: str) -> None:
        super().__init__(message, remedy=remedy)
        self.revision = revision


class SidesRefusedError(CollectError):
    """
    The two sides of a comparison are not proven to run their own files.

    Attributes:
        findings: The finding at each level that was tried, one line per level.
    """

    def __init__(
        self, message: str, *, remedy: str, findings: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.findings = findings


class UnknownTestError(SidesRefusedError):
    """A test to compare is not collected by pytest on its side."""


class MeasureError(GpuPerfError):
    """The test requested a measurement without meaning."""


class MissingEntryError(MeasureError, KeyError):
    """Results have no entry of that name."""


class WrongEntryError(MeasureError, TypeError):
    """An entry of results is a launch where a node is needed, or the other way round."""


class EntryCountError(MeasureError, RuntimeError):
    """Results have several entries where one was requested, or none."""


class MetricUnavailableError(GpuPerfError):
    """
    This run has no value of a metric.

    Attributes:
        metric: The requested name.

        reason: Why there is no value, as a fragment.

        code: The kind of gap, a value of model.gap.GapCode, or "" for the error's slug.
    """

    def __init__(
        self, metric: str, reason: str, *, remedy: str, code: str = ""
    ) -> None:
        super().__init__(f"{metric}: {reason}", remedy=remedy)
        self.metric = metric
        self.reason = reason
        self.code = code or self.slug


class MissingPeakError(MetricUnavailableError):
    """
    The peak of a roof is unknown.

    Attributes:
        fields: The missing peaks, as `peak_flop_per_s`.
    """

    def __init__(self, fields: tuple[str, ...], *, reason: str, remedy: str) -> None:
        super().__init__("roofline", reason, remedy=remedy)
        self.fields = fields


class WeakSourceError(MetricUnavailableError):
    """
    The source of a value is weaker than required.

    Attributes:
        label: The value's label.

        least: The weakest label that is accepted.
    """

    def __init__(self, metric: str, *, label: str, least: str, remedy: str) -> None:
        reason = f"it is {label}, but {least} or better is required"
        super().__init__(metric, reason, remedy=remedy)
        self.label = label
        self.least = least


class RecordError(GpuPerfError, ValueError):
    """
    A record broke an invariant.

    Attributes:
        path: The field, as `records[3].estimates[0].value`.
    """

    def __init__(self, message: str, *, path: str, remedy: str = "") -> None:
        super().__init__(
            f"{path}: {message}" if path else message,
            remedy=remedy or "check the program that wrote it",
        )
        self.path = path


class UnitError(RecordError):
    """A unit is unknown or does not match its metric."""


class SchemaVersionError(RecordError):
    """
    A file has a schema version that this release does not read.

    Attributes:
        schema: The schema that the file names.

        supported: The schema that this release reads.
    """

    def __init__(self, *, schema: str, supported: str, path: str = "schema") -> None:
        super().__init__(
            f"schema {schema!r} is not {supported!r}",
            path=path,
            remedy="read it with the version of pytest-gpuperf that wrote it",
        )
        self.schema = schema
        self.supported = supported


class BaselineError(GpuPerfError):
    """The baseline store could not be used."""


class BaselineMissingError(BaselineError):
    """The named store does not exist."""


class BaselineCorruptError(BaselineError):
    """
    A file of the store is damaged.

    Attributes:
        path: The file.
    """

    def __init__(self, message: str, *, remedy: str, path: str) -> None:
        super().__init__(f"{path}: {message}", remedy=remedy)
        self.path = path


class ReportError(GpuPerfError):
    """A report could not be written."""


class PerfAssertionError(AssertionError):
    """
    A measured value missed its limit: a test failure, not an error of the plugin.

    Attributes:
        verdict: The verdict with its evidence.

        slug: The error's stable name.
    """

    slug: ClassVar[str] = "perf-assertion"

    def __init__(self, message: str, *, verdict: VerdictLike) -> None:
        super().__init__(message)
        self.verdict = verdict
