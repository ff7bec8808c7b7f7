"""A test in the suite and alone: how much of a step between the two is a change.

Stored values come from the suite. The fresh processes that confirm a suspect run it alone,
where it may take another time for good: other thresholds of the allocator, other modules
loaded, cold caches. With o = ln(alone / suite), constant for a test,

    step = alone - suite of this run = o + noise

holds no change of the code. What controls and references share of it is taken out; g is
the rest. How large o may be is a mixture of *places*: usual sizes, learned from the
controls' g, the test's own stored offset, and far off. Each place says how the suite's
value and the fresh ones go together, by their inverse variances

    share = P / (V + w),    z = s + share (g - m)

with s the effect of the suite's value, P the variance of one process, V that of g without
o, m and w mean and variance of o there. g weighs the places: one that does not explain it
says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from pytest_gpuperf.compute.contrast import Contrast
from pytest_gpuperf.compute.machine import LEAST_CONTROLS, Residual
from pytest_gpuperf.compute.spread import LEAST_VARIANCE
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import BulkRecord, Frozen

__all__ = [
    "NO_STEP",
    "CommonStep",
    "JointEvidence",
    "Offset",
    "Tail",
    "Twice",
    "Weighed",
    "common_step",
    "judged_alone",
    "judged_together",
    "narrowed",
    "own_offset",
    "reference_gaps",
]

# docs/judging.md section 2, suite and alone: what a test may be off by, on a log scale
_SIZES = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.08,
)  # deviations; a grid of 2, most tests are < 3 %
_SIZE_WEIGHTS = (0.15, 0.25, 0.30, 0.20, 0.10)  # before any control was measured
_FAR_WEIGHT = 0.1  # of all tests: 8 controls do not tell 5 from 15 %
_FAR_VARIANCE = 0.5**2  # such tests were seen at -30 to +120 %
_FAR_LIKELY = 0.5  # more likely than not
_ALIKE = 0.5  # suite and fresh processes say the same: within a factor of 2
_UNEQUAL_DRIFT = (
    0.3**2
)  # how differently tests follow a drift between the two, a variance

# the chance that an own offset is another by now
_REDRAWN = 0.05
_REDRAWN_MOVED = 0.2  # after an upgrade
_REDRAWN_PART = 0.01  # of a part, where nothing else tells: at 0.05 little is found
_OFFSET_STEP = (
    0.005**2
)  # what an own offset moves by from session to session, a variance
_CHOSEN = (
    4.0  # variances of a process: a suspect's suite value was up to 2 deviations high
)

_MEDIAN_VARIANCE = math.pi / 2  # of a median of normal values, over that of their mean
_APART = 2.0  # deviations that two medians differ by where it is hardly chance

_NO_GAPS: Mapping[str, float] = MappingProxyType({})


class Twice(BulkRecord, frozen=True, kw_only=True):
    """
    One test of a run by its value in the suite and by its fresh processes.

    Attributes:
        suite: Its value in the suite, against the stored sessions.

        alone: Its fresh processes, against the same.
    """

    suite: Contrast
    alone: Contrast

    @property
    def step(self) -> float:
        """The fresh processes' distance from the suite's value; no change is in it."""
        return self.alone.difference - self.suite.difference

    @property
    def variance(self) -> float:
        """Variance of one fresh process."""
        return self.alone.floor / self.alone.run_share

    def spread(self, pool: float) -> float:
        """Return the variance of one process: its own and the usual one, in between."""
        return _spread(self.variance, pool)

    def farthest(self, sign: int) -> float:
        """Return how far one of its fresh processes is above (-1: below) their median."""
        values = self.alone.comparison.current.run_values
        return max(sign * (self.alone.placed(v) - self.alone.now) for v in values)


class Offset(NamedTuple):
    """What a test was off by alone in stored sessions: the mean, and how many say so."""

    mean: float
    weight: float  # one over its variance, in variances of a process


class CommonStep(Frozen, frozen=True, kw_only=True):
    """
    What the tests of a class, and the reference workloads, say of the step to alone.

    Attributes:
        pool: Median variance of a process.

        log_step: What all have in common of the step.

        variance: What that leaves open for one test.

        ahead: What the machine alone has in common of it, less `log_step`: a stored offset
            is moved by it.

        weights: Of the usual sizes of an offset.

        doubt_more: How far one fresh process was above its test's median, in deviations.

        doubt_less: How far one was below.

        of_tests: Whether the references did not share the tests' step, so that it is no
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
    What the suite's value and the fresh processes of a test say together.

    Attributes:
        effect: The change, on the contrast's scale.

        more: Chance of it without a rise.

        less: Chance of it without a fall.

        ratio: Variance of the difference over that of a session, by the likeliest place.

        floor: The least variance of a process.

        extra: Variance of what was taken out, by the likeliest place.

        gap: g, what the test's step has beyond the others'.

        allowed: The largest change that the fresh processes allow.

        offset: What it takes longer alone, as far as that is known now.

        far: The chance that nothing usual or known explains g.
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
    The change of a suspect that fresh processes measured.

    Attributes:
        change: By the suite's value and the fresh processes together; where the suite has
            none that counts, by the fresh processes.

        alone: By the fresh processes alone; None: `change` is.

        suite_worse: Chance of the suite's value by itself without a worsening.

        suite_better: The same without an improvement.

        confirmations: The effect in each fresh process, less what is known of the offset.

        allowed: The largest effect that the fresh processes allow, without what was known
            of the offset before.
    """

    change: Change
    alone: Change | None = None
    suite_worse: float = 1.0
    suite_better: float = 1.0
    confirmations: tuple[float, ...] = ()
    allowed: float = 0.0


class _OffsetPlace(NamedTuple):
    """One of the sizes that an offset may have."""

    weight: float
    mean: float
    variance: float
    is_known: bool = True  # else it was drawn anew since the offset was stored

    @property
    def is_far(self) -> bool:
        """Whether nothing usual or known is there."""
        return self.variance >= _FAR_VARIANCE


Tail = Callable[..., float]  # Mixture.beyond at the test's own variance


def narrowed(count: int) -> float:
    """Return the variance of the median of some processes, over that of one."""
    return min(1.0, _MEDIAN_VARIANCE / count)


def reference_gaps(references: Iterable[Twice]) -> dict[str, float]:
    """Return what the references were off by alone in stored sessions, by session id."""
    gaps: dict[str, list[float]] = {}
    for reference in references:
        for name, gap, _, _ in _stored_gaps(reference.alone):
            gaps.setdefault(name, []).append(gap)
    return {name: median(several) for name, several in gaps.items()}


def own_offset(test: Contrast, gaps: Mapping[str, float] = _NO_GAPS) -> Offset | None:
    """
    Return what a test was off by alone; None: no stored session says.

    Args:
        test: The test, with its stored sessions.

        gaps: What the references were off by, by session id: that was the machine.
    """
    weighted = total = 0.0
    for name, gap, count, suspected in _stored_gaps(test):
        weight = 1 / (1 + narrowed(count) + (_CHOSEN if suspected else 0.0))
        weighted += weight * (gap - gaps.get(name, 0.0))
        total += weight
    return Offset(mean=weighted / total, weight=total) if total else None


def _stored_gaps(test: Contrast) -> Iterable[tuple[str, float, int, bool]]:
    """Yield session, gap, process count and choice of what was measured alone."""
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
    Return what the tests of a class have in common between suite and alone.

    Drift of the machine between the two, or an offset that all tests share: neither is the
    change of one test, and it need not be known which.

    Args:
        suspects: Tests that are asked about; they say how processes differ.

        controls: Tests that are not.

        references: Reference workloads of the class.

        gaps: What the references were off by in stored sessions, by session id.
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
    if len(several) >= LEAST_CONTROLS:  # else it is one test's own noise, or offset
        log_step = median(several)
        variance = noise / len(several) + _UNEQUAL_DRIFT * log_step**2
    known = [
        control.step - offset.mean
        for control in controls
        if (offset := own_offset(control.alone, gaps)) is not None
    ]
    told = [*known, *of_machine]
    return CommonStep(
        pool=pool,
        log_step=log_step,
        variance=variance,
        ahead=median(told) - log_step if told else 0.0,
        weights=_learned(controls, pool, log_step, variance),
        doubt_more=_doubt(measured, pool, 1),
        doubt_less=_doubt(measured, pool, -1),
        of_tests=is_apart,
    )


def _learned(
    controls: Sequence[Twice], pool: float, log_step: float, variance: float
) -> tuple[float, ...]:
    """Return how usual each size of an offset is, by what the controls are off by."""
    logs = [*map(math.log, _SIZE_WEIGHTS)]
    for control in controls:
        gap = control.step - log_step
        share = narrowed(control.alone.run_count)
        noise = (1 + share) * control.spread(pool) + variance
        far = math.log(_FAR_WEIGHT) + _log_normal(gap, _FAR_VARIANCE + noise)
        for place, size in enumerate(_SIZES):
            near = math.log(1 - _FAR_WEIGHT) + _log_normal(gap, size**2 + noise)
            logs[place] += _log_sum(near, far)
    weights = _scaled(logs)
    return tuple((1 - _FAR_WEIGHT) * weight for weight in weights)


def _doubt(tests: Sequence[Twice], pool: float, sign: int) -> float:
    """Return how far one process was off to a side, in deviations of its test."""
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
    nearest: tuple[float, float] | None = None,
) -> JointEvidence:
    """
    Return what the suite's value and the fresh processes of a test say together.

    What the fresh processes deny is no change: the smaller of the effect and of what they
    allow counts. Where they say the contrary nothing is sure.

    Args:
        test: The test.

        residual: Its value in the suite, without what the machine did.

        common: What its class has in common.

        beyond: The one-sided probability of a larger difference without a change.

        own: What it was off by alone in stored sessions; None: not known.

        process_share: The share of a session's variance that is of its processes.

        noise: The change that is too small to mean anything.

        limit: The largest change that passes.

        nearest: Value and variance of the fresh process that decides in place of their
            median; None: their median does.
    """
    gap, spread, open_variance = _gap(test, common, nearest)
    own_variance = 0.0 if own is None else spread / own.weight
    redrawn = _REDRAWN_MOVED if test.alone.comparison.moved else _REDRAWN
    mean = None if own is None else own.mean + common.ahead
    expected = _places(common.weights, mean, own_variance, redrawn)
    first = residual.difference
    allowed = first + gap - _known_mean(expected)
    places = _by_gap(expected, gap, open_variance)
    shares = [spread / (open_variance + place.variance) for place in places]
    effects = [
        first + share * (gap - place.mean)
        for place, share in zip(places, shares, strict=True)
    ]
    ratios = [_ratio(test, process_share, share) for share in shares]
    whole = _mean(places, effects)
    far = sum(place.weight for place in places if place.is_far)
    unlike = far > _FAR_LIKELY and not _is_alike(first, allowed)
    denied = unlike or whole * allowed <= 0
    # where nothing explains g, one process of the suite says it all: it may be one of
    # those that are off, as one of this run's fresh ones was
    doubt = math.sqrt(spread) if far > _FAR_LIKELY else 0.0
    floor = spread * test.alone.run_share

    def chance(sign: int, doubted: float) -> float:
        if denied:
            return 1.0
        beyond_noise = partial(beyond, floor=floor, extra=residual.extra)
        tails = [
            beyond_noise(sign * e - (doubted if p.is_far else 0.0) - noise, ratio=ratio)
            for p, e, ratio in zip(places, effects, ratios, strict=True)
        ]
        return _mean(places, tails)

    return JointEvidence(
        effect=_effect(whole, allowed, limit),
        more=chance(1, doubt * common.doubt_more),
        less=chance(-1, doubt * common.doubt_less),
        ratio=ratios[_likeliest(places)],
        floor=floor,
        extra=residual.extra,
        gap=gap,
        allowed=allowed,
        offset=common.log_step + _mean(places, [place.mean for place in places]),
        far=far,
    )


def _effect(whole: float, allowed: float, limit: float) -> float:
    """Return the smaller of two effects; of contrary ones what is allowed, if it passes."""
    if whole * allowed > 0:
        return min(whole, allowed, key=abs)
    return allowed if abs(allowed) <= limit else whole


def _gap(
    test: Twice, common: CommonStep, nearest: tuple[float, float] | None
) -> tuple[float, float, float]:
    """Return g, the variance of a process, and that of g without the offset."""
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
    Return what fresh processes say of a test whose suite was a part of the stored one.

    The suite's value is as much of the test alone as theirs, so that the step between them
    says nothing of an offset.

    Args:
        test: The fresh processes.

        residual: The same without what the machine did.

        beyond: The one-sided probability of a larger difference without a change.

        own: What it was off by alone in stored sessions; None: not known.

        pool: Median variance of a process.

        ratio: Variance of the difference over that of a session.

        noise: The change that is too small to mean anything.
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


def _ratio(test: Twice, process_share: float, part: float) -> float:
    """Return the variance of a difference over a session's; `part` is the fresh ones'."""
    own = process_share / test.alone.run_share
    return 1 / len(test.alone.stored) + 1 - process_share + own * (1 - part)


def _spread(variance: float, pool: float) -> float:
    """Return the variance of a process: four others tell little of one test's alone."""
    return max(math.sqrt(variance) * math.sqrt(pool), LEAST_VARIANCE)


def _mean(places: Sequence[_OffsetPlace], values: Sequence[float]) -> float:
    """Return the mean of some values, one of each place."""
    return sum(
        place.weight * value for place, value in zip(places, values, strict=True)
    )


def _likeliest(places: Sequence[_OffsetPlace]) -> int:
    """Return the number of the place with the most weight."""
    return max(range(len(places)), key=lambda number: places[number].weight)


def _is_alike(first: float, allowed: float) -> bool:
    """Return whether two effects have one direction, and are equal within a factor of 2."""
    small, large = sorted(map(abs, (first, allowed)))
    return first * allowed > 0 and small >= _ALIKE * large


def _places(
    weights: Sequence[float], own: float | None, own_variance: float, chance: float
) -> list[_OffsetPlace]:
    """
    Return what an offset may be.

    Args:
        weights: Of the usual sizes.

        own: The stored offset of the test; None: it has none.

        own_variance: Its variance.

        chance: That it is another one by now.
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
    """Return the mean of an offset, unless it is another one by now."""
    known = [place for place in places if place.is_known]
    total = sum(place.weight for place in known)
    return sum(place.weight * place.mean for place in known) / total


def _by_gap(
    places: Sequence[_OffsetPlace], gap: float, open_variance: float
) -> list[_OffsetPlace]:
    """Return places by how well they explain a gap."""
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
    """Return the logarithm of a normal density, but for a constant."""
    return -(distance * distance / variance + math.log(variance)) / 2


def _log_sum(one: float, other: float) -> float:
    """Return the logarithm of the sum of two numbers that are given by theirs."""
    most = max(one, other)
    return most + math.log1p(math.exp(min(one, other) - most))


def _scaled(logs: Sequence[float]) -> list[float]:
    """Return weights that add up to 1, from logarithms: the densities underflow."""
    most = max(logs)
    weights = [math.exp(log - most) for log in logs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
