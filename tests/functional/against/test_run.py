"""Whole runs that compare with a revision, and the commands that start them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.project import PLUGIN, XDIST, Project, hears_interrupts, lines
from fakes.repositories import without_git_variables
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.pipeline.bisection import (
    BisectRequest,
    Search,
    Trial,
    TrialOutcome,
)

# numbers of a module: what they are is no question of noise
TESTS = """
    import pytest
    import work


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["slower", "same", "faster"])
    def test_x(gpuperf, name):
        gpuperf.record("x", work.VALUES[name], unit="s", better="lower")
"""
OLD = {"slower": 1.0, "same": 1.0, "faster": 1.0}
NEW = {"slower": 1.3, "same": 1.0, "faster": 0.7}
GIT = shutil.which("git") or "git"
AGAINST = ("--gpuperf-against=HEAD", "--gpuperf-json=run.json")


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a running process has made a file."""
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


class Repository:
    """A project in a git repository, whose commits differ in the numbers of a module."""

    def __init__(self, project: Project) -> None:
        self.project = project
        project.write(TESTS)
        project.write("[pytest]\n", "pytest.ini")
        project.write("__pycache__\n*.json\n.gpuperf\n.pytest_cache\n", ".gitignore")
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        """Run git in it, and return what it prints."""
        who = ("-c", "user.name=A", "-c", "user.email=a@localhost")
        done = subprocess.run(
            [GIT, *who, *arguments],
            cwd=self.project.path,
            check=True,
            capture_output=True,
            encoding="utf-8",
            env=without_git_variables(),
        )
        return done.stdout.strip()

    def values(self, **values: float) -> None:
        """Write the module."""
        self.project.write(f"VALUES = {values!r}\n", "work.py")

    def sides_that_hang(self, **values: float) -> Path:
        """Write a module that stops side processes; return the file that tells of one."""
        started = self.project.path / "started.json"
        self.project.write(
            f"""
            import os
            import pathlib
            import time

            VALUES = {values!r}
            if int(os.environ.setdefault("FIRST", str(os.getpid()))) != os.getpid():
                pathlib.Path({str(started)!r}).touch()
                time.sleep(60)
            """,
            "work.py",
        )
        return started

    def commit(self, subject: str, **values: float) -> str:
        """Commit the project with these numbers; return the commit."""
        self.values(**values)
        self.git("add", ".")
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def is_clean(self) -> bool:
        """Return whether no worktree is left."""
        return len(self.git("worktree", "list").splitlines()) == 1

    def outcomes(self) -> dict[str, tuple[str, str]]:
        """Return outcome and reason of each verdict of the last run, by parameter."""
        return self.outcomes_of(self.project)

    @staticmethod
    def outcomes_of(project: Project) -> dict[str, tuple[str, str]]:
        """Return outcome and reason of each verdict of a project's last run."""
        verdicts = project.report()["verdicts"]
        return {
            v["key"]["test_id"].partition("::")[2]: (v["outcome"], v["reason"])
            for v in verdicts
        }

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `gpuperf`."""
        return run_command(self.project, *arguments)


def run_command(
    project: Project, *arguments: str, folder: str = "."
) -> subprocess.CompletedProcess[str]:
    """Run `gpuperf` in a folder of a project."""
    return subprocess.run(
        [sys.executable, "-m", "pytest_gpuperf", *arguments],
        cwd=project.path / folder,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=900,  # a search has six comparisons, and the machine may be busy
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
    assert "did not say what it has loaded: it ended after its last test" in " ".join(
        ended.stdout.split()
    )


LATE = """
    import pytest


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["slower", "same"])
    def test_x(gpuperf, name):
        from late import core

        gpuperf.record("x", core.VALUES[name], unit="s", better="lower")
"""
BACKEND = """
    import pathlib
    import zipfile


    def build_wheel(folder, config_settings=None, metadata_directory=None):
        FAIL
        sources = pathlib.Path("src", "late").iterdir()
        files = {f"late/{p.stem}.py": p.read_text() for p in sources if p.is_file()}
        info = "late-1.0.dist-info"
        files[f"{info}/METADATA"] = "Metadata-Version: 2.1\\nName: late\\nVersion: 1.0\\n"
        files[f"{info}/WHEEL"] = (
            "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        )
        files[f"{info}/RECORD"] = "".join(f"{file},,\\n" for file in files)
        with zipfile.ZipFile(pathlib.Path(folder, "late-1.0-py3-none-any.whl"), "w") as w:
            for file, text in files.items():
                w.writestr(file, text)
        return "late-1.0-py3-none-any.whl"
"""
SETTINGS = """
    [build-system]
    requires = []
    build-backend = "backend"
    backend-path = ["."]

    [project]
    name = "late"
    version = "1.0"
"""


def installed_late(
    project: Project, elsewhere: Path, suffix: str = ".py", fails: str = "pass"
) -> None:
    """Make a project whose tests import what is installed of it when they run."""
    repository = Repository(project)
    project.write(LATE)
    project.write(SETTINGS, "pyproject.toml")
    project.write(BACKEND.replace("FAIL", fails), "backend.py")
    project.write("", "src/late/__init__.py")
    source = f"src/late/core{suffix}"
    project.write(f"VALUES = {OLD!r}\n", source)
    repository.git("add", ".")
    repository.git("commit", "-q", "-m", "old")
    project.write(f"VALUES = {NEW!r}\n", source)
    site = elsewhere / "site" / "late"
    site.mkdir(parents=True)
    (site / "__init__.py").touch()
    (site / "core.py").write_text(f"VALUES = {NEW!r}\n", encoding="utf-8")
    project.environment.setenv("PYTHONPATH", str(site.parent), prepend=os.pathsep)
    project.environment.setenv("XDG_CACHE_HOME", str(elsewhere / "cache"))


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip builds them")
@pytest.mark.parametrize(
    "suffix", [".py", pytest.param(".txt", marks=pytest.mark.long)]
)
def test_what_tests_import_when_they_run_is_built_if_need_be(
    project: Project, tmp_path: Path, suffix: str
) -> None:
    """No collection tells what is installed, or made by a build, from nobody's code."""
    installed_late(project, tmp_path, suffix)
    ended = project.spawn(*AGAINST)
    against = project.report()["against"]

    assert against["level"] == 2, ended.stdout
    assert against["gap"] is None
    outcomes = Repository.outcomes_of(project)
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == {
        "test_x[slower]": "regressed",
        "test_x[same]": "unchanged",
    }
    assert "both sides are built instead" in " ".join(ended.stdout.split())


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip builds them")
def test_what_cannot_be_built_either_is_refused_for_both_reasons(
    project: Project, tmp_path: Path
) -> None:
    """What the tests loaded decides; why there is no build is said, too."""
    installed_late(project, tmp_path, fails="raise ZeroDivisionError")
    ended = project.spawn(*AGAINST)
    gap = project.report()["against"]["gap"]

    assert ended.returncode == 1, ended.stdout
    assert re.match(
        r"the \w+ side loaded late(\.core)? from .*, which both share; level 2: the old "
        r"side cannot be built in",
        gap["reason"],
    )


COMMITS = f"""
    import subprocess


    def test_commits():
        argv = [{GIT!r}, "-c", "user.name=A", "-c", "user.email=a@localhost"]
        subprocess.run([*argv, "commit", "-qam", "while tests run"], check=True)
"""


def test_a_run_of_other_code_than_is_compared_is_told(
    project: Project, tmp_path: Path
) -> None:
    """As where PYTHONPATH names another clone: the sides run what the repository has."""
    repository = Repository(project)
    project.write(f"VALUES = {OLD!r}\n", "src/work.py")
    repository.git("add", ".")
    repository.git("commit", "-qm", "old")
    project.write(f"VALUES = {NEW!r}\n", "src/work.py")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "work.py").write_text(f"VALUES = {OLD!r}\n", encoding="utf-8")
    project.environment.setenv("PYTHONPATH", str(other), prepend=os.pathsep)
    ended = project.spawn(*AGAINST)

    assert repository.outcomes()["test_x[slower]"][0] == "regressed"
    told = " ".join(ended.stdout.split())
    assert f"this run loads work from {other / 'work.py'}, which is not" in told


def test_a_search_says_once_that_other_code_is_loaded(
    project: Project, tmp_path: Path
) -> None:
    """The user's own test runs another clone, which no commit of the search changes."""
    repository = Repository(project)
    project.write(f"VALUES = {OLD!r}\n", "src/work.py")
    repository.git("add", ".")
    repository.git("commit", "-qm", "old")
    for subject, values in (("slower", NEW), ("later", {**NEW, "faster": 0.6})):
        project.write(f"VALUES = {values!r}\n", "src/work.py")
        repository.git("commit", "-qam", subject)
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "work.py").write_text("VALUES = {}\n", encoding="utf-8")
    search = ("bisect", "test_it.py::test_x[slower]", "--good=HEAD~2", "--metric=x")
    project.environment.setenv("PYTHONPATH", str(project.path / "src"), prepend=":")
    own = repository.command(*search, "--", *PLUGIN)
    project.environment.setenv("PYTHONPATH", str(other), prepend=os.pathsep)
    ended = repository.command(*search, "--", *PLUGIN)

    assert (own.returncode, ended.returncode) == (0, 0), ended.stderr
    assert "this run loads" not in own.stderr
    told = f"gpuperf: this run loads work from {other / 'work.py'}, which is not"
    assert ended.stderr.count(told) == 1


def test_a_revision_is_what_it_was_when_the_run_began(project: Project) -> None:
    """A commit while tests run moves HEAD, and must not compare a tree with itself."""
    repository = Repository(project)
    repository.commit("old", **OLD)
    repository.values(**NEW)
    project.write(COMMITS, "test_commits.py")
    ended = project.spawn(*AGAINST)

    assert ended.returncode == 1
    outcomes = {name: outcome for name, (outcome, _) in repository.outcomes().items()}
    assert outcomes["test_x[slower]"] == "regressed"


@pytest.fixture(name="repository")
def repository_(project: Project, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Return a project with one commit, whose runs wait for no other run."""
    monkeypatch.setenv("GPUPERF_LOCK_DIR", str(project.path / ".git"))
    repository = Repository(project)
    repository.commit("as it was", **OLD)
    return repository


def test_each_test_is_held_against_the_revision(repository: Repository) -> None:
    """Slower fails; a changed test is incomparable, a new one named; nothing is left."""
    repository.project.write(
        f"""{TESTS}

    @pytest.mark.gpuperf(max_regression={{"x": "5 %"}})
    def test_changed(gpuperf):
        gpuperf.record("x", 1.0, unit="s", better="lower")
    """
    )
    repository.commit("one more", **OLD)
    path = repository.project.path / "test_it.py"
    text = path.read_text("utf-8").replace("1.0, unit", "2.0, unit")
    path.write_text(text + text[text.index("@pytest") :].replace("test_", "test_new_"))
    repository.values(**NEW)
    before = repository.git("status", "--porcelain")
    ended = repository.project.spawn(*AGAINST)
    run = repository.project.report()

    assert ended.returncode == 1, ended.stdout
    assert repository.outcomes() == {
        "test_x[slower]": ("regressed", "slower-than-limit"),
        "test_x[same]": ("unchanged", "equal"),
        "test_x[faster]": ("improved", "faster-than-limit"),
        "test_changed": ("incomparable", "test-changed"),
    }
    assert "test_new_x[slower]" in str(run["against"]["only_new"])
    assert run["against"]["modules"] == ["work"]
    assert run["against"]["block_count"] == 4
    assert "gpuperf: against HEAD: making the two sides\n" in ended.stdout
    assert "gpuperf: against HEAD: 4 blocks in " in ended.stdout
    assert repository.is_clean()
    assert repository.git("status", "--porcelain") == before


def test_a_quiet_run_under_xdist_prints_its_result_alone(
    repository: Repository,
) -> None:
    """The workers have ended when it begins; its selection is that of pytest."""
    repository.values(**NEW)
    ended = repository.project.spawn(*XDIST, "-n2", "-q", "-k", "same", *AGAINST)

    assert ended.returncode == 0, ended.stdout
    assert repository.outcomes() == {"test_x[same]": ("unchanged", "equal")}
    assert "gpuperf: against" not in ended.stdout


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        ("nowhere", "nowhere is not a commit of"),
        ("HEAD^{tree}", "is a tree of"),
        ("^HEAD", "^HEAD is a range of commits or leaves some out of one"),
        ("-x", "a revision does not begin with a dash"),
    ],
)
def test_a_revision_that_is_none_ends_the_run_before_its_tests(
    repository: Repository, revision: str, said: str
) -> None:
    """A usage error: nothing has run for minutes until somebody is told."""
    ended = repository.project.run(f"--gpuperf-against={revision}")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert said in str(ended.errlines)


def test_a_folder_without_repository_is_a_usage_error(project: Project) -> None:
    """With what to do."""
    project.write(TESTS)
    project.write(f"VALUES = {OLD}\n", "work.py")
    ended = project.run("--gpuperf-against=HEAD")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert "is not in a git repository" in str(ended.errlines)


@pytest.mark.parametrize(
    ("asked", "status"), [(AGAINST, 1), ((*AGAINST, "-k", "plain"), 0)]
)
def test_a_revision_that_no_test_is_for_fails_the_run(
    repository: Repository, asked: tuple[str, ...], status: int
) -> None:
    """Where no test measures at all; whoever selects a part knows what it holds."""
    repository.project.write("def test_plain():\n    pass\n")
    ended = repository.project.run(*asked)

    assert ended.ret == status
    assert bool(lines(ended, "no test was compared with the revision")) == bool(status)


def test_a_revision_that_cannot_be_imported_fails_the_run(
    repository: Repository,
) -> None:
    """No verdict, the reason, and exit status 1: the gate was off."""
    repository.project.write("raise ZeroDivisionError('why')\n", "work.py")
    repository.git("commit", "-qam", "broken")
    repository.values(**NEW)
    ended = repository.project.spawn(*AGAINST)

    assert ended.returncode == 1, ended.stdout
    said = " ".join(ended.stdout.split())
    # its error, and not the end of a traceback
    assert (
        "the old side cannot collect test_it.py: ZeroDivisionError: why; compare"
        in said
    )
    assert "judged 0 of 3: 3 not compared with the revision" in ended.stdout
    assert "no test was compared with the revision" in ended.stdout
    assert repository.outcomes() == {}
    assert repository.is_clean()


@pytest.mark.parametrize(
    ("option", "remedy"),
    [("5%", "measure with the gpuperf fixture"), ("off", "--gpuperf-max-regression")],
)
def test_tests_without_a_gate_are_told_how_to_have_one(
    repository: Repository, option: str, remedy: str
) -> None:
    """The option gates no test without the fixture: it is no remedy where it is set."""
    text = "import pytest\n\n@pytest.mark.gpuperf\ndef test_once(): pass\n"
    repository.project.write(text)
    repository.project.spawn(*AGAINST, f"--gpuperf-max-regression={option}")
    gap = repository.project.report()["against"]["gap"]

    assert gap["reason"] == "no test passed that has a gate"
    assert remedy in gap["remedy"]


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


@pytest.mark.parametrize(
    "how", [pytest.param("auto", marks=pytest.mark.long), "against"]
)
def test_a_suspect_is_decided_against_its_stored_commit(
    repository: Repository, how: str
) -> None:
    """One verdict, of the baseline: with its sessions, of which one is enough."""
    for selection in ("slower", "test_x"):
        update = ("--gpuperf-update=all", "-k", selection)
        assert repository.project.spawn(*update).returncode == 0
    repository.values(slower=1.3, same=1.3, faster=1.0)
    gate = ("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")
    ended = repository.project.spawn(*gate, f"--gpuperf-confirm-by={how}")
    verdicts = {
        v["key"]["test_id"].partition("[")[2]: v
        for v in repository.project.report()["verdicts"]
    }

    assert ended.returncode == 1, ended.stdout
    assert verdicts["slower]"]["outcome"] == "regressed"
    assert verdicts["slower]"]["against"]["block_count"] == 4
    assert verdicts["slower]"]["baseline"]["session_count"] == 2
    assert verdicts["same]"]["outcome"] == "regressed"
    assert verdicts["same]"]["against"]["block_count"] == 4
    assert verdicts["same]"]["baseline"]["session_count"] == 1
    assert verdicts["faster]"]["reason"] == "too-few-sessions"
    assert verdicts["faster]"].get("against") is None
    assert len(verdicts) == len(OLD)


@pytest.mark.parametrize("how", ["auto", "against"])
def test_a_suspect_whose_test_was_changed_is_not_let_pass(
    repository: Repository, how: str
) -> None:
    """Two sides would do other work: fresh processes decide, or the run fails."""
    for _ in range(2):
        assert repository.project.spawn("--gpuperf-update=all").returncode == 0
    repository.project.write(TESTS.replace("VALUES[name]", "VALUES[str(name)]"))
    repository.values(slower=1.3, same=1.0, faster=1.0)
    gate = ("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")
    ended = repository.project.spawn(
        *gate, "--gpuperf-confirm=2", f"--gpuperf-confirm-by={how}"
    )
    text = " ".join(ended.stdout.split())
    outcome = repository.outcomes()["test_x[slower]"]

    assert ended.returncode == 1, ended.stdout
    assert "the source of the test is not that of the stored commit; " in text
    if how == "auto":
        assert outcome == ("regressed", "slower-than-limit")
    else:
        assert outcome == ("incomparable", "test-changed")
        assert "with --gpuperf-against-tests=mine" in text


TIMED = """
    import work


    def test_loop(gpuperf):
        gpuperf(lambda: sum(range(work.VALUES["count"])))
"""


@pytest.mark.long
def test_a_slower_loop_is_decided_against_its_stored_commit(
    repository: Repository,
) -> None:
    """Real times: one session finds it, and blocks on this machine decide it."""
    repository.project.write(TIMED)
    repository.commit("timed", count=20_000)
    assert repository.project.spawn("--gpuperf-update=all").returncode == 0
    repository.values(count=80_000)
    gate = ("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")
    ended = repository.project.spawn(*gate, "--gpuperf-confirm-by=against")
    (verdict,) = repository.project.report()["verdicts"]

    assert ended.returncode == 1, ended.stdout
    assert verdict["outcome"] == "regressed"
    assert 1 < verdict["change"]["effect"] < 9
    assert verdict["baseline"]["session_count"] == 1
    assert verdict["against"]["block_count"] >= 4
    assert repository.is_clean()


@pytest.mark.parametrize("how", ["auto", "against"])
def test_without_the_stored_commit_fresh_processes_decide_or_the_run_fails(
    project: Project, how: str
) -> None:
    """`auto` says so and goes on; `against` was asked for, and fails the run."""
    project.write(TESTS)
    project.write(f"VALUES = {OLD}\n", "work.py")
    for _ in range(2):
        assert project.spawn("--gpuperf-update=all").returncode == 0
    project.write(f"VALUES = {NEW}\n", "work.py")
    gate = ("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")
    decided = how == "auto"
    count = 2 if decided else 0  # which `against` does not need
    ended = project.spawn(
        *gate, f"--gpuperf-confirm={count}", f"--gpuperf-confirm-by={how}"
    )

    assert ended.returncode == 1, ended.stdout
    assert "1 suspect not compared with a revision" in ended.stdout
    text = " ".join(ended.stdout.split())
    assert "suspects are compared with the commit of their newest session" in text
    assert ("else measured again by 2 fresh processes" in text) == decided
    assert ("fresh processes decide" in ended.stdout) == decided
    assert (("test_x[slower]", "regressed") in project.outcomes()) == decided


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


def test_the_command_is_the_same_as_the_option(repository: Repository) -> None:
    """pytest's options stand behind --; JSON is the run's."""
    repository.values(**NEW)
    ended = repository.command(
        *("compare", "--against", "HEAD", "test_it.py", "--format=json"),
        *("--", *PLUGIN, "-k", "slower"),
    )
    run: dict[str, Any] = json.loads(ended.stdout)

    assert ended.returncode == 1, ended.stderr
    assert [v["outcome"] for v in run["verdicts"]] == ["regressed"]


def test_the_command_has_the_budget_of_the_option(repository: Repository) -> None:
    """It stands before the options of pytest."""
    ended = repository.command(
        *("compare", "--against=HEAD", "--budget=1s", "--format=json", "test_it.py"),
        *("--", *PLUGIN),
    )

    assert (
        "the budget of 1 s was spent"
        in json.loads(ended.stdout)["against"]["gap"]["reason"]
    )


@pytest.mark.parametrize("revision", ["nowhere", "HEAD^{tree}", "-x", "main"])
@pytest.mark.parametrize("command", ["compare", "bisect"])
def test_a_revision_that_is_none_is_wrong_usage_of_each_command(
    repository: Repository, command: str, revision: str
) -> None:
    """
    Exit code 2, with the command's own remedy: unknown, a tree, an option, ambiguous.

    What is compared with it is not run, and pytest does not say it in its words.
    """
    repository.git("tag", "-m", "x", "main", "HEAD")
    arguments = {
        "compare": ("compare", f"--against={revision}", "test_it.py", "--", *PLUGIN),
        "bisect": ("bisect", "test_it.py::test_x[same]", f"--good={revision}"),
    }
    ended = repository.command(*arguments[command])

    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("gpuperf: error: ")
    assert revision in ended.stderr
    assert "\n    remedy: " in ended.stderr
    assert not ended.stdout
    assert repository.is_clean()


@pytest.mark.parametrize("command", ["compare", "bisect"])
def test_a_folder_without_repository_is_wrong_usage_of_each_command(
    project: Project, command: str
) -> None:
    """Exit code 2, with what to do."""
    project.write(TESTS)
    project.write(f"VALUES = {OLD}\n", "work.py")
    arguments = {
        "compare": ("compare", "--against=HEAD", "test_it.py", "--", *PLUGIN),
        "bisect": ("bisect", "test_it.py::test_x[same]", "--good=HEAD"),
    }
    ended = run_command(project, *arguments[command])

    assert ended.returncode == 2, ended.stderr
    assert "is not in a git repository" in ended.stdout + ended.stderr


def test_tests_that_cannot_be_collected_are_no_interrupt(
    repository: Repository,
) -> None:
    """pytest has one exit status for both; the command has 4 and 130."""
    repository.project.write("raise ZeroDivisionError\n", "work.py")
    ended = repository.command("compare", "--against=HEAD", "test_it.py", "--", *PLUGIN)

    assert ended.returncode == 4, ended.stdout
    assert "ZeroDivisionError" in ended.stdout


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


def test_a_regression_is_traced_to_its_commit(repository: Repository) -> None:
    """A commit that cannot be imported is skipped; the answer has the change."""
    good = repository.git("rev-parse", "HEAD")
    repository.commit("harmless", **OLD)
    repository.project.write("raise ZeroDivisionError\n", "work.py")
    repository.git("commit", "-qam", "broken")
    repository.commit("mended", **OLD)
    culprit = repository.commit("a slower way", **NEW)
    repository.commit("later", **NEW)
    ended = repository.command(
        *("bisect", "test_it.py::test_x[slower]", "--good", good, "--bad", "main"),
        *("--metric=x", "--format=json", "--", *PLUGIN),
    )
    answer = json.loads(ended.stdout)

    assert ended.returncode == 0, ended.stderr
    assert answer["ending"] == "found"
    assert answer["commits"] == [{"id": culprit, "subject": "a slower way"}]
    assert answer["effect"] == pytest.approx(0.3)
    assert not (repository.project.path / ".git" / "gpuperf-bisect.json").exists()
    assert repository.is_clean()


def test_what_was_undecided_is_tried_anew(repository: Repository) -> None:
    """A search that goes on keeps what was decided, and what cannot be measured."""
    good = repository.git("rev-parse", "HEAD")
    culprit = repository.commit("a slower way", **NEW)
    broken = repository.commit("said to be broken", **NEW)
    bad = repository.commit("later", **NEW)
    change = Change(
        effect=0.3, current=1.3, reference=1.0, session_count=4, run_count=8
    )
    skipped = TrialOutcome.SKIPPED
    test_id = "test_it.py::test_x[slower]"
    kept = (
        Trial(commit_id=bad, outcome=TrialOutcome.BAD, change=change),
        Trial(commit_id=culprit, outcome=skipped, change=change, reason="undecided"),
        Trial(commit_id=broken, outcome=skipped, reason="not built"),
    )
    state = Search(
        schema="pytest-gpuperf/bisect/1",
        request=BisectRequest(
            test_id=test_id, good=good, bad=bad, metric="x", options=PLUGIN
        ),
        trials=kept,
    )
    file = repository.project.path / ".git" / "gpuperf-bisect.json"
    file.write_text(codec.to_text(state), encoding="utf-8")

    ended = repository.command(
        *("bisect", test_id, "--good", good, "--metric=x", "--format=json"),
        *("--", *PLUGIN),
    )
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    trials = {trial["commit"]: trial for trial in answer["trials"]}

    assert answer["schema"] == "pytest-gpuperf/bisection/1"
    assert [commit["id"] for commit in answer["commits"]] == [culprit]
    assert trials[culprit]["outcome"] == "bad"
    assert trials[broken]["reason"] == "not built"
    assert len(answer["trials"]) == len(kept)


def test_commits_that_decide_nothing_leave_several(repository: Repository) -> None:
    """Exit code 3, and why: those between were not measured, or not decided."""
    good = repository.git("rev-parse", "HEAD")
    repository.project.write("raise ZeroDivisionError\n", "work.py")
    repository.git("commit", "-qam", "broken")
    repository.commit("a slower way", **NEW)
    ended = repository.command(
        *("bisect", "test_it.py::test_x[slower]", "--good", good),
        *("--metric=x", "--", *PLUGIN),
    )
    head, *commits, last = ended.stdout.splitlines()

    assert ended.returncode == 3, ended.stderr
    assert head == (
        "the first slow commit is one of these; those between were skipped or stayed "
        "undecided"
    )
    named = [line.split(maxsplit=1)[1] for line in commits]
    assert named[:2] == ["broken", "a slower way"]
    assert "the same command goes on from here: 1 comparison decided" in last


def test_a_search_without_answer_goes_on_from_what_was_decided(
    repository: Repository,
) -> None:
    """What was skipped is tried anew: its cause may be mended; an answer forgets all."""
    good = repository.git("rev-parse", "HEAD")
    text = f"""
        import os
        if "MENDED" not in os.environ:
            raise ZeroDivisionError
        VALUES = {NEW}
    """
    repository.project.write(text, "work.py")
    repository.git("commit", "-qam", "needs a variable")
    repository.commit("later", **NEW)
    search = (
        *("bisect", "test_it.py::test_x[slower]", "--good", good),
        *("--metric=x", "--format=json", "--", *PLUGIN),
    )
    first = json.loads(repository.command(*search).stdout)
    repository.project.environment.setenv("MENDED", "1")
    second = json.loads(repository.command(*search).stdout)

    assert (first["ending"], second["ending"]) == ("narrowed", "found")
    assert [commit["subject"] for commit in second["commits"]] == ["needs a variable"]
    assert first["trials"][0] == second["trials"][0]  # which is not measured again
    assert not (repository.project.path / ".git" / "gpuperf-bisect.json").exists()


@pytest.mark.parametrize(
    ("folder", "place"),
    [("tests/sub", "test_low.py"), ("tests", "tests/sub/test_low.py")],
)
def test_a_search_may_begin_below_the_root_folder(
    repository: Repository, folder: str, place: str
) -> None:
    """A test is named as an argument of pytest there, or by its id."""
    repository.project.write("", "conftest.py")  # puts its folder on Python's path
    repository.project.write(TESTS, "tests/sub/test_low.py")
    repository.git("add", ".")
    repository.git("commit", "-qm", "more tests")
    good = repository.git("rev-parse", "HEAD")
    culprit = repository.commit("a slower way", **NEW)
    ended = run_command(
        repository.project,
        *("bisect", f"{place}::test_x[slower]", "--good", good),
        *("--metric=x", "--", *PLUGIN),
        folder=folder,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(culprit)


def test_where_nothing_got_slower_nothing_is_searched(repository: Repository) -> None:
    """The first comparison is of both ends, and it is the answer."""
    good = repository.git("rev-parse", "HEAD")
    repository.commit("one", **OLD)
    repository.commit("two", **OLD)
    ended = repository.command(
        *("bisect", "test_it.py::test_x[slower]", "--good", good),
        *("--metric=x", "--", *PLUGIN),
    )

    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("no regression in ")


@pytest.mark.parametrize(
    ("test", "metric", "told", "remedy"),
    [
        ("nothing", "x", "does not collect test_it.py::nothing", "--collect-only -q"),
        ("test_x[slower]", "time", "gave no value of time", "--metric"),
        ("test_x[slower]", "nope", "gave no value of nope", "--metric"),
    ],
)
def test_a_search_for_what_is_not_there_says_so(
    repository: Repository, test: str, metric: str, told: str, remedy: str
) -> None:
    """Wrong usage, with what is missing and how to name what is there."""
    good = repository.git("rev-parse", "HEAD")
    repository.commit("a slower way", **NEW)
    ended = repository.command(
        *("bisect", f"test_it.py::{test}", "--good", good, f"--metric={metric}"),
        *("--", *PLUGIN),
    )
    head, last = ended.stdout.splitlines()

    assert ended.returncode == 2, ended.stderr
    assert head.endswith(told)
    assert last.startswith("    remedy: ")
    assert remedy in last


def test_an_undecided_search_says_what_would_decide(repository: Repository) -> None:
    """Exit code 3 after the budget, with the change so far, and no commit named."""
    good = repository.git("rev-parse", "HEAD")
    block = "int(os.environ.get('PYTHONHASHSEED', '0')) % 2"  # another change in each
    text = f"import os\n\nVALUES = {{'slower': 0.9 + 0.6 * ({block})}}\n"
    repository.project.write(text, "work.py")
    repository.git("commit", "-qam", "slower in every second block")
    ended = repository.command(
        *("bisect", "test_it.py::test_x[slower]", "--good", good, "--metric=x"),
        *("--budget=12s", "--", *PLUGIN),
    )

    assert ended.returncode == 3, ended.stderr
    assert "undecided whether there is a regression" in ended.stdout
    assert "the budget of 12 s was spent after" in ended.stdout
    assert "measure where less else runs, or time more work" in ended.stdout
    assert repository.is_clean()
