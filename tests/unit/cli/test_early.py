"""cli.early: the reading that begins before the command is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import fake_ncu_report
from fakes.project import HUNG_S, command
from pytest_gpuperf.cli.early import begin_reading

REPORT = (
    b'NVR\0{"ranges": [[{"kernel": "k", "demangled": "k()", "metrics": '
    b'{"launch__grid_size": [4, 8.0, ""], "a__b": [4, 2.0, "ns"]}}]]}'
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are begun on Linux"
)


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A report whose reads are counted, and the double of NVIDIA's package."""
    fake_ncu_report.install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *sys.path])
    )
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "some.ncu-rep"
    path.write_bytes(REPORT)
    Path(f"{path}.reads").write_text("")
    yield path
    sys.modules.pop("ncu_report", None)


def gpuperf(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_gpuperf", *words],
        capture_output=True,
        check=False,
        text=True,
        timeout=HUNG_S,
    )


def check_shown(script: str, *args: str, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, *args, *words],
        capture_output=True,
        check=False,
        text=True,
        timeout=HUNG_S,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == command(*words).stdout


@pytest.mark.parametrize(
    "options",
    [
        "--format=json",
        "--format json",
        "--format=text --format=json",
        "--format=json --metrics=a__b",
        "--metrics a__b,launch__grid_size --format json",
        "--metrics=b__c --metrics=,launch__grid_size,a__b --format=json",
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_begun_is_what_the_command_asks_for(
    report: Path, options: str, *, is_first: bool
) -> None:
    """The report is read once, and the answer is that of the command alone."""
    given = options.split()
    words = ["show", *given, report.name] if is_first else ["show", report.name, *given]
    begun = begin_reading(words)
    assert begun is not None
    begun.end()
    Path(f"{report}.reads").write_text("")

    done = gpuperf(*words)

    assert done.stdout == command(*words).stdout
    assert done.stdout.startswith("{")
    assert Path(f"{report}.reads").read_text() == "xx"  # the second is `command`


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--format=text",
        "--format=json --metrics=time",  # made of several counters
        "--format=json --details",
        "--format=json --kernel=k",
        "--format=json other.ncu-rep",
        "--form=json",
        "--format=json --",
        "--format",
    ],
)
def test_nothing_is_begun_that_may_not_be_asked_for(report: Path, options: str) -> None:
    """An option that is not known here may say what is read."""
    assert begin_reading(["show", report.name, *options.split()]) is None


@pytest.mark.parametrize(
    "file", ["none.ncu-rep", "-", ".", "text.ncu-rep", "pipe", "\0"]
)
def test_nothing_is_begun_for_what_is_no_report(report: Path, file: str) -> None:
    """The command says what is wrong with it; a pipe is not opened, because it blocks."""
    (report.parent / "text.ncu-rep").write_bytes(b"text")
    os.mkfifo(report.parent / "pipe")

    assert begin_reading(["show", file, "--format=json"]) is None
    assert begin_reading(["compare", report.name, "--format=json"]) is None
    assert begin_reading([]) is None


def test_a_reading_that_nobody_asks_for_is_ended(report: Path) -> None:
    """The command refuses the report that a process reads already."""
    with report.open("r+b") as file:
        file.truncate(1_000_000_001)  # no disk space is taken

    done = gpuperf("show", report.name, "--format=json")

    assert done.returncode == 4
    assert "more than 1000" in done.stderr


def test_the_ends_of_children_are_known_where_a_supervisor_ignores_them(
    report: Path,
) -> None:
    """An ignored SIGCHLD is inherited, and would hide every exit status."""
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    words = ["show", report.name, "--format=json"]

    check_shown(ignoring, sys.executable, "-m", "pytest_gpuperf", words=words)


TAKING = """
import os, signal, sys, threading
from pytest_gpuperf.cli import main

def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

how = sys.argv.pop(1)
signal.signal(signal.SIGCHLD, reap if how == "handler" else signal.SIG_IGN)
codes = []
if how == "thread":
    thread = threading.Thread(target=lambda: codes.append(main()))
    thread.start()
    thread.join()
else:
    codes.append(main())
sys.exit(codes[0])
"""


@pytest.mark.parametrize("how", ["handler", "thread"])
def test_a_report_is_shown_where_others_take_the_ends_of_children(
    report: Path, how: str
) -> None:
    """A handler may wait for every child, and a thread cannot change who does."""
    words = ["show", report.name, "--format=json"]

    check_shown(TAKING, how, words=words)
