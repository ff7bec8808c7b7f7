"""What a terminal shows while a long measurement or a comparison runs."""

from __future__ import annotations

from contextlib import nullcontext
from os import environ
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.report.notices import comparison_line, slow_line

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pytest_gpuperf.model.change import Progress
    from pytest_gpuperf.model.record import RecordKey

# A shorter measurement needs no live line.
_LONG_NS = 2 * NS_PER_S
# The shortest time between two updates of the live line.
_PAUSE_NS = NS_PER_S
# Characters. In less room the live line says nothing useful.
_NARROWEST = 20
# Slow calls are still announced with -q, but not with -qq.
_SILENT = -1
_SAVE, _RESTORE, _ERASE = "\x1b7", "\x1b8", "\x1b[K"


class LiveLine:
    """
    The progress of a long measurement, shown after pytest's own and never in a log.

    Args:
        clock: The clock.

        write: Writes to the terminal.

        room: Returns the number of free characters in the terminal line.
    """

    def __init__(
        self, clock: Clock, write: Callable[[str], object], room: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._write = write
        self._room = room
        self._begun_ns = 0
        self._written_ns = 0
        self._count = 0

    def begin(self) -> None:
        """Reset the count at the start of a test."""
        self._begun_ns = self._clock.now_ns()
        self._count, self._written_ns = 0, 0

    def sampled(self) -> None:
        """Count a sample or a step, and update the line."""
        self._count += 1
        now_ns = self._clock.now_ns()
        long = now_ns - self._begun_ns >= _LONG_NS
        if not long or now_ns - self._written_ns < _PAUSE_NS:
            return
        self._written_ns = now_ns
        elapsed_s = (now_ns - self._begun_ns) / NS_PER_S
        text = f" measuring, sample {self._count}, {elapsed_s:.0f} s"
        room = self._room()
        if room >= _NARROWEST:
            self._write(f"{_SAVE}{text[:room]}{_ERASE}{_RESTORE}")

    def end(self) -> None:
        """Erase the line if it was written."""
        if self._written_ns:
            self._write(_ERASE)


class ComparisonLine:
    """
    The progress of comparisons, on a terminal always over the same line.

    Args:
        reporter: The terminal.

        width: Returns the number of characters in a line of the terminal.
    """

    def __init__(
        self, reporter: pytest.TerminalReporter, width: Callable[[], int]
    ) -> None:
        self._reporter = reporter
        self._width = width
        self._is_open = False
        # Texts already printed in a log.
        self._told: set[str] = set()

    def tell(self, progress: Progress) -> None:
        """Print the progress of a comparison."""
        text = comparison_line(progress)
        if self._reporter.isatty:
            self._reporter.rewrite(text[: self._width() - 1], erase=True)
            self._is_open = True
            if progress.looked:
                self.end()
        elif progress.looked or (progress.text and text not in self._told):
            self._reporter.write_line(text)
            self._told.add(text)

    def end(self) -> None:
        """End the line, if it was written over."""
        if self._is_open:
            self._reporter.line("")
        self._is_open = False


def live_line(config: pytest.Config, clock: Clock) -> LiveLine | None:
    """
    Return the live line of this process, or None if the process has no terminal or is quiet.

    Args:
        config: The pytest config.

        clock: The clock.
    """
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

    # One character stays free, or the cursor would move to the next line.
    return LiveLine(
        clock, write, lambda: writer.fullwidth - writer.width_of_current_line - 1
    )


def write_expected(
    config: pytest.Config, key: RecordKey, count: int, round_s: float
) -> None:
    """
    Print the expected duration of slow calls, except in a worker without a terminal.

    Args:
        config: The pytest config.

        key: The measurement.

        count: The number of calls that follow.

        round_s: The time of a call [s].
    """
    manager = config.pluginmanager
    reporter = manager.getplugin("terminalreporter")
    capture = manager.getplugin("capturemanager")
    if reporter is None or reporter.verbosity < _SILENT:
        return
    visible = (
        nullcontext() if capture is None else capture.global_and_fixture_disabled()
    )
    with visible:
        reporter.ensure_newline()
        reporter.write_line(slow_line(key, count, round_s))
        # A log shows the line before the time is spent.
        reporter.flush()
