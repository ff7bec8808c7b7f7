"""Every module is whole: on each interpreter, with and without extras."""

from __future__ import annotations

import doctest
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_gpuperf

PACKAGE = Path(pytest_gpuperf.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """Return the name under which a file is imported."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


# Forks once for each module, so that none of ours is there when it is imported; what
# all of them need from elsewhere is loaded once, before.
ALONE = """
import os, sys, traceback
import dataclasses, enum, json, pathlib, re, typing
import msgspec, pytest
assert not [name for name in sys.modules if name.startswith("pytest_gpuperf")]
for name in sys.stdin.read().split():
    child = os.fork()
    if not child:
        try:
            __import__(name)
            os._exit(0)
        except BaseException:
            print(name, file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_every_module_can_be_imported_alone() -> None:
    """No module needs another to be imported first, and none warns."""
    # importing __main__ starts the command
    modules = [dotted(path) for path in FILES if path.stem != "__main__"]
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), *sys.path]))

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE],
        input="\n".join(modules),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == [word for name in modules for word in (name, "0")], (
        done.stderr
    )


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if ">>>" in path.read_text(encoding="utf-8")],
    ids=dotted,
)
def test_examples_in_docstrings_are_true(path: Path) -> None:
    """What a docstring shows is what happens."""
    found = doctest.testmod(importlib.import_module(dotted(path)))

    assert found.attempted > 0
    assert found.failed == 0
