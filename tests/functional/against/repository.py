"""A project in a git repository, for runs that compare with a revision."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from fakes.project import Project
from fakes.repositories import without_git_variables

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
