"""Two captures compared, kernel by kernel.

A capture has one value of each metric, from launches that ran alone under a profiler.
There is no spread to test against, so a change counts once it exceeds a fixed tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from pytest_gpuperf.compute.derive import FORMULAS
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import METRICS, Better

__all__ = [
    "COMPARED",
    "TOLERANCE",
    "CaptureSide",
    "Difference",
    "Direction",
    "KernelCounters",
    "Mismatch",
    "differences",
    "mismatch",
]

TOLERANCE = 0.02  # two passes over one launch differ by less (compute.limiter)
# ours: boost and base clock of a GPU are a fifth apart and more, and the clocks of two
# captures at one setting differ by less than this, unless all kernels are very short
_CLOCK_TOLERANCE = 0.10
_COUNT = "launches.count"
_TIME = "time"
COMPARED = (_COUNT, *(name for name in FORMULAS if name in METRICS))


class KernelCounters(Frozen, frozen=True, kw_only=True):
    """
    What one capture holds of one kernel.

    Attributes:
        time_s: Time of its launches together [s]; 0: not collected.

        values: Value and unit by metric, of those in `COMPARED`.
    """

    time_s: float
    values: Mapping[str, tuple[float, str]]


class CaptureSide(Frozen, frozen=True, kw_only=True):
    """
    One of the two captures.

    Attributes:
        device: Facts of the GPU by their names, as far as the capture states them.

        clock_hz: Mean SM clock, weighted by time [Hz]; None: not collected.

        kernels: Its kernels by their demangled names, at least one.
    """

    device: Mapping[str, str]
    clock_hz: float | None
    kernels: Mapping[str, KernelCounters]


class Mismatch(str, Enum):
    """Why two captures are not compared."""

    DEVICE = "device"
    CLOCK = "clock"


class Direction(str, Enum):
    """Where a metric went between two captures."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"  # of a metric that has no better direction
    NEW = "new"
    GONE = "gone"


class Difference(Frozen, frozen=True, kw_only=True):
    """
    One metric of one kernel in both captures.

    Attributes:
        kernel: The kernel's demangled name.

        metric: A name of the catalogue.

        unit: Of both values.

        was: The value in the first capture [unit]; None: it has none.

        now: The value in the second one [unit].
    """

    kernel: str
    metric: str
    unit: str
    was: float | None
    now: float | None

    @property
    def direction(self) -> Direction | None:
        """Where the value went; None: times of single launches are not judged."""
        if self.was is None or self.now is None:
            return Direction.NEW if self.was is None else Direction.GONE
        if self.metric == _TIME:
            return None
        change = self.now - self.was
        if abs(change) <= self._tolerance:
            return Direction.SAME
        better = METRICS[self.metric].better
        if better is Better.NEITHER:
            return Direction.CHANGED
        rises_for_worse = better is Better.LOWER
        return Direction.WORSE if (change > 0) is rises_for_worse else Direction.BETTER

    @property
    def _tolerance(self) -> float:
        """How far equal values may lie apart [unit]."""
        if METRICS[self.metric].exact:
            return 0.0
        if self.unit == "fraction":
            return TOLERANCE
        return TOLERANCE * max(abs(self.was or 0.0), abs(self.now or 0.0))


def mismatch(was: CaptureSide, now: CaptureSide) -> Mismatch | None:
    """Return why two captures cannot be compared; None: they can."""
    if was.device != now.device:
        return Mismatch.DEVICE
    first_hz, second_hz = was.clock_hz, now.clock_hz
    if first_hz and second_hz:
        largest_hz = max(first_hz, second_hz)
        if abs(first_hz - second_hz) > _CLOCK_TOLERANCE * largest_hz:
            return Mismatch.CLOCK
    return None


def differences(was: CaptureSide, now: CaptureSide) -> Iterator[Difference]:
    """
    Yield the metrics of each kernel in both captures, the longest kernel first.

    The kernels of captures of one kernel each are compared whatever they are called: who
    tries a variant gives it another name.

    Args:
        was: The older capture.

        now: The newer one, which `mismatch` has nothing against.
    """
    old, new = was.kernels, now.kernels
    if len(old) == len(new) == 1:
        old = dict(zip(new, old.values(), strict=True))
    names = dict.fromkeys((*new, *old))
    for name in sorted(names, key=lambda n: -(new.get(n) or old[n]).time_s):
        yield from _kernel_differences(name, old.get(name), new.get(name))


def _kernel_differences(
    name: str, was: KernelCounters | None, now: KernelCounters | None
) -> Iterator[Difference]:
    """Yield the metrics of one kernel; of one that is new or gone its launches alone."""
    old, new = _metrics(was), _metrics(now)
    metrics = dict.fromkeys((*new, *old))
    for metric in metrics if was and now else metrics.keys() & {_COUNT}:
        _, unit = new.get(metric) or old[metric]
        yield Difference(
            kernel=name,
            metric=metric,
            unit=unit,
            was=old[metric][0] if metric in old else None,
            now=new[metric][0] if metric in new else None,
        )


def _metrics(kernel: KernelCounters | None) -> dict[str, tuple[float, str]]:
    """Return what a capture holds of a kernel, its time first."""
    if kernel is None:
        return {}
    time = {_TIME: (kernel.time_s, "s")} if kernel.time_s else {}
    return {**time, **kernel.values}
