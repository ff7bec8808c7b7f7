"""The change between two sides whose processes alternate, in blocks.

A block gives one difference, between processes that made the same choice of kernels. The
effects of a day, a boot or a board cancel in the difference, so that blocks vary as
processes do. Reference workloads show how the machine slowed single processes of a block.
The share of this that a test follows is learned from differences between processes of one
side, because they contain no change of the code. The same differences show how much
identical code differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean, median

from pytest_gpuperf.compute.change import INTERVAL_TAIL, Part, Tables, change_of
from pytest_gpuperf.compute.contrast import Contrast, share_of
from pytest_gpuperf.compute.machine import (
    LEAST_CONTROLS,
    FollowedShare,
    Residual,
    followed_share,
)
from pytest_gpuperf.compute.spread import (
    LEAST_VARIANCE,
    Z_95,
    standard_errors,
    usual_spread,
)
from pytest_gpuperf.compute.stats import mean
from pytest_gpuperf.model.change import (
    NOISE_THRESHOLD,
    AgainstEvidence,
    Change,
    Comparison,
    Side,
    Sureness,
)
from pytest_gpuperf.model.frozen import BulkRecord, Frozen
from pytest_gpuperf.model.metric import Better

# docs/judging.md section 3: the tail beyond each of the two one-sided 95 % bounds.
_BOUND_TAIL = 0.05
# A multiple of the blocks so far. An estimate of more blocks is meaningless.
_MOST_WANTED = 100


class Process(Frozen, frozen=True, kw_only=True, order=True):
    """
    One process of a block.

    Attributes:
        block: Number of the block.

        side: The side whose files the process ran.

        index: Number among the processes of the side in the block.
    """

    block: int
    side: Side
    index: int


class ProcessValue(BulkRecord, frozen=True, kw_only=True):
    """
    The value of one metric of one test in one process.

    Attributes:
        process: The process.

        value: The value [the metric's unit].

        choice: Hash of the kernels that ran, or None if unknown.
    """

    process: Process
    value: float
    choice: str | None = None


class SideValues(BulkRecord, frozen=True, kw_only=True):
    """
    One metric of one test on both sides.

    Attributes:
        comparison: The comparison. The current session has the values of the working tree,
            and the single stored session has the values of the revision.

        values: The same values, by process.

        moves: Shift of each process by the machine for this class of tests, on a log scale,
            positive if slower. Empty if unknown.
    """

    comparison: Comparison
    values: tuple[ProcessValue, ...]
    moves: Mapping[Process, float] = {}


class BlockChange(Frozen, frozen=True, kw_only=True):
    """
    The change between two sides.

    Attributes:
        change: The change, with blocks as sessions.

        evidence: The blocks behind the change.

        within: Whether both one-sided 95 % bounds lie within the limit.

        bound: Distance of the upper bound from the effect [fraction], or None if not finite.
    """

    change: Change
    evidence: AgainstEvidence
    within: bool
    bound: float | None


def reference_moves(
    times: Mapping[str, Mapping[Process, float]],
) -> dict[Process, float]:
    """
    Estimate the shift of processes by the machine from the mean of their block.

    Args:
        times: Time of each reference workload in each process [s], by workload name.

    Returns:
        Median over the workloads that all processes of a block have, on a log scale. A block
        with fewer than 3 such workloads is left out.
    """
    blocks: dict[int, set[Process]] = {}
    for by_process in times.values():
        for process in by_process:
            blocks.setdefault(process.block, set()).add(process)
    moves: dict[Process, float] = {}
    for processes in blocks.values():
        whole = [t for t in times.values() if processes <= t.keys()]
        if len(whole) < LEAST_CONTROLS:
            continue
        centred: dict[Process, list[float]] = {process: [] for process in processes}
        for by_process in whole:
            logs = {process: math.log(by_process[process]) for process in processes}
            middle = fmean(logs.values())
            for process, log in logs.items():
                centred[process].append(log - middle)
        moves |= {process: median(logs) for process, logs in centred.items()}
    return moves


def block_changes(
    measured: Sequence[SideValues], level: Sureness
) -> tuple[BlockChange | None, ...]:
    """
    Calculate the changes of tests and metrics, in order.

    The usual spread is learned from all tests of a group, and the share of machine drift from
    all tests of a class.

    Args:
        measured: The values of both sides.

        level: The significance that a change needs.

    Returns:
        One change per test and metric, or None if both sides made the same choice of kernels
        in no block.
    """
    scaled = [_Scaled(values) for values in measured]
    by_class: dict[str, list[_Scaled]] = {}
    for test in scaled:
        by_class.setdefault(test.shift_group, []).append(test)
    shares = {name: _followed(members) for name, members in by_class.items()}
    changes: list[BlockChange | None] = [None] * len(scaled)
    groups: dict[str, list[tuple[int, _Blocks]]] = {}
    for place, test in enumerate(scaled):
        blocks = _Blocks(test, shares[test.shift_group])
        if blocks.differences:
            group = test.comparison.group
            groups.setdefault(group, []).append((place, blocks))
    for members in groups.values():
        residuals = [blocks.residual for _, blocks in members]
        clock = members[0][1].scaled.comparison.clock
        variances = ((b.residual.variance, b.dof) for _, b in members)
        tables = Tables(usual_spread(variances, clock), residuals)
        for place, blocks in members:
            changes[place] = _change(blocks, tables, level)
    return tuple(changes)


class _Scaled:
    """
    The values of a test on the scale of the comparison.

    Args:
        measured: The values.

    Attributes:
        comparison: The comparison.

        scale: The divisor of the values, or 0 if the values are logarithms.

        values: Value of each process.

        choices: Choice of kernels of each process.

        moves: Shift of each process by the machine, in the direction of the value. 0 in
            blocks with a process of unknown shift.

        shift_group: The class of tests that the machine shifts together, or "" for none.
    """

    def __init__(self, measured: SideValues) -> None:
        self.comparison = measured.comparison
        numbers = [value.value for value in measured.values]
        old = [v.value for v in measured.values if v.process.side is Side.OLD]
        positive = min(numbers, default=0.0) > 0
        self.scale = 0.0 if positive or not old else abs(mean(old)) or 1.0
        self.values = {
            v.process: share_of(v.value, self.scale)
            if self.scale
            else math.log(v.value)
            for v in measured.values
        }
        self.choices = {v.process: v.choice for v in measured.values}
        self.shift_group = "" if self.scale else self.comparison.shift_group
        unknown = {p.block for p in self.values if p not in measured.moves}
        sign = -1.0 if self.comparison.better is Better.HIGHER else 1.0
        self.moves = {
            process: sign * measured.moves[process]
            if self.shift_group and process.block not in unknown
            else 0.0
            for process in self.values
        }

    def of_one_side(self) -> Iterator[tuple[Process, Process]]:
        """Yield pairs of processes with the same code and choice, so that only noise differs."""
        sides: dict[tuple[int, Side, str | None], list[Process]] = {}
        for process in sorted(self.values):
            name = (process.block, process.side, self.choices[process])
            sides.setdefault(name, []).append(process)
        for alike in sides.values():
            yield from combinations(alike, 2)


def _followed(tests: Iterable[_Scaled]) -> FollowedShare:
    squares = products = apart_squares = 0.0
    count = 0
    for test in tests:
        for first, second in test.of_one_side():
            apart = test.values[first] - test.values[second]
            moved = test.moves[first] - test.moves[second]
            squares += moved * moved
            products += moved * apart
            apart_squares += apart * apart
            count += 1
    noise = apart_squares / max(1, count)
    return followed_share(squares=squares, products=products, noise=noise)


class _Difference(Frozen, frozen=True, kw_only=True):
    """
    The difference between the sides in one block.

    Attributes:
        change: The working tree's value less the revision's.

        move: The machine's part of `change`.

        weight: Variance of a block of two processes per side over the variance of this block.
    """

    change: float
    move: float
    weight: float


class _Blocks:
    """
    The differences of all blocks of a test.

    Args:
        scaled: The values of the test.

        followed: The share of machine drift that the class follows.

    Attributes:
        scaled: The values of the test.

        differences: The differences of blocks in which both sides share a choice of kernels.

        residual: Mean of the differences, corrected for machine drift. All 0 without
            differences.

        weight: Equivalent number of blocks with two processes per side.

        effects: The differences, corrected for machine drift.
    """

    def __init__(self, scaled: _Scaled, followed: FollowedShare) -> None:
        self.scaled = scaled
        self._share = followed.share
        numbers = sorted({process.block for process in scaled.values})
        differences = (_difference(scaled, number) for number in numbers)
        self.differences = [d for d in differences if d is not None]
        self.weight = sum(d.weight for d in self.differences)
        self.effects = [d.change - self._share * d.move for d in self.differences]
        mean = self._mean(self.effects)
        squares = sum(
            d.weight * (effect - mean) ** 2
            for d, effect in zip(self.differences, self.effects, strict=True)
        )
        move = self._mean([d.move for d in self.differences])
        self.residual = Residual(
            difference=mean,
            variance=max(squares / max(1, self.dof), LEAST_VARIANCE),
            extra=followed.variance_left(move),
            shift=self._share * move,
        )

    @property
    def dof(self) -> int:
        """The degrees of freedom of the variance between blocks."""
        return len(self.differences) - 1

    def contrast(self) -> Contrast:
        """Convert the two sides to a contrast, with blocks as sessions of the revision."""
        sides = {
            side: [v for p, v in self.scaled.values.items() if p.side is side]
            for side in Side
        }
        now = fmean(sides[Side.NEW])
        raw = self.residual.difference + self.residual.shift
        return Contrast(
            comparison=self.scaled.comparison,
            now=now,
            stored=[now - effect for effect in self.effects],
            session_ids=[""] * len(self.effects),
            mean=now - raw,
            dof=len(self.effects) - 1,
            scale=self.scaled.scale,
        )

    def null_width(self) -> float | None:
        """
        Return the 95 % half-width for comparisons of identical code, or None.

        The width is estimated from pairs of processes of the same block and side. None if there
        are no pairs.
        """
        values, moves = self.scaled.values, self.scaled.moves
        squares = [
            (values[a] - values[b] - self._share * (moves[a] - moves[b])) ** 2
            for a, b in self.scaled.of_one_side()
        ]
        # Two processes differ by twice the variance of a process. A block of two processes
        # per side has the variance of one process.
        return Z_95 * math.sqrt(fmean(squares) / 2 / self.weight) if squares else None

    def _mean(self, values: Sequence[float]) -> float:
        pairs = zip(self.differences, values, strict=True)
        return sum(d.weight * value for d, value in pairs) / (self.weight or 1.0)


def _difference(scaled: _Scaled, block: int) -> _Difference | None:
    """Return the difference of a block, or None if the sides share no choice of kernels."""
    sides: dict[str | None, tuple[list[Process], list[Process]]] = {}
    for process in scaled.values:
        if process.block == block:
            old, new = sides.setdefault(scaled.choices[process], ([], []))
            (new if process.side is Side.NEW else old).append(process)
    terms = [
        _Difference(
            change=_apart(scaled.values, old, new),
            move=_apart(scaled.moves, old, new),
            weight=1 / (1 / len(old) + 1 / len(new)),
        )
        for old, new in sides.values()
        if old and new
    ]
    weight = sum(term.weight for term in terms)
    if not terms:
        return None
    return _Difference(
        change=sum(term.weight * term.change for term in terms) / weight,
        move=sum(term.weight * term.move for term in terms) / weight,
        weight=weight,
    )


def _apart(
    values: Mapping[Process, float], old: Iterable[Process], new: Iterable[Process]
) -> float:
    return fmean(values[p] for p in new) - fmean(values[p] for p in old)


def _change(blocks: _Blocks, tables: Tables, level: Sureness) -> BlockChange:
    contrast, residual = blocks.contrast(), blocks.residual
    ratio = 1 / blocks.weight
    part = Part(ratio=ratio, planned_ratio=ratio)
    change = change_of(contrast, residual, part, tables, level)
    comparison = blocks.scaled.comparison
    width = blocks.null_width()
    stored = comparison.stored[0]
    bound = None
    if change.high is not None:
        (reach,) = tables.reaches((_BOUND_TAIL,), contrast, residual, part)
        bound = contrast.relative(reach)
    # Whether both one-sided 95 % bounds of the change lie within the limit.
    limit, within = comparison.limit, False
    if limit is not None:
        linear, difference = bool(blocks.scaled.scale), residual.difference
        above = (limit if linear else math.log1p(limit)) - difference
        if limit < 1:
            below = difference + (limit if linear else -math.log1p(-limit))
        else:  # No value can fall by more than 100 %.
            below = difference + limit if linear else math.inf
        mixture = tables.mixture(blocks.dof)
        within = all(
            mixture.beyond(room, residual.variance, ratio=ratio, extra=residual.extra)
            < _BOUND_TAIL
            for room in (above, below)
            if math.isfinite(room)
        )
    return BlockChange(
        change=change,
        evidence=AgainstEvidence(
            block_count=len(blocks.differences),
            old_values=stored.run_values,
            new_values=comparison.current.run_values,
            effects=tuple(map(contrast.relative, blocks.effects)),
            null_fraction=None if width is None else contrast.relative(width),
        ),
        within=within,
        bound=bound,
    )


def blocks_wanted(
    change: Change, block_count: int, limit: float, level: float
) -> int | None:
    """
    Estimate the number of blocks that would decide an undecided change.

    The interval of a change narrows with the square root of the number of blocks.

    Args:
        change: The change of the blocks so far.

        block_count: Number of blocks so far, > 0.

        limit: The largest change that passes [fraction].

        level: Nominal chance of a false alarm of the deciding look.

    Returns:
        More than `block_count`. None if the change has no interval, or is too close to the
        limit to be decided by any number of blocks.
    """
    if change.effect is None or change.low is None or change.high is None:
        return None
    # Without a logarithm, the change is judged on a linear scale.
    scaled: Callable[[float], float] = float if change.low <= -1 else math.log1p
    difference = scaled(change.effect)
    if abs(change.effect) > limit:  # With more blocks, the change would be significant.
        room, sureness = abs(difference) - NOISE_THRESHOLD, level
    else:  # With more blocks, both bounds would be within the limit.
        below = difference - scaled(-limit) if limit < 1 else math.inf
        room, sureness = min(scaled(limit) - difference, below), _BOUND_TAIL
    half_width = (scaled(change.high) - scaled(change.low)) / 2
    width = half_width * standard_errors(sureness) / standard_errors(INTERVAL_TAIL)
    if room * math.sqrt(_MOST_WANTED) < width:
        return None
    return max(block_count + 1, math.ceil(block_count * (width / room) ** 2))
