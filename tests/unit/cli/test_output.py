"""cli.output: what the commands say while they work."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import pytest

from fakes.project import command
from pytest_gpuperf import cli
from pytest_gpuperf.cli.bisection import exit_code_of
from pytest_gpuperf.cli.compare import EXIT_CODES
from pytest_gpuperf.cli.output import exit_code, told_on_terminals
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.pipeline.bisection import (
    Ending,
    SearchResult,
    Trial,
    TrialOutcome,
)


class Screen(io.StringIO):
    """Standard error that is a terminal, or is not; tells when something is written."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal
        self.written = threading.Event()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._terminal

    def flush(self) -> None:
        """Note that a line is complete."""
        self.written.set()


def test_long_work_is_told_and_the_line_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names in it are escaped, and nothing is left where the result will stand."""
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with told_on_terminals("reading a\x1b[2Jb.json", after_s=0.0):
        assert screen.written.wait(10.0)
    told, _, left = screen.getvalue().rpartition("\r\x1b[K")

    assert told == "\r\x1b[Kgpuperf: reading a\\x1b[2Jb.json ..."
    assert left == ""


@pytest.mark.parametrize(
    ("terminal", "term", "after_s"),
    [(False, "xterm", 0.0), (True, "dumb", 0.0), (True, "xterm", 1000.0)],
)
def test_nothing_is_told_in_logs_or_of_short_work(
    terminal: bool,
    term: str,
    after_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log has no line to take back; and no thread is left behind."""
    screen = Screen(terminal=terminal)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", term)
    before = threading.active_count()
    with told_on_terminals("reading run.json", after_s=after_s):
        pass

    assert screen.getvalue() == ""
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("passes", "codes"), [(True, (0, 0)), (False, (1, 1)), (None, (0, 3))]
)
def test_a_decision_has_one_exit_code(
    *, passes: bool | None, codes: tuple[int, int]
) -> None:
    """Where nothing was decided, only a strict command says so."""
    assert (exit_code(passes=passes), exit_code(passes=passes, strict=True)) == codes


@pytest.mark.skipif(sys.platform != "linux", reason="the file is one of Linux")
def test_a_file_that_cannot_be_read_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its first bytes say nothing then; whoever reads it reports the error."""
    unreadable = "/proc/self/mem"  # a regular file, of which no byte at 0 can be read

    assert cli.main(["compare", unreadable, unreadable]) == 4
    said = capsys.readouterr().err
    assert f"{unreadable}: it cannot be read" in said


def test_a_missing_run_is_answered_with_what_writes_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The path may be right, and the run never kept."""
    assert cli.main(["report", "no/run.json", "-o", "-"]) == 4

    said = capsys.readouterr().err
    assert "remedy: check the path, or give a file written by --gpuperf-json" in said


def test_every_exit_status_of_pytest_is_one_of_the_command() -> None:
    """By pytest's own list: a status that it adds later is placed here first."""
    codes = {
        "OK": 0,
        "TESTS_FAILED": 1,
        "INTERRUPTED": 4,
        "INTERNAL_ERROR": 4,
        "USAGE_ERROR": 2,
        "NO_TESTS_COLLECTED": 2,
        "MAX_WARNINGS_ERROR": 1,
    }

    for status in pytest.ExitCode:
        assert EXIT_CODES[status.value] == codes[status.name]


MOVED = Change(effect=0.1, current=1.1, reference=1.0, session_count=2, run_count=4)


@pytest.mark.parametrize(
    ("code", "change", "expected"),
    [
        (GapCode.UNKNOWN_TEST, None, 2),
        (GapCode.UNKNOWN_METRIC, None, 2),
        (GapCode.REVISION, None, 4),  # its files have no room, as on a full disk
        (GapCode.INCOMPLETE, None, 3),  # the budget was spent
        (None, None, 4),
        (GapCode.FAILED, MOVED, 3),
    ],
)
def test_a_search_that_measured_nothing_is_not_undecided(
    code: GapCode | None, change: Change | None, expected: int
) -> None:
    """Its exit code says whose mistake it is: the command line's, or the machine's."""
    trial = Trial(commit_id="c", outcome=TrialOutcome.SKIPPED, code=code, change=change)

    assert exit_code_of(SearchResult(ending=Ending.UNDECIDED, trial=trial)) == expected


@pytest.mark.parametrize(
    "words",
    [
        ("show",),
        ("compare", "a.json"),
        ("report", "-o", "a.html"),
        ("inventory",),
        ("explain",),
        ("doctor",),
        ("baseline", "list"),
    ],
)
def test_no_error_shows_the_password_of_a_url(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Also of a command that takes files, given a store by mistake."""
    url = "postgresql://me:s3cr3t@127.0.0.1:1/perf?password=s3cr3t"
    ended = command(*words, url, folder=tmp_path)

    assert ended.returncode != 0
    assert "me:***@127.0.0.1" in ended.stderr or "psycopg" in ended.stderr
    assert "s3cr3t" not in ended.stdout + ended.stderr
