"""hooks.measuring: slow calls are announced while there is time to stop them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.hooks.measuring import _write_expected
from pytest_gpuperf.model.record import RecordKey

KEY = RecordKey(test_id="test_fit.py::test_fit")


class Terminal:
    """pytest's reporter and its capturing, in as far as the line needs them."""

    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity = verbosity
        self.done: list[str] = []

    @contextlib.contextmanager
    def global_and_fixture_disabled(self) -> Iterator[None]:
        self.done.append("capture off")
        yield
        self.done.append("capture on")

    def ensure_newline(self) -> None:
        self.done.append("newline")

    def write_line(self, text: str) -> None:
        self.done.append(text)

    def flush(self) -> None:
        self.done.append("flush")


def config(terminal: Terminal | None, *, captures: bool = True) -> Any:
    """Return a config whose plugins are those of a run."""
    found = {"terminalreporter": terminal}
    if captures:
        found["capturemanager"] = terminal
    return SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=found.get))


def test_the_line_is_written_through_captured_output_at_once() -> None:
    """A log that is read while it is written shows it before the time is spent."""
    terminal = Terminal()
    _write_expected(config(terminal), KEY, 3, 31.0)

    assert terminal.done == [
        "capture off",
        "newline",
        "gpuperf: test_fit: the first call took 31.0 s; 3 more take about 93 s",
        "flush",
        "capture on",
    ]


@pytest.mark.parametrize(
    ("verbosity", "count", "round_s", "is_written"),
    [(-1, 3, 31.0, True), (-2, 3, 31.0, False), (0, 3, 3.3, False), (0, 1, 10.0, True)],
)
def test_the_line_is_for_long_waits_and_not_for_silent_runs(
    verbosity: int, count: int, round_s: float, is_written: bool
) -> None:
    """With -q it is written, with -qq nothing is."""
    terminal = Terminal(verbosity)
    _write_expected(config(terminal), KEY, count, round_s)

    assert bool(terminal.done) is is_written


def test_who_has_no_terminal_writes_nothing() -> None:
    """A worker of xdist has none; where nothing captures, nothing is switched off."""
    _write_expected(config(None), KEY, 3, 31.0)
    terminal = Terminal()
    _write_expected(config(terminal, captures=False), KEY, 3, 31.0)

    assert terminal.done[0] == "newline"
