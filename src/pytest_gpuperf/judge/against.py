"""Slower or not than a revision: blocks of fresh processes of both sides, in looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_gpuperf.model.against import Side
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.verdict import Verdict

__all__ = ["AgainstLook", "AgainstPolicy", "Block", "SideRun", "look_at"]


class AgainstPolicy(Frozen, frozen=True, kw_only=True):
    """
    The constants of the rule; docs/judging.md section 3 where nothing else is said.

    Attributes:
        look_blocks: After how many blocks it is decided, ascending.

        levels: The nominal chance of a false alarm in the whole run, of each look.

        noise_threshold: A change too small to mean anything [fraction].

        power: How often the detectable effect is found.

        across: Hard facts that may differ.
    """

    look_blocks: tuple[int, ...] = (4, 8, 16)
    levels: tuple[float, ...] = (0.003, 0.005, 0.008)
    noise_threshold: float = 0.005
    power: float = 0.9
    across: frozenset[str] = frozenset()


class SideRun(Frozen, frozen=True, kw_only=True):
    """
    What one process of a block measured.

    Attributes:
        side: Whose files it ran.

        index: Its number among the processes of its side in the block, from 0.

        records: What it measured of tests.

        references: What it timed of reference workloads.

        failures: The last lines of a test that gave no value in it, by test id; "": it
            gave none, and nobody knows why.
    """

    side: Side
    index: int
    records: tuple[Record, ...] = ()
    references: tuple[Record, ...] = ()
    failures: Mapping[str, str] = {}


class Block(Frozen, frozen=True, kw_only=True):
    """
    The processes of both sides that took turns: usually two of each.

    Attributes:
        index: Its number, from 0.

        runs: What each process measured, in any order.
    """

    index: int
    runs: tuple[SideRun, ...]


class AgainstLook(Frozen, frozen=True, kw_only=True):
    """
    What some blocks say.

    Attributes:
        verdicts: One for each test and metric: of what is undecided it is the one that it
            would have if there were no more blocks.

        undecided: Ids of the tests that need more blocks, in the order they were given.

        pair_count: The (test, metric) pairs that share the level: to be handed to the
            next look.

        null_fraction: The usual one of the tests; None: no test says.
    """

    verdicts: tuple[Verdict, ...] = ()
    undecided: tuple[str, ...] = ()
    pair_count: int = 0
    null_fraction: float | None = None


def look_at(
    blocks: Sequence[Block],
    gates: Mapping[str, Mapping[str, float | None]],
    policy: AgainstPolicy | None = None,
    *,
    pair_count: int | None = None,
    final: bool = False,
) -> AgainstLook:
    """
    Return what the blocks so far say; no look remembers an earlier one.

    Args:
        blocks: All blocks, in order; tests that were decided may be missing in later ones.

        gates: The largest change by metric [fraction] of each test that entered, by id;
            None: it is only shown.

        policy: The rule's constants.

        pair_count: Pairs of test and metric that share the level, as the first look
            returned it, or more; None: those of `gates` that were measured.

        final: Whether there will be no more blocks.
    """
    _ = blocks, policy, final
    return AgainstLook(undecided=tuple(gates), pair_count=pair_count or 0)
