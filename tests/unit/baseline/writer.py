"""A process that stores sessions, for tests that start several or kill one.

Arguments: the store, the first session, how many. It prints the number of each session
that has been stored. With a fourth argument, a folder that holds such a store, it stores
them in copies of the folder, each time in a process that kills itself one file operation
later, until one of them comes to its end: the copies stay there, named 1, 2, 3, …
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.store import open_store
from unit.baseline.samples import stored

TESTS_COUNT = 40
EVENTS = {"open", "os.mkdir", "os.remove", "os.rename"}


def main(place: str, first: int, count: int, fatal: int | None = None) -> None:
    """Store sessions, each of them in two modules; `fatal`: see `die_at`."""
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


def die_everywhere(place: str, first: int, count: int, before: Path) -> None:
    """Store sessions in copies of a folder, and die at each file operation in turn."""
    for fatal in itertools.count(1):
        copy = before.with_name(str(fatal))
        shutil.copytree(before, copy)
        process = os.fork()  # to start it anew would load all modules again
        if process == 0:
            main(str(copy / place), first, count, fatal)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        if status == 0:
            return
        if status != signal.SIGKILL:
            sys.exit(f"{copy}: its process ended with status {status}")


if __name__ == "__main__":
    _place, _first, _count, *_before = sys.argv[1:]
    if _before:
        die_everywhere(_place, int(_first), int(_count), Path(_before[0]))
    else:
        main(_place, int(_first), int(_count))
