"""The change of a value between two sides: effect, interval, significance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median

from pytest_gpuperf.compute.alone import narrowed
from pytest_gpuperf.compute.contrast import Contrast, Nearest, contrasts
from pytest_gpuperf.compute.machine import Residual, without_machine
from pytest_gpuperf.compute.spread import (
    LEAST_VARIANCE,
    Mixture,
    UsualSpread,
    usual_spread,
)
from pytest_gpuperf.compute.stats import mean, relative_change
from pytest_gpuperf.model.change import Change, Comparison, Sureness
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import Better

__all__ = [
    "INTERVAL_TAIL",
    "ComparedSuite",
    "Part",
    "Tables",
    "bounds_of",
    "change_of",
    "changes",
    "detectable_effects",
    "exact_change",
    "holm",
    "is_exact",
    "relative_shift",
    "usual_spreads",
]

# on each side of the two-sided interval of a change: the level of a run of one pair, so
# that no interval of a significant change holds "no change"
INTERVAL_TAIL = 0.01
_MOST_PART = 1e-12  # keeps a share of nothing finite

# docs/judging.md section 2: what one stored session says of what is usual
_QUIET = math.log(1.03)  # what is slower may be what is looked for
_LEAST_QUIET = 3
_LEAST_EQUALITY = 4  # the tests are taken to be about alike: nothing shows the contrary
_REFERENCE_RATIO = 2.0**2  # variance of a test over that of a steadier reference

# the inverse of a mixture takes long: in a large group it is made for so many variances
_TABLE = 32  # rows, and the largest group that needs none
_LEAST_EXTRA = 1e-8  # a deviation of 0.01 %: less is counted as this


def is_exact(comparison: Comparison) -> bool:
    """Return whether a comparison is judged by equality: all stored values agree."""
    if not comparison.exact:
        return False
    values = {value for session in comparison.stored for value in session.run_values}
    return len(values) == 1


def exact_change(comparison: Comparison) -> Change:
    """
    Return a change that is judged by equality.

    Several processes of the current session that disagree count as their mean. Against a
    baseline of 0 no effect is relative: it is None where anything changed.
    """
    reference = comparison.stored[0].run_values[0]
    runs = comparison.current.run_values
    current = runs[0] if len(set(runs)) == 1 else mean(runs)
    effect: float | None = 0.0
    if current != reference:
        effect = relative_change(current, reference) if reference else None
    return Change(
        effect=effect,
        current=current,
        reference=reference,
        session_count=len(comparison.stored),
        run_count=len(runs),
        exact=True,
        fresh=comparison.fresh,
    )


def changes(
    comparisons: Sequence[Comparison],
    *,
    level: Sureness,
    references: Sequence[Comparison] = (),
    controls: Sequence[bool] | None = None,
    judged: Sequence[bool] | None = None,
) -> tuple[Change | None, ...]:
    """
    Return the change of each comparison, in their order.

    All of them say what is usual; the controls and the references say what the machine
    did.

    Args:
        comparisons: What to compare, each with >= 1 stored session.

        level: The significance that a change needs.

        references: Reference workloads, by the classes and groups that they stand for.

        controls: Which comparisons are controls; None: each is one for all others.

        judged: Which changes are asked for; None: all.

    Returns:
        None for what was not asked for.
    """
    everyone = [True] * len(comparisons)
    selected = everyone if judged is None else judged
    in_order: list[Change | None] = [None] * len(comparisons)
    noisy: list[int] = []
    for place, comparison in enumerate(comparisons):
        if not is_exact(comparison):
            noisy.append(place)
        elif selected[place]:
            in_order[place] = exact_change(comparison)
    marks = everyone if controls is None else controls
    suite = ComparedSuite(
        [comparisons[place] for place in noisy],
        references,
        [marks[place] for place in noisy],
    )
    numbers = [number for number, place in enumerate(noisy) if selected[place]]
    for number, change in zip(numbers, suite.changes(numbers, level), strict=True):
        in_order[noisy[number]] = change
    return tuple(in_order)


def detectable_effects(
    comparisons: Sequence[Comparison],
    *,
    level: Sureness,
    references: Sequence[Comparison] = (),
    more_sessions: int = 0,
) -> tuple[float | None, ...]:
    """
    Return the smallest effect of each comparison that is found as often as `level` says.

    Args:
        comparisons: What would be compared, each with >= 1 stored session.

        level: The significance that a change needs.

        references: Reference workloads, by the classes and groups that they stand for.

        more_sessions: Sessions that are to be stored besides; they are taken to differ as
            the stored ones do.

    Returns:
        Relative effects in their order, as `Change.detectable_effect`; None where one
        session is stored, nothing is relative, or equality decides.
    """
    noisy = [p for p, comparison in enumerate(comparisons) if not is_exact(comparison)]
    suite = ComparedSuite(
        [comparisons[p] for p in noisy], references, [True] * len(noisy)
    )
    effects: list[float | None] = [None] * len(comparisons)
    for place, effect in zip(
        noisy, suite.detectable_effects(level, more_sessions), strict=True
    ):
        effects[place] = effect
    return tuple(effects)


def usual_spreads(comparisons: Sequence[Comparison]) -> dict[str, UsualSpread]:
    """
    Return what the stored sessions of a suite usually differ by, by group.

    The current values of `comparisons` say nothing.
    """
    noisy = [comparison for comparison in comparisons if not is_exact(comparison)]
    return ComparedSuite(noisy, (), [False] * len(noisy)).usual


def holm(p_values: Sequence[float], *, count: int | None = None) -> tuple[float, ...]:
    """
    Return p-values adjusted so that the chance of any false alarm is the smallest's.

    Args:
        p_values: Of one family, in any order.

        count: Members of the family, where some have no p-value here and count as 1.

    Returns:
        Adjusted values up to 1, in the order given.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        (0.03, 0.06, 0.06)
    """
    members = len(p_values) if count is None else max(count, len(p_values))
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(
        sorted(range(len(p_values)), key=p_values.__getitem__)
    ):
        largest = max(largest, min(1.0, (members - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


class ComparedSuite:
    """
    The comparisons of a run whose metrics have noise, and what all of them say together.

    Attributes:
        tests: The comparisons as numbers.

        witnesses: The reference workloads as numbers.

        controls: Which comparisons show what the machine did.

        residuals: The comparisons without that.

        usual: What is usual, by group.
    """

    def __init__(
        self,
        comparisons: Sequence[Comparison],
        references: Sequence[Comparison],
        controls: Sequence[bool],
    ) -> None:
        all_contrasts = contrasts([*comparisons, *references])
        self.tests = all_contrasts[: len(comparisons)]
        self.controls = controls
        self.witnesses = witnesses = all_contrasts[len(comparisons) :]
        self.residuals = without_machine(self.tests, controls, witnesses)
        self.usual = {
            name: _usual(
                [self.tests[place] for place in members],
                [self.residuals[place] for place in members],
                [w for w in witnesses if w.comparison.group == name],
                [controls[place] for place in members],
            )
            for name, members in _groups(self.tests).items()
        }

    def detectable_effects(
        self, level: Sureness, more_sessions: int
    ) -> list[float | None]:
        """Return what is found of each of them with so many more sessions."""
        effects: list[float | None] = [None] * len(self.tests)
        for group, places in _groups(self.tests).items():
            residuals = [self.residuals[place] for place in places]
            tables = Tables(self.usual[group], residuals, more_sessions=more_sessions)
            for place, residual in zip(places, residuals, strict=True):
                effects[place] = _future_effect(
                    self.tests[place], residual, tables, level
                )
        return effects

    def changes(self, judged: Sequence[int], level: Sureness) -> list[Change]:
        """Return the changes of some of them, by place."""
        by_place = {
            place: change_of(
                self.tests[place], self.residuals[place], part, tables, level
            )
            for place, part, tables in self.parts_of(judged)
        }
        return [by_place[place] for place in judged]

    def parts_of(self, judged: Sequence[int]) -> Iterator[tuple[int, Part, Tables]]:
        """Yield the place of each of some, what its processes say, and its tables."""
        members: dict[str, list[int]] = {}
        for place in judged:
            group = self.tests[place].comparison.group
            members.setdefault(group, []).append(place)
        for group, places in members.items():
            residuals = [self.residuals[place] for place in places]
            parts = _parts([self.tests[place] for place in places], residuals)
            tables = Tables(self.usual[group], residuals)
            for place, part in zip(places, parts, strict=True):
                yield place, part, tables


def _groups(tests: Iterable[Contrast]) -> dict[str, list[int]]:
    """Return the places of contrasts by their group."""
    groups: dict[str, list[int]] = {}
    for place, test in enumerate(tests):
        groups.setdefault(test.comparison.group, []).append(place)
    return groups


def _usual(
    tests: Sequence[Contrast],
    residuals: Sequence[Residual],
    witnesses: Sequence[Contrast],
    controls: Sequence[bool],
) -> UsualSpread:
    """Return what is usual in a group, from the variances of its stored sessions."""
    clock = tests[0].comparison.clock
    if any(test.dof for test in tests):
        pairs = zip(residuals, tests, strict=True)
        return usual_spread(((r.variance, test.dof) for r, test in pairs), clock)
    quiet = [
        test
        for test, control in zip(tests, controls, strict=True)
        if control and _worsening(test) < _QUIET
    ]
    variances: list[tuple[float, int]] = []
    if len(quiet) + len(witnesses) >= _LEAST_QUIET:
        middle = median(contrast.difference for contrast in (*quiet, *witnesses))
        variances += [(_one_apart(test, middle), 1) for test in quiet]
        variances += [(_one_apart(w, middle) * _REFERENCE_RATIO, 1) for w in witnesses]
    return usual_spread(variances, clock, least_equality=_LEAST_EQUALITY)


def _worsening(test: Contrast) -> float:
    """Return the difference of a contrast so that more is worse."""
    higher = test.comparison.better is Better.HIGHER
    return -test.difference if higher else test.difference


def _one_apart(contrast: Contrast, middle: float) -> float:
    """Return the variance of a session that two sessions of a contrast show."""
    return max((contrast.difference - middle) ** 2 / 2, LEAST_VARIANCE)


class Part(Frozen, frozen=True, kw_only=True):
    """
    What the processes of the current session say of a contrast's difference.

    Attributes:
        ratio: The variance of the difference over that of a stored session.

        planned_ratio: What it is before anything is measured: the detectable effect is
            told for that.

        floor: The least variance of a stored session.

        process_share: The share of a stored session's variance that is of its processes.
    """

    ratio: float
    planned_ratio: float
    floor: float = 0.0
    process_share: float = 0.0


def _parts(tests: Sequence[Contrast], residuals: Sequence[Residual]) -> list[Part]:
    """
    Return what the processes of each contrast of a group say.

    The share of processes in a session's variance is estimated from the processes of the
    current session, pooled over the group because one test has few. A test whose own share
    is smaller has that instead, so that sessions that differ for other reasons do not count
    as processes that differ.
    """
    within = between = 0.0
    for test, residual in zip(tests, residuals, strict=True):
        if test.comparison.fresh:
            within += test.floor
            between += max(residual.variance, test.floor)
    pooled = within / (between + _MOST_PART)
    parts = []
    for test, residual in zip(tests, residuals, strict=True):
        part = 0.0
        if test.comparison.fresh and test.dof:
            part = min(pooled, test.floor / residual.variance, 1.0)
        count = test.run_count
        less = part * narrowed(count) / test.run_share if part else 0.0
        mean = 1 / len(test.stored)
        parts.append(
            Part(
                ratio=mean + 1 - part + less,
                planned_ratio=mean + 1,
                floor=test.floor,
                process_share=part,
            )
        )
    return parts


class Tables:
    """
    The inverse of a group's mixtures, from tables where the group is large.

    Args:
        usual: What is usual in the group.

        residuals: Its members, whose variances the tables span.

        more_sessions: Sessions that each member is to have besides.

    Attributes:
        deviation: What sessions usually differ by.

        more_sessions: As given.
    """

    def __init__(
        self,
        usual: UsualSpread,
        residuals: Sequence[Residual],
        *,
        more_sessions: int = 0,
    ) -> None:
        self._usual = usual
        self.more_sessions = more_sessions
        self.deviation = usual.deviation
        self._large = len(residuals) > _TABLE
        if self._large:
            variances = [residual.variance for residual in residuals]
            logs = [math.log(v) for v in variances if math.isfinite(v)] or [0.0]
            self._low = min(logs)
            self._step = (max(logs) - self._low) / (_TABLE - 1)
        # by what a table is for, then by the row's number: few suites need every row
        self._rows: dict[tuple[object, ...], dict[int, list[float]]] = {}

    def mixture(self, dof: int) -> Mixture:
        """Return the mixture of the contrasts with so much freedom."""
        return self._usual.mixture(dof, more_sessions=self.more_sessions)

    def reaches(
        self,
        p_values: tuple[float, ...],
        test: Contrast,
        residual: Residual,
        part: Part,
    ) -> Sequence[float]:
        """Return the difference that has each of some probabilities without a change."""
        if not self._large or part.floor:
            return self._direct(p_values, test.dof, residual.variance, part, residual)
        log = math.log(residual.variance)
        between = partial(self._between, p_values, test.dof, part)
        if not residual.extra:
            return between(0.0, log)
        place = math.log2(max(residual.extra, _LEAST_EXTRA))
        number = math.floor(place)
        below, above = (
            between(extra, log) for extra in (2.0**number, 2.0 ** (number + 1))
        )
        share = place - number  # on lines between logarithms: at most 0.8 % too far
        return [
            less ** (1 - share) * more**share
            for less, more in zip(below, above, strict=True)
        ]

    def _row(
        self,
        p_values: tuple[float, ...],
        dof: int,
        part: Part,
        extra: float,
        number: int,
    ) -> list[float]:
        """Return a row of a table: the logarithms of the reaches of one variance."""
        like = Residual(difference=0.0, variance=0.0, extra=extra)
        variance = math.exp(self._low + self._step * number)
        return [*map(math.log, self._direct(p_values, dof, variance, part, like))]

    def _direct(
        self,
        p_values: tuple[float, ...],
        dof: int,
        variance: float,
        part: Part,
        residual: Residual,
    ) -> list[float]:
        """Return them for one variance."""
        mixture = self.mixture(dof)
        return [
            mixture.reach(
                p_value,
                variance,
                ratio=part.ratio,
                floor=part.floor,
                extra=residual.extra,
            )
            for p_value in p_values
        ]

    def _between(
        self,
        p_values: tuple[float, ...],
        dof: int,
        part: Part,
        extra: float,
        log: float,
    ) -> list[float]:
        """Return the reaches of a variance, on the lines between two rows of a table."""
        rows = self._rows.setdefault((p_values, dof, extra), {})
        place = (log - self._low) / self._step if self._step else 0.0
        number = min(max(int(place), 0), _TABLE - 2)
        for missing in {number, number + 1}.difference(rows):
            rows[missing] = self._row(p_values, dof, part, extra, missing)
        share = place - number
        return [
            math.exp(below + share * (above - below))
            for below, above in zip(rows[number], rows[number + 1], strict=True)
        ]


def relative_shift(log_shift: float | None) -> float | None:
    """Return a shift on a log scale as a relative one; None: it is not known."""
    return None if log_shift is None else math.expm1(log_shift)


def change_of(
    test: Contrast, residual: Residual, part: Part, tables: Tables, level: Sureness
) -> Change:
    """Return a contrast as a change, by what is usual in its group."""
    nothing = _was_nothing(test.comparison)
    reference = 0.0 if nothing else test.in_unit(test.mean)
    change = partial(
        Change,
        effect=test.relative(residual.difference) if reference != 0 else None,
        current=test.in_unit(test.now),
        reference=reference,
        session_count=len(test.stored),
        run_count=test.run_count,
        machine_shift=math.expm1(residual.shift) if residual.shift else None,
        session_spread=tables.deviation,
        core_shift=relative_shift(test.comparison.core_shift),
        clock_shift=relative_shift(test.comparison.clock_shift),
        left_out=test.left_out,
        fresh=test.comparison.fresh,
    )
    if nothing:
        worse, better = _from_nothing(test.comparison)
        still = not any(test.comparison.current.run_values)
        return change(effect=0.0 if still else None, p_worse=worse, p_better=better)
    if reference == 0 or not math.isfinite(residual.difference + residual.variance):
        return change()
    noise = test.on_scale(level.noise_threshold)
    beyond = partial(
        tables.mixture(test.dof).beyond,
        variance=residual.variance,
        extra=residual.extra,
    )
    worse = beyond(residual.difference - noise, ratio=part.ratio, floor=part.floor)
    better = beyond(-residual.difference - noise, ratio=part.ratio, floor=part.floor)
    if test.comparison.fresh:
        both = worse, better
        part, worse, better = _agreed(test, residual, part, both, beyond, level)
    if test.comparison.better is Better.HIGHER:
        worse, better = better, worse
    low, high, detectable = bounds_of(test, residual, part, tables, level)
    return change(
        p_worse=worse,
        p_better=better,
        low=low,
        high=high,
        detectable_effect=detectable,
    )


_NO_BOUNDS = None, None, None


def bounds_of(
    test: Contrast, residual: Residual, part: Part, tables: Tables, level: Sureness
) -> tuple[float | None, float | None, float | None]:
    """Return the ends of a change, and its detectable effect; None: not finite."""
    p_values = (INTERVAL_TAIL, level.alpha / level.pair_count, 1 - level.power)
    half, sure, miss = tables.reaches(p_values, test, residual, part)
    if part.ratio < part.planned_ratio:  # how much it is narrowed differs by the run
        planned = replace(part, ratio=part.planned_ratio)
        _, sure, miss = tables.reaches(p_values, test, residual, planned)
    low = test.relative(residual.difference - half)
    high = test.relative(residual.difference + half)
    if not (math.isfinite(low) and math.isfinite(high)):
        return _NO_BOUNDS
    # one session says nothing of its own spread
    return low, high, _found_mostly(test, sure, miss, level)


def _was_nothing(comparison: Comparison) -> bool:
    """Return whether every stored value is 0, of which no change is a share."""
    return not any(value for s in comparison.stored for value in s.run_values)


def _from_nothing(comparison: Comparison) -> tuple[float, float]:
    """
    Return the probabilities of what became of 0, worse first: all processes show it.

    Values that are all 0 have no spread to be judged by, so equality decides.
    """
    values = comparison.current.run_values
    more, less = min(values) > 0, max(values) < 0
    if comparison.better is Better.HIGHER:
        more, less = less, more
    return 0.0 if more else 1.0, 0.0 if less else 1.0


def _agreed(
    test: Contrast,
    residual: Residual,
    part: Part,
    p_values: tuple[float, float],
    beyond: Callable[..., float],
    level: Sureness,
) -> tuple[Part, float, float]:
    """Return the part and the p-values, with what every fresh process shows at least."""
    noise = test.on_scale(level.noise_threshold)
    limit = test.on_scale(test.comparison.limit or 0.0)
    more, less = p_values
    for sign, nearest in ((1, test.lowest), (-1, test.highest)):
        whole = _of_nearest(test, residual, nearest, sign)
        if whole is None or whole < limit:
            continue
        # a wide floor by the others must not hide what holds for every process
        agreed = Part(
            ratio=part.planned_ratio,
            planned_ratio=part.planned_ratio,
            floor=nearest.floor if nearest is not None else 0.0,
        )
        p_value = beyond(whole - noise, ratio=agreed.ratio, floor=agreed.floor)
        if p_value < (more if sign > 0 else less):
            part = agreed
            more, less = (p_value, less) if sign > 0 else (more, p_value)
    return part, more, less


def _of_nearest(
    test: Contrast, residual: Residual, nearest: Nearest | None, sign: int
) -> float | None:
    """Return the change in one direction that every fresh process shows at least."""
    if nearest is None:
        return None
    return sign * (residual.difference + nearest.value - test.now)


def _found_mostly(
    test: Contrast, sure: float, miss: float, level: Sureness
) -> float | None:
    """
    Return the smallest effect that is found as often as the level says.

    Args:
        test: What it is of.

        sure: The difference beyond noise that is significant.

        miss: How much more makes it that often.

        level: How sure a change must be.

    Returns:
        None for one session, which says nothing of its own spread.
    """
    if not test.dof:
        return None
    limit = test.on_scale(test.comparison.limit or 0.0)
    return test.relative(max(test.on_scale(level.noise_threshold) + sure, limit) + miss)


def _future_effect(
    test: Contrast, residual: Residual, tables: Tables, level: Sureness
) -> float | None:
    """Return the effect that is found once a test has more sessions; None: not known."""
    if test.in_unit(test.mean) == 0 or not math.isfinite(residual.variance):
        return None
    count = len(test.stored) + tables.more_sessions
    ratio = 1 + 1 / count
    part = Part(ratio=ratio, planned_ratio=ratio, floor=test.floor)
    p_values = (level.alpha / level.pair_count, 1 - level.power)
    sure, miss = tables.reaches(p_values, test, residual, part)
    effect = _found_mostly(test, sure, miss, level)
    return effect if effect is not None and math.isfinite(effect) else None
