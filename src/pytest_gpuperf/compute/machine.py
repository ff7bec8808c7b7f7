"""What the machine did to a class of tests, and what is left without it.

A machine that is slower today is so for many tests at once. What that is, the median of the
others says, and so do reference workloads, which no change of the code can move. How much
of it a test follows is not known for each: one share beta serves a whole class, shrunk to
what is usual, and what tests follow differently is added to the variance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from pytest_gpuperf.compute.contrast import Contrast
from pytest_gpuperf.compute.spread import LEAST_VARIANCE
from pytest_gpuperf.model.frozen import BulkRecord, Frozen

__all__ = [
    "LEAST_CONTROLS",
    "CommonMove",
    "FollowedShare",
    "Residual",
    "common_moves",
    "followed_share",
    "without_machine",
]

# docs/judging.md section 2: how a class follows the machine
LEAST_CONTROLS = 3  # the median of fewer is one test's own noise
_FEW_TESTS = (
    10  # up to so many a test is left out of its own median; of more it is no part
)
_USUAL_SHARE = 0.7  # of the machine's move that tests follow
_SHARE_PRECISION = 1 / 0.5**2  # how surely that is known
_UNEQUAL_SHARES = 0.3**2  # variance of the share between the tests of a class
_LEAST_NOISE = 1e-8  # of a class whose tests do exactly what its median does


class Residual(BulkRecord, frozen=True, kw_only=True):
    """
    A contrast without what the machine did.

    Attributes:
        difference: The current session's distance from the stored ones.

        variance: Variance of a stored session, at least 0.001 squared.

        extra: Variance of what was taken out of the difference.

        shift: What was taken out of it.
    """

    difference: float
    variance: float
    extra: float = 0.0
    shift: float = 0.0


class CommonMove(Frozen, frozen=True, kw_only=True):
    """
    How far the controls of a class moved, each from its own stored sessions.

    Attributes:
        log_shift: Median of the current session.

        sessions: Median of each stored session that has enough controls, by its id.

        control_count: Controls behind it.
    """

    log_shift: float
    sessions: Mapping[str, float]
    control_count: int


class FollowedShare(Frozen, frozen=True, kw_only=True):
    """
    Which share of the machine's moves a class of tests follows.

    Attributes:
        share: From 0 to 1.

        precision: How surely that is known: one over its variance.
    """

    share: float
    precision: float

    def variance_left(self, move: float) -> float:
        """Return the variance that is left where so much of a move is taken out."""
        return move * move * (_UNEQUAL_SHARES + 1 / self.precision)


def followed_share(*, squares: float, products: float, noise: float) -> FollowedShare:
    """
    Return which share of the machine's moves a class follows, shrunk to what is usual.

    Args:
        squares: Sum of the squares of its moves.

        products: Sum of the products of its moves and of what the tests did.

        noise: Variance of what the tests do by themselves.
    """
    noise += _LEAST_NOISE
    precision = squares / noise + _SHARE_PRECISION
    share = (products / noise + _USUAL_SHARE * _SHARE_PRECISION) / precision
    return FollowedShare(share=min(max(share, 0.0), 1.0), precision=precision)


def without_machine(
    tests: Sequence[Contrast],
    controls: Sequence[bool],
    references: Iterable[Contrast] = (),
) -> list[Residual]:
    """
    Return contrasts without what the machine did to their classes, in their order.

    Args:
        tests: All that have stored sessions.

        controls: Which of them show what the machine did.

        references: Reference workloads, which always show it.
    """
    residuals = [
        Residual(difference=t.difference, variance=_variance(t, t.mean, t.stored))
        for t in tests
    ]
    witnesses = _by_class(references)
    for name, members in _places_by_class(tests).items():
        several = [tests[place] for place in members]
        moves = _moves(several, [controls[p] for p in members], witnesses.get(name, ()))
        if any(move is not None for move in moves):
            corrected = _without_moves(several, moves)
            for place, residual in zip(members, corrected, strict=True):
                residuals[place] = residual
    return residuals


def common_moves(controls: Iterable[Contrast]) -> dict[str, CommonMove]:
    """Return how far each class moved, by shift group, where enough controls say so."""
    moves = {name: _move(several) for name, several in _by_class(controls).items()}
    return {name: move for name, move in moves.items() if move is not None}


def _by_class(several: Iterable[Contrast]) -> dict[str, list[Contrast]]:
    """Return those that a machine may move, by shift group."""
    groups: dict[str, list[Contrast]] = {}
    for contrast in several:
        if contrast.comparison.shift_group and not contrast.scale:
            groups.setdefault(contrast.comparison.shift_group, []).append(contrast)
    return groups


def _places_by_class(tests: Sequence[Contrast]) -> dict[str, list[int]]:
    """Return the places of those that a machine may move, by shift group."""
    groups: dict[str, list[int]] = {}
    for place, contrast in enumerate(tests):
        if contrast.comparison.shift_group and not contrast.scale:
            groups.setdefault(contrast.comparison.shift_group, []).append(place)
    return groups


def _moves(
    tests: Sequence[Contrast], controls: Sequence[bool], witnesses: Sequence[Contrast]
) -> list[CommonMove | None]:
    """Return what each test of a class is held against; None: too few controls."""
    marked = list(zip(tests, controls, strict=True))
    if len(tests) > _FEW_TESTS:
        move = _move([*(test for test, control in marked if control), *witnesses])
        return [move] * len(tests)
    return [
        _move([*(t for t, control in marked if control and t is not test), *witnesses])
        for test in tests
    ]


def _move(controls: Sequence[Contrast]) -> CommonMove | None:
    """Return how far the median of some controls moved; None: they are too few."""
    if len(controls) < LEAST_CONTROLS:
        return None
    apart: dict[str, list[float]] = {}
    for control in controls:
        for name, value in zip(control.session_ids, control.stored, strict=True):
            apart.setdefault(name, []).append(value - control.mean)
    return CommonMove(
        log_shift=median(control.difference for control in controls),
        sessions={
            name: median(several)
            for name, several in apart.items()
            if len(several) >= LEAST_CONTROLS
        },
        control_count=len(controls),
    )


def _without_moves(
    tests: Sequence[Contrast], moves: Sequence[CommonMove | None]
) -> list[Residual]:
    """Return the tests of a class without the share of its moves that it follows."""
    steps = [_steps(test, move) for test, move in zip(tests, moves, strict=True)]
    followed = _share_followed(tests, steps)
    residuals = []
    for test, (sessions, now) in zip(tests, steps, strict=True):
        rest = [
            value - followed.share * step
            for value, step in zip(test.stored, sessions, strict=True)
        ]
        shift = followed.share * now
        residuals.append(
            Residual(
                difference=test.difference - shift,
                variance=_variance(test, test.mean, rest),
                extra=followed.variance_left(now),
                shift=shift,
            )
        )
    return residuals


def _steps(test: Contrast, move: CommonMove | None) -> tuple[list[float], float]:
    """Return how far the class moved in a test's sessions, and now, about their mean."""
    if move is None:
        return [0.0] * len(test.stored), 0.0
    steps = [move.sessions.get(name, 0.0) for name in test.session_ids]
    mean = fmean(steps)
    return [step - mean for step in steps], move.log_shift - mean


def _share_followed(
    tests: Sequence[Contrast], steps: Sequence[tuple[Sequence[float], float]]
) -> FollowedShare:
    """Return which share of the machine's moves the tests of a class follow."""
    squares = products = own = apart = 0.0
    dof = 0
    for test, (sessions, _) in zip(tests, steps, strict=True):
        mean = test.mean
        dof += test.dof
        for value, step in zip(test.stored, sessions, strict=True):
            distance = value - mean
            squares += step * step
            products += step * distance
            own += distance * distance
            apart += (distance - step) ** 2
    noise = min(apart, own) / max(1, dof)
    return followed_share(squares=squares, products=products, noise=noise)


def _variance(test: Contrast, mean: float, values: Iterable[float]) -> float:
    """Return the variance of a test's sessions about a mean."""
    squares = sum((value - mean) * (value - mean) for value in values)
    return max(squares / max(1, test.dof), LEAST_VARIANCE)
