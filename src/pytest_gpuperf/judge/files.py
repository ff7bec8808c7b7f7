"""Judgement of files: measurements of runs, kernels of captures, scorecards.

A run is compared with older sessions, metric by metric. A capture has a single value per
metric, from launches that ran alone under a profiler. There is no spread to test against,
so a change counts once it exceeds a fixed tolerance.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from pytest_gpuperf.compute.derive import FORMULAS
from pytest_gpuperf.compute.stats import mean
from pytest_gpuperf.judge.case import best_source, direction
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import METRICS, Better, Combine, metric_of
from pytest_gpuperf.model.record import RecordKey, SessionValue
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.model.scorecard import MeasuredScorecard, TrainingScorecard
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Verdict

# Two passes over one launch differ by less (compute.limiter).
TOLERANCE = 0.02
# Our choice: boost and base clock of a GPU differ by a fifth or more, and the clocks of
# two captures at the same setting by less than this.
_CLOCK_TOLERANCE = 0.10
# Our choice: instructions, constants and page tables of a kernel take a few kB, and the
# amount varies.
_FEW_BYTES = 64 * 1024
# Our choice: a boost clock varies by less, and a base clock is at least a tenth lower.
_HELD_CLOCK = 0.95
# Relative rounding error of a mean of logarithms.
_ROUNDING = 1e-9
# Our choice: under ncu the times of equal launches differ by less, and held clocks by less
# than a third of that.
TIME_TOLERANCE = 0.03
SAME_CLOCK = 0.01
# A quantity that the baseline has and this run lacks must not pass either.
_WORSE = FAILING | {Outcome.UNMEASURED}
_COUNT = "launches.count"
_TIME = "time"
COMPARED = (_COUNT, *(name for name in FORMULAS if name in METRICS))


class CapturedKernel(Frozen, frozen=True, kw_only=True):
    """
    The measured launches of one kernel in a capture.

    Attributes:
        launches_count: Number of launches, >= 1.

        values: Value and unit by metric, over all launches: the total time [s], if every
            launch has one, then the metrics in `COMPARED`.

        clock_hz: Mean SM clock, weighted by time [Hz], or None if not collected.

        grids: Number of blocks of a launch, each number once, in ascending order. Empty
            if not collected.
    """

    launches_count: int
    values: Mapping[str, tuple[float, str]]
    clock_hz: float | None = None
    grids: tuple[int, ...] = ()


class CaptureSide(Frozen, frozen=True, kw_only=True):
    """
    One of the two captures.

    Attributes:
        device: Facts of the GPU by name, as far as the capture contains them.

        clock_hz: Mean SM clock, weighted by time [Hz], or None if not collected.

        clock_ratio: Mean ratio of the SM clock to the DRAM clock, weighted by time, or None
            if not collected. For very short launches both clocks read low, by the same
            factor.

        kernels: The kernels by demangled name, at least one.
    """

    device: Mapping[str, str]
    clock_hz: float | None
    kernels: Mapping[str, CapturedKernel]
    clock_ratio: float | None = None


class Mismatch(str, Enum):
    """The reasons why two captures are not compared."""

    DEVICE = "device"
    CLOCK = "clock"


class Direction(str, Enum):
    """The direction of a metric between two captures."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    # For times at the same clock.
    FASTER = "faster"
    SLOWER = "slower"
    # For metrics without a better direction.
    CHANGED = "changed"
    # For the number of launches, which depends on the profiler's options.
    CAPTURED = "captured"
    NEW = "new"
    GONE = "gone"


class FailOn(str, Enum):
    """The differences between two captures that fail."""

    SLOWER = "slower"
    WORSE = "worse"
    ANY = "any"
    NEVER = "never"


_FAILING = {
    FailOn.SLOWER: frozenset({Direction.SLOWER}),
    FailOn.WORSE: frozenset({Direction.WORSE}),
    FailOn.ANY: frozenset(Direction) - {Direction.SAME, Direction.CAPTURED},
    FailOn.NEVER: frozenset[Direction](),
}
_PASSING = frozenset({Direction.SAME, Direction.BETTER, Direction.FASTER})


class Difference(Frozen, frozen=True, kw_only=True):
    """
    One metric of one kernel in both captures.

    Attributes:
        kernel: The kernel's demangled name.

        was_kernel: The kernel's demangled name in the first capture, if it is another.

        metric: A metric of the catalogue.

        unit: The unit of both values.

        was: The value in the first capture [unit], or None.

        now: The value in the second capture [unit], or None.

        per_launch: Whether both values are means per launch instead of totals.

        sides: The kernel in the first and in the second capture. None if absent.
    """

    kernel: str
    metric: str
    unit: str
    was: float | None
    now: float | None
    was_kernel: str | None = None
    per_launch: bool = False
    sides: tuple[CapturedKernel | None, CapturedKernel | None] = (None, None)

    @property
    def is_time(self) -> bool:
        """True for the time. A time is compared only at the same clock."""
        return self.metric == _TIME

    @property
    def direction(self) -> Direction | None:
        """The direction of the change. None for times at different or unknown clocks."""
        if self.was is None or self.now is None:
            return Direction.NEW if self.was is None else Direction.GONE
        if self.is_time:
            was, now = (0.0 if s is None else s.clock_hz or 0.0 for s in self.sides)
            if min(was, now) <= 0 or not math.isclose(was, now, rel_tol=SAME_CLOCK):
                return None
        if abs(self.now - self.was) <= self._tolerance:
            return Direction.SAME
        return self._moved(rises=self.now > self.was)

    def _moved(self, *, rises: bool) -> Direction:
        better = METRICS[self.metric].better
        if self.metric == _COUNT:
            return Direction.CAPTURED
        if better is Better.NEITHER:
            return Direction.CHANGED
        is_worse = rises is (better is Better.LOWER)
        if self.is_time:
            return Direction.SLOWER if is_worse else Direction.FASTER
        return Direction.WORSE if is_worse else Direction.BETTER

    @property
    def _tolerance(self) -> float:
        """The largest difference between equal values [unit]."""
        if METRICS[self.metric].exact:
            return 0.0
        if self.unit == "fraction":
            return TOLERANCE
        share = TIME_TOLERANCE if self.is_time else TOLERANCE
        least = _FEW_BYTES if self.unit == "bytes" else 0.0
        return max(least, share * max(abs(self.was or 0.0), abs(self.now or 0.0)))


def mismatch(was: CaptureSide, now: CaptureSide) -> Mismatch | None:
    """Return the reason why two captures cannot be compared, or None."""
    if was.device != now.device:
        return Mismatch.DEVICE
    clocks_differ = _differ(was.clock_hz, now.clock_hz)
    if clocks_differ and _differ(was.clock_ratio, now.clock_ratio) is not False:
        return Mismatch.CLOCK
    return None


def _differ(first: float | None, second: float | None) -> bool | None:
    if not (first and second):
        return None
    return abs(first - second) > _CLOCK_TOLERANCE * max(first, second)


def differences(
    was: CaptureSide, now: CaptureSide, *, total: bool = False
) -> Iterator[Difference]:
    """
    Yield the metrics of every kernel in both captures, the longest kernel first.

    If both captures have a single kernel, the two are compared under any name, because a
    variant of a kernel usually has another name.

    Args:
        was: The older capture.

        now: The newer capture. `mismatch` must accept the pair.

        total: Whether to compare the totals of a kernel with different numbers of launches,
            instead of the means per launch.
    """
    old, new = was.kernels, now.kernels
    was_kernel = None
    if len(old) == len(new) == 1 and old.keys() != new.keys():
        (was_kernel,) = old
        old = dict(zip(new, old.values(), strict=True))
    names, kernels = dict.fromkeys((*new, *old)), {**old, **new}
    for name in sorted(
        names, key=lambda n: -kernels[n].values.get(_TIME, (0.0, "s"))[0]
    ):
        sides = old.get(name), new.get(name)
        counts = [0 if side is None else side.launches_count for side in sides]
        before, after = ({} if side is None else side.values for side in sides)
        metrics = dict.fromkeys((*after, *before))
        # Of a new or a missing kernel, the launches say all.
        for metric in metrics if all(counts) else metrics.keys() & {_COUNT}:
            _, unit = after.get(metric) or before[metric]
            per_launch = counts[0] != counts[1] and not total and _adds_up(metric)
            yield Difference(
                kernel=name,
                was_kernel=was_kernel,
                metric=metric,
                unit=unit,
                was=_value(before, metric, counts[0] if per_launch else 1),
                now=_value(after, metric, counts[1] if per_launch else 1),
                per_launch=per_launch,
                sides=sides,
            )


def _adds_up(metric: str) -> bool:
    """Return True if a total grows with the number of launches."""
    is_sum = METRICS[metric].combine is Combine.SUM
    return metric == _TIME or (is_sum and metric != _COUNT)


def _value(
    values: Mapping[str, tuple[float, str]], metric: str, count: int
) -> float | None:
    return values[metric][0] / count if metric in values else None


def is_held_clock(clock_hz: float, rated_hz: float) -> bool:
    """Return True if the clock of a launch [Hz] was held below the boost clock [Hz]."""
    return clock_hz < _HELD_CLOCK * rated_hz


def captures_pass(
    compared: Iterable[Difference], fail_on: FailOn = FailOn.WORSE
) -> bool | None:
    """
    Return True if no difference between two captures fails, or None if nothing was judged.

    Args:
        compared: The metrics of both captures.

        fail_on: The differences that fail: a slower time at the same clock, a worse metric,
            any difference, or none. Times are judged for `SLOWER` and `ANY`, other metrics
            for all but `SLOWER`.
    """
    directions = {
        difference.direction
        for difference in compared
        if fail_on is FailOn.ANY or difference.is_time is (fail_on is FailOn.SLOWER)
    }
    if directions & _FAILING[fail_on]:
        return False
    return True if directions & _PASSING else None


def run_passes(verdicts: Sequence[Verdict]) -> bool | None:
    """Return True if no gated verdict is worse than allowed, or None if nothing was decided."""
    gated = (v for v in verdicts if v.limit or v.threshold is not None)
    if any(verdict.outcome in FAILING for verdict in gated):
        return False
    return True if is_decided(v for v in verdicts if v.decides) else None


def is_decided(verdicts: Iterable[Verdict]) -> bool:
    """Return True if any limit or change of a run was decided."""
    return any(verdict.outcome in JUDGED for verdict in verdicts)


def scorecard_passes(scorecard: TrainingScorecard | MeasuredScorecard) -> bool:
    """Return True if no quantity regressed or was lost, and every invariant holds."""
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

        was: The mean of the older sessions [unit], or None if they lack the metric.

        now: The value of the last run as measured [unit], or None if the run lacks the
            metric.

        half_width: Half-width of the ratio's interval, by the samples of the runs alone
            [fraction]. None if a value has no interval.

        verdict: The verdict on the metric, decided or only shown. None if the run has none.

        better: "lower", "higher" or "neither" for a number recorded by the test. None if
            the catalogue defines the direction.
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
        """True if both values exist."""
        return self.was is not None and self.now is not None

    @property
    def is_comparable(self) -> bool:
        """True if both values come from the same hardware and the same way of measuring."""
        verdict = self.verdict
        differs = verdict is not None and verdict.outcome is Outcome.INCOMPARABLE
        return self.has_both and not differs

    @property
    def outcome(self) -> Outcome | None:
        """The decided outcome, or None."""
        if self.verdict is None or not self.verdict.decides:
            return None
        return self.verdict.outcome

    @property
    def ratio(self) -> float | None:
        """
        The ratio of the current to the older value as measured, or None if undefined.

        Undefined means that a value is missing or the older value is 0.
        """
        if self.was is None or self.now is None or self.was == 0:
            return None
        return self.now / self.was

    @property
    def adjusted_ratio(self) -> float | None:
        """The ratio that was judged, corrected for core speed and machine drift."""
        if self._change is None or self._change.effect is None:
            return self.ratio
        return None if self.ratio is None else 1 + self._change.effect

    @property
    def interval(self) -> tuple[float, float] | None:
        """
        The interval of the adjusted ratio, or None if unknown.

        A verdict gives the interval between sessions. Otherwise the interval comes from the
        samples.
        """
        change, ratio = self._change, self.adjusted_ratio
        if change is not None and change.low is not None and change.high is not None:
            return 1 + change.low, 1 + change.high
        if ratio is None or self.half_width is None:
            return None
        return ratio * (1 - self.half_width), ratio * (1 + self.half_width)

    @property
    def is_of_samples(self) -> bool:
        """True if the interval, if any, comes from the samples of the runs alone."""
        return self._change is None or self._change.low is None

    @property
    def worsening(self) -> float:
        """
        The amount by which the metric got worse, for sorting [log].

        Infinite if only one side has a value.
        """
        ratio = self.adjusted_ratio
        if ratio is None or ratio <= 0:
            return math.inf if self.was != self.now else 0.0
        own = Better(self.better) if self.better else Better.NEITHER
        metric = metric_of(self.metric, unit=self.unit, better=own)
        higher = direction(metric) is Better.HIGHER
        return -math.log(ratio) if higher else math.log(ratio)

    @property
    def _change(self) -> Change | None:
        return None if self.verdict is None else self.verdict.change


# Files have few names, and each value of them is looked up.
@functools.lru_cache(maxsize=4096)
def is_compared(name: str, source: str) -> bool:
    """Return True if files are compared by a metric. Numbers recorded by a test always are."""
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
    Return every compared metric of every measurement, the worst first.

    Args:
        current: Values of the last run.

        stored: Values of all older sessions.

        verdicts: The verdicts of the last run, by measurement and metric. The values that
            they judged replace the means, as measured.
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
    Remove the interval of a change if the variation of the number is unknown.

    A single older session and a single process without samples show no variation. The
    interval is then only the prior for any machine, a factor of four in both directions.

    Args:
        verdict: The verdict on the change.

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
    """
    Return a value as judged, or as stored if the two differ only by rounding in logarithms.
    """
    is_same = value is not None and math.isclose(judged, value, rel_tol=_ROUNDING)
    return value if value is not None and is_same else judged


def _pair(
    key: RecordKey,
    metric: str,
    now: Sequence[SessionValue],
    then: Sequence[SessionValue],
) -> ValuePair:
    values_now, values_then = (
        [value for value in side if value.metric == metric] for side in (now, then)
    )
    sources = {v.source for v in values_now} & {v.source for v in values_then}
    source = best_source(sources or {v.source for v in (*values_now, *values_then)})
    sides = [
        [value for value in side if value.source == source]
        for side in (values_now, values_then)
    ]
    values_now, values_then = sides
    # The half-width of the mean of the sessions of each side, by samples alone.
    half_widths = []
    for side in sides:
        widths = [width for value in side for width in value.half_widths]
        if widths:
            half_widths.append(math.hypot(*widths) / len(widths))
    return ValuePair(
        key=key,
        metric=metric,
        unit=(values_now or values_then)[0].unit,
        was=_mean(values_then),
        now=_mean(values_now),
        better=(values_now or values_then)[0].better,
        half_width=math.hypot(*half_widths) if len(half_widths) == len(sides) else None,
    )


def _mean(values: Sequence[SessionValue]) -> float | None:
    """Return the mean of the sessions, or None. A session is the mean of its processes."""
    means = [mean(value.run_values) for value in values]
    if not means:
        return None
    if len({*means}) == 1 or min(means) <= 0:  # The first case is exact.
        return mean(means)
    return math.exp(math.fsum(map(math.log, means)) / len(means))
