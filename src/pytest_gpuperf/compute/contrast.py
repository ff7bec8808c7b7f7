"""Comparisons as numbers, without the stored values that do not fit the others."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import median

from pytest_gpuperf.compute.spread import (
    LEAST_VARIANCE,
    TREND_SESSIONS,
    UsualSpread,
    moments,
    usual_spread,
)
from pytest_gpuperf.compute.stats import mean
from pytest_gpuperf.model.change import Comparison, TimeBase
from pytest_gpuperf.model.frozen import BulkRecord, replace
from pytest_gpuperf.model.packed import SessionValues, packing
from pytest_gpuperf.model.record import SessionValue

_MOST = 700.0  # The exponential of more is not finite.
_MOST_SHARE = 1e100  # The squares of a thousand such values have a finite sum.
_LARGEST = 1.7976931348623157e308  # The largest float.

# docs/judging.md section 2: conditions for leaving out a stored value.
# If two sessions differ, either may be the wrong one.
_LEAST_SESSIONS = 3
_LEAST_DISTANCE = math.log(1.25)
# Trimming three or four processes would leave too few to estimate a variance.
_ENOUGH_PROCESSES = 5
# Without the farthest of n values, 1 - 1.5 / n^0.65 of a normal variance is left. The
# formula is within 0.01 of simulated values for n from 5 to 15.
_TRIMMED_SHARE, _TRIMMED_POWER = 1.5, 0.65
# The lower half of 5 to 15 values keeps .39 to .49 of a normal variance.
_HALF_SHARE = 0.4
_LEAST_P = 0.001  # Two-sided, against the test's other sessions.
# Number of tests that estimate a group's spread. More only cost time.
_EVIDENCE = 100


class Nearest(BulkRecord, frozen=True, kw_only=True):
    """
    The fresh process nearest to the stored sessions, if all lie beyond them.

    A neighbour can slow some of five processes to twice their time. Those scatter, and the
    rest agree. A change of the nearest process is a change of all processes.

    Attributes:
        value: Value of the process.

        floor: Variance of a stored session, estimated from the nearest half of the processes.
    """

    value: float
    floor: float


class Contrast(BulkRecord, frozen=True, kw_only=True):
    """
    One comparison on its own scale.

    Attributes:
        comparison: The comparison, without the session that is left out.

        now: Value of the current session.

        stored: Value of each stored session that fits, in order.

        session_ids: Ids of these sessions.

        mean: Mean of `stored`.

        left_out: Id of the session whose value does not fit, or "" if all fit.

        scale: The divisor of a linear scale, or 0 for a logarithmic scale.

        run_share: Mean of 1 / (processes of a session) over the stored sessions.

        floor: Variance of a session's value that its processes leave open. If fresh processes
            decide alone, the variance of a stored session as estimated from the current
            processes.

        lowest: The lowest of five or more deciding fresh processes, or None.

        highest: The highest of five or more deciding fresh processes, or None.

        of_trend: Whether the spread of the stored sessions is taken about their trend.

        dof: Degrees of freedom of the variance of the stored sessions.
    """

    comparison: Comparison
    now: float
    stored: Sequence[float]
    session_ids: Sequence[str]
    mean: float
    dof: int
    left_out: str = ""
    scale: float = 0.0
    run_share: float = 1.0
    floor: float = 0.0
    lowest: Nearest | None = None
    highest: Nearest | None = None
    of_trend: bool = False

    @property
    def run_count(self) -> int:
        """The number of processes in the current session."""
        return len(self.comparison.current.run_values)

    @property
    def difference(self) -> float:
        """The current session's value less the mean of the stored sessions."""
        return self.now - self.mean

    def relative(self, difference: float) -> float:
        """Convert a difference on the contrast's scale to a fraction."""
        if self.scale:
            return difference
        # A comparison, because a maximum is slow.
        is_usual = -_MOST < difference < _MOST
        return math.expm1(
            difference if is_usual else max(min(difference, _MOST), -_MOST)
        )

    def on_scale(self, fraction: float) -> float:
        """Convert a fraction >= 0 to a difference on the scale, as the inverse of `relative`."""
        return fraction if self.scale else math.log1p(fraction)

    def placed(self, value: float) -> float:
        """
        Convert a value from the metric's unit to the contrast's scale.

        On a logarithmic scale the value must be > 0.
        """
        return share_of(value, self.scale) if self.scale else math.log(value)

    def in_unit(self, value: float) -> float:
        """Convert a value from the contrast's scale to the metric's unit."""
        if not self.scale:
            return math.exp(min(_MOST, value))
        return min(max(value * self.scale, -_LARGEST), _LARGEST)


def contrasts(comparisons: Sequence[Comparison]) -> list[Contrast]:
    """
    Convert comparisons to numbers, in order.

    From three sessions on, a value is left out if it is off by more than 25 % and the test's
    other sessions exclude it. At most one value per test is left out.
    """
    whole = [_contrast(comparison) for comparison in comparisons]
    groups: dict[str, list[int]] = {}
    for index, contrast in enumerate(whole):
        groups.setdefault(contrast.comparison.group, []).append(index)
    for members in groups.values():
        tests = [whole[index] for index in members]
        distant = [
            (number, place)
            for number, contrast in enumerate(tests)
            # Written out, because hardly any values are far apart.
            if len(contrast.stored) >= _LEAST_SESSIONS
            and max(contrast.stored) - min(contrast.stored) >= _LEAST_DISTANCE
            for place in _distant(contrast)
        ]
        if not distant:  # The usual case.
            continue
        evidence = tests[:: -(-len(tests) // _EVIDENCE)]
        usual = {
            session_id: usual_spread(
                (_variance_without(contrast, session_id) for contrast in evidence),
                tests[0].comparison.clock,
            )
            for session_id in {tests[n].session_ids[place] for n, place in distant}
        }
        places: dict[int, list[int]] = {}
        for number, place in distant:
            places.setdefault(number, []).append(place)
        for number, several in places.items():
            misfit = _misfit(tests[number], several, usual)
            if misfit is not None:
                whole[members[number]] = _without(tests[number], misfit)
    return whole


def as_in(contrast: Contrast, comparison: Comparison) -> Contrast:
    """
    Convert a comparison to numbers without the session that a contrast left out.

    Args:
        contrast: The same test with another current session.

        comparison: The comparison to convert.
    """
    other = _contrast(comparison)
    if contrast.left_out not in comparison.session_ids:
        return other
    return _without(other, comparison.session_ids.index(contrast.left_out))


def share_of(value: float, size: float) -> float:
    """Divide a value by a size > 0, clamped to +-1e100 so that the quotient stays finite."""
    return min(max(value / size, -_MOST_SHARE), _MOST_SHARE)


def fitting(
    stored: Sequence[SessionValue], clock: TimeBase, usual: UsualSpread | None = None
) -> Sequence[SessionValue]:
    """
    Return the sessions of a test without the value that does not fit.

    Args:
        stored: The sessions, >= 1 of them.

        clock: The time base of the values.

        usual: Usual spread of the test's group, or None to estimate it from the test alone.
    """
    ids = tuple(map(str, range(len(stored))))
    whole = _contrast(
        Comparison(
            current=stored[-1],
            stored=SessionValues.of(stored),
            session_ids=ids,
            group="",
            clock=clock,
        )
    )
    places = _distant(whole)
    others = {
        ids[place]: usual or usual_spread([_variance_without(whole, ids[place])], clock)
        for place in places
    }
    misfit = _misfit(whole, places, others)
    return [value for place, value in enumerate(stored) if place != misfit]


def _contrast(comparison: Comparison) -> Contrast:
    then, current = comparison.stored, comparison.current.run_values
    values = [*then.runs, *current]
    try:
        scale, scaled = 0.0, [*map(math.log, values)]
    except ValueError:  # Some value is not above 0.
        means = [*map(mean, then.run_values())]
        scale = abs(mean(means)) or 1.0
        scaled = [share_of(value, scale) for value in values]
    share, floor = 1.0, 0.0
    lowest = highest = None
    # Skipped in the usual case of one process per session.
    if len(values) > len(then.interrupted) + 1:
        rest = iter(scaled)
        several = (*(then.counts or [1] * len(then)), len(current))
        runs = [list(islice(rest, count)) for count in several]
        scaled = [sum(run) / len(run) for run in runs]
        *counts, count_now = map(len, runs)
        share = sum(1 / count for count in counts) / len(counts)
        if comparison.fresh:  # The current processes decide alone.
            scaled[-1] = median(runs[-1])
            floor = _process_variance(runs[-1]) * share
            lowest = _nearest(sorted(runs[-1]), share)
            highest = _nearest(sorted(runs[-1], reverse=True), share)
        else:
            squares = sum(moments(run)[1] for run in runs)
            pooled = squares / (sum(counts) + count_now - len(runs))
            floor = pooled * max(share, 1 / count_now)
    *stored, now = scaled
    of_trend = len(stored) >= TREND_SESSIONS
    return Contrast(
        comparison=comparison,
        now=now,
        # A run has a contrast for each test at once. Packed in two steps, because an array
        # of a list checks each number by a call.
        stored=array("d", packing(len(stored)).pack(*stored)),
        session_ids=comparison.session_ids,
        mean=sum(stored) / len(stored),
        scale=scale,
        run_share=share,
        floor=floor,
        lowest=lowest,
        highest=highest,
        of_trend=of_trend,
        dof=len(stored) - (2 if of_trend else 1),
    )


def _nearest(values: Sequence[float], share: float) -> Nearest | None:
    """
    Return the first process as the nearest, or None if there are fewer than 5 processes.

    The values are sorted, with the nearest to the stored sessions first.
    """
    if len(values) < _ENOUGH_PROCESSES:
        return None
    half = values[: (len(values) + 1) // 2]
    variance = moments(half)[1] / (len(half) - 1) / _HALF_SHARE
    return Nearest(value=values[0], floor=variance * share)


def _process_variance(values: Sequence[float]) -> float:
    """
    Estimate the variance of a session's processes without the farthest process.

    The median of the processes decides, and one process disturbed by a neighbour hardly moves
    it. That process must not decide how far the median can be trusted either. If two of five
    are disturbed, the variance shows it.
    """
    count = len(values)
    if count < _ENOUGH_PROCESSES:
        return moments(values)[1] / max(count - 1, 1)
    middle = median(values)
    nearest = sorted(values, key=lambda value: abs(value - middle))[:-1]
    expected = 1 - _TRIMMED_SHARE * math.pow(count, -_TRIMMED_POWER)
    return moments(nearest)[1] / (count - 2) / expected


def _misfit(
    contrast: Contrast, places: Sequence[int], usual: Mapping[str, UsualSpread]
) -> int | None:
    """
    Return the place that the test's other sessions exclude most surely, or None if all fit.

    Args:
        contrast: The test.

        places: Places of the values to check.

        usual: Usual spread of the group without the session of each place, by session id.
    """
    if not places:
        return None
    found, count, distances = None, len(contrast.stored), _distances(contrast)
    most = _LEAST_P / 2  # The test is two-sided, so each side gets half.
    for place in places:
        session_id = contrast.session_ids[place]
        variance, dof = _variance_without(contrast, session_id)
        p_value = (
            usual[session_id]
            .mixture(dof)
            .beyond(
                abs(distances[place]),
                variance,
                ratio=count / (count - 1),
                enough=most,
            )
        )
        if p_value < most:
            found, most = place, p_value
    return found


def _distant(contrast: Contrast) -> Sequence[int]:
    """Return the places of values more than 25 % away from the mean of the rest."""
    stored = contrast.stored
    if len(stored) < _LEAST_SESSIONS or max(stored) - min(stored) < _LEAST_DISTANCE:
        return ()
    distances = _distances(contrast)
    return [p for p, d in enumerate(distances) if abs(d) > _LEAST_DISTANCE]


def _distances(contrast: Contrast) -> list[float]:
    count, middle = len(contrast.stored), contrast.mean
    return [(value - middle) * count / (count - 1) for value in contrast.stored]


def _variance_without(contrast: Contrast, session_id: str) -> tuple[float, int]:
    pairs = zip(contrast.session_ids, contrast.stored, strict=True)
    values = [value for name, value in pairs if name != session_id]
    if not values:
        return LEAST_VARIANCE, 0
    dof = len(values) - 1
    return max(moments(values)[1] / max(dof, 1), LEAST_VARIANCE), dof


def _without(contrast: Contrast, place: int) -> Contrast:
    comparison = contrast.comparison
    stored, ids = [*comparison.stored], [*comparison.session_ids]
    del stored[place]
    left_out = ids.pop(place)
    # The contrast is built anew, because the remaining values have another size and may
    # all have a logarithm.
    others = replace(
        comparison, stored=SessionValues.of(stored), session_ids=tuple(ids)
    )
    return replace(_contrast(others), left_out=left_out)
