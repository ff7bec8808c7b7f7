"""The change between two sides whose processes take turns, in blocks.

A block gives one difference, of processes that made the same choice of kernels. It has no
part of what a day, a boot or a board does, so that blocks vary as processes do. What the
machine did to single processes of a block, reference workloads tell; how much of that a
test follows, the differences between processes of one side tell, because no change of the
code is in them. The same differences show what the same code differs by.
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

__all__ = [
    "BlockChange",
    "Process",
    "ProcessValue",
    "SideValues",
    "block_changes",
    "blocks_wanted",
    "reference_moves",
]

# docs/judging.md section 3: beyond each of the two one-sided 95 % bounds
_BOUND_TAIL = 0.05
_MOST_WANTED = 100  # times the blocks so far: beyond that the estimate says nothing


class Process(Frozen, frozen=True, kw_only=True, order=True):
    """
    One process of a block.

    Attributes:
        block: The block's number.

        side: Whose files it ran.

        index: Its number among the processes of its side in the block.
    """

    block: int
    side: Side
    index: int


class ProcessValue(BulkRecord, frozen=True, kw_only=True):
    """
    The value of one metric of one test in one process.

    Attributes:
        process: Which process.

        value: The value [the metric's unit].

        choice: Hash of the kernels that ran; None: not known.
    """

    process: Process
    value: float
    choice: str | None = None


class SideValues(BulkRecord, frozen=True, kw_only=True):
    """
    One metric of one test on both sides.

    Attributes:
        comparison: The values of the working tree, and those of the revision as the one
            stored session, with what else a comparison says.

        values: The same, by process.

        moves: How far the machine moved each process of this class of tests, on a log
            scale, more being slower; empty: not known.
    """

    comparison: Comparison
    values: tuple[ProcessValue, ...]
    moves: Mapping[Process, float] = {}


class BlockChange(Frozen, frozen=True, kw_only=True):
    """
    The change between two sides.

    Attributes:
        change: The change, whose sessions are blocks.

        evidence: The blocks behind it.

        within: Whether its one-sided 95 % bounds lie within the limit on both sides.

        bound: How far the upper one of them lies from the effect [fraction]; None: that
            is not finite.
    """

    change: Change
    evidence: AgainstEvidence
    within: bool
    bound: float | None


def reference_moves(
    times: Mapping[str, Mapping[Process, float]],
) -> dict[Process, float]:
    """
    Return how far the machine moved each process from the mean of its block.

    Args:
        times: The time of each reference workload in each process [s], by its name.

    Returns:
        The median of the workloads that all processes of a block have, on a log scale;
        nothing of a block that has fewer than 3 of them.
    """
    blocks: dict[int, set[Process]] = {}
    for by_process in times.values():
        for process in by_process:
            blocks.setdefault(process.block, set()).add(process)
    moves: dict[Process, float] = {}
    for processes in blocks.values():
        whole = [t for t in times.values() if processes <= t.keys()]
        if len(whole) >= LEAST_CONTROLS:
            centred = [_centred({p: math.log(t[p]) for p in processes}) for t in whole]
            moves |= {p: median(logs[p] for logs in centred) for p in processes}
    return moves


def block_changes(
    measured: Sequence[SideValues], level: Sureness
) -> tuple[BlockChange | None, ...]:
    """
    Return the change of each test and metric, in their order.

    All of a group say what is usual; all of a class say how it follows the machine.

    Args:
        measured: What was measured.

        level: The significance that a change needs.

    Returns:
        None for what has no block in which both sides made the same choice.
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
    The values of a test on the scale that they are compared on.

    Args:
        measured: The values.

    Attributes:
        comparison: What they are of.

        scale: What they were divided by; 0: they are logarithms.

        values: Value of each process.

        choices: Its choice of kernels.

        moves: What the machine did to it, so that it adds to the value; 0 in blocks of
            which it is not known for every process.

        shift_group: What a change of the machine moves together; "": nothing.
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
        """Yield the pairs of processes that differ by noise alone."""
        sides: dict[tuple[int, Side, str | None], list[Process]] = {}
        for process in sorted(self.values):
            name = (process.block, process.side, self.choices[process])
            sides.setdefault(name, []).append(process)
        for alike in sides.values():
            yield from combinations(alike, 2)


def _followed(tests: Iterable[_Scaled]) -> FollowedShare:
    """Return which share of the machine's moves the tests of a class follow."""
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
    What one block says.

    Attributes:
        change: The working tree's value less the revision's.

        move: What the machine added to that.

        weight: The variance of a block of two processes a side, over that of this one.
    """

    change: float
    move: float
    weight: float


class _Blocks:
    """
    The differences of all blocks of a test.

    Args:
        scaled: Its values.

        followed: Which share of the machine's moves its class follows.

    Attributes:
        scaled: Its values.

        differences: Those of the blocks in which both sides made a choice that they share.

        residual: Their mean without what the machine did; of no difference all is 0.

        weight: Blocks of two processes a side that are worth as much.

        effects: Each difference without what the machine did.
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
        """Degrees of freedom of the variance between blocks."""
        return len(self.differences) - 1

    def contrast(self) -> Contrast:
        """Return the two sides as numbers: a block is a session of the revision."""
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
            scale=self.scaled.scale,
        )

    def null_width(self) -> float | None:
        """Return what 19 of 20 means of so many blocks of the same code lie within."""
        values, moves = self.scaled.values, self.scaled.moves
        squares = [
            (values[a] - values[b] - self._share * (moves[a] - moves[b])) ** 2
            for a, b in self.scaled.of_one_side()
        ]
        # two processes differ by twice the variance of one, which is that of a block
        return Z_95 * math.sqrt(fmean(squares) / 2 / self.weight) if squares else None

    def _mean(self, values: Sequence[float]) -> float:
        """Return the mean of a number of each block."""
        pairs = zip(self.differences, values, strict=True)
        return sum(d.weight * value for d, value in pairs) / (self.weight or 1.0)


def _difference(scaled: _Scaled, block: int) -> _Difference | None:
    """Return what a block says; None: its sides share no choice of kernels."""
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
    """Return by how much the mean of some processes is above that of others."""
    return fmean(values[p] for p in new) - fmean(values[p] for p in old)


def _change(blocks: _Blocks, tables: Tables, level: Sureness) -> BlockChange:
    """Return the change that blocks show, by what is usual in their group."""
    contrast, residual = blocks.contrast(), blocks.residual
    ratio = 1 / blocks.weight
    part = Part(ratio=ratio, planned_ratio=ratio)
    change = change_of(contrast, residual, part, tables, level)
    comparison = blocks.scaled.comparison
    width = blocks.null_width()
    stored = comparison.stored[0]
    return BlockChange(
        change=change,
        evidence=AgainstEvidence(
            block_count=len(blocks.differences),
            old_values=stored.run_values,
            new_values=comparison.current.run_values,
            effects=tuple(map(contrast.relative, blocks.effects)),
            null_fraction=None if width is None else contrast.relative(width),
        ),
        within=_is_within(blocks, tables, ratio),
        bound=None if change.high is None else _bound(contrast, residual, part, tables),
    )


def _bound(contrast: Contrast, residual: Residual, part: Part, tables: Tables) -> float:
    """Return how far a one-sided 95 % bound lies from the effect [fraction]."""
    (reach,) = tables.reaches((_BOUND_TAIL,), contrast, residual, part)
    return contrast.relative(reach)


def _is_within(blocks: _Blocks, tables: Tables, ratio: float) -> bool:
    """Return whether both one-sided 95 % bounds of a change lie within its limit."""
    limit = blocks.scaled.comparison.limit
    if limit is None:
        return False
    linear, difference = bool(blocks.scaled.scale), blocks.residual.difference
    above = (limit if linear else math.log1p(limit)) - difference
    if limit < 1:
        below = difference + (limit if linear else -math.log1p(-limit))
    else:  # nothing loses more than all of it
        below = difference + limit if linear else math.inf
    mixture, residual = tables.mixture(blocks.dof), blocks.residual
    return all(
        mixture.beyond(room, residual.variance, ratio=ratio, extra=residual.extra)
        < _BOUND_TAIL
        for room in (above, below)
        if math.isfinite(room)
    )


def _centred(logs: Mapping[Process, float]) -> dict[Process, float]:
    """Return numbers as their distances from their mean."""
    middle = fmean(logs.values())
    return {process: log - middle for process, log in logs.items()}


def blocks_wanted(
    change: Change, block_count: int, limit: float, level: float
) -> int | None:
    """
    Return about how many blocks would decide a change that so many do not.

    The interval of the change narrows with the root of the blocks.

    Args:
        change: What the blocks so far show.

        block_count: How many they are, > 0.

        limit: The largest change that passes [fraction].

        level: The nominal chance of a false alarm of the look that would decide.

    Returns:
        More than `block_count`; None: the change has no interval, or is so near to the
        limit that no number of them would.
    """
    if change.effect is None or change.low is None or change.high is None:
        return None
    # without a logarithm it is judged as it is
    scaled: Callable[[float], float] = float if change.low <= -1 else math.log1p
    difference = scaled(change.effect)
    if abs(change.effect) > limit:  # it would be significant
        room, sureness = abs(difference) - NOISE_THRESHOLD, level
    else:  # its bounds would be within the limit
        below = difference - scaled(-limit) if limit < 1 else math.inf
        room, sureness = min(scaled(limit) - difference, below), _BOUND_TAIL
    half_width = (scaled(change.high) - scaled(change.low)) / 2
    width = half_width * standard_errors(sureness) / standard_errors(INTERVAL_TAIL)
    if room * math.sqrt(_MOST_WANTED) < width:
        return None
    return max(block_count + 1, math.ceil(block_count * (width / room) ** 2))
