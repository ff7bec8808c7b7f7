"""The two sides of a comparison with a revision, each proven to run its own files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.model.against import Side
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.pipeline.repeat import CommandLine

if TYPE_CHECKING:
    from pytest_gpuperf.collect.runner import Runner
    from pytest_gpuperf.measure.site import ProcessIdentity
    from pytest_gpuperf.model.gap import Gap

__all__ = ["SideCommand", "Sides", "SidesRequest", "open_sides", "proof"]


class SidesRequest(Frozen, frozen=True, kw_only=True):
    """
    What is compared with what.

    Attributes:
        revision: The revision as the user wrote it.

        test_ids: The tests to compare, in order.

        identity: This process's; its session is that of every process of a side.

        tests_mine: Whether the working tree's tests run on both sides.

        build_command: Builds a tree in place, a shell command run in its root; None: a
            side is built only where nothing else separates the two.

        carry: Generated files that git does not have, relative to the repository's root;
            they are copied to the revision's tree.

        timeout_s: How long a process that only collects may take [s], and a build ten
            times as long.

        cache_folder: Where built sides are kept between runs; None: the user's cache.
    """

    revision: str
    test_ids: tuple[str, ...]
    identity: ProcessIdentity
    tests_mine: bool = False
    build_command: str | None = None
    carry: tuple[str, ...] = ()
    timeout_s: float = 300.0
    cache_folder: str | None = None


class SideCommand(Frozen, frozen=True, kw_only=True):
    """
    How a process of one side is started.

    Attributes:
        side: Which side.

        folder: The folder to start it in.

        command: How the parent was started.
    """

    side: Side
    folder: str
    command: CommandLine

    def argv(self, scratch: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
        """
        Return the command of a process.

        Args:
            scratch: Its own folder, which exists; one for each process.

            extra: More arguments of pytest.
        """
        raise NotImplementedError

    def environment(self, scratch: str, hash_seed: int) -> dict[str, str]:
        """
        Return the whole environment of a process; the caller adds what is its own.

        The process writes which files it loaded below `scratch`, where its caches of
        compiled kernels are, too.

        Args:
            scratch: Its own folder, as for `argv`.

            hash_seed: Of Python's hashes, 0 to 4294967295: one for a whole block.
        """
        raise NotImplementedError


class Sides(Frozen, frozen=True, kw_only=True):
    """
    Two sides that are proven to run their own files.

    Attributes:
        revision: The old side's revision as the user wrote it.

        commit: Its commit.

        level: 0: each side's folder is enough; 1: its import roots come first; 2: it was
            built into a folder of its own.

        old: Starts a process of the revision.

        new: Starts a process of the working tree.

        test_ids: The tests to compare, in order: on both sides, and equal in source
            unless the working tree's tests run on both.

        changed: The tests whose source differs.

        only_old: The tests that the working tree does not have.

        only_new: The tests that the revision does not have.

        modules: The modules of the project that differ between the sides; empty: the two
            run the same code.

        remarks: What else the user should know, one sentence each.
    """

    revision: str
    commit: str
    level: int
    old: SideCommand
    new: SideCommand
    test_ids: tuple[str, ...]
    changed: tuple[str, ...] = ()
    only_old: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    digests: Mapping[str, str] = {}

    def of(self, side: Side) -> SideCommand:
        """Return how a process of a side is started."""
        return self.old if side is Side.OLD else self.new


@contextlib.contextmanager
def open_sides(
    request: SidesRequest, command: CommandLine, runner: Runner
) -> Iterator[Sides]:
    """
    Make the two sides, and remove what was made at the end, however that comes.

    Args:
        request: What is compared with what.

        command: How this process was started.

        runner: Starts git, builds, and the processes that only collect.

    Raises:
        RevisionError: There is no tree of the revision.

        SidesRefusedError: The sides are not proven to run their own files.

        CollectError: A process did not start, or did not end.
    """
    raise NotImplementedError
    yield


def proof(sides: Sides, side: Side, scratch: str) -> Gap | None:
    """
    Return why a process of a side must not count; None: its files are right.

    Args:
        sides: Both sides.

        side: The process's.

        scratch: The folder that `SideCommand.environment` got.
    """
    raise NotImplementedError
