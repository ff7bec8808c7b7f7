"""The cache of ncu's values between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAKES = Path(__file__).parents[1] / "fakes"
PROCESSES = 8

VALUES = """
import os, sys, time
from pathlib import Path
from pytest_gpuperf.collect.ncu.cache import Values

folder, key, made = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])

def make():
    with made.open("a") as file:
        file.write("made\\n")
    time.sleep(0.3)
    return b"x" * 100_000

assert Values(folder).populated(key, make, timeout_s=60) == b"x" * 100_000
"""

REPORTS = """
import sys
from pathlib import Path
from pytest_gpuperf.collect.ncu.cache import Cache
from pytest_gpuperf.collect.ncu.command import Command

folder, output = Path(sys.argv[1]), sys.argv[2]
command = Command(executable=sys.executable, args=("t.py",), output=output)
with Cache(folder / "cache") as cache:
    entry = cache.run(command, cwd=folder)
assert (folder / f"{output}.ncu-rep").stat().st_size > 0
print("hit" if entry.cached else "miss")
"""


def at_once(code: str, arguments: list[list[str]], env: dict[str, str]) -> list[str]:
    """Start a process for each of the arguments; return what they print."""
    path = os.pathsep.join(filter(None, sys.path))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, *each],
            env={**os.environ, "PYTHONPATH": path, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for each in arguments
    ]
    said = []
    for process in started:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        said.append(output.strip())
    return said


def test_eight_processes_make_values_once(tmp_path: Path) -> None:
    """On a folder that nobody has made yet: one makes them, seven wait and have them."""
    made = tmp_path / "made"

    at_once(VALUES, [[str(tmp_path / "cache"), "a" * 64, str(made)]] * PROCESSES, {})

    assert made.read_text() == "made\n"


def test_eight_processes_profile_once(tmp_path: Path) -> None:
    """Each with an output of its own: one runs ncu, and all have their report."""
    (tmp_path / "t.py").write_text("")
    starts = tmp_path / "starts"
    env = {
        "PATH": f"{FAKES}{os.pathsep}{os.environ['PATH']}",
        "FAKE_NCU_STARTS": str(starts),
        "GPUPERF_LOCK_DIR": str(tmp_path / "leases"),
    }

    said = at_once(REPORTS, [[str(tmp_path), f"r{n}"] for n in range(PROCESSES)], env)

    assert sorted(said) == ["hit"] * (PROCESSES - 1) + ["miss"]
    assert len(starts.read_text().splitlines()) == 1
    reports = {path.read_bytes() for path in tmp_path.glob("*.ncu-rep")}
    assert len(reports) == 1
