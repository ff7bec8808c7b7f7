"""A test in the suite and alone: how much of a step between the two is a change.

Stored values come from the suite. The fresh processes that confirm a suspect run it alone,
where its time may differ permanently: other thresholds of the allocator, other modules
loaded, cold caches. With o = ln(alone / suite), constant for a test,

    step = alone - suite of this run = o + noise

holds no change of the code. The part of the step that controls and references share is
subtracted, and g is the rest. The possible size of o is a mixture of *places*: usual sizes
learned from the controls' g, the test's own stored offset, and a far place. Each place
combines the suite's value and the fresh ones by their inverse variances

    share = P / (V + w),    z = s + share (g - m)

with s the effect of the suite's value, P the variance of one process, V that of g without
o, m and w mean and variance of o there. g weighs the places: a place that does not explain
g has hardly any weight.

The suite may also move a test without a change of its code, if other tests run before it.
The fresh processes deny such a move, unless the offset happens to be as large as the move:

    P(|o - s| <= |g|), over the places before g weighs them

This chance counts for tests whose offset is unknown, by the share of other tests that the
suite moved although their fresh processes deny it. A known offset is hardly a surprise.

Both values are converted to the speed of the stored cores by one power, whose error has a
variance u. With the distances D and D' of the cores in the suite and alone, it adds
u (D - D')^2 to V, and (1 - share) D + share D' is what is left of the distance:

    share = (P + u D (D - D')) / (V + w + u (D - D')^2)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist, median
from types import MappingProxyType
from typing import NamedTuple

from pytest_gpuperf.compute.contrast import Contrast
from pytest_gpuperf.compute.machine import LEAST_CONTROLS, Residual
from pytest_gpuperf.compute.spread import LEAST_VARIANCE
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import BulkRecord, Frozen

# docs/judging.md section 2, suite and alone: the possible offsets of a test, as
# deviations on a log scale. The grid has a ratio of 2, and most tests are below 3 %.
_SIZES = (0.005, 0.01, 0.02, 0.04, 0.08)
_SIZE_WEIGHTS = (0.15, 0.25, 0.30, 0.20, 0.10)  # Before any control is measured.
# Share of all tests. It is not learned, since 8 controls cannot distinguish 5 % from 15 %.
_FAR_WEIGHT = 0.1
_FAR_VARIANCE = 0.5**2  # Such tests were measured at -30 to +120 %.
_FAR_LIKELY = 0.5  # More likely than not.
# Suite and fresh processes agree if their effects are within a factor of 2.
_ALIKE = 0.5
# Variance of the share of a drift between suite and alone that a test follows.
_UNEQUAL_DRIFT = 0.3**2

# The chance that the stored offset of a test no longer holds.
_REDRAWN = 0.05
_REDRAWN_MOVED = 0.2  # After an upgrade.
# If only a part of the suite runs, there is no other evidence of the offset. At 0.05 few
# changes would be found.
_REDRAWN_PART = 0.01
# Variance of the movement of a test's offset from session to session.
_OFFSET_STEP = 0.005**2
# Added for suspects, in variances of a process: a suspect's suite value was selected for
# being up to 2 deviations high.
_CHOSEN = 4.0

# Variance of the median of normal values over the variance of the mean.
_MEDIAN_VARIANCE = math.pi / 2
# Two medians that differ by more deviations hardly do so by chance.
_APART = 2.0

# Added to a denominator that may be 0, so that the quotient stays finite.
_MOST_PART = 1e-12

_NO_GAPS: Mapping[str, float] = MappingProxyType({})


class Twice(BulkRecord, frozen=True, kw_only=True):
    """
    One test of a run, measured in the suite and in fresh processes.

    Attributes:
        suite: The value in the suite, against the stored sessions.

        alone: The fresh processes, against the same stored sessions.
    """

    suite: Contrast
    alone: Contrast

    @property
    def step(self) -> float:
        """The distance of the fresh processes from the suite's value, free of code changes."""
        return self.alone.difference - self.suite.difference

    @property
    def variance(self) -> float:
        """The variance of a single fresh process."""
        return self.alone.floor / self.alone.run_share

    @property
    def core(self) -> _CoreError:
        """The error of the correction for the speed of the core."""
        suite, alone = self.suite.comparison, self.alone.comparison
        if not alone.core_precision:  # The speed is unknown.
            return _CoreError(0.0, 0.0, 0.0)
        variance = 1 / alone.core_precision
        return _CoreError(variance, suite.core_distance, alone.core_distance)

    def spread(self, pool: float) -> float:
        """Return the variance of a process, between the test's own and the usual variance."""
        return _spread(self.variance, pool)

    def farthest(self, sign: int) -> float:
        """Return the distance of the farthest fresh process above the median (below for -1)."""
        values = self.alone.comparison.current.run_values
        return max(sign * (self.alone.placed(v) - self.alone.now) for v in values)


class Offset(NamedTuple):
    """The offset of a test alone in stored sessions, as the mean and the evidence for it."""

    mean: float
    weight: float  # One over the variance of the mean, in variances of a process.


class CommonStep(Frozen, frozen=True, kw_only=True):
    """
    The part of the step to alone that the tests and references of a class share.

    Attributes:
        pool: Median variance of a process.

        log_step: The shared part of the step.

        variance: Variance that `log_step` leaves open for a single test, apart from the
            test's own noise.

        ahead: The shared step of the machine alone, less `log_step`. A stored offset is moved
            by this amount.

        weights: Weights of the usual sizes of an offset.

        doubt_more: Distance of the farthest fresh process above its test's median, in
            deviations.

        doubt_less: The same distance below.

        of_tests: Whether the references did not share the tests' step, so that the step is no
            drift of the machine.
    """

    pool: float
    log_step: float = 0.0
    variance: float = 0.0
    ahead: float = 0.0
    weights: tuple[float, ...] = tuple(
        (1 - _FAR_WEIGHT) * weight for weight in _SIZE_WEIGHTS
    )
    doubt_more: float = 0.0
    doubt_less: float = 0.0
    of_tests: bool = False


NO_STEP = CommonStep(pool=LEAST_VARIANCE)


class JointEvidence(Frozen, frozen=True, kw_only=True):
    """
    The combined evidence of a test's suite value and fresh processes.

    Attributes:
        effect: The change, on the contrast's scale.

        more: Probability of the evidence without a rise.

        less: Probability of the evidence without a fall.

        ratio: Variance of the difference over that of a session, for the likeliest place.

        floor: The smallest variance of a process.

        extra: Variance of the correction, for the likeliest place.

        gap: g, the test's step beyond the shared step.

        allowed: The largest change that the fresh processes allow.

        offset: The current estimate of the test's offset alone.

        far: Probability that g is explained by no usual or known offset.
    """

    effect: float
    more: float
    less: float
    ratio: float
    floor: float
    extra: float
    gap: float = 0.0
    allowed: float = 0.0
    offset: float = 0.0
    far: float = 0.0


class Weighed(BulkRecord, frozen=True, kw_only=True):
    """
    The change of a suspect, measured by fresh processes.

    Attributes:
        change: The change by the suite's value and the fresh processes together. If the suite
            has no valid value, by the fresh processes.

        alone: The change by the fresh processes alone, or None if `change` is that already.

        suite_worse: Probability of the suite's value by itself without a worsening.

        suite_better: The same without an improvement.

        confirmations: The effect in each fresh process, less the known offset.

        allowed: The largest effect that the fresh processes allow, without the offset known
            before.

        shifted_count: Number of other tests of the class that moved in the suite while their
            fresh processes deny it. 0 if this test cannot agree with its own by chance.
    """

    change: Change
    alone: Change | None = None
    suite_worse: float = 1.0
    suite_better: float = 1.0
    confirmations: tuple[float, ...] = ()
    allowed: float = 0.0
    shifted_count: int = 0


class _OffsetPlace(NamedTuple):
    """One of the possible sizes of an offset."""

    weight: float
    mean: float
    variance: float
    # False if the offset was drawn anew since it was stored.
    is_known: bool = True

    @property
    def is_far(self) -> bool:
        """True for offsets far beyond all usual and known sizes."""
        return self.variance >= _FAR_VARIANCE


class _CoreError(NamedTuple):
    """
    The error of the power with which a test follows its core.

    The suite's value and the fresh ones have the same error, at different distances of the
    core. Where fresh processes have a share of the evidence, less of it may be left.
    """

    variance: float  # Of the power.
    in_suite: float  # The core's distance from the stored sessions.
    alone: float  # The same in the fresh processes.

    @property
    def of_one(self) -> _CoreError:
        """The error of a single fresh process, whose core may be as far off as the suite's."""
        return self._replace(alone=self.in_suite)

    @property
    def of_step(self) -> float:
        """The variance of the step from suite to alone."""
        return self.variance * (self.alone - self.in_suite) ** 2

    def left(self, share: float) -> float:
        """Return the variance of the correction for a share of the fresh processes."""
        distance = self.in_suite + share * (self.alone - self.in_suite)
        return self.variance * distance**2


class _Combined(NamedTuple):
    """The evidence at one place of an offset."""

    effect: float
    process_left: float  # Variance left of processes, in variances of one.
    core_left: float  # Variance left by the core's correction.


Tail = Callable[..., float]  # `Mixture.beyond` at the test's own variance.


def narrowed(count: int) -> float:
    """Return the variance of a median of `count` processes over the variance of a process."""
    return min(1.0, _MEDIAN_VARIANCE / count)


def process_shares(
    tests: Mapping[int, tuple[Contrast, Residual]],
) -> dict[int, tuple[float, float]]:
    """
    Return the share of a session's variance that its process has, and what is left of it.

    The share is estimated from the current processes of all tests of a group, because one
    test has few. Their number reduces it.

    Args:
        tests: The tests that fresh processes measured, by place.
    """
    within = between = 0.0
    for test, residual in tests.values():
        within += test.floor
        between += max(residual.variance, test.floor)
    pooled = within / (between + _MOST_PART)
    shares: dict[int, tuple[float, float]] = {}
    for place, (test, residual) in tests.items():
        own = left = 0.0
        if test.dof:
            # If the test's own share is smaller, that share is used, so that sessions that
            # differ for other reasons do not count as differing processes.
            own = min(pooled, test.floor / residual.variance, 1.0)
            left = own * narrowed(test.run_count) / test.run_share
        shares[place] = own, left
    return shares


def reference_gaps(references: Iterable[Twice]) -> dict[str, float]:
    """Return the median offset of the reference workloads alone, by stored session id."""
    gaps: dict[str, list[float]] = {}
    for reference in references:
        for name, gap, _, _ in _stored_gaps(reference.alone):
            gaps.setdefault(name, []).append(gap)
    return {name: median(several) for name, several in gaps.items()}


def own_offset(test: Contrast, gaps: Mapping[str, float] = _NO_GAPS) -> Offset | None:
    """
    Estimate the offset of a test alone from stored sessions, or None without any.

    Args:
        test: The test, with its stored sessions.

        gaps: Offsets of the references, by session id. They are attributed to the machine
            and subtracted.
    """
    weighted = total = 0.0
    for name, gap, count, suspected in _stored_gaps(test):
        weight = 1 / (1 + narrowed(count) + (_CHOSEN if suspected else 0.0))
        weighted += weight * (gap - gaps.get(name, 0.0))
        total += weight
    return Offset(mean=weighted / total, weight=total) if total else None


def _stored_gaps(test: Contrast) -> Iterable[tuple[str, float, int, bool]]:
    """
    Yield session id, offset, process count and suspicion of values measured alone.

    Sessions without such values are left out.
    """
    sessions = test.comparison.stored
    for name, value, session in zip(
        test.session_ids, test.stored, sessions, strict=True
    ):
        alone = session.alone_values
        if alone and (test.scale or min(alone) > 0):
            gap = median(map(test.placed, alone)) - value
            yield name, gap, len(alone), session.suspected


def common_step(
    suspects: Sequence[Twice],
    controls: Sequence[Twice],
    references: Sequence[Twice],
    gaps: Mapping[str, float] = _NO_GAPS,
) -> CommonStep:
    """
    Estimate the step between suite and alone that the tests of a class share.

    The step is drift of the machine between the two, or an offset that all tests share.
    Neither is the change of one test, so the two need not be distinguished.

    Args:
        suspects: Suspected tests, used only to estimate how processes differ.

        controls: Tests that are no suspects.

        references: Reference workloads of the class.

        gaps: Offsets of the references in stored sessions, by session id.
    """
    measured = [*suspects, *controls]
    if not measured:
        return NO_STEP
    pool = max(median(test.variance for test in measured), LEAST_VARIANCE)
    share = narrowed(min(test.alone.run_count for test in (*measured, *references)))
    noise = _MEDIAN_VARIANCE * (1 + share) * pool
    of_machine = [reference.step for reference in references]
    of_tests = [control.step for control in controls]
    several, is_apart = [*of_tests, *of_machine], False
    if len(of_tests) >= LEAST_CONTROLS and of_machine:
        open_variance = noise * (1 / len(of_tests) + 1 / len(of_machine))
        distance = abs(median(of_tests) - median(of_machine))
        is_apart = distance > _APART * math.sqrt(open_variance)
        several = of_tests if is_apart else several
    log_step = variance = 0.0
    # The median of fewer is one test's own noise or offset.
    if len(several) >= LEAST_CONTROLS:
        log_step = median(several)
        variance = noise / len(several) + _UNEQUAL_DRIFT * log_step**2
    known = [
        control.step - offset.mean
        for control in controls
        if (offset := own_offset(control.alone, gaps)) is not None
    ]
    steps = [*known, *of_machine]
    return CommonStep(
        pool=pool,
        log_step=log_step,
        variance=variance,
        ahead=median(steps) - log_step if steps else 0.0,
        weights=_learned(controls, pool, log_step, variance),
        doubt_more=_doubt(measured, pool, 1),
        doubt_less=_doubt(measured, pool, -1),
        of_tests=is_apart,
    )


def _learned(
    controls: Sequence[Twice], pool: float, log_step: float, variance: float
) -> tuple[float, ...]:
    logs = [*map(math.log, _SIZE_WEIGHTS)]
    for control in controls:
        gap = control.step - log_step
        share = narrowed(control.alone.run_count)
        noise = (1 + share) * control.spread(pool) + variance
        far = math.log(_FAR_WEIGHT) + _log_normal(gap, _FAR_VARIANCE + noise)
        for place, size in enumerate(_SIZES):
            near = math.log(1 - _FAR_WEIGHT) + _log_normal(gap, size**2 + noise)
            most = max(near, far)
            logs[place] += most + math.log1p(math.exp(min(near, far) - most))
    weights = _scaled(logs)
    return tuple((1 - _FAR_WEIGHT) * weight for weight in weights)


def _doubt(tests: Sequence[Twice], pool: float, sign: int) -> float:
    """Return the largest distance of a process to one side, in standard deviations of the test."""
    return max(test.farthest(sign) / math.sqrt(test.spread(pool)) for test in tests)


def judged_together(
    test: Twice,
    residual: Residual,
    common: CommonStep,
    beyond: Tail,
    *,
    own: Offset | None,
    process_share: float,
    noise: float,
    limit: float,
    shifted: float = 0.0,
    nearest: tuple[float, float] | None = None,
) -> JointEvidence:
    """
    Combine the suite's value and the fresh processes of a test.

    A change that the fresh processes deny does not count: the result is the smaller of the
    effect and of the change that they allow. If the two contradict, nothing is significant.

    Args:
        test: The test.

        residual: The value in the suite, corrected for machine drift.

        common: The step that the class shares.

        beyond: The one-sided probability of a larger difference without a change.

        own: Offset of the test alone in stored sessions, or None if unknown.

        process_share: Share of a session's variance that comes from processes.

        noise: The largest change that is too small to matter.

        limit: The largest change that passes.

        shifted: The chance that the suite moved the test without a change of its code.

        nearest: Value and variance of the deciding fresh process, or None if the median of
            the processes decides.
    """
    gap, spread, open_variance = _gap(test, common, nearest)
    core = test.core if nearest is None else test.core.of_one
    expected = _expected(test, common, own, spread)
    first = residual.difference
    allowed = first + gap - _known_mean(expected)
    places = _by_gap(expected, gap, open_variance + core.of_step)
    combined = [
        _combined(place, first, gap, spread, open_variance, common.variance, core)
        for place in places
    ]
    ratios, extras = _variances(combined, test, residual, core, process_share)
    whole = _mean(places, [each.effect for each in combined])
    far = sum(place.weight for place in places if place.is_far)
    unlike = far > _FAR_LIKELY and not _is_alike(first, allowed)
    denied = unlike or whole * allowed <= 0
    # If g is unexplained, the result rests on the suite's only process. That process may
    # be as far off as the farthest of this run's fresh processes.
    doubt = math.sqrt(spread) if far > _FAR_LIKELY else 0.0
    floor = spread * test.alone.run_share
    accident = shifted * _accident(expected, first, gap) if shifted else 0.0

    def chance(sign: int, doubted: float) -> float:
        if denied:
            return 1.0
        effects = [
            sign * each.effect - (doubted if place.is_far else 0.0) - noise
            for place, each in zip(places, combined, strict=True)
        ]
        tails = [
            beyond(effect, ratio=ratio, floor=floor, extra=extra)
            for effect, ratio, extra in zip(effects, ratios, extras, strict=True)
        ]
        return min(_mean(places, tails) + accident, 1.0)

    return JointEvidence(
        effect=_effect(whole, allowed, limit),
        more=chance(1, doubt * common.doubt_more),
        less=chance(-1, doubt * common.doubt_less),
        ratio=ratios[_likeliest(places)],
        floor=floor,
        extra=extras[_likeliest(places)],
        gap=gap,
        allowed=allowed,
        offset=common.log_step + _mean(places, [place.mean for place in places]),
        far=far,
    )


def denied(
    test: Twice, residual: Residual, common: CommonStep, own: Offset | None
) -> bool:
    """
    Return True if fresh processes allow less than half of what the suite's value shows.

    False if one of this run's fresh processes was as far off: then the suite's was so, too.

    Args:
        test: The test.

        residual: The value in the suite, corrected for machine drift.

        common: The step that the class shares.

        own: Offset of the test alone in stored sessions, or None if unknown.
    """
    gap, spread, _ = _gap(test, common, None)
    first = residual.difference
    allowed = first + gap - _known_mean(_expected(test, common, own, spread))
    doubt = common.doubt_more if first > 0 else common.doubt_less
    if abs(first - allowed) <= doubt * math.sqrt(spread):
        return False
    return first * allowed <= 0 or abs(allowed) < _ALIKE * abs(first)


def _accident(places: Iterable[_OffsetPlace], first: float, gap: float) -> float:
    """
    Return the chance that an offset is as close to the suite's move as the gap.

    Args:
        places: The possible offsets of the test, before the gap weighs them.

        first: The effect of the suite's value.

        gap: The test's step beyond the shared step.
    """
    chance = 0.0
    for place in places:
        offsets = NormalDist(place.mean, math.sqrt(place.variance))
        reach = offsets.cdf(first + abs(gap)) - offsets.cdf(first - abs(gap))
        chance += place.weight * reach
    return chance


def _expected(
    test: Twice, common: CommonStep, own: Offset | None, spread: float
) -> list[_OffsetPlace]:
    own_variance = 0.0 if own is None else spread / own.weight
    redrawn = _REDRAWN_MOVED if test.alone.comparison.moved else _REDRAWN
    mean = None if own is None else own.mean + common.ahead
    return _places(common.weights, mean, own_variance, redrawn)


def _variances(
    combined: Sequence[_Combined],
    test: Twice,
    residual: Residual,
    core: _CoreError,
    process_share: float,
) -> tuple[list[float], list[float]]:
    """Return each effect's variance, in variances of a session and apart from them."""
    # The processes' part of a session's variance, less the share of the fresh processes.
    own_part = process_share / test.alone.run_share
    rest = 1 / len(test.alone.stored) + 1 - process_share
    # The correction's other errors are the suite's.
    other = max(residual.extra - core.left(0.0), 0.0)
    return (
        [rest + own_part * each.process_left for each in combined],
        [other + each.core_left for each in combined],
    )


def _combined(
    place: _OffsetPlace,
    first: float,
    gap: float,
    spread: float,
    open_variance: float,
    common_variance: float,
    core: _CoreError,
) -> _Combined:
    """
    Combine the suite's value and the fresh ones with the smallest variance.

    Args:
        place: The size of the offset alone.

        first: The effect of the suite's value.

        gap: The test's step beyond the shared step.

        spread: Variance of a process.

        open_variance: Variance of the gap without the offset and the core.

        common_variance: The part of it that the shared step leaves open.

        core: The error of the correction for the core.
    """
    whole = open_variance + place.variance
    # The covariance of the two: the error is the same in both.
    shared = core.variance * core.in_suite * (core.in_suite - core.alone)
    share = min(max((spread + shared) / (whole + core.of_step), 0.0), 1.0)
    # What the offset and the shared step leave open is no part of a session's variance.
    # Without the core, processes outweigh it.
    offset_variance = place.variance + common_variance
    outweighed = min(share, spread / whole) ** 2 * offset_variance
    alone = share**2 * (open_variance - common_variance - spread)
    return _Combined(
        effect=first + share * (gap - place.mean),
        process_left=(1 - share) ** 2 + (alone + outweighed) / spread,
        core_left=core.left(share) + share**2 * offset_variance - outweighed,
    )


def _effect(whole: float, allowed: float, limit: float) -> float:
    """
    Return the effect closer to 0 if both agree in sign.

    Else return the allowed change if it is within the limit, or the whole effect.
    """
    if whole * allowed > 0:
        return min(whole, allowed, key=abs)
    return allowed if abs(allowed) <= limit else whole


def _gap(
    test: Twice, common: CommonStep, nearest: tuple[float, float] | None
) -> tuple[float, float, float]:
    """Return g, the variance of a process, and the variance of g without the offset."""
    share, variance, step = narrowed(test.alone.run_count), test.variance, test.step
    if nearest is not None:
        share, variance, step = 1.0, nearest[1], step + nearest[0] - test.alone.now
    spread = _spread(variance, common.pool)
    return step - common.log_step, spread, (1 + share) * spread + common.variance


def judged_alone(
    test: Contrast,
    residual: Residual,
    beyond: Tail,
    *,
    own: Offset | None,
    pool: float,
    ratio: float,
    noise: float,
) -> JointEvidence:
    """
    Judge the fresh processes of a test if only a part of the suite ran.

    In such a run the suite's value is measured as much alone as the fresh processes, so the
    step between the two is no evidence of an offset.

    Args:
        test: The fresh processes.

        residual: The fresh processes, corrected for machine drift.

        beyond: The one-sided probability of a larger difference without a change.

        own: Offset of the test alone in stored sessions, or None if unknown.

        pool: Median variance of a process.

        ratio: Variance of the difference over that of a session.

        noise: The largest change that is too small to matter.
    """
    spread = _spread(test.floor / test.run_share, pool)
    own_variance = 0.0 if own is None else spread / own.weight
    chance = _REDRAWN_MOVED if test.comparison.moved else _REDRAWN_PART
    mean = None if own is None else own.mean
    places = _places(NO_STEP.weights, mean, own_variance, chance)
    floor = spread * test.run_share
    more, less = (
        _mean(
            places,
            [
                beyond(
                    sign * (residual.difference - place.mean) - noise,
                    ratio=ratio,
                    floor=floor,
                    extra=residual.extra + place.variance,
                )
                for place in places
            ],
        )
        for sign in (1, -1)
    )
    offset = _mean(places, [place.mean for place in places])
    likeliest = places[_likeliest(places)]
    return JointEvidence(
        effect=residual.difference - offset,
        allowed=residual.difference - offset,
        more=more,
        less=less,
        ratio=ratio,
        floor=floor,
        extra=residual.extra + likeliest.variance,
        offset=offset,
        far=sum(place.weight for place in places if place.is_far),
    )


def _spread(variance: float, pool: float) -> float:
    """
    Return the geometric mean of a test's own and the pooled variance of a process.

    The few processes of one test say little about the variance on their own.
    """
    return max(math.sqrt(variance) * math.sqrt(pool), LEAST_VARIANCE)


def _mean(places: Sequence[_OffsetPlace], values: Sequence[float]) -> float:
    return sum(
        place.weight * value for place, value in zip(places, values, strict=True)
    )


def _likeliest(places: Sequence[_OffsetPlace]) -> int:
    return max(range(len(places)), key=lambda number: places[number].weight)


def _is_alike(first: float, allowed: float) -> bool:
    small, large = sorted(map(abs, (first, allowed)))
    return first * allowed > 0 and small >= _ALIKE * large


def _places(
    weights: Sequence[float], own: float | None, own_variance: float, chance: float
) -> list[_OffsetPlace]:
    """
    List the possible offsets of a test.

    Args:
        weights: Weights of the usual sizes.

        own: The stored offset of the test, or None without one.

        own_variance: Variance of the stored offset.

        chance: Probability that the stored offset no longer holds.
    """
    variances = (*(size**2 for size in _SIZES), _FAR_VARIANCE)
    usual = [
        _OffsetPlace(weight, 0.0, variance)
        for weight, variance in zip((*weights, _FAR_WEIGHT), variances, strict=True)
    ]
    if own is None:
        return usual
    logs = [
        math.log(place.weight) + _log_normal(own, place.variance + own_variance)
        if place.weight
        else -math.inf
        for place in usual
    ]
    places = []
    for weight, (_, _, variance, _) in zip(_scaled(logs), usual, strict=True):
        part = variance / (variance + own_variance)
        places.append(
            _OffsetPlace(
                (1 - chance) * weight, own * part, own_variance * part + _OFFSET_STEP
            )
        )
    return places + [
        _OffsetPlace(chance * weight, 0.0, variance, is_known=False)
        for weight, _, variance, _ in usual
    ]


def _known_mean(places: Iterable[_OffsetPlace]) -> float:
    known = [place for place in places if place.is_known]
    total = sum(place.weight for place in known)
    return sum(place.weight * place.mean for place in known) / total


def _by_gap(
    places: Sequence[_OffsetPlace], gap: float, open_variance: float
) -> list[_OffsetPlace]:
    logs = [
        math.log(place.weight)
        + _log_normal(gap - place.mean, open_variance + place.variance)
        if place.weight
        else -math.inf
        for place in places
    ]
    return [
        place._replace(weight=weight)
        for place, weight in zip(places, _scaled(logs), strict=True)
    ]


def _log_normal(distance: float, variance: float) -> float:
    return -(distance * distance / variance + math.log(variance)) / 2


def _scaled(logs: Sequence[float]) -> list[float]:
    """Convert logarithms to weights with a sum of 1, as the densities would underflow."""
    most = max(logs)
    weights = [math.exp(log - most) for log in logs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
