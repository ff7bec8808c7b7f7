"""How far a long measurement is, beside pytest's own progress; never in a log."""

from __future__ import annotations

from os import environ
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.clock import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pytest_gpuperf.collect.clock import Clock

__all__ = ["LiveLine", "live_line_of"]

_LONG_NS = 2 * NS_PER_S  # a shorter measurement needs no line
_EVERY_NS = NS_PER_S  # nothing is written between samples more often
_LEAST_WIDTH = 20  # of what is left of the terminal's line: less says nothing
_SAVE, _RESTORE, _ERASE = "\x1b7", "\x1b8", "\x1b[K"


class LiveLine:
    """
    Counts samples, and says how many there are once a measurement takes long.

    Args:
        clock: Gives the time.

        write: Writes to the terminal.

        room: Returns the characters left on its line.
    """

    def __init__(
        self, clock: Clock, write: Callable[[str], object], room: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._write = write
        self._room = room
        self._begun_ns = 0
        self._told_ns = 0
        self._count = 0

    def begin(self) -> None:
        """Note that a test begins."""
        self._begun_ns = self._clock.now_ns()
        self._count, self._told_ns = 0, 0

    def sampled(self) -> None:
        """Note that the test is about to take a sample, or has begun a step."""
        self._count += 1
        now_ns = self._clock.now_ns()
        long = now_ns - self._begun_ns >= _LONG_NS
        if not long or now_ns - self._told_ns < _EVERY_NS:
            return
        self._told_ns = now_ns
        elapsed_s = (now_ns - self._begun_ns) / NS_PER_S
        text = f" measuring, sample {self._count}, {elapsed_s:.0f} s"
        room = self._room()
        if room >= _LEAST_WIDTH:
            self._write(f"{_SAVE}{text[:room]}{_ERASE}{_RESTORE}")

    def end(self) -> None:
        """Take the line back, where one was written."""
        if self._told_ns:
            self._write(_ERASE)


def live_line_of(config: pytest.Config, clock: Clock) -> LiveLine | None:
    """Return the line of this process; None: it has no terminal that a person sees."""
    manager = config.pluginmanager
    reporter = manager.getplugin("terminalreporter")
    capture = manager.getplugin("capturemanager")
    if reporter is None or capture is None or hasattr(config, "workerinput"):
        return None
    if not reporter.isatty or reporter.verbosity < 0 or environ.get("TERM") == "dumb":
        return None
    writer = config.get_terminal_writer()

    def write(text: str) -> None:
        with capture.global_and_fixture_disabled():
            writer.write_raw(text, flush=True)

    # a character stays free: the cursor would stand on the next line
    return LiveLine(
        clock, write, lambda: writer.fullwidth - writer.width_of_current_line - 1
    )
