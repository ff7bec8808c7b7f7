"""The change of a value between two sides: effect, interval, significance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeAlias

from pytest_gpuperf.compute.contrast import Contrast, contrasts
from pytest_gpuperf.compute.machine import Residual, without_machine
from pytest_gpuperf.compute.spread import (
    LEAST_VARIANCE,
    Mixture,
    UsualSpread,
    usual_spread,
)
from pytest_gpuperf.compute.stats import fraction_of, mean, relative_change
from pytest_gpuperf.model.change import Change, Comparison, Sureness
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import Better

# The tail on each side of a change's two-sided interval. It equals the level of a run of
# one pair, so that the interval of a significant change never contains "no change".
INTERVAL_TAIL = 0.01

# docs/judging.md section 2: the usual spread with a single stored session.
# A slower test may have the slowdown that the run looks for.
_QUIET = math.log(1.03)
_LEAST_QUIET = 3
# Tests are assumed to have similar spreads, since one session cannot show the contrary.
_LEAST_EQUALITY = 4
# Variance of a test over the variance of a reference workload, which is steadier.
_REFERENCE_RATIO = 2.0**2

_HIGHER = Better.HIGHER  # A member of an enum takes as long to look up as a call.

# Inverting a mixture is slow, so a larger group inverts at this number of variances only.
_TABLE = 32
# A deviation of 0.01 %. A smaller variance counts as this value.
_LEAST_EXTRA = 1e-8


def is_exact(comparison: Comparison) -> bool:
    """Return True if equality judges a comparison, as all stored values are equal."""
    return comparison.exact and len(set(comparison.stored.runs)) == 1


def exact_change(comparison: Comparison) -> Change:
    """
    Build a change that is judged by equality.

    If several processes of the current session disagree, the current value is their mean.
    The effect is None if the value changed from a baseline of 0.
    """
    reference = comparison.stored.runs[0]
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
    Calculate the changes of comparisons, in order.

    The usual spread is learned from all comparisons, and machine drift from the controls and
    reference workloads.

    Args:
        comparisons: The comparisons, each with >= 1 stored session.

        level: The significance that a change needs.

        references: Reference workloads, by the classes and groups that they stand for.

        controls: Whether each comparison is a control, or None if every comparison is a
            control for all others.

        judged: Whether each change is requested, or None to return all.

    Returns:
        One change per comparison, or None if the change was not requested.
    """
    everyone = [True] * len(comparisons)
    selected = everyone if judged is None else judged
    in_order: list[Change | None] = [None] * len(comparisons)
    noisy: list[int] = []
    for place, comparison in enumerate(comparisons):
        if not (comparison.exact and is_exact(comparison)):
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
    for number, part, tables in suite.parts_of(numbers):
        test, residual = suite.tests[number], suite.residuals[number]
        in_order[noisy[number]] = change_of(test, residual, part, tables, level)
    return tuple(in_order)


def detectable_effects(
    comparisons: Sequence[Comparison],
    *,
    level: Sureness,
    references: Sequence[Comparison] = (),
    more_sessions: int = 0,
) -> tuple[float | None, ...]:
    """
    Calculate the smallest effect that comparisons detect with the power of `level`.

    Args:
        comparisons: The future comparisons, each with >= 1 stored session.

        level: The significance that a change needs.

        references: Reference workloads, by the classes and groups that they stand for.

        more_sessions: Number of sessions yet to be stored. They are assumed to differ as
            much as the stored sessions.

    Returns:
        Relative effects in order, as `Change.detectable_effect`. None if a single session is
        stored, if no relative effect exists, or if equality decides.
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
    Estimate the usual spread between stored sessions, by group.

    The current values of `comparisons` have no influence.
    """
    noisy = [comparison for comparison in comparisons if not is_exact(comparison)]
    return ComparedSuite(noisy, (), [False] * len(noisy)).usual


def holm(p_values: Sequence[float], *, count: int | None = None) -> tuple[float, ...]:
    """
    Adjust p-values so that the chance of any false alarm is the smallest value's.

    Args:
        p_values: The p-values of one family, in any order.

        count: Size of the family if some members have no p-value here. They count as 1.

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
    The noisy comparisons of a run, with the spread and drift estimated from all of them.

    Attributes:
        tests: The comparisons as numbers.

        witnesses: The reference workloads as numbers.

        controls: Whether each comparison is a control, used to estimate machine drift.

        residuals: The comparisons, corrected for machine drift.

        usual: The usual spread, by group.
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
        """Return the detectable effects after more stored sessions, None if unknown."""
        effects: list[float | None] = [None] * len(self.tests)
        for group, places in _groups(self.tests).items():
            residuals = [self.residuals[place] for place in places]
            tables = Tables(self.usual[group], residuals, more_sessions=more_sessions)
            for place, residual in zip(places, residuals, strict=True):
                test = self.tests[place]
                is_known = test.dof > 0 and math.isfinite(residual.variance)
                if not is_known or test.in_unit(test.mean) == 0:
                    continue
                ratio = 1 + 1 / (len(test.stored) + more_sessions)
                part = Part(ratio=ratio, planned_ratio=ratio, floor=test.floor)
                p_values = (level.alpha / level.pair_count, 1 - level.power)
                sure, miss = tables.reaches(p_values, test, residual, part)
                effect = test.relative(_found_mostly(test, sure, miss, level))
                if math.isfinite(effect):
                    effects[place] = effect
        return effects

    def parts_of(self, judged: Sequence[int]) -> Iterator[tuple[int, Part, Tables]]:
        """Yield place, part and tables of the comparisons at the given places."""
        members: dict[str, list[int]] = {}
        for place in judged:
            group = self.tests[place].comparison.group
            members.setdefault(group, []).append(place)
        for group, places in members.items():
            residuals = [self.residuals[place] for place in places]
            tables = Tables(self.usual[group], residuals)
            fresh: dict[int, tuple[Contrast, Residual]] = {}
            for place, residual in zip(places, residuals, strict=True):
                if self.tests[place].comparison.fresh:
                    fresh[place] = self.tests[place], residual
            shares: Mapping[int, tuple[float, float]] = {}
            if fresh:
                # Needed only by runs with fresh processes.
                from pytest_gpuperf.compute.alone import process_shares

                shares = process_shares(fresh)
            known: dict[tuple[int, float, float, float], Part] = {}
            for place in places:
                test = self.tests[place]
                own, left = shares.get(place, (0.0, 0.0))
                name = len(test.stored), test.floor, own, left
                part = known.get(name)
                if part is None:  # Most tests of a group have the same.
                    mean = 1 / len(test.stored)
                    part = known[name] = Part(
                        ratio=mean + 1 - own + left,
                        planned_ratio=mean + 1,
                        floor=test.floor,
                        process_share=own,
                    )
                yield place, part, tables


def _groups(tests: Iterable[Contrast]) -> dict[str, list[int]]:
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
    """
    Estimate the usual spread of a group from the variances between stored sessions.

    With a single stored session, the spread is estimated from the controls that did not slow
    down and from the reference workloads.
    """
    clock = tests[0].comparison.clock
    dofs = [test.dof for test in tests]
    if any(dofs):
        return usual_spread(
            zip([r.variance for r in residuals], dofs, strict=True), clock
        )
    quiet = [
        test
        for test, control in zip(tests, controls, strict=True)
        # For Better.HIGHER a fall is the worsening.
        if control
        and (-1 if test.comparison.better is Better.HIGHER else 1) * test.difference
        < _QUIET
    ]
    variances: list[tuple[float, int]] = []
    if len(quiet) + len(witnesses) >= _LEAST_QUIET:
        middle = median(contrast.difference for contrast in (*quiet, *witnesses))
        variances += [(_one_apart(test, middle), 1) for test in quiet]
        variances += [(_one_apart(w, middle) * _REFERENCE_RATIO, 1) for w in witnesses]
    return usual_spread(variances, clock, least_equality=_LEAST_EQUALITY)


def _one_apart(contrast: Contrast, middle: float) -> float:
    return max((contrast.difference - middle) ** 2 / 2, LEAST_VARIANCE)


class Part(Frozen, frozen=True, kw_only=True):
    """
    How strongly processes and sessions contribute to a difference's variance.

    Attributes:
        ratio: Variance of the difference over the variance of a stored session.

        planned_ratio: The ratio before anything is measured. The detectable effect is
            reported for this ratio.

        floor: The smallest variance of a stored session.

        process_share: Share of a stored session's variance that comes from processes.
    """

    ratio: float
    planned_ratio: float
    floor: float = 0.0
    process_share: float = 0.0


# The probabilities and the degrees of freedom.
_TableName: TypeAlias = "tuple[tuple[float, ...], int]"
# A logarithm, and by how much that of the next row is larger.
_Step: TypeAlias = "tuple[float, float]"


class Tables:
    """
    The inverse of a group's mixtures, interpolated in tables if the group is large.

    Args:
        usual: The usual spread of the group.

        residuals: The members of the group, whose variances the tables span.

        more_sessions: Number of sessions that every member gets in addition.

    Attributes:
        deviation: The usual deviation between sessions.

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
        # Logarithms of reaches by the table's key, then by the row's number. Rows are built on
        # demand, because few suites need all of them.
        self._rows: dict[tuple[object, ...], dict[int, list[float]]] = {}
        # The steps of a table, by the power of 2 of the extra variance and the row, and
        # those of the table that was asked for last, with its name.
        self._steps: dict[_TableName, dict[tuple[int | None, int], list[_Step]]] = {}
        self._known: dict[tuple[int | None, int], list[_Step]] = {}
        self._name: _TableName = (), 0
        self._mixtures: dict[int, Mixture] = {}

    def mixture(self, dof: int) -> Mixture:
        """Return the mixture for contrasts with `dof` degrees of freedom."""
        if dof not in self._mixtures:
            made = self._usual.mixture(dof, more_sessions=self.more_sessions)
            self._mixtures[dof] = made
        return self._mixtures[dof]

    def reaches(
        self,
        p_values: tuple[float, ...],
        test: Contrast,
        residual: Residual,
        part: Part,
    ) -> Sequence[float]:
        """Return the differences that noise exceeds with the given probabilities, one-sided."""
        variance, extra = residual.variance, residual.extra
        if not self._large or part.floor:
            return self._direct(p_values, test.dof, variance, part, extra)
        place = (math.log(variance) - self._low) / self._step if self._step else 0.0
        row = int(place)
        # Comparisons, because a minimum is slow.
        row = 0 if row < 0 else min(_TABLE - 2, row)
        share = place - row
        name = p_values, test.dof
        if name != self._name:  # Nearly all tests of a group share both.
            self._name, self._known = name, self._steps.setdefault(name, {})
        known, exp = self._known, math.exp
        reached = []
        # Loops, because each comprehension of each test is a call.
        if not extra:
            below = known.get((None, row)) or self._step_of(None, row, part)
            for low, rise in below:
                reached.append(exp(low + share * rise))
            return reached
        of_extra = math.log2(max(_LEAST_EXTRA, extra))
        number = math.floor(of_extra)
        of_above = of_extra - number
        of_below = 1 - of_above
        below = known.get((number, row)) or self._step_of(number, row, part)
        number += 1
        above = known.get((number, row)) or self._step_of(number, row, part)
        # Linear interpolation of logarithms overestimates by at most 0.8 %.
        for (low, rise), (low_above, rise_above) in zip(below, above, strict=True):
            here = exp(low + share * rise)
            further = exp(low_above + share * rise_above)
            reached.append(here**of_below * further**of_above)
        return reached

    def _direct(
        self,
        p_values: tuple[float, ...],
        dof: int,
        variance: float,
        part: Part,
        extra: float,
    ) -> list[float]:
        mixture = self.mixture(dof)
        return [
            mixture.reach(
                p_value,
                variance,
                ratio=part.ratio,
                floor=part.floor,
                extra=extra,
            )
            for p_value in p_values
        ]

    def _step_of(self, power: int | None, row: int, part: Part) -> list[_Step]:
        """
        Calculate the step of a table from one row to the next, as was asked for last.

        Args:
            power: The extra variance as a power of 2, or None for 0.

            row: The number of the row.

            part: What every member of the table has in common.
        """
        p_values, dof = self._name
        extra = 0.0 if power is None else 2.0**power
        rows = self._rows.setdefault((p_values, dof, extra), {})
        for missing in {row, row + 1} - rows.keys():
            variance = math.exp(self._low + self._step * missing)
            reaches = self._direct(p_values, dof, variance, part, extra)
            rows[missing] = [*map(math.log, reaches)]
        ends = zip(rows[row], rows[row + 1], strict=True)
        step = [(low, high - low) for low, high in ends]
        self._known[power, row] = step
        return step


def change_of(
    test: Contrast, residual: Residual, part: Part, tables: Tables, level: Sureness
) -> Change:
    """Build the change of a contrast from the usual spread of the group."""
    compared = test.comparison
    # Values with logarithms are not 0.
    nothing = test.scale != 0 and not any(compared.stored.runs)
    reference = 0.0 if nothing else test.in_unit(test.mean)
    worse = better = low = high = detectable = None
    difference, variance = residual.difference, residual.variance
    effect = test.relative(difference) if reference != 0 else None
    if nothing:
        worse, better = _from_nothing(compared)
        effect = 0.0 if not any(compared.current.run_values) else None
    elif reference != 0 and math.isfinite(difference + variance):
        noise = test.on_scale(level.noise_threshold)
        worse, better = tables.mixture(test.dof).beyond_each(
            (difference - noise, -difference - noise),
            variance,
            ratio=part.ratio,
            floor=part.floor,
            extra=residual.extra,
        )
        if compared.fresh:
            both = worse, better
            part, worse, better = _agreed(test, residual, part, both, tables, level)
        if compared.better is _HIGHER:
            worse, better = better, worse
        low, high, detectable = bounds_of(test, residual, part, tables, level)
    core, clock, shift = compared.core_shift, compared.clock_shift, residual.shift
    # Fifteen arguments, because more are passed as a dictionary.
    change = Change(
        effect=effect,
        current=test.in_unit(test.now),
        reference=reference,
        session_count=len(test.stored),
        run_count=len(compared.current.run_values),
        low=low,
        high=high,
        p_worse=worse,
        p_better=better,
        detectable_effect=detectable,
        machine_shift=fraction_of(shift) if shift else None,
        session_spread=tables.deviation,
        core_shift=None if core is None else fraction_of(core),
        clock_shift=None if clock is None else fraction_of(clock),
    )
    if test.left_out or compared.fresh:
        return replace(change, left_out=test.left_out, fresh=compared.fresh)
    return change


_NO_BOUNDS = None, None, None


def bounds_of(
    test: Contrast, residual: Residual, part: Part, tables: Tables, level: Sureness
) -> tuple[float | None, float | None, float | None]:
    """Return the lower and upper end and the detectable effect, or three None if not finite."""
    p_values = (INTERVAL_TAIL, level.alpha / level.pair_count, 1 - level.power)
    half, sure, miss = tables.reaches(p_values, test, residual, part)
    # The gain from fresh processes differs between runs, so the detectable effect does
    # not rely on that gain.
    if part.ratio < part.planned_ratio:
        planned = replace(part, ratio=part.planned_ratio)
        _, sure, miss = tables.reaches(p_values, test, residual, planned)
    middle = residual.difference
    low, high = test.relative(middle - half), test.relative(middle + half)
    detectable = test.relative(_found_mostly(test, sure, miss, level))
    if not (math.isfinite(low) and math.isfinite(high)):
        return _NO_BOUNDS
    # The detectable effect is None for a single session, whose spread is unknown.
    return low, high, detectable if test.dof else None


def _from_nothing(comparison: Comparison) -> tuple[float, float]:
    """
    Return the p-values of a worsening and of an improvement from stored values of 0.

    A p-value is 0 if all processes moved that way, else 1. Values that are all 0 have no
    spread to be judged by, so equality decides.
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
    tables: Tables,
    level: Sureness,
) -> tuple[Part, float, float]:
    """
    Return the part and p-values, taken from the nearest fresh process if more significant.

    The p-values are those of a rise and of a fall.
    """
    noise = test.on_scale(level.noise_threshold)
    limit = test.on_scale(test.comparison.limit or 0.0)
    more, less = p_values
    for sign, nearest in ((1, test.lowest), (-1, test.highest)):
        if nearest is None:
            continue
        # The smallest change among the fresh processes in this direction.
        whole = sign * (residual.difference + nearest.value - test.now)
        if whole < limit:
            continue
        # A wide floor from disturbed processes must not hide a change of all processes.
        agreed = Part(
            ratio=part.planned_ratio,
            planned_ratio=part.planned_ratio,
            floor=nearest.floor,
        )
        p_value = tables.mixture(test.dof).beyond(
            whole - noise,
            residual.variance,
            ratio=agreed.ratio,
            floor=agreed.floor,
            extra=residual.extra,
        )
        if p_value < (more if sign > 0 else less):
            part = agreed
            more, less = (p_value, less) if sign > 0 else (more, p_value)
    return part, more, less


def _found_mostly(test: Contrast, sure: float, miss: float, level: Sureness) -> float:
    """
    Return the smallest difference that is detected with the power of the level.

    Args:
        test: The contrast, of more than one stored session.

        sure: The difference beyond noise that is significant.

        miss: The additional difference that makes detection as frequent as the level's power.

        level: The significance that a change needs.
    """
    limit = test.on_scale(test.comparison.limit or 0.0)
    significant = test.on_scale(level.noise_threshold) + sure
    # A comparison, because a maximum is slow.
    return (max(limit, significant)) + miss
