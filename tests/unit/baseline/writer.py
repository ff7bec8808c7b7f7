"""A process that stores sessions, for tests that start several or kill one.

Arguments: the store, the first session, how many; with a fourth argument it kills itself
at that file operation. It prints the number of each session that has been stored.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pytest_gpuperf.baseline.store import Append, open_store
from unit.baseline.samples import stored

TESTS_COUNT = 40
EVENTS = {"open", "os.mkdir", "os.remove", "os.rename"}


def main(place: str, first: int, count: int, fatal: int | None = None) -> None:
    """Store sessions, each of them in two modules."""
    store = open_store(place, "/", create=True)
    if fatal is not None:
        die_at(fatal, Path(place).parent)
    for number in range(first, first + count):
        changes = [
            Append(
                record=stored(number, test_id=f"tests/test_{each % 2}.py::t[{each}]")
            )
            for each in range(TESTS_COUNT)
        ]
        store.write("h200", changes)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


def die_at(fatal: int, folder: Path) -> None:
    """Kill this process at its so manieth file operation in a folder."""
    left = fatal

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in EVENTS and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
