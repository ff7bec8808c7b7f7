"""The script with which CI runs pytest: what fails again is red, what is unstable is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTED = Path(__file__).parents[2] / ".ci" / "tested.py"

SIX_BAD = """
import pytest
@pytest.mark.parametrize("n", range(6))
def test_bad(n): assert 0
"""

pytestmark = pytest.mark.skipif(
    not TESTED.exists(), reason="this is not a checkout: .ci is not there"
)


def run(folder: Path, source: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(source, "utf-8")
    argv = [sys.executable, str(TESTED), "pytest", "-p", "no:gpuperf", "-q"]
    argv += [f"--junit-xml={folder / 'it.xml'}", "test_it.py"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_test_that_fails_once_is_named(tmp_path: Path) -> None:
    """The run passes, and its last line has the test's name."""
    source = """
from pathlib import Path
def test_good(): pass
def test_once():
    seen = Path("seen").exists()
    Path("seen").touch()
    assert seen
"""
    status, text = run(tmp_path, source)

    assert status == 0
    assert text.splitlines()[-1] == "unstable, passed only alone: test_it::test_once"


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    """Also beside a test that passes alone."""
    source = """
from pathlib import Path
def test_bad(): assert 0
def test_once():
    seen = Path("seen").exists()
    Path("seen").touch()
    assert seen
"""
    status, text = run(tmp_path, source)

    assert status == 1
    assert text.splitlines()[-1] == "unstable, passed only alone: test_it::test_once"


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("def test_good(): pass", 0),
        ("import nothing_of_that_name", 2),
        (SIX_BAD, 1),
    ],
    ids=["nothing failed", "not collected", "six failed"],
)
def test_nothing_else_runs_twice(tmp_path: Path, source: str, status: int) -> None:
    """A busy moment explains neither six failures nor a file that cannot be imported."""
    found, text = run(tmp_path, source)

    assert found == status
    assert "again" not in text
