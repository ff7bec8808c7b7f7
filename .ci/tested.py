"""Run pytest, and run a few failed tests again, one after the other.

    python .ci/tested.py pytest ARGUMENTS
    python .ci/tested.py coverage run -m pytest ARGUMENTS

A suite with 14,000 tests and two workers meets moments in which a machine stops for
seconds. A broken program fails again, so its run fails. A test that passes alone is named
in the last line, because it is unstable and must be mended.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

JUNIT = "--junit-xml="
MOST_TESTS = 5  # more than a busy moment explains
TESTS_FAILED = 1  # pytest's exit status


def main(argv: list[str]) -> int:
    """Return pytest's exit status, of the second run where there was one."""
    *_, first = (Path(each.removeprefix(JUNIT)) for each in argv if JUNIT in each)
    second = again(first)
    second.unlink(missing_ok=True)
    status = subprocess.run([sys.executable, "-m", *argv], check=False).returncode
    if status != TESTS_FAILED or not 0 < len(list(failed(first))) <= MOST_TESTS:
        return status
    alone = ["--last-failed", f"{JUNIT}{second}"]
    if "-n" in argv:
        alone.append("-n0")
    print("Running the failed tests again, one after the other.", flush=True)
    status = subprocess.run(
        [sys.executable, "-m", *argv, *alone], check=False
    ).returncode
    for test in unstable(first):
        print(f"unstable, passed only alone: {test}", flush=True)
    return status


def again(junit: Path) -> Path:
    """Return the path of the second run's JUnit file."""
    return junit.with_suffix(".again.xml")


def unstable(junit: Path) -> list[str]:
    """Return the tests that failed in the first run only."""
    if not again(junit).exists():
        return []
    return sorted(set(failed(junit)) - set(failed(again(junit))))


def failed(junit: Path) -> Iterator[str]:
    """Yield the names of the tests that failed."""
    for case in ET.parse(junit).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            yield f"{case.get('classname')}::{case.get('name')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
