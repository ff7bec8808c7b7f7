"""collect.runner: real processes, and nothing left of them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.processes import ended
from fakes.runner import FakeRunner, finished
from pytest_gpuperf.collect.runner import (
    Finished,
    LiveProcess,
    ProcessRunner,
    Runner,
    start_remedy,
)
from pytest_gpuperf.collect.signals import ending
from pytest_gpuperf.errors import CollectorTimeoutError, CollectorUnavailableError

AMPLE_S = 60.0
# a child that starts a grandchild, tells its id and waits; both hold the pipes
FAMILY = """
import pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session={apart})
partial = pathlib.Path(sys.argv[1] + ".tmp")
partial.write_text(str(child.pid))
partial.rename(sys.argv[1])
print("started", flush=True)
time.sleep({parent_s})
"""

needs_groups = pytest.mark.skipif(
    not hasattr(os, "killpg"), reason="this system has no process groups"
)


def python(source: str, *args: str) -> list[str]:
    return [sys.executable, "-c", source, *args]


def family(*, apart: bool = False, parent_s: float = 600.0) -> str:
    return FAMILY.format(apart=apart, parent_s=parent_s)


def until_exists(file: Path) -> None:
    """Wait for a file that another process writes."""
    deadline = time.monotonic() + AMPLE_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def told_pid(file: Path) -> int:
    """Return the id that a child writes down, once it has."""
    until_exists(file)
    return int(file.read_text(encoding="ascii"))


def once_told(file: Path) -> ProcessRunner:
    """Return a runner whose timeout begins when all of a family are there."""
    return ProcessRunner(lambda: told_pid(file))


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_runs_to_its_end(code: int) -> None:
    """Its exit status, both of its streams and its command come back."""
    source = (
        f"import sys; print('out'); print('err', file=sys.stderr); sys.exit({code})"
    )
    argv = python(source)

    given = ProcessRunner().run(argv, timeout_s=AMPLE_S)

    assert given.argv == tuple(argv)
    assert given.exit_code == code
    assert given.stdout.split() == [b"out"]
    assert given.stderr.split() == [b"err"]
    assert given.log_tail.split() == ["out", "err"]


@needs_groups
def test_a_signal_is_a_negative_status() -> None:
    """A crash is told apart from an exit."""
    source = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

    assert ProcessRunner().run(python(source), timeout_s=AMPLE_S).exit_code == -9


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exit 3"),
        (-9, "SIGKILL"),
        (-25, "SIGXFSZ, a larger file than `ulimit -f` allows"),
        (-99, "signal 99"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="signals have other numbers there")
def test_a_process_has_ended_by_the_name_of_its_signal(code: int, text: str) -> None:
    """With what it means, where that is a limit of the system's."""
    assert ending(code) == text


def test_what_is_given_on_standard_input_is_read() -> None:
    """All of it arrives, then the stream ends; unasked it is empty."""
    source = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    large = bytes(range(256)) * 4096
    runner = ProcessRunner()

    assert (
        runner.run(python(source), timeout_s=AMPLE_S, stdin=large).stdout
        == (large[::-1])
    )
    assert runner.run(python(source), timeout_s=AMPLE_S).stdout == b""


def test_who_does_not_read_is_not_waited_for() -> None:
    """A process that ends before it has read its input has ended."""
    given = ProcessRunner().run(python("pass"), timeout_s=AMPLE_S, stdin=b"x" * 10**6)

    assert given.exit_code == 0


def test_the_environment_is_the_one_that_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given: the whole of it. Not given: this process's own."""
    monkeypatch.setenv("GPUPERF_SEEN", "yes")
    source = "import os; print(os.environ.get('GPUPERF_SEEN'), os.environ.get('A'))"
    given = {**os.environ, "A": "b"}
    del given["GPUPERF_SEEN"]
    runner = ProcessRunner()

    own = runner.run(python(source), timeout_s=AMPLE_S)
    other = runner.run(python(source), timeout_s=AMPLE_S, env=given)

    assert (own.stdout.split(), other.stdout.split()) == (
        [b"yes", b"None"],
        [b"None", b"b"],
    )


def test_the_folder_is_the_one_that_was_given(tmp_path: Path) -> None:
    """Given: that one. Not given: this process's own."""
    source = "import os; print(os.getcwd())"
    runner = ProcessRunner()

    given = runner.run(python(source), timeout_s=AMPLE_S, cwd=str(tmp_path))
    own = runner.run(python(source), timeout_s=AMPLE_S)

    assert Path(os.fsdecode(given.stdout.strip())).samefile(tmp_path)
    assert Path(os.fsdecode(own.stdout.strip())).samefile(Path.cwd())


def test_nothing_is_read_as_a_shell_would(tmp_path: Path) -> None:
    """An argument is an argument, whatever stands in it."""
    nasty = f"$(touch {tmp_path}/made); echo * && 'x"
    source = "import sys; print(sys.argv[1])"

    given = ProcessRunner().run(python(source, nasty), timeout_s=AMPLE_S)

    assert given.stdout.decode().rstrip() == nasty
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["gpuperf-no-such-tool", "{folder}", "{folder}/none"])
def test_a_tool_that_is_not_there_is_unavailable(name: str, tmp_path: Path) -> None:
    """A missing or unusable executable is named, with what to do about it."""
    name = name.format(folder=tmp_path)

    with pytest.raises(CollectorUnavailableError, match="cannot be started") as caught:
        ProcessRunner().run([name, "--version"], timeout_s=AMPLE_S)

    assert name in caught.value.message
    assert caught.value.remedy == f"install {name} or put it on PATH"
    assert isinstance(caught.value.__cause__, OSError)


@needs_groups
def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Nobody is told to install a tool that is there."""
    missing = str(tmp_path / "none")

    with pytest.raises(CollectorUnavailableError) as caught:
        ProcessRunner().run(python("pass"), timeout_s=AMPLE_S, cwd=missing)

    assert f"in {missing}" in caught.value.message
    assert caught.value.remedy == "give a folder that exists"


@needs_groups
def test_a_timeout_ends_the_whole_family(tmp_path: Path) -> None:
    """A process that takes too long is ended, and all that it started."""
    pid_file = tmp_path / "pid"
    begun = time.monotonic()

    with pytest.raises(CollectorTimeoutError, match=r"did not end within 0\.2 s"):
        once_told(pid_file).run(python(family(), str(pid_file)), timeout_s=0.2)

    assert ended(told_pid(pid_file))
    assert time.monotonic() - begun < 30


@needs_groups
def test_a_daemon_that_left_the_group_is_not_waited_for(tmp_path: Path) -> None:
    """It holds the pipes of the dead; the timeout still ends in time."""
    pid_file = tmp_path / "pid"
    begun = time.monotonic()

    try:
        with pytest.raises(CollectorTimeoutError):
            once_told(pid_file).run(
                python(family(apart=True), str(pid_file)), timeout_s=0.2
            )
        assert time.monotonic() - begun < 30
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(told_pid(pid_file), signal.SIGKILL)


@needs_groups
def test_a_grandchild_that_outlives_its_parent_is_ended(tmp_path: Path) -> None:
    """Whoever still holds the streams keeps the call open, and ends with it."""
    pid_file = tmp_path / "pid"

    with pytest.raises(CollectorTimeoutError):
        once_told(pid_file).run(
            python(family(parent_s=0.0), str(pid_file)), timeout_s=0.2
        )

    assert ended(told_pid(pid_file))


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[Path]:
    """Press Ctrl-C in this process once a grandchild has told its id."""
    pid_file = tmp_path / "pid"
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press() -> None:
        told_pid(pid_file)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    yield pid_file
    thread.join()
    signal.signal(signal.SIGINT, earlier)


@needs_groups
def test_ctrl_c_leaves_nothing_running(interrupted: Path) -> None:
    """The interruption goes on, and the processes do not."""
    with pytest.raises(KeyboardInterrupt):
        ProcessRunner().run(python(family(), str(interrupted)), timeout_s=AMPLE_S)

    assert ended(told_pid(interrupted))


# runs the family, and is to be killed meanwhile
# says when it is watched: a busy machine may start its child long before its guard
PARENT = """
import pathlib, sys
from pytest_gpuperf.collect.runner import ProcessRunner
runner = ProcessRunner(pathlib.Path(sys.argv[-1]).with_name("watched").touch)
runner.run([sys.executable, "-c", *sys.argv[1:]], timeout_s=600)
"""


def test_something_else_is_done_meanwhile(tmp_path: Path) -> None:
    """Here, while the process works: it waits for a file that only this one writes."""
    file = tmp_path / "file"
    source = (
        "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(.01)"
    )

    done = ProcessRunner(file.touch).run(python(source, str(file)), timeout_s=AMPLE_S)

    assert done.exit_code == 0


@needs_groups
def test_what_fails_meanwhile_leaves_nothing_running(tmp_path: Path) -> None:
    """Its error passes, and the process with all that it started is ended."""
    pid_file = tmp_path / "pid"

    def meanwhile() -> None:
        told_pid(pid_file)
        message = "no such module"
        raise ImportError(message)

    with pytest.raises(ImportError, match="no such module"):
        ProcessRunner(meanwhile).run(python(family(), str(pid_file)), timeout_s=AMPLE_S)

    assert ended(told_pid(pid_file))


@needs_groups
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_parent_that_is_killed_leaves_nothing_running(
    tmp_path: Path, number: signal.Signals
) -> None:
    """However it ends, what it has started ends with it, and nobody watches any more."""
    pid_file = tmp_path / "pid"
    with subprocess.Popen(
        python(PARENT, family(), str(pid_file)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    ) as parent:
        grandchild = told_pid(pid_file)
        until_exists(tmp_path / "watched")
        os.killpg(parent.pid, number)

    assert ended(grandchild)


# runs in its place what tells its id, and tidies up when it is asked to end
PLACE = """
import sys
from pytest_gpuperf.collect.signals import run_here
print(run_here([sys.executable, "-c", *sys.argv[1:]]))
"""
TIDIES_UP = """
import os, pathlib, signal, sys, time
def tidy_up(*_):
    pathlib.Path(sys.argv[2]).touch()
    sys.exit(3)
signal.signal(signal.SIGTERM, tidy_up)
partial = pathlib.Path(sys.argv[1] + ".tmp")
partial.write_text(str(os.getpid()))
partial.rename(sys.argv[1])
time.sleep(600)
"""


@needs_groups
@pytest.mark.parametrize("kills_parent", [True, False])
def test_who_runs_in_our_place_ends_with_us(
    tmp_path: Path, *, kills_parent: bool
) -> None:
    """Asked to, so that it tidies up; where it ends by itself its exit status is ours."""
    pid_file, tidied = tmp_path / "pid", tmp_path / "tidied"
    with subprocess.Popen(
        python(PLACE, TIDIES_UP, str(pid_file), str(tidied)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
    ) as parent:
        child = told_pid(pid_file)
        if kills_parent:
            parent.kill()
        else:
            os.kill(child, signal.SIGTERM)
        told, _ = parent.communicate()

    assert ended(child)
    assert tidied.exists()
    assert told == (b"" if kills_parent else b"(3, False)\n")


STARTS_A_DAEMON = """
import os, subprocess
print(os.getpgid(0))
subprocess.Popen(["sleep", "9"], stdin=-3, stdout=-3, stderr=-3)
"""
RUNS_IT = """
import os, signal, sys
from pytest_gpuperf.collect.runner import ProcessRunner
argv = [sys.executable, "-c", sys.argv[1]]
group = int(ProcessRunner().run(argv, timeout_s=float(sys.argv[2])).stdout)
os.killpg(group, 0)  # it would raise if the daemon had gone
os.killpg(group, signal.SIGKILL)
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no child is left")
"""


@needs_groups
def test_who_watches_ends_with_the_process() -> None:
    """A process that has ended leaves no other one behind, and no daemon is touched."""
    argv = [sys.executable, "-c", RUNS_IT, STARTS_A_DAEMON, str(AMPLE_S)]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )

    assert done.stdout == "no child is left\n"


def test_a_terminal_signal_does_not_reach_the_child() -> None:
    """A process has a session of its own: Ctrl-C is ours to pass on."""
    source = "import os; print(os.getsid(0) if hasattr(os, 'getsid') else -1)"

    given = ProcessRunner().run(python(source), timeout_s=AMPLE_S)

    assert int(given.stdout) != (os.getsid(0) if hasattr(os, "getsid") else 0)


def test_the_tail_of_a_log_is_short() -> None:
    """Forty lines of both streams, blank ones left out, bytes that are not text shown."""
    out = b"".join(b"line %d\n\n" % number for number in range(100))

    tail = Finished(argv=("x",), exit_code=1, stdout=out, stderr=b"\xff\n").log_tail

    lines = tail.splitlines()
    assert len(lines) == 40
    assert lines[0] == "line 61"
    assert lines[-1] == "\N{REPLACEMENT CHARACTER}"


def test_the_double_has_the_shape_of_the_runner(tmp_path: Path) -> None:
    """Both take the same call; the double keeps it and answers from its script."""
    call = {"timeout_s": AMPLE_S, "cwd": str(tmp_path), "env": None, "stdin": b"x"}
    fake = FakeRunner([finished(0, stdout=b"")])
    runners: list[Runner] = [ProcessRunner(), fake]

    answers = [runner.run(python("pass"), **call) for runner in runners]  # type: ignore[arg-type] # names of its parameters

    assert [answer.exit_code for answer in answers] == [0, 0]
    assert fake.calls[0].argv == tuple(python("pass"))
    assert fake.calls[0].stdin == b"x"


# --------------------------------------------------- started, and not waited for

STARTS = """
import pathlib, sys, time
from pytest_gpuperf.collect.runner import ProcessRunner
process = ProcessRunner().start([sys.executable, "-c", *sys.argv[2:]], log=sys.argv[1])
pathlib.Path(sys.argv[-1]).with_name("watched").touch()  # it has its guard, too
time.sleep(600)
"""


def ended_code(process: LiveProcess) -> int | None:
    """Return how a process ends, once it has."""
    deadline = time.monotonic() + AMPLE_S
    while process.exit_code is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process.exit_code


def test_a_process_is_started_and_not_waited_for(tmp_path: Path) -> None:
    """It reads nothing; both of its streams are in its log when it has ended."""
    log = tmp_path / "log"
    source = (
        "import sys; print(repr(sys.stdin.read()), flush=True);"
        "print('err', file=sys.stderr); sys.exit(3)"
    )
    process = ProcessRunner().start(python(source), log=str(log), cwd=str(tmp_path))

    assert ended_code(process) == 3
    process.end()
    process.end()
    assert log.read_bytes().split() == [b"''", b"err"]


def test_several_processes_run_at_once(tmp_path: Path) -> None:
    """Each waits for a file that the other writes."""
    source = (
        "import os, sys, time; open(sys.argv[1], 'w').close()\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(.01)"
    )
    runner, names = ProcessRunner(), ["a", "b"]
    processes = [
        runner.start(
            python(source, *order), log=str(tmp_path / "log"), cwd=str(tmp_path)
        )
        for order in (names, names[::-1])
    ]

    assert [ended_code(process) for process in processes] == [0, 0]
    for process in processes:
        process.end()


@needs_groups
def test_a_descriptor_is_shared(tmp_path: Path) -> None:
    """Those that are named, and no other."""
    ours, theirs = socket.socketpair()
    source = "import os, sys; os.write(int(sys.argv[1]), b'hello')"
    with ours, theirs:
        process = ProcessRunner().start(
            python(source, str(theirs.fileno())),
            log=str(tmp_path / "log"),
            descriptors=(theirs.fileno(),),
        )
        theirs.close()
        assert ours.recv(99) == b"hello"
        assert ours.recv(99) == b""  # nobody else has the other end
        process.end()


@needs_groups
def test_who_is_ended_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """Its status is that of the signal."""
    pid_file = tmp_path / "pid"
    process = ProcessRunner().start(
        python(family(), str(pid_file)), log=str(tmp_path / "log")
    )
    pid = told_pid(pid_file)
    process.end()

    assert process.exit_code == -signal.SIGKILL
    assert ended(pid)


@needs_groups
def test_a_killed_parent_leaves_no_started_process(tmp_path: Path) -> None:
    """As with one that is waited for."""
    pid_file = tmp_path / "pid"
    with subprocess.Popen(
        python(STARTS, str(tmp_path / "log"), family(), str(pid_file)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    ) as parent:
        grandchild = told_pid(pid_file)
        until_exists(tmp_path / "watched")
        os.killpg(parent.pid, signal.SIGKILL)

    assert ended(grandchild)


def test_a_tool_that_is_not_there_cannot_be_started(tmp_path: Path) -> None:
    """It is named, as by `run`."""
    with pytest.raises(CollectorUnavailableError, match="gpuperf-no-such-tool"):
        ProcessRunner().start(["gpuperf-no-such-tool"], log=str(tmp_path / "log"))


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EMFILE, "close the files that the tests leave open"),
        (errno.EAGAIN, "ulimit -u, or pids.max of the container"),
        (errno.ENOMEM, "free memory"),
        (errno.EACCES, "make python executable"),
        (errno.ENOENT, "install python or put it on PATH"),
    ],
)
def test_what_keeps_a_process_from_starting_has_its_own_remedy(
    code: int, remedy: str
) -> None:
    """A program that is there is not to be installed."""
    assert remedy in start_remedy(OSError(code, "why"), "python")
