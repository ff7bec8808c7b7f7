"""Samples and estimates of a metric."""

from __future__ import annotations

from enum import Enum
from math import inf, isfinite
from typing import Annotated

import msgspec

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, all_finite, finite
from pytest_gpuperf.model.gap import Gap, GapCode


class Source(str, Enum):
    """
    The source of a value: a collector, a test or torch.

    Records hold the source as text, so that a collector of another package can have its
    own name.
    """

    REPLAY = "replay"  # The readings of a recorded run.
    CUPTI = "cupti"
    EVENTS = "events"
    HOST = "host"
    NCU = "ncu"
    NVML = "nvml"
    BINARY = "binary"
    NCU_REPORT = "ncu-report"
    USER = "user"  # A number recorded by the test. Not a collector.
    TORCH = "torch"  # Counts by torch in a loop. Not a collector.

    def __str__(self) -> str:
        """Return the written name."""
        return self.value


# Allowed names for --gpuperf-collectors, best first.
COLLECTORS = tuple(s for s in Source if s not in {Source.USER, Source.TORCH})


class CacheMode(str, Enum):
    """Treatment of a device's caches before each sample."""

    COLD = "cold"  # The L2 cache is flushed.
    WARM = "warm"  # The L2 cache is not flushed.
    UNTOUCHED = "none"  # There was no device to flush.
    AS_IT_COMES = "as-it-comes"  # For loops, whose steps follow each other.

    def __str__(self) -> str:
        """Return the written name."""
        return self.value


class SourceLabel(str, Enum):
    """Origin of a number, strongest first. A result has the label of its weakest input."""

    DETECTED = "detected"
    MEASURED = "measured"
    DECLARED = "declared"
    DATASHEET = "datasheet"
    ESTIMATED = "estimated"
    UNAVAILABLE = "unavailable"


class Series(Frozen, frozen=True, kw_only=True):
    """
    All samples of a metric from one collector.

    Attributes:
        metric: Name of the metric.

        unit: SI unit of the metric, or a counter's own.

        source: The collector: a Source, or the name of another package's collector.

        values: The samples [unit], in the order they were taken. May be empty in a
            summary for another process.

        iterations_count: Calls per sample (batching), >= 1.

        discarded_count: Samples that were taken and rejected.
    """

    metric: str
    unit: str
    source: str
    values: tuple[float, ...]
    iterations_count: int = 1
    discarded_count: int = 0

    def __post_init__(self) -> None:
        """Reject samples that are not finite."""
        if not all_finite(self.values):
            finite(f"series[{self.metric}].values", *self.values)


class CoreSpeed(BulkRecord, array_like=True, frozen=True, kw_only=True):
    """
    Speed of the core that took some samples, from a loop timed between them. In a file,
    a list.

    Attributes:
        loop_s: Median processor time of the loop [s], > 0.

        slope: The samples are proportional to this power of the loop's time while the
            core changes its speed. 0 if they do not depend on it.

        precision: Reciprocal of the variance of `slope`, >= 0. 0 if the samples do not
            determine the slope.
    """

    loop_s: Annotated[float, msgspec.Meta(gt=0)]
    slope: float = 0.0
    precision: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Estimate(BulkRecord, frozen=True, kw_only=True):
    """
    The value of a metric, with its spread.

    Attributes:
        metric: Name of the metric.

        value: The point estimate [unit], which is the median if there were samples.

        unit: SI unit of the metric, or a counter's own.

        source: The collector of the value. Values of different sources are never
            compared.

        label: Origin of the number.

        low: Lower end of the 99 % interval of the median [unit]. None with too few
            samples, or if the value is exact.

        high: Upper end of that interval [unit].

        sample_count: Samples behind the value, >= 1.

        kernel: The kernel of the value, or None for the whole record.

        better: "lower", "higher" or "neither" for a metric recorded by a test, or None
            for the catalogue's direction.

        core: Core speed during the samples, or None if unknown or irrelevant.

        sm_clock_hz: Median clock of the device's multiprocessors right after the
            samples [Hz]. None if unknown, or if the value is not a device time.
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
        """Reject numbers that are not finite, and an interval that is upside down."""
        low, high = self.low, self.high
        bounded = low is not None and high is not None and -inf < low <= high < inf
        whole = bounded or (low is None and high is None)
        if isfinite(self.value) and whole and self.sm_clock_hz is None:
            return  # The common case, without the cost of the path below.
        finite(f"estimate[{self.metric}]", self.value, low, high, self.sm_clock_hz)
        if low is not None and high is not None and low > high:
            message = f"the interval {low!r} … {high!r} is upside down"
            raise RecordError(message, path=f"estimate[{self.metric}].low")

    @property
    def half_width(self) -> float | None:
        """
        Half of the interval over the value, or None without an interval or for the
        value 0.
        """
        if self.low is None or self.high is None or self.value == 0:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


class Unmeasured(Gap, frozen=True, kw_only=True):
    """
    A requested metric that was unavailable.

    Attributes:
        metric: Name of the metric.

        code: The kind of gap.

        reason: The reason, as a fragment.

        remedy: The remedy, as a sentence without its full stop.
    """

    metric: str
    code: GapCode = GapCode.UNSPECIFIED  # Files of earlier versions have no code.

    @staticmethod
    def of_metric(metric: str, gap: Gap) -> Unmeasured:
        """Create the `Unmeasured` of a metric from a gap."""
        return Unmeasured(
            metric=metric, code=gap.code, reason=gap.reason, remedy=gap.remedy
        )


def unmeasured(metric: str, code: GapCode, reason: str, remedy: str) -> Unmeasured:
    """Create an `Unmeasured`."""
    return Unmeasured(metric=metric, code=code, reason=reason, remedy=remedy)


# The gaps of most measurements, created once.
UNDECLARED = tuple(
    unmeasured(metric, GapCode.NOT_DECLARED, "the test declares no work", remedy)
    for metric, remedy in (
        ("roofline.fraction", "pass work=Work(bytes=…) or Work(flop=…, dtype=…)"),
        ("roofline.intensity", "pass work=Work(bytes=…, flop=…, dtype=…)"),
        (
            "roofline.at_clock_fraction",
            "pass work=Work(bytes=…) or Work(flop=…, dtype=…)",
        ),
    )
)


class ReferenceSamples(BulkRecord, frozen=True, kw_only=True):
    """
    Samples of a reference workload, taken before or after a test.

    Attributes:
        workload: Name of the workload: "python", "numpy", "array" or "copy".

        samples_s: Samples without interruption [s].

        interrupted_s: Interrupted samples [s].

        gap: Why the workload cannot run in this process, or None.

        loop_s: Processor time of the loop that shows the core's speed, taken with the
            samples [s]. None if unknown.
    """

    workload: str
    samples_s: tuple[float, ...] = ()
    interrupted_s: tuple[float, ...] = ()
    gap: Gap | None = None
    loop_s: float | None = None

    def __post_init__(self) -> None:
        """Reject samples that are not finite."""
        if not (all_finite(self.samples_s) and all_finite(self.interrupted_s)):
            finite(f"references[{self.workload}]", *self.samples_s, *self.interrupted_s)
        finite(f"references[{self.workload}].loop_s", self.loop_s)
