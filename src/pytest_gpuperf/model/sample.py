"""Measured values: the samples of a metric and their estimate."""

from __future__ import annotations

from enum import Enum
from math import inf, isfinite

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, all_finite, finite
from pytest_gpuperf.model.gap import Gap, GapCode

__all__ = [
    "COLLECTORS",
    "CacheMode",
    "CoreSpeed",
    "Estimate",
    "ReferenceSamples",
    "Series",
    "Source",
    "SourceLabel",
    "Unmeasured",
    "unmeasured",
]


class Source(str, Enum):
    """
    Where a value comes from: a collector, or what else can give one.

    Records hold it as text, so that another package's collector can have its own name.
    """

    REPLAY = "replay"  # the readings of a recorded run
    CUPTI = "cupti"
    EVENTS = "events"
    HOST = "host"
    NCU = "ncu"
    NVML = "nvml"
    BINARY = "binary"
    NCU_REPORT = "ncu-report"
    USER = "user"  # a number that the test records; not a collector
    TORCH = "torch"  # what it counts in a loop; not a collector

    def __str__(self) -> str:
        """Return the name as it is written."""
        return self.value


# what --gpuperf-collectors may name, best first
COLLECTORS = tuple(s for s in Source if s not in {Source.USER, Source.TORCH})


class CacheMode(str, Enum):
    """What is done about the caches of a device before each sample."""

    COLD = "cold"  # its L2 is flushed
    WARM = "warm"  # it is not
    UNTOUCHED = "none"  # there was no device to flush
    AS_IT_COMES = "as-it-comes"  # of a loop, whose steps follow each other

    def __str__(self) -> str:
        """Return the mode as it is written."""
        return self.value


class SourceLabel(str, Enum):
    """How a number came to be, strongest first; a result carries its weakest input's."""

    DETECTED = "detected"
    MEASURED = "measured"
    DECLARED = "declared"
    DATASHEET = "datasheet"
    ESTIMATED = "estimated"
    UNAVAILABLE = "unavailable"


class Series(Frozen, frozen=True, kw_only=True):
    """
    All samples of one metric, as one collector gave them.

    Attributes:
        metric: The metric's name.

        unit: Its SI unit, or a counter's own.

        source: The collector: a Source, or the name of another package's.

        values: The samples [unit], in the order they were taken; may be empty in a
            summary that travels.

        iterations_count: Calls behind each sample (batching), >= 1.

        discarded_count: Samples that were taken and refused.
    """

    metric: str
    unit: str
    source: str
    values: tuple[float, ...]
    iterations_count: int = 1
    discarded_count: int = 0

    def __post_init__(self) -> None:
        """Refuse samples that are not finite."""
        if not all_finite(self.values):
            finite(f"series[{self.metric}].values", *self.values)


class CoreSpeed(BulkRecord, array_like=True, frozen=True, kw_only=True):
    """
    How fast the core was that took some samples, by a loop timed between them; a list.

    Attributes:
        loop_s: Median processor time of the loop [s], > 0.

        slope: By which power of the loop's time the samples followed it while the core
            changed its speed; 0 where it did not.

        precision: One over the variance of `slope`, >= 0; 0: the samples do not tell.
    """

    loop_s: float
    slope: float = 0.0
    precision: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is not finite, a loop that took no time, a variance below 0."""
        finite("core", self.loop_s, self.slope, self.precision)
        if self.loop_s <= 0:
            message = f"the loop took {self.loop_s!r} s"
            raise RecordError(message, path="core.loop_s")
        if self.precision < 0:
            message = f"{self.precision!r} is not a precision: it is below 0"
            raise RecordError(message, path="core.precision")


class Estimate(BulkRecord, frozen=True, kw_only=True):
    """
    The value of one metric, with its spread.

    Attributes:
        metric: The metric's name.

        value: The point estimate [unit]: a median where there were samples.

        unit: Its SI unit, or a counter's own.

        source: The collector that gave it; sources are never compared.

        label: How the number came to be.

        low: Lower end of the 99 % order-statistic interval of the median [unit]; None
            where too few samples allow none, or where the value is exact.

        high: Its upper end [unit].

        sample_count: Samples behind it, >= 1.

        kernel: The kernel that it is for; None: the whole record.

        better: "lower", "higher" or "neither" for a metric of the user's own; None: what
            the catalogue says.

        core: How fast the core was meanwhile; None: not known, or it does not
            matter.

        sm_clock_hz: The clock of the device's multiprocessors right after the samples, in
            the median [Hz]; None: not known, or not a time of a device.
    """

    metric: str
    value: float
    unit: str
    source: str
    label: SourceLabel = SourceLabel.MEASURED
    low: float | None = None
    high: float | None = None
    sample_count: int = 1
    kernel: str | None = None
    better: str | None = None
    core: CoreSpeed | None = None
    sm_clock_hz: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite, or an interval that is upside down."""
        low, high = self.low, self.high
        bounded = low is not None and high is not None and -inf < low <= high < inf
        whole = bounded or (low is None and high is None)
        if isfinite(self.value) and whole and self.sm_clock_hz is None:
            return  # nearly all: the name below is made for bad ones alone
        finite(f"estimate[{self.metric}]", self.value, low, high, self.sm_clock_hz)
        if low is not None and high is not None and low > high:
            message = f"the interval {low!r} … {high!r} is upside down"
            raise RecordError(message, path=f"estimate[{self.metric}].low")

    @property
    def half_width(self) -> float | None:
        """Half its interval over its value; None: no interval, or no ratio to 0."""
        if self.low is None or self.high is None or self.value == 0:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


class Unmeasured(Gap, frozen=True, kw_only=True):
    """
    A metric that was asked for and could not be had.

    Attributes:
        metric: The metric's name.

        code: What kind of gap it is.

        reason: Why, as a fragment.

        remedy: What to do about it, as a sentence without its full stop.
    """

    metric: str
    code: GapCode = GapCode.UNSPECIFIED  # files of earlier versions have none

    @staticmethod
    def of_metric(metric: str, gap: Gap) -> Unmeasured:
        """Return why a metric could not be had."""
        return Unmeasured(
            metric=metric, code=gap.code, reason=gap.reason, remedy=gap.remedy
        )


def unmeasured(metric: str, code: GapCode, reason: str, remedy: str) -> Unmeasured:
    """Return why a metric could not be had, as `Unmeasured` has it."""
    return Unmeasured(metric=metric, code=code, reason=reason, remedy=remedy)


class ReferenceSamples(BulkRecord, frozen=True, kw_only=True):
    """
    Samples of a reference workload, taken before or after a test.

    Attributes:
        workload: Its name: "python", "numpy", "array" or "copy".

        samples_s: Samples that nothing interrupted [s].

        interrupted_s: The others [s].

        gap: Why it cannot run in this process; None: it can.

        loop_s: Processor time of the loop that tells the core's speed, beside the samples
            [s]; None: not known.
    """

    workload: str
    samples_s: tuple[float, ...] = ()
    interrupted_s: tuple[float, ...] = ()
    gap: Gap | None = None
    loop_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse samples that are not finite."""
        if not (all_finite(self.samples_s) and all_finite(self.interrupted_s)):
            finite(f"references[{self.workload}]", *self.samples_s, *self.interrupted_s)
        finite(f"references[{self.workload}].loop_s", self.loop_s)
