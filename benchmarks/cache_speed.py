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

from pytest_gpuperf.collect.loaded_files import FileRecording
from pytest_gpuperf.collect.ncu.store import EntryStore, FileSets, key_of

TEST = Path(__file__).resolve().parents[1] / "tests/unit/collect/test_runner.py"
ENTRIES = 10_000
LARGE_BYTES = 2_600_000  # 41,000 values as JSON
LOOKUP_S = 0.005
READ_S = 0.010
ROUNDS = 15

_READ = """
import sys, time
from pathlib import Path
start = time.perf_counter()
from pytest_gpuperf.collect.ncu.store import EntryStore
content = EntryStore(Path(sys.argv[1])).get("values", sys.argv[2])
print(time.perf_counter() - start, len(content.files))
loaded = {"ncu_report", "numpy", "scipy", "filelock"} & set(sys.modules)
assert not loaded, loaded
"""


def get(store: EntryStore, number: int) -> object:
    """Look a value set up."""
    return store.get("values", key(number))


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


def recorded_s(root: Path, scratch: Path, *, recording: bool) -> float:
    """Return how long a pytest takes that collects a test module [s]."""
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    variables = FileRecording(scratch, root).variables(path) if recording else path
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:randomly",
        "--co",
        str(TEST),
    ]
    start = time.perf_counter()
    subprocess.run(
        argv, cwd=root, env={**os.environ, **variables}, check=True, capture_output=True
    )
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    root = TEST.parents[3]
    with tempfile.TemporaryDirectory() as name:
        store = EntryStore(Path(name, "cache"))
        start = time.perf_counter()
        for number in range(ENTRIES):
            store.put("values", key(number), {"values": b"x" * 1000})
        put_s = (time.perf_counter() - start) / ENTRIES
        store.put("values", key(ENTRIES), {"values": b"x" * LARGE_BYTES})
        plain, traced = [], []
        for number in range(5):  # by turns
            scratch = Path(name, str(number))
            traced.append(recorded_s(root, scratch, recording=True))
            plain.append(recorded_s(root, scratch, recording=False))
        records = FileRecording(Path(name, "whole"), root)
        argv = ("-m", "pytest", "-q", "-p", "no:randomly", str(TEST), "--co")
        variables = records.variables({"PYTHONPATH": os.pathsep.join(sys.path)})
        subprocess.run(
            [sys.executable, *argv],
            cwd=root,
            env={**os.environ, **variables},
            check=True,
            capture_output=True,
        )
        files = records.files(argv) or ()
        assert files, "the process has not said what it loaded"
        since_unix_s = time.time() + 60
        FileSets(store, root, {}).add(key(-2), files, since_unix_s=since_unix_s)

        def look() -> object:
            return FileSets(store, root, {}).states(key(-2))

        rows = [
            ("lookup, a miss", median_s(lambda: get(store, -1)), LOOKUP_S),
            ("lookup, a hit of 1 kB", median_s(lambda: get(store, 5)), LOOKUP_S),
            ("read 2.6 MB", median_s(lambda: get(store, ENTRIES)), READ_S),
            ("put 1 kB", put_s, None),
            ("list all entries", median_s(store.entries, 3), None),
            ("files of a test module, first", median_s(look, 1), None),
            ("files of a test module, again", median_s(look), None),
            ("collect it, files not recorded", statistics.median(plain), None),
            ("collect it, files recorded", statistics.median(traced), None),
            ("import and read 1 kB, fresh process", fresh_s(store.folder, 5), None),
            (
                "import and read 2.6 MB, fresh process",
                fresh_s(store.folder, ENTRIES),
                None,
            ),
        ]
    print(f"{ENTRIES} entries, {len(files)} files recorded")
    missed = []
    for what, took_s, target_s in rows:
        goal = "" if target_s is None else f"  (< {target_s * 1e3:g} ms)"
        print(f"  {what:40} {took_s * 1e3:8.3f} ms{goal}")
        missed += [what] if target_s is not None and took_s >= target_s else []
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
