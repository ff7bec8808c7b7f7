"""The scripts of benchmarks/ start: nothing else would tell that one has rotted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakes.project import HUNG_S

pytest.importorskip("numpy")

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.name for path in FOLDER.glob("[!_]*.py"))


# imports what it names, and runs nothing
LOADED = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2])"
)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run Python."""
    return subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=HUNG_S,
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_finds_what_it_imports(script: str) -> None:
    """The names of the package that it needs are there."""
    ended = run("-c", LOADED, str(FOLDER), str(FOLDER / script))

    assert ended.returncode == 0, ended.stderr


def test_the_rule_is_simulated() -> None:
    """A machine, a line; so few suites keep and break no promise."""
    ended = run(
        *(str(FOLDER / "false_alarms.py"), "--suites=2", "--power=1", "--jobs=1"),
        "--only=process 1 %",
    )

    assert "Traceback" not in ended.stderr
    assert "    4    3 process 1 %" in ended.stdout


def test_the_recipes_of_the_page_are_found() -> None:
    """A heading of docs/ci.md that moved would end the script before its first line."""
    pytest.importorskip("ruamel.yaml", reason="needs check-jsonschema")
    ended = run(str(FOLDER / "pull_requests.py"), "--only", "none of these")

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "0 pull requests, 0 not as they have to be\n"
