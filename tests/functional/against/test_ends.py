"""Processes, files and runs that end in the middle of a comparison."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.project import PLUGIN, Project, hears_interrupts
from functional.against.repository import (
    AGAINST,
    NEW,
    OLD,
    Repository,
    wait_for,
)

LEAVES = """
    import atexit
    import os
    import pathlib

    import pytest
    import work

    COUNTED = pathlib.Path({counted!r})


    @pytest.mark.gpuperf(max_regression={{"x": "5 %"}})
    @pytest.mark.parametrize("name", ["slower", "noisy"])
    def test_x(gpuperf, name):
        noise = int(os.environ.get("PYTHONHASHSEED", "0")) % 2 * 0.5  # of each block
        gpuperf.record("x", work.VALUES[name] + noise * (name == "noisy") * work.NEW,
                       unit="s", better="lower")
        with COUNTED.open("a") as file:
            file.write("x")
        if COUNTED.stat().st_size > 40:  # in the sixth block, or later
            atexit.register(os._exit, 0)
"""


def test_a_block_that_cannot_be_run_takes_nothing_back(project: Project) -> None:
    """What earlier ones have decided was proven; the rest says what ended them."""
    repository = Repository(project)
    counted = str(project.path / "counted.json")
    project.write(LEAVES.format(counted=counted))
    project.write("VALUES = {'slower': 1.0, 'noisy': 1.0}\nNEW = 0\n", "work.py")
    repository.git("add", ".")
    repository.git("commit", "-q", "-m", "old")
    project.write("VALUES = {'slower': 1.3, 'noisy': 1.0}\nNEW = 1\n", "work.py")
    ended = project.spawn(*AGAINST)
    outcomes = {name: outcome for name, (outcome, _) in repository.outcomes().items()}

    assert ended.returncode == 1
    assert outcomes == {
        "test_x[slower]": "regressed",
        "test_x[noisy]": "inconclusive",
    }
    assert (
        "did not report the files that it loaded: it ended after its last test"
        in " ".join(ended.stdout.split())
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
@pytest.mark.parametrize(
    ("end", "said"),
    [
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "was ended by SIGKILL in test_it.py::test_x[slower]",
        ),
        (
            "os._exit(0)",
            "ended in test_it.py::test_x[slower] (exit 0, as by os._exit)",
        ),
    ],
)
def test_a_test_that_ends_its_process_takes_no_other_with_it(
    repository: Repository, end: str, said: str
) -> None:
    """After the first block it is left out, and the tests behind it are measured."""
    repository.project.write(
        f"""
        import os
        import signal


        class Values(dict):
            def __missing__(self, name):
                {end}


        VALUES = Values({ {n: v for n, v in OLD.items() if n != "slower"}!r})
        """,
        "work.py",
    )
    repository.git("commit", "-qam", "one of them crashes")
    repository.values(**NEW)
    ended = repository.project.spawn(*AGAINST)

    assert repository.outcomes() == {
        "test_x[slower]": ("incomparable", "side-without-value"),
        "test_x[same]": ("unchanged", "equal"),
        "test_x[faster]": ("improved", "faster-than-limit"),
    }
    assert f"the process {said}" in ended.stdout
    assert repository.is_clean()


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_what_a_process_has_measured_before_it_ended_counts(
    repository: Repository, end: str
) -> None:
    """Its files were recorded before the test that ended it, and are proven."""
    repository.project.write(
        f"""
        import os

        class Values(dict):
            def __missing__(self, name):
                {end}

        VALUES = Values({ {n: v for n, v in OLD.items() if n != "faster"}!r})
        """,
        "work.py",
    )
    repository.git("commit", "-qam", "the last one crashes")
    repository.values(**NEW)
    repository.project.spawn(*AGAINST, "-p", "no:randomly")
    report = repository.project.report()
    blocks = {
        v["key"]["test_id"].partition("[")[2]: v["against"]["block_count"]
        for v in report["verdicts"]
    }

    assert report["against"]["gap"] is None
    assert blocks["slower]"] == blocks["same]"] == report["against"]["block_count"]
    assert repository.outcomes()["test_x[slower]"][0] == "regressed"


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
def test_a_process_that_is_killed_beside_another_is_named(
    repository: Repository, tmp_path: Path
) -> None:
    """The other one of its side measures on; nobody has to guess who killed it."""
    repository.project.write(
        f"""
        import os
        import signal
        from pathlib import Path

        class Values(dict):
            def __missing__(self, name):
                try:
                    Path({str(tmp_path / "next")!r}).unlink()
                except FileNotFoundError:
                    return 1.0
                os.kill(os.getpid(), signal.SIGKILL)


        VALUES = Values({ {n: v for n, v in OLD.items() if n != "slower"}!r})
        """,
        "work.py",
    )
    repository.git("commit", "-qam", "one process is killed")
    repository.values(**OLD)
    (tmp_path / "next").touch()
    ended = repository.project.spawn(*AGAINST)

    assert re.search(
        r"process \d of the old side in block 1 does not count from there on: the "
        r"process was ended by "
        r"SIGKILL in test_it\.py::test_x\[slower\]",
        " ".join(ended.stdout.split()),
    )
    assert repository.is_clean()


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("crash()", "", "before its first test"),
        ("", "crash()", "after its last test"),
    ],
)
def test_a_side_that_ends_outside_of_tests_ends_the_comparison(
    repository: Repository, before: str, after: str, place: str
) -> None:
    """No test is to blame and left out; nothing is compared, and it says where and why."""
    repository.project.write(
        f"""
        import os
        import signal
        import pytest

        def crash():
            os.kill(os.getpid(), signal.SIGKILL)

        def pytest_runtestloop(session):
            if not session.config.option.collectonly:
                {before or "pass"}

        @pytest.fixture(scope="session", autouse=True)
        def server():
            yield
            {after}
        """,
        "conftest.py",
    )
    repository.git("add", ".")
    repository.git("commit", "-qm", "a session that crashes")
    repository.project.write("", "conftest.py")
    ended = repository.project.spawn(*AGAINST)
    gap = repository.project.report()["against"]["gap"]

    assert ended.returncode == 1, ended.stdout
    assert gap["reason"] == (
        f"of the old side the process was ended by SIGKILL {place}"
    )
    assert "session fixtures" in gap["remedy"]
    assert repository.outcomes() == {}
    assert repository.is_clean()


def test_a_file_that_is_deleted_meanwhile_is_told_as_such(
    repository: Repository,
) -> None:
    """It is no code that a side never had, though no process can load it any more."""
    repository.project.write(
        f"""
        import os
        import pathlib
        import sys

        VALUES = {NEW!r}
        is_first = os.environ.setdefault("FIRST", str(os.getpid())) == str(os.getpid())
        if not is_first and "--collect-only" not in sys.argv:
            pathlib.Path(__file__).unlink(missing_ok=True)
        """,
        "work.py",
    )
    ended = repository.project.spawn(*AGAINST)
    gap = repository.project.report()["against"]["gap"]

    assert ended.returncode == 1, ended.stdout
    assert gap["reason"].startswith("work of the new side was deleted while it was")
    assert "changed while it was measured" not in ended.stdout  # it is told once
    assert repository.outcomes() == {}


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ctrl_c_leaves_no_worktree_and_tells_what_is_decided(
    repository: Repository, name: str
) -> None:
    """
    Exit status 2, the tests reported, the file of the run written.

    The signals of a cancelled job and of a closed terminal do the same.
    """
    started = repository.sides_that_hang(**NEW)
    argv = [sys.executable, "-u", "-m", "pytest", *PLUGIN, *AGAINST]
    with subprocess.Popen(
        argv,
        cwd=repository.project.path,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=hears_interrupts,  # noqa: PLW1509 - it sets a signal, no more
    ) as process:
        wait_for(started, process)
        process.send_signal(getattr(signal, name))
        text, _ = process.communicate()

    assert process.returncode == pytest.ExitCode.INTERRUPTED, text
    by_hand = name == "SIGINT"
    said = "it was interrupted" if by_hand else f"{name} ended it"
    assert f"{said}; run it again" in " ".join(text.split())
    assert f"{'KeyboardInterrupt' if by_hand else name} ended the run" in text
    assert "3 passed" in text
    assert repository.project.report()["against"]["gap"]["code"] == "incomplete"
    assert repository.is_clean()


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
def test_after_ctrl_c_nothing_else_is_started(repository: Repository) -> None:
    """Neither the other stored commit, nor fresh processes, nor the named revision."""
    for number, name in enumerate(("slower", "faster")):
        repository.commit(f"stored {number}", **OLD)
        update = repository.project.spawn("--gpuperf-update=all", "-k", name)
        assert update.returncode == 0, update.stdout
    started = repository.sides_that_hang(slower=1.3, same=1.0, faster=1.3)
    gate = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm-by=auto")
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "pytest", *PLUGIN, *AGAINST, *gate],
        cwd=repository.project.path,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=hears_interrupts,  # noqa: PLW1509 - it sets a signal, no more
    ) as process:
        wait_for(started, process)
        started.unlink()
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate()

    assert process.returncode == pytest.ExitCode.INTERRUPTED, text
    assert text.count("making the two sides") == 1, text
    assert not started.exists()
    against = repository.project.report()["against"]
    assert (against["revision"], against["gap"]["code"]) == ("HEAD", "not-asked")
    assert repository.is_clean()


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ctrl_c_ends_the_command_with_its_own_exit_code(
    repository: Repository, name: str
) -> None:
    """
    130, when pytest has removed the worktree.

    The signals of a cancelled job, which may reach the command alone, do the same.
    """
    started = repository.sides_that_hang(**NEW)
    compare = ("compare", "--against=HEAD", "test_it.py", "--", *PLUGIN)
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "pytest_gpuperf", *compare],
        cwd=repository.project.path,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
        preexec_fn=hears_interrupts,  # noqa: PLW1509 - it sets a signal, no more
    ) as process:
        wait_for(started, process)
        if name == "SIGINT":  # as a terminal sends it: to all of them
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(getattr(signal, name))
        text, _ = process.communicate()

    assert process.returncode == 130, text
    assert ("it was interrupted" if name == "SIGINT" else f"{name} ended it") in text
    assert repository.is_clean()
