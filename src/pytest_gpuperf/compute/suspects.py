"""The changes of suspects, by the suite's value and fresh processes together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from pytest_gpuperf.compute.alone import (
    NO_STEP,
    CommonStep,
    JointEvidence,
    Tail,
    Twice,
    Weighed,
    common_step,
    denied,
    judged_alone,
    judged_together,
    own_offset,
    reference_gaps,
)
from pytest_gpuperf.compute.change import (
    ComparedSuite,
    Part,
    Tables,
    bounds_of,
    change_of,
    exact_change,
    is_exact,
)
from pytest_gpuperf.compute.contrast import Contrast, as_in, contrasts
from pytest_gpuperf.compute.machine import Residual, without_machine
from pytest_gpuperf.compute.stats import fraction_of
from pytest_gpuperf.model.change import Comparison, Sureness
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import Better

# The chance of the suite's value by itself, below which a test moved there. At 0.005, some
# test of 40 moves in every fifth unchanged run.
_MOVED = 0.001


def weighed_changes(
    comparisons: Sequence[Comparison],
    *,
    level: Sureness,
    references: Sequence[Comparison],
    controls: Sequence[bool],
    judged: Sequence[bool],
) -> tuple[Weighed | None, ...]:
    """
    Calculate the changes of suspects that fresh processes measured, in order.

    Args:
        comparisons: As for `changes`. Suspects and controls have the values of fresh
            processes, and the suite's value in `suite`.

        level: The significance that a change needs.

        references: Reference workloads by fresh processes, with the suite's value in `suite`.

        controls: Whether each comparison is a control.

        judged: Whether each comparison is a suspect.

    Returns:
        One change per comparison, or None if the comparison is no suspect.
    """
    in_order: list[Weighed | None] = [None] * len(comparisons)
    noisy = [p for p, comparison in enumerate(comparisons) if not is_exact(comparison)]
    for place, (comparison, is_judged) in enumerate(
        zip(comparisons, judged, strict=True)
    ):
        if is_judged and is_exact(comparison):
            in_order[place] = Weighed(change=exact_change(comparison))
    suite = ComparedSuite(
        [comparisons[place] for place in noisy],
        references,
        [controls[place] for place in noisy],
    )
    numbers = [number for number, place in enumerate(noisy) if judged[place]]
    firsts = _Firsts(suite, numbers)
    suspects = {
        number: _Suspect(
            suite.tests[number], suite.residuals[number], part, tables, level
        )
        for number, part, tables in suite.parts_of(numbers)
    }
    shifted = _shifted(suspects, firsts)
    for number, suspect in suspects.items():
        first, weighed = firsts.value(number), Weighed(change=suspect.alone)
        if suspect.has_evidence:
            if suite.tests[number].comparison.of_part:
                weighed = suspect.of_part(firsts.common(number).pool)
            elif first is not None:
                common, gaps = firsts.common(number), firsts.gaps(number)
                of_class = shifted[number], firsts.class_size(number)
                weighed = suspect.weighed(first, common, gaps, of_class)
        in_order[noisy[number]] = weighed
    return tuple(in_order)


def classes_apart(
    controls: Sequence[Comparison], references: Sequence[Comparison]
) -> frozenset[str]:
    """
    Return the classes of controls that changed from suite to alone while no reference did.

    Args:
        controls: Controls by fresh processes, with the suite's value in `suite`.

        references: Reference workloads by fresh processes, with the suite's value in `suite`.
    """
    tests = contrasts([*controls, *references])
    witnesses = _twice_measured(tests[len(controls) :])
    by_class: dict[str, list[Twice]] = {}
    for twice in _twice_measured(tests[: len(controls)]):
        if not twice.alone.scale and not twice.suite.scale:
            by_class.setdefault(_class_of(twice.alone), []).append(twice)
    return frozenset(
        name
        for name, members in by_class.items()
        if common_step(
            (), members, [w for w in witnesses if _class_of(w.alone) == name]
        ).of_tests
    )


def _relative_shift(log_shift: float | None) -> float | None:
    return None if log_shift is None else fraction_of(log_shift)


def _twice_measured(tests: Iterable[Contrast]) -> list[Twice]:
    return [
        Twice(suite=_first(test), alone=test)
        for test in tests
        if test.comparison.suite is not None
    ]


def _shifted(suspects: Mapping[int, _Suspect], firsts: _Firsts) -> dict[int, int]:
    """
    Return the number of other tests of each suspect's class that only the suite moved.

    Such a test moved surely in the suite, and its fresh processes deny it. Other tests that
    run before it may do that, and then they may do it to any test.
    """
    moved = {
        number
        for number, suspect in suspects.items()
        if (first := firsts.value(number)) is not None
        and suspect.is_denied(first, firsts.common(number), firsts.gaps(number))
    }
    counts = Counter(map(firsts.class_of, moved))
    return {
        number: counts[firsts.class_of(number)] - (number in moved)
        for number in suspects
    }


class _Firsts:
    """
    The suite's values of tests measured again in fresh processes, and their common step.

    Args:
        suite: The run, with the values of fresh processes as far as there are any.

        judged: The places of the suspects.
    """

    def __init__(self, suite: ComparedSuite, judged: Sequence[int]) -> None:
        tests, controls = suite.tests, suite.controls
        firsts = [*map(_first, tests)]
        of_references = _twice_measured(suite.witnesses)
        self._tests = tests
        self._twice = {
            place: Twice(suite=first, alone=test)
            for place, (test, first) in enumerate(zip(tests, firsts, strict=True))
            if test.comparison.suite is not None and test.scale == first.scale
        }
        self._residuals = without_machine(
            firsts, controls, [reference.suite for reference in of_references]
        )
        self._gaps: dict[str, Mapping[str, float]] = {}
        self._common: dict[str, CommonStep] = {}
        for name in {_class_of(tests[place]) for place in judged}:
            references = [r for r in of_references if _class_of(r.alone) == name]
            members = [p for p in self._twice if _class_of(tests[p]) == name]
            self._gaps[name] = reference_gaps(references)
            self._common[name] = common_step(
                [self._twice[p] for p in members if not controls[p]],
                [self._twice[p] for p in members if controls[p]],
                references,
                self._gaps[name],
            )

    def value(self, place: int) -> tuple[Twice, Residual] | None:
        """Return a test's value in the suite, or None without a finite value on the same scale."""
        twice, residual = self._twice.get(place), self._residuals[place]
        finite = math.isfinite(residual.difference + residual.variance)
        return (twice, residual) if twice is not None and finite else None

    def class_of(self, place: int) -> str:
        """Return the class of a test."""
        return _class_of(self._tests[place])

    def class_size(self, place: int) -> int:
        """Return the number of tests in the class of a test."""
        return [*map(_class_of, self._tests)].count(self.class_of(place))

    def common(self, place: int) -> CommonStep:
        """
        Return the step that a test's class shares.

        On a linear scale no class shares a step, and only the test's own spread is estimated.
        """
        test = self._tests[place]
        if not test.scale:
            return self._common[_class_of(test)]
        twice = self._twice.get(place)
        return NO_STEP if twice is None else common_step([twice], (), ())

    def gaps(self, place: int) -> Mapping[str, float]:
        """Return the offsets of the references of a test's class in stored sessions, by id."""
        return self._gaps[_class_of(self._tests[place])]


def _first(test: Contrast) -> Contrast:
    suite = test.comparison.suite
    return test if suite is None else as_in(test, suite)


def _class_of(test: Contrast) -> str:
    """Return the name of the class that shares a step to alone, or "" on a linear scale."""
    if test.scale:
        return ""
    return test.comparison.shift_group or test.comparison.group


class _Suspect:
    """
    A test that fresh processes measured because it may have changed.

    Attributes:
        alone: The change by the fresh processes alone.

    Args:
        test: The test, by its fresh processes.

        residual: The test, corrected for machine drift.

        part: The processes' contribution to the variance.

        tables: The usual spread of the group.

        level: The significance that a change needs.
    """

    def __init__(
        self,
        test: Contrast,
        residual: Residual,
        part: Part,
        tables: Tables,
        level: Sureness,
    ) -> None:
        self._test, self._residual, self._part = test, residual, part
        self._tables, self._level = tables, level
        self.alone = change_of(test, residual, part, tables, level)
        self._noise = test.on_scale(level.noise_threshold)
        self._limit = test.on_scale(test.comparison.limit or 0.0)
        self._beyond: Tail = partial(
            tables.mixture(test.dof).beyond, variance=residual.variance
        )

    @property
    def has_evidence(self) -> bool:
        """True if the change has an interval and a spread."""
        return self.alone.low is not None and bool(self._test.dof)

    def is_denied(
        self,
        first: tuple[Twice, Residual],
        common: CommonStep,
        gaps: Mapping[str, float],
    ) -> bool:
        """Return True if the test moved in the suite, and its fresh processes deny it."""
        test, (twice, residual) = self._test, first
        # On a linear scale tests share no class.
        if test.scale or test.comparison.of_part or not self.has_evidence:
            return False
        if min(self._by_suite(residual)) >= _MOVED:
            return False
        return denied(twice, residual, common, own_offset(test, gaps))

    def of_part(self, pool: float) -> Weighed:
        """Return the change by the fresh processes, for a run of a part of the suite."""
        test = self._test
        own = own_offset(test)
        judgement = judged_alone(
            test,
            self._residual,
            self._beyond,
            own=own,
            pool=pool,
            ratio=self._part.ratio,
            noise=self._noise,
        )
        p_values = judgement.more, judgement.less
        return self._as_weighed(test, self._residual.shift, judgement, p_values)

    def weighed(
        self,
        first: tuple[Twice, Residual],
        common: CommonStep,
        gaps: Mapping[str, float],
        shifted: tuple[int, int],
    ) -> Weighed:
        """
        Return the change by the suite's value and the fresh processes together.

        Args:
            first: The value in the suite, and what is left of it without the machine.

            common: The step that the class shares.

            gaps: Offsets of the references in stored sessions, by session id.

            shifted: Number of other tests that only the suite moved, and of all tests of the
                class.
        """
        twice, residual = first
        own = own_offset(self._test, gaps)
        # A known offset does not happen to be as large as a move.
        count = shifted[0] if own is None else 0
        judged = partial(
            judged_together,
            twice,
            residual,
            common,
            self._beyond,
            own=own,
            process_share=self._part.process_share,
            noise=self._noise,
            limit=self._limit,
            shifted=count / shifted[1],
        )
        judgement = judged()
        if not math.isfinite(judgement.effect):
            return Weighed(change=self.alone)
        bounds, p_values = self._agreed(judgement, judged)
        change = self._as_weighed(twice.suite, residual.shift, bounds, p_values)
        # Where the two do not agree, nothing agrees by chance.
        shifted_count = count if min(p_values) < 1 else 0
        more, less = self._by_suite(residual)
        if self._test.comparison.better is Better.HIGHER:
            more, less = less, more
        return replace(
            change, suite_worse=more, suite_better=less, shifted_count=shifted_count
        )

    def _by_suite(self, residual: Residual) -> tuple[float, float]:
        """Return the p-values of a rise and a fall of the suite's value by itself."""
        more, less = (
            self._beyond(
                sign * residual.difference - self._noise,
                ratio=self._part.planned_ratio,
                extra=residual.extra,
            )
            for sign in (1, -1)
        )
        return more, less

    def _agreed(
        self, judgement: JointEvidence, judged: Callable[..., JointEvidence]
    ) -> tuple[JointEvidence, tuple[float, float]]:
        """
        Return the evidence for the bounds of a change, and the p-values of a rise and a fall.

        The nearest fresh process decides if it is more significant than all processes together.
        """
        test = self._test
        more, less = judgement.more, judgement.less
        bounds = judgement
        for sign, nearest in ((1, test.lowest), (-1, test.highest)):
            if nearest is None or sign * judgement.effect <= 0:
                continue
            found = judged(nearest=(nearest.value, nearest.floor / test.run_share))
            p_value = found.more if sign > 0 else found.less
            if sign * found.allowed < self._limit or p_value >= (
                more if sign > 0 else less
            ):
                continue
            more, less = (p_value, less) if sign > 0 else (more, p_value)
            bounds = replace(
                judgement, ratio=found.ratio, floor=found.floor, extra=found.extra
            )
        return bounds, (more, less)

    def _as_weighed(
        self,
        in_suite: Contrast,
        shift: float,
        judgement: JointEvidence,
        p_values: tuple[float, float],
    ) -> Weighed:
        test, alone = self._test, self.alone
        worse, better = p_values
        if test.comparison.better is Better.HIGHER:
            worse, better = better, worse
        residual = replace(
            self._residual,
            difference=judgement.effect,
            extra=judgement.extra,
            shift=shift,
        )
        part = Part(
            ratio=judgement.ratio,
            planned_ratio=self._part.planned_ratio,
            floor=judgement.floor,
        )
        low, high, detectable = bounds_of(
            test, residual, part, self._tables, self._level
        )
        change = replace(
            alone,
            effect=test.relative(judgement.effect),
            current=test.in_unit(test.mean + judgement.effect + shift),
            p_worse=worse,
            p_better=better,
            machine_shift=math.expm1(shift) if shift else None,
            core_shift=_relative_shift(in_suite.comparison.core_shift),
            clock_shift=_relative_shift(in_suite.comparison.clock_shift),
            low=low,
            high=high,
            detectable_effect=detectable,
        )
        taken = test.mean + shift + judgement.offset
        return Weighed(
            change=change,
            alone=alone,
            confirmations=tuple(
                test.relative(test.placed(value) - taken)
                for value in test.comparison.current.run_values
            ),
            allowed=test.relative(judgement.allowed),
        )
