"""What is decided of files: measurements of runs, kernels of captures, scorecards.

A run stands beside older sessions, metric by metric. A capture has one value of each
metric, from launches that ran alone under a profiler: there is no spread to test against,
so a change counts once it exceeds a fixed tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from pytest_gpuperf.compute.derive import FORMULAS
from pytest_gpuperf.compute.stats import mean
from pytest_gpuperf.judge.case import best_source, direction
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import METRICS, Better, metric_of
from pytest_gpuperf.model.record import RecordKey, SessionValue
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.model.scorecard import MeasuredScorecard, TrainingScorecard
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Verdict

__all__ = [
    "COMPARED",
    "TOLERANCE",
    "CaptureSide",
    "Difference",
    "Direction",
    "KernelCounters",
    "Mismatch",
    "ValuePair",
    "captures_pass",
    "differences",
    "is_compared",
    "is_decided",
    "is_held_clock",
    "mismatch",
    "run_passes",
    "scorecard_passes",
    "value_pairs",
    "with_known_spread",
]

TOLERANCE = 0.02  # two passes over one launch differ by less (compute.limiter)
# ours: boost and base clock of a GPU are a fifth apart and more, and the clocks of two
# captures at one setting differ by less than this
_CLOCK_TOLERANCE = 0.10
# ours: instructions, constants and page tables of a kernel take some kB, now more, now less
_FEW_BYTES = 64 * 1024
# ours: a boost clock varies by less, and a base clock is a tenth and more below it
_HELD_CLOCK = 0.95
_ROUNDING = 1e-9  # of a mean by logarithms, relative
# a quantity that the baseline has and this run lacks must not pass either
_WORSE = FAILING | {Outcome.UNMEASURED}
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

        clock_ratio: Likewise the SM clock over that of the DRAM: of very short launches
            both read low, and by the same factor.

        kernels: Its kernels by their demangled names, at least one.
    """

    device: Mapping[str, str]
    clock_hz: float | None
    kernels: Mapping[str, KernelCounters]
    clock_ratio: float | None = None


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
        least = _FEW_BYTES if self.unit == "bytes" else 0.0
        return max(least, TOLERANCE * max(abs(self.was or 0.0), abs(self.now or 0.0)))


def mismatch(was: CaptureSide, now: CaptureSide) -> Mismatch | None:
    """Return why two captures cannot be compared; None: they can."""
    if was.device != now.device:
        return Mismatch.DEVICE
    clocks_differ = _differ(was.clock_hz, now.clock_hz)
    if clocks_differ and _differ(was.clock_ratio, now.clock_ratio) is not False:
        return Mismatch.CLOCK
    return None


def _differ(first: float | None, second: float | None) -> bool | None:
    """Return whether two clocks are of different settings; None: one is not known."""
    if not (first and second):
        return None
    return abs(first - second) > _CLOCK_TOLERANCE * max(first, second)


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


def is_held_clock(clock_hz: float, rated_hz: float) -> bool:
    """Return whether the clock of a launch [Hz] was held below the boost clock [Hz]."""
    return clock_hz < _HELD_CLOCK * rated_hz


def captures_pass(compared: Iterable[Difference]) -> bool | None:
    """Return whether no metric of a capture is worse; None: none could be judged."""
    directions = {difference.direction for difference in compared}
    if Direction.WORSE in directions:
        return False
    return True if directions & {Direction.SAME, Direction.BETTER} else None


def run_passes(verdicts: Sequence[Verdict]) -> bool | None:
    """Return whether no gated verdict is worse than allowed; None: none was decided."""
    gated = (v for v in verdicts if v.limit or v.threshold is not None)
    if any(verdict.outcome in FAILING for verdict in gated):
        return False
    return True if is_decided(v for v in verdicts if v.decides) else None


def is_decided(verdicts: Iterable[Verdict]) -> bool:
    """Return whether a limit or a change of a run was decided."""
    return any(verdict.outcome in JUDGED for verdict in verdicts)


def scorecard_passes(scorecard: TrainingScorecard | MeasuredScorecard) -> bool:
    """Return whether no quantity regressed or was lost, and every invariant holds."""
    if isinstance(scorecard, TrainingScorecard):
        return not scorecard.regressions
    outcomes = {decision.outcome for decision in scorecard.decisions}
    outcomes |= {invariant.outcome for invariant in scorecard.invariants}
    return _WORSE.isdisjoint(outcomes)


class ValuePair(Frozen, frozen=True, kw_only=True):
    """
    One metric of one measurement, then and now.

    Attributes:
        key: The measurement.

        metric: The metric.

        unit: The unit of both values.

        was: The mean of the older sessions [unit]; None: they do not have it.

        now: The value of the last run as it was measured [unit]; None: it does not have
            it.

        half_width: How far the ratio reaches either way, by the samples of the runs alone
            [fraction]; None: a value has no interval.

        verdict: What was decided, or is only shown; None: the run does not have it.

        better: "lower", "higher" or "neither", of a number of the user's own; None: the
            metric says it.
    """

    key: RecordKey
    metric: str
    unit: str
    was: float | None = None
    now: float | None = None
    half_width: float | None = None
    verdict: Verdict | None = None
    better: str | None = None

    @property
    def has_both(self) -> bool:
        """Whether there is a value of then and one of now."""
        return self.was is not None and self.now is not None

    @property
    def is_comparable(self) -> bool:
        """Whether both are of the same hardware, measured in the same way."""
        verdict = self.verdict
        differs = verdict is not None and verdict.outcome is Outcome.INCOMPARABLE
        return self.has_both and not differs

    @property
    def outcome(self) -> Outcome | None:
        """What was decided; None: nothing was."""
        if self.verdict is None or not self.verdict.decides:
            return None
        return self.verdict.outcome

    @property
    def ratio(self) -> float | None:
        """The value now over the one before, as measured; None: one is missing, or 0."""
        if self.was is None or self.now is None or self.was == 0:
            return None
        return self.now / self.was

    @property
    def adjusted_ratio(self) -> float | None:
        """The ratio that was judged: without what the core and the machine did."""
        if self._change is None or self._change.effect is None:
            return self.ratio
        return None if self.ratio is None else 1 + self._change.effect

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the adjusted ratio: between sessions where a verdict has them."""
        change, ratio = self._change, self.adjusted_ratio
        if change is not None and change.low is not None and change.high is not None:
            return 1 + change.low, 1 + change.high
        if ratio is None or self.half_width is None:
            return None
        return ratio * (1 - self.half_width), ratio * (1 + self.half_width)

    @property
    def is_of_samples(self) -> bool:
        """Whether the interval, if there is one, is of the runs' samples alone."""
        return self._change is None or self._change.low is None

    @property
    def worsening(self) -> float:
        """How much worse it is, for sorting [log]; infinite where one side lacks it."""
        ratio = self.adjusted_ratio
        if ratio is None or ratio <= 0:
            return math.inf if self.was != self.now else 0.0
        own = Better(self.better) if self.better else Better.NEITHER
        metric = metric_of(self.metric, unit=self.unit, better=own)
        higher = direction(metric) is Better.HIGHER
        return -math.log(ratio) if higher else math.log(ratio)

    @property
    def _change(self) -> Change | None:
        """What the verdict was decided by; None: by nothing."""
        return None if self.verdict is None else self.verdict.change


def is_compared(name: str, source: str) -> bool:
    """Return whether files are compared by a metric; a number of the user's own is."""
    if source == Source.USER:
        return True
    metric = METRICS.get(name)
    if metric is None or metric.better is Better.NEITHER:
        return False
    return metric.exact or name == "time"


def value_pairs(
    current: Mapping[RecordKey, Sequence[SessionValue]],
    stored: Mapping[RecordKey, Sequence[SessionValue]],
    verdicts: Mapping[tuple[RecordKey, str], Verdict],
) -> list[ValuePair]:
    """
    Return each compared metric of each measurement, the worst first.

    Args:
        current: Values of the last run.

        stored: Values of all older sessions.

        verdicts: The last run's, by measurement and metric; what they were decided by
            replaces the means, as it was measured.
    """
    pairs = []
    for key in dict.fromkeys((*current, *stored)):
        now, then = current.get(key, ()), stored.get(key, ())
        compared = [v.metric for v in (*now, *then) if is_compared(v.metric, v.source)]
        for metric in dict.fromkeys(compared):
            pair = _pair(key, metric, now, then)
            verdict = verdicts.get((key, metric))
            if verdict is not None and verdict.change is not None:
                change = verdict.change
                pair = replace(
                    pair,
                    was=_exact(change.reference, pair.was),
                    now=_exact(change.measured, pair.now),
                )
            pairs.append(replace(pair, verdict=verdict))
    return sorted(pairs, key=lambda pair: -pair.worsening)


def with_known_spread(
    verdict: Verdict, now: Sequence[SessionValue], then: Sequence[SessionValue]
) -> Verdict:
    """
    Return a change without its interval where nothing was seen of how the number varies.

    One older session and one process that took no samples say nothing of it: the interval
    is then what is believed of any machine, a factor of four either way.

    Args:
        verdict: The change.

        now: Values of the last run.

        then: Values of the older sessions.
    """
    change = verdict.change
    if (
        change is None
        or change.exact
        or max(change.session_count, change.run_count) > 1
    ):
        return verdict
    if any(v.half_widths for v in (*now, *then) if v.metric == verdict.metric):
        return verdict
    return replace(verdict, change=replace(change, low=None, high=None))


def _exact(judged: float, value: float | None) -> float:
    """Return a value as it was judged; as it was stored, where only logs lie between."""
    is_same = value is not None and math.isclose(judged, value, rel_tol=_ROUNDING)
    return value if value is not None and is_same else judged


def _pair(
    key: RecordKey,
    metric: str,
    now: Sequence[SessionValue],
    then: Sequence[SessionValue],
) -> ValuePair:
    """Return a metric then and now, by the best source that both sides have."""
    values_now, values_then = (
        [value for value in side if value.metric == metric] for side in (now, then)
    )
    sources = {v.source for v in values_now} & {v.source for v in values_then}
    source = best_source(sources or {v.source for v in (*values_now, *values_then)})
    values_now, values_then = (
        [value for value in side if value.source == source]
        for side in (values_now, values_then)
    )
    widths = [_width(side) for side in (values_now, values_then)]
    certain = [width for width in widths if width is not None]
    return ValuePair(
        key=key,
        metric=metric,
        unit=(values_now or values_then)[0].unit,
        was=_mean(values_then),
        now=_mean(values_now),
        better=(values_now or values_then)[0].better,
        half_width=math.hypot(*certain) if len(certain) == len(widths) else None,
    )


def _mean(values: Sequence[SessionValue]) -> float | None:
    """Return the mean of some sessions, each the mean of its processes; None: none."""
    means = [mean(value.run_values) for value in values]
    if not means:
        return None
    if len({*means}) == 1 or min(means) <= 0:  # the first is exact
        return mean(means)
    return math.exp(math.fsum(map(math.log, means)) / len(means))


def _width(values: Sequence[SessionValue]) -> float | None:
    """Return the half-width of the mean of some sessions, by their samples alone."""
    widths = [width for value in values for width in value.half_widths]
    return math.hypot(*widths) / len(widths) if widths else None
