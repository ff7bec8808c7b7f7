"""
# 12. The same test in an older commit

`pytest --gpuperf-against=REV` needs no baseline. It measures the commit REV and the working
tree on this machine, interleaved in fresh processes, and fails tests that got slower. This
example creates a project with one commit, then makes its loop 60 % longer. The run fails
and names the test.

A comparison consists of blocks of four processes and takes about a minute.
`--gpuperf-budget` limits its time.
"""

import os
import shutil
import subprocess
import sys

import pytest

WORK = """
COUNT = {count}


def total():
    return sum(number & 7 for number in range(COUNT))
"""
TEST = """
from work import total


def test_total(gpuperf):
    assert gpuperf(total) > 0
"""
GIT = shutil.which("git")
WHO = ("-c", "user.name=Example", "-c", "user.email=example@localhost")


def git(folder, *arguments):
    subprocess.run([GIT, *WHO, *arguments], cwd=folder, check=True)


@pytest.fixture
def project(tmp_path):
    if GIT is None:
        pytest.skip("needs git")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "work.py").write_text(WORK.format(count=20_000))
    (tmp_path / "test_work.py").write_text(TEST)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "as it was")
    return tmp_path


def test_a_longer_loop_fails(project):
    (project / "work.py").write_text(WORK.format(count=32_000))

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "--gpuperf-against=HEAD"],
        cwd=project,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "test_total" in ended.stdout
    assert "1 regressed" in ended.stdout
