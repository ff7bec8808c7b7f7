"""How long a store takes to be read and written, and how that grows.

A store of many tests with several metrics gets one session after another. Then it is read
as a run of all of its tests and as a run of one test would, each in a process of its own,
so that its peak of memory is its own. Times are of this process's CPU; on a loaded machine
they are steadier than the clock's.

    python benchmarks/store_speed.py
    python benchmarks/store_speed.py --place sqlite:///perf.db --sessions 20 --metrics 1
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.store import Store, open_store
from pytest_gpuperf.baseline.stored_record import shown_digits
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.record import RecordKey, SessionValue, StoredRecord

SLUG = "nvidia-h200"
FACTS = {
    "device-time": {"gpu_name": "NVIDIA H200", "driver_branch": "580"},
    "host-time": {"cpu_model": "AMD EPYC 9654", "core_count": "8"},
}
QUANTILES = (0.97, 0.99, 1.0, 1.02, 1.06)
NOISE = 0.01  # between sessions, so that no two values are equal


def names(tests: int, modules: int) -> list[str]:
    """Return the ids of the tests, in the order of a run."""
    each = -(-tests // modules)
    return [
        f"tests/kernels/test_m{n // each:04}.py::test_op[{n % each}]"
        for n in range(tests)
    ]


def records(ids: list[str], number: int, metrics: int) -> list[StoredRecord]:
    """Return what a session stores."""
    head = Session(
        id=f"s{number:04}",
        started_unix_s=1.7e9 + 3600 * number,
        host="0a1b2c",
        commit=f"{number:040x}",
        machine="h200-07",
        ran_count=len(ids),
    )
    return [
        StoredRecord(
            key=RecordKey(test_id=test_id),
            session=head,
            values=tuple(
                SessionValue(
                    metric="time" if m == 0 else f"metric_{m}",
                    unit="s",
                    source="cupti",
                    run_values=(value,),
                    half_widths=(0.004,),
                    quantiles=tuple(shown_digits(value * q) for q in QUANTILES),
                )
                for m in range(metrics)
                for value in [1e-4 * (1 + NOISE * ((n * 7 + number * 13 + m) % 11))]
            ),
            choice="c0ffee00",
            facts=FACTS,
            soft_facts={"torch": "2.11.0"},
        )
        for n, test_id in enumerate(ids)
    ]


def timed(deed: Callable[[], object]) -> tuple[float, float]:
    """Return the CPU time [s] and the wall time [s] of a deed."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    deed()
    return time.process_time() - cpu_s, time.perf_counter() - wall_s


def read(store: Store, ids: list[str] | None, metrics: list[str] | None) -> int:
    """Read what a run of some tests reads, and return the number of sessions."""
    store.check()
    # A run that only gates shows no quantiles.
    loaded = store.load(SLUG, ids, metrics=metrics, quantiles=metrics is None)
    # Records of a large database are decoded here.
    return sum(map(len, loaded.values()))


def reading(arguments: argparse.Namespace, part: str) -> None:
    """Print a row about reading: as a process of its own."""
    ids = names(arguments.tests, arguments.modules)
    some = {"all": ids, "100": ids[:: max(len(ids) // 100, 1)][:100], "1": ids[:1]}
    metrics = ["time"] if arguments.gated else None
    store = open_store(arguments.place, arguments.folder)
    found: list[int] = []
    cpu_s, wall_s = timed(lambda: found.append(read(store, some[part], metrics)))
    # Not that of getrusage, which begins with the memory of the process that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index] # always there
    print(json.dumps([found[0], cpu_s, wall_s, peak]))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", default=".gpuperf")
    parser.add_argument("--tests", type=int, default=100_000)
    parser.add_argument("--modules", type=int, default=1_000)
    parser.add_argument("--metrics", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument(
        "--gated", action="store_true", help="read the metric time only"
    )
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        reading(arguments, arguments.read)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(arguments.place, folder, create=True)
        ids = names(arguments.tests, arguments.modules)
        print("deed                      CPU s   wall s  peak MiB")
        for number in range(arguments.sessions):
            changes = [
                Append(record=r) for r in records(ids, number, arguments.metrics)
            ]
            cpu_s, wall_s = timed(lambda c=changes: store.write(SLUG, c))
            print(f"write session {number + 1:<10} {cpu_s:7.2f} {wall_s:8.2f}")
            del changes
        for part in ("all", "100", "1"):
            command = [sys.executable, __file__, *sys.argv[1:]]
            ended = subprocess.run(
                [*command, f"--folder={folder}", f"--read={part}"],
                check=True,
                stdout=subprocess.PIPE,
            )
            count, cpu_s, wall_s, peak = json.loads(ended.stdout)
            deed = f"read {part} ({count:,})"
            print(f"{deed:<24} {cpu_s:7.2f} {wall_s:8.2f} {peak:9.0f}")
        size = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
        values = arguments.tests * arguments.metrics * arguments.sessions
        print(f"{size / 1e6:.0f} MB on the disk, {size / values:.0f} bytes a value")
    return 0


if __name__ == "__main__":
    sys.exit(main())
