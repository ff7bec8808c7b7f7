"""A comparison with a revision: its two sides, and what the whole of it says."""

from __future__ import annotations

from enum import Enum

from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite
from pytest_gpuperf.model.gap import Gap

__all__ = ["Against", "AgainstEvidence", "Progress", "Side"]


class Side(str, Enum):
    """Which of two states of the source tree a process runs."""

    OLD = "old"  # the revision that was named
    NEW = "new"  # the working tree as it is


class AgainstEvidence(BulkRecord, frozen=True, kw_only=True):
    """
    What the blocks of one metric of one test say besides the change.

    A block is two processes of each side that take turns.

    Attributes:
        block_count: Blocks that have a difference.

        old_values: The value of each process of the revision [the metric's unit], in
            order.

        new_values: The value of each process of the working tree, likewise.

        effects: The difference of each block [fraction], without what the machine did;
            the mean of its processes less that of the revision's.

        null_fraction: Within this, up and down, 19 of 20 comparisons of the same code
            with itself would lie that have so many blocks: from the differences of the
            processes of one side. None: judged by equality, or too few processes.
    """

    block_count: int
    old_values: tuple[float, ...] = ()
    new_values: tuple[float, ...] = ()
    effects: tuple[float, ...] = ()
    null_fraction: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("against.values", *self.old_values, *self.new_values)
        finite("against.effects", *self.effects, self.null_fraction)


class Against(Frozen, frozen=True, kw_only=True):
    """
    A run's comparison of the working tree with a revision.

    Attributes:
        revision: The revision, as it was named.

        commit: Its full id; "": it is not known.

        level: How the processes of both sides find their own files: 0 by the working
            directory, 1 by their import paths, 2 because both were built; None: by none.

        modules: Own modules that differ between the two, by dotted name; empty: none does.

        block_count: Blocks that were run.

        elapsed_s: How long it took [s].

        null_fraction: The usual one of its tests: what the same code differs by here. None:
            no test says.

        gap: Why nothing was compared, or not to the end; None: all of it was.

        changed: Ids of tests whose source differs between the two: they are not compared.

        only_old: Ids of tests that the revision alone has.

        only_new: Ids of tests that the working tree alone has.
    """

    revision: str
    commit: str = ""
    level: int | None = None
    modules: tuple[str, ...] = ()
    block_count: int = 0
    elapsed_s: float = 0.0
    null_fraction: float | None = None
    gap: Gap | None = None
    changed: tuple[str, ...] = ()
    only_old: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("against", self.elapsed_s, self.null_fraction)


class Progress(Frozen, frozen=True, kw_only=True):
    """
    How far a comparison is.

    Attributes:
        revision: The revision, as it was named.

        block_count: Blocks that have ended.

        most_blocks: As many as there can be.

        open_count: Tests that are undecided.

        test_count: Tests that are compared.

        elapsed_s: How long it has taken so far [s].

        left_s: How long it can take yet [s]; None: nobody knows before the first block.

        looked: Whether the blocks so far were judged just now; else a block begins.

        text: What it does instead of measuring; "": it measures.
    """

    revision: str
    block_count: int = 0
    most_blocks: int = 0
    open_count: int = 0
    test_count: int = 0
    elapsed_s: float = 0.0
    left_s: float | None = None
    looked: bool = False
    text: str = ""
