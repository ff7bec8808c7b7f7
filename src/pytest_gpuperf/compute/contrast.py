"""Comparisons as numbers, without the stored values that do not fit the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from statistics import median
from types import MappingProxyType

from pytest_gpuperf.compute.spread import (
    LEAST_VARIANCE,
    UsualSpread,
    moments,
    usual_spread,
)
from pytest_gpuperf.compute.stats import mean
from pytest_gpuperf.model.change import Comparison, TimeBase
from pytest_gpuperf.model.frozen import BulkRecord, replace
from pytest_gpuperf.model.record import SessionValue

__all__ = ["Contrast", "Nearest", "beside", "contrasts", "fitting", "share_of"]

_MOST = 700.0  # exp of more is not finite
_MOST_SHARE = 1e100  # the squares of a thousand of these add up to something finite
_LARGEST = 1.7976931348623157e308  # float

# docs/judging.md section 2: when a stored value is left out
_LEAST_SESSIONS = 3  # of two that differ nobody knows which is wrong
_LEAST_DISTANCE = math.log(1.25)
_ENOUGH_PROCESSES = 5  # of three or four, those left would hardly tell their variance
# what is left of a normal variance without the farthest of n values: 1 - 1.5 / n^0.65,
# within 0.01 of simulated values from 5 to 15
_TRIMMED_SHARE, _TRIMMED_POWER = 1.5, 0.65
# what is left of a normal variance in the lower half of 5 to 15 values: .39 to .49
_HALF_SHARE = 0.4
_LEAST_P = 0.001  # two-sided, against the test's other sessions
_EVIDENCE = 100  # tests of a group that say what is usual; more take time alone

_NOTHING: Mapping[int, int] = MappingProxyType({})


class Nearest(BulkRecord, frozen=True, kw_only=True):
    """
    The fresh process that is nearest to the stored sessions, where all lie beyond them.

    A neighbour slows some of five processes to the double: these spread, and the others
    agree. What holds for the nearest holds for all.

    Attributes:
        value: Its value.

        floor: Variance of a stored session by the half of the processes that is nearest.
    """

    value: float
    floor: float


class Contrast(BulkRecord, frozen=True, kw_only=True):
    """
    One comparison on its own scale.

    Attributes:
        comparison: What it is of, without the session that is left out.

        now: Value of the current session.

        stored: Value of each stored session that fits, in order.

        session_ids: Their ids.

        mean: Their mean.

        left_out: Id of the session whose value does not fit; "": all fit.

        scale: What was divided by where the scale is linear; 0 where it is the logarithm.

        run_share: Mean of 1 / (processes of a session) over the stored sessions.

        floor: What processes leave open of a session's value, as a variance; where they
            decide alone, that of a stored session by those of the current one.

        lowest: The lowest of five or more fresh processes that decide; None: they do not.

        highest: The highest of them.
    """

    comparison: Comparison
    now: float
    stored: Sequence[float]
    session_ids: Sequence[str]
    mean: float
    left_out: str = ""
    scale: float = 0.0
    run_share: float = 1.0
    floor: float = 0.0
    lowest: Nearest | None = None
    highest: Nearest | None = None

    @property
    def run_count(self) -> int:
        """Processes of the current session."""
        return len(self.comparison.current.run_values)

    @property
    def dof(self) -> int:
        """Degrees of freedom of the variance of the stored sessions."""
        return len(self.stored) - 1

    @property
    def difference(self) -> float:
        """The current session's distance from the mean of the stored ones."""
        return self.now - self.mean

    def relative(self, difference: float) -> float:
        """Return a difference on this scale as a fraction."""
        if self.scale:
            return difference
        return math.expm1(max(min(difference, _MOST), -_MOST))

    def on_scale(self, fraction: float) -> float:
        """Return a fraction >= 0 as a difference on this scale: the inverse."""
        return fraction if self.scale else math.log1p(fraction)

    def placed(self, value: float) -> float:
        """Return a value in its metric's unit on this scale, where that has one for it."""
        return share_of(value, self.scale) if self.scale else math.log(value)

    def in_unit(self, value: float) -> float:
        """Return a value on this scale in its metric's unit."""
        if not self.scale:
            return math.exp(min(value, _MOST))
        return min(max(value * self.scale, -_LARGEST), _LARGEST)


def contrasts(comparisons: Sequence[Comparison]) -> list[Contrast]:
    """
    Return comparisons as numbers, in their order.

    From three sessions on, a value of a test is left out if it is off by more than 25 %
    and the test's other sessions exclude it; at most one of a test.
    """
    whole = [_contrast(comparison) for comparison in comparisons]
    groups: dict[str, list[int]] = {}
    for index, contrast in enumerate(whole):
        groups.setdefault(contrast.comparison.group, []).append(index)
    for members in groups.values():
        misfits = _misfits([whole[index] for index in members])
        for number, place in misfits.items():
            whole[members[number]] = _without(whole[members[number]], place)
    return whole


def beside(contrast: Contrast, comparison: Comparison) -> Contrast:
    """
    Return a comparison as numbers, without the stored value that a contrast is without.

    Args:
        contrast: The same test with another current session.

        comparison: What to return as numbers.
    """
    other = _contrast(comparison)
    if contrast.left_out not in comparison.session_ids:
        return other
    return _without(other, comparison.session_ids.index(contrast.left_out))


def share_of(value: float, size: float) -> float:
    """Return a value over a size > 0; of next to nothing it is cut, and stays finite."""
    return min(max(value / size, -_MOST_SHARE), _MOST_SHARE)


def fitting(
    stored: Sequence[SessionValue], clock: TimeBase, usual: UsualSpread | None = None
) -> Sequence[SessionValue]:
    """
    Return the sessions of one test without the value that does not fit the others.

    Args:
        stored: The sessions, >= 1 of them.

        clock: Whose times they are.

        usual: What is usual in its group; None: the test stands alone.
    """
    ids = tuple(map(str, range(len(stored))))
    whole = _contrast(
        Comparison(
            current=stored[-1],
            stored=tuple(stored),
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
    """Return a comparison as numbers, with all of its sessions."""
    sessions = (*comparison.stored, comparison.current)
    values = [value for session in sessions for value in session.run_values]
    scale = 0.0 if min(values) > 0 else _size(comparison.stored)
    if scale:
        scaled = [share_of(value, scale) for value in values]
    else:
        scaled = [*map(math.log, values)]
    share, floor = 1.0, 0.0
    lowest = highest = None
    if len(values) > len(sessions):  # usually each session has one process
        rest = iter(scaled)
        runs = [list(islice(rest, len(s.run_values))) for s in sessions]
        share, floor = _between_processes(runs, fresh=comparison.fresh)
        scaled = [sum(run) / len(run) for run in runs]
        if comparison.fresh:
            scaled[-1] = median(runs[-1])
            lowest = _nearest(sorted(runs[-1]), share)
            highest = _nearest(sorted(runs[-1], reverse=True), share)
    *stored, now = scaled
    return Contrast(
        comparison=comparison,
        now=now,
        stored=stored,
        session_ids=comparison.session_ids,
        mean=sum(stored) / len(stored),
        scale=scale,
        run_share=share,
        floor=floor,
        lowest=lowest,
        highest=highest,
    )


def _nearest(values: Sequence[float], share: float) -> Nearest | None:
    """Return the first of some processes, in order; None: they are too few."""
    if len(values) < _ENOUGH_PROCESSES:
        return None
    half = values[: (len(values) + 1) // 2]
    variance = moments(half)[1] / (len(half) - 1) / _HALF_SHARE
    return Nearest(value=values[0], floor=variance * share)


def _size(stored: Sequence[SessionValue]) -> float:
    """Return the absolute mean of the stored sessions; 1 where it is 0."""
    return abs(mean([mean(session.run_values) for session in stored])) or 1.0


def _between_processes(
    runs: Sequence[Sequence[float]], *, fresh: bool
) -> tuple[float, float]:
    """
    Return what the processes of sessions say of their spread.

    Args:
        runs: The processes of each session, the current one last; some have several.

        fresh: Whether the current ones decide alone.

    Returns:
        `run_share` and `floor` of the contrast.
    """
    *counts, now = map(len, runs)
    share = sum(1 / count for count in counts) / len(counts)
    squares = [moments(values)[1] for values in runs]
    if fresh:
        return share, _process_variance(runs[-1]) * share
    pooled = sum(squares) / (sum(counts) + now - len(runs))
    return share, pooled * max(share, 1 / now)


def _process_variance(values: Sequence[float]) -> float:
    """
    Return the variance of a session's processes, without the one that is farthest off.

    Their median decides, which one process that a neighbour disturbed hardly moves; it
    must not decide how far the median may be trusted either. Two of five show.
    """
    count = len(values)
    if count < _ENOUGH_PROCESSES:
        return moments(values)[1] / max(count - 1, 1)
    middle = median(values)
    nearest = sorted(values, key=lambda value: abs(value - middle))[:-1]
    expected = 1 - _TRIMMED_SHARE * math.pow(count, -_TRIMMED_POWER)
    return moments(nearest)[1] / (count - 2) / expected


def _misfits(tests: Sequence[Contrast]) -> Mapping[int, int]:
    """Return the place of the value that does not fit, by the contrast's number."""
    distant = [
        (number, place)
        for number, contrast in enumerate(tests)
        for place in _distant(contrast)
    ]
    if not distant:  # nearly always
        return _NOTHING
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
    return {
        number: misfit
        for number, several in places.items()
        if (misfit := _misfit(tests[number], several, usual)) is not None
    }


def _misfit(
    contrast: Contrast, places: Iterable[int], usual: Mapping[str, UsualSpread]
) -> int | None:
    """
    Return which of some values the test's others exclude most surely; None: all may fit.

    Args:
        contrast: The test.

        places: Those of the values.

        usual: What is usual in its group without each of their sessions, by its id.
    """
    found, count = None, len(contrast.stored)
    most = _LEAST_P / 2  # two-sided, so that each side has half of it
    for place in places:
        session_id = contrast.session_ids[place]
        variance, dof = _variance_without(contrast, session_id)
        p_value = (
            usual[session_id]
            .mixture(dof)
            .beyond(
                abs(_distance(contrast, place)),
                variance,
                ratio=count / (count - 1),
                enough=most,
            )
        )
        if p_value < most:
            found, most = place, p_value
    return found


def _distant(contrast: Contrast) -> Iterable[int]:
    """Return the places of the values that are far from the others' mean."""
    stored = contrast.stored
    if len(stored) < _LEAST_SESSIONS or max(stored) - min(stored) < _LEAST_DISTANCE:
        return ()
    places = range(len(stored))
    return [p for p in places if abs(_distance(contrast, p)) > _LEAST_DISTANCE]


def _distance(contrast: Contrast, place: int) -> float:
    """Return how far a value is from the mean of the test's other sessions."""
    count = len(contrast.stored)
    return (contrast.stored[place] - contrast.mean) * count / (count - 1)


def _variance_without(contrast: Contrast, session_id: str) -> tuple[float, int]:
    """Return the variance of a test's other sessions, and its degrees of freedom."""
    pairs = zip(contrast.session_ids, contrast.stored, strict=True)
    values = [value for name, value in pairs if name != session_id]
    if not values:
        return LEAST_VARIANCE, 0
    dof = len(values) - 1
    return max(moments(values)[1] / max(dof, 1), LEAST_VARIANCE), dof


def _without(contrast: Contrast, place: int) -> Contrast:
    """Return a contrast as if one of its stored values had never been stored."""
    comparison = contrast.comparison
    stored, ids = [*comparison.stored], [*comparison.session_ids]
    del stored[place]
    left_out = ids.pop(place)
    # the size of what is left is another one, and may have a logarithm
    others = replace(comparison, stored=tuple(stored), session_ids=tuple(ids))
    return replace(_contrast(others), left_out=left_out)
