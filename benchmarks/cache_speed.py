"""How long the cache of ncu's values takes with 10,000 entries.

Run it as a script; it fails when a target is missed. What a process pays that reads one
value set is measured in a fresh one, by turns with one that reads nothing.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytest_gpuperf.collect.ncu.cache import Values
from pytest_gpuperf.collect.ncu.key import Digests, key_of
from pytest_gpuperf.collect.ncu.sources import project_files, python_fields

ENTRIES = 10_000
LARGE_BYTES = 2_600_000  # 41,000 values as JSON
LOOKUP_S = 0.005
READ_S = 0.010
ROUNDS = 15

_READ = """
import sys, time
from pathlib import Path
start = time.perf_counter()
from pytest_gpuperf.collect.ncu.values import Values
content = Values(Path(sys.argv[1])).get(sys.argv[2])
print(time.perf_counter() - start, len(content))
loaded = {"ncu_report", "numpy", "scipy", "filelock"} & set(sys.modules)
assert not loaded, loaded
"""


def key(number: int) -> str:
    """Return the key of an entry."""
    return key_of({"number": number})


def median_s(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return how long something takes, in the middle of several times [s]."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def fresh_s(folder: Path, number: int) -> float:
    """Return how long a fresh process takes to import the cache and read values [s]."""
    path = os.pathsep.join(filter(None, sys.path))
    times = []
    for _ in range(ROUNDS):
        said = subprocess.check_output(
            [sys.executable, "-c", _READ, str(folder), key(number)],
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
        times.append(float(said.split()[0]))
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as name:
        values = Values(Path(name, "cache"))
        start = time.perf_counter()
        for number in range(ENTRIES):
            values.put(key(number), b"x" * 1000)
        put_s = (time.perf_counter() - start) / ENTRIES
        values.put(key(ENTRIES), b"x" * LARGE_BYTES)
        digests = Digests()
        tests = [root / "tests" / "unit" / "collect" / "test_runner.py"]

        def gathered() -> None:
            files = project_files(tests, root=root, digests=digests)
            key_of({"files": files, **python_fields(digests)})

        rows = [
            ("lookup, a miss", median_s(lambda: values.get(key(-1))), LOOKUP_S),
            ("lookup, a hit of 1 kB", median_s(lambda: values.get(key(5))), LOOKUP_S),
            ("read 2.6 MB", median_s(lambda: values.get(key(ENTRIES))), READ_S),
            ("put 1 kB", put_s, None),
            ("list all entries", median_s(values.entries, 3), None),
            ("key of a test module, first", median_s(gathered, 1), None),
            ("key of a test module, again", median_s(gathered), None),
            ("import and read 1 kB, fresh process", fresh_s(values.folder, 5), None),
            (
                "import and read 2.6 MB, fresh process",
                fresh_s(values.folder, ENTRIES),
                None,
            ),
        ]
    print(f"{ENTRIES} entries")
    missed = []
    for what, took_s, target_s in rows:
        goal = "" if target_s is None else f"  (< {target_s * 1e3:g} ms)"
        print(f"  {what:40} {took_s * 1e3:8.3f} ms{goal}")
        missed += [what] if target_s is not None and took_s >= target_s else []
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
