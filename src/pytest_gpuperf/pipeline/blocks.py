"""A block: fresh processes of both sides that measure the same tests by turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pytest_gpuperf.model.gap import Gap, GapCode

if TYPE_CHECKING:
    from pytest_gpuperf.judge.against import Block
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.against import Side

__all__ = ["SideCommand", "TwoSides", "run_block"]


class SideCommand(Protocol):
    """How a process of one side is started."""

    @property
    def side(self) -> Side:
        """Whose files it runs."""

    @property
    def folder(self) -> str:
        """Where it is started."""

    def argv(self, scratch: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
        """Return its command line; what it writes goes to `scratch`."""

    def environment(self, scratch: str, hash_seed: int) -> Mapping[str, str]:
        """Return its whole environment."""


class TwoSides(Protocol):
    """The two sides of a comparison."""

    @property
    def old(self) -> SideCommand:
        """The revision."""

    @property
    def new(self) -> SideCommand:
        """The working tree."""


def run_block(
    sides: TwoSides,
    test_ids: Sequence[str],
    index: int,
    *,
    site: Site,
    variable: str,
    timeout_s: float,
    check: Callable[[Side, str], Gap | None],
    tell: Callable[[str], object] = lambda _: None,
) -> Block | Gap:
    """
    Measure tests in two fresh processes of each side, which take turns.

    Args:
        sides: How a process of each is started.

        test_ids: The tests, in the order to run them.

        index: The number of the block, from 0; odd ones begin with the new side.

        site: The process that starts them: its runner, identity, machine and config.

        variable: The environment variable that names a child's file.

        timeout_s: How long one of them may work without being heard of [s].

        check: Called with a side and the scratch folder of a process that has ended;
            returns why its values must not be compared.

        tell: Takes a sentence about what the block does instead of measuring, as waiting
            for another run.

    Returns:
        The block; or why there is none: `check` objects, or this system has no Unix
        sockets.

    Raises:
        DeviceHeldError: Another run held the machine or the GPU all the time.
    """
    _ = (sides, test_ids, index, site, variable, timeout_s, check, tell)
    return Gap(
        code=GapCode.UNSUPPORTED,
        reason="processes cannot take turns yet",
        remedy="compare with a stored baseline",
    )
