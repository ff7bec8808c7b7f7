"""collect.begun: a process that works before its runner is imported."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.processes import alive, ended
from pytest_gpuperf.collect.begun import BegunProcess, begin
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import CollectorTimeoutError

AMPLE_S = 60.0
ENV = {"GPUPERF_SEEN": "yes"}
WAITS = "import time; time.sleep(600)"
TALKS = """
import os, sys
sys.stderr.write("e" * 10**6)
sys.stdout.write("o" * 10**6)
sys.exit(3 if sys.stdin.read() == "" and os.environ["GPUPERF_SEEN"] == "yes" else 4)
"""
LEAVES = """
import subprocess
subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are begun on Linux"
)


def python(source: str, *args: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", source, *args)


def descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


@pytest.fixture
def begun(request: pytest.FixtureRequest) -> Iterator[BegunProcess]:
    """A process that was begun, and is ended after the test."""
    process = begin(python(getattr(request, "param", WAITS)), ENV)
    assert process is not None
    yield process
    process.end()


@pytest.mark.parametrize("begun", [TALKS], indirect=True)
def test_the_same_command_is_not_started_again(begun: BegunProcess) -> None:
    """Its streams, however long, and its exit status are those of the one begun."""
    given = ProcessRunner(begun=begun).run(begun.argv, timeout_s=AMPLE_S, env=ENV)

    assert given.argv == begun.argv
    assert (given.exit_code, given.stdout, given.stderr) == (
        3,
        b"o" * 10**6,
        b"e" * 10**6,
    )


@pytest.mark.parametrize(
    "begun",
    ["import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"],
    indirect=True,
)
def test_a_crash_is_a_negative_status(begun: BegunProcess) -> None:
    """As of a process that the runner starts."""
    given = ProcessRunner(begun=begun).run(begun.argv, timeout_s=AMPLE_S, env=ENV)

    assert given.exit_code == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("argv", "how"),
    [
        (python("print('another')"), {"env": ENV}),
        (python(WAITS), {"env": {}}),
        (python(WAITS), {"env": None}),
        (python(WAITS), {"env": ENV, "cwd": "/"}),
        (python(WAITS), {"env": ENV, "stdin": b"x"}),
    ],
)
def test_another_command_is_started(
    begun: BegunProcess, argv: tuple[str, ...], how: dict[str, object]
) -> None:
    """The one begun is no answer to it, goes on, and ends when it is ended."""
    with contextlib.suppress(CollectorTimeoutError):
        ProcessRunner(begun=begun).run(argv, timeout_s=0.1, **how)  # type: ignore[arg-type] # names of its parameters

    assert alive(begun.pid)
    begun.end()
    assert not alive(begun.pid)


@pytest.mark.parametrize("begun", ["print('answer')"], indirect=True)
def test_it_answers_once(begun: BegunProcess) -> None:
    """A second run of the same command is a second process."""
    runner = ProcessRunner(begun=begun)

    answers = [runner.run(begun.argv, timeout_s=AMPLE_S, env=ENV) for _ in range(2)]

    assert [answer.stdout for answer in answers] == [b"answer\n"] * 2


def test_a_timeout_ends_it(begun: BegunProcess) -> None:
    """As a process that the runner starts."""
    with pytest.raises(CollectorTimeoutError, match=r"did not end within 0\.2 s"):
        ProcessRunner(begun=begun).run(begun.argv, timeout_s=0.2, env=ENV)

    assert not alive(begun.pid)


@pytest.mark.parametrize("begun", [LEAVES], indirect=True)
def test_a_daemon_that_left_the_group_is_not_waited_for(begun: BegunProcess) -> None:
    """It holds the pipes of the dead; the timeout still ends in time."""
    start = time.monotonic()

    with pytest.raises(CollectorTimeoutError):
        ProcessRunner(begun=begun).run(begun.argv, timeout_s=2.0, env=ENV)

    assert time.monotonic() - start < 30


def test_what_fails_meanwhile_ends_it(begun: BegunProcess) -> None:
    """Its error passes."""

    def meanwhile() -> None:
        message = "no such module"
        raise ImportError(message)

    with pytest.raises(ImportError):
        ProcessRunner(meanwhile, begun=begun).run(
            begun.argv, timeout_s=AMPLE_S, env=ENV
        )

    assert ended(begun.pid)


def test_nothing_is_begun_that_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner says why; no descriptor is left open."""
    before = descriptors()

    assert begin([str(tmp_path / "none")], {}) is None
    assert descriptors() == before
    monkeypatch.setattr(sys, "stdout", None)
    assert begin(python("pass"), {}) is None


@pytest.mark.parametrize("free", [0, 1, 2, 3])
def test_nothing_is_begun_without_descriptors(free: int) -> None:
    """Both pipes need two each. What was opened for them is closed again."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (least + free + 1, limits[1]))
    try:
        process = begin(python("pass"), {})
        again = [os.open(os.devnull, os.O_RDONLY) for _ in range(free)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(least)

    for number in again:
        os.close(number)
    assert process is None
