"""What the sensors cost a test, and how evenly they are sampled, on a compiled double.

The double answers at once: what is measured is this side's part, not the driver's. It is
built with `cc` into a temporary folder. Below the sampler stands what a Python takes that
only wakes as often: less is not possible there.

    python benchmarks/nvml_speed.py
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fakes.nvml_library import BURST, compiled
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.nvml.deltas import Deltas
from pytest_gpuperf.collect.nvml.library import open_board
from pytest_gpuperf.collect.nvml.sampler import Sampler
from pytest_gpuperf.compute.gates import gates

UUID = "GPU-00000000-0000-4000-8000-000000000000"
LINKS = ",*,nvlink.tx_kbs,5\n,*,nvlink.rx_kbs,5\n"
METRICS = "".join(f",*,gpm.{i},50\n" for i in (*range(1, 14), 20, 21, 60, 61))
SECONDS = 10.0
MOST_OF_A_CORE = 0.02  # at 100 Hz
MOST_P95_MS = 12.0
WAKING = """
import time
due_ns = time.perf_counter_ns()
print(flush=True)
while True:
    due_ns += 10_000_000
    time.sleep(max(0, due_ns - time.perf_counter_ns()) / 1e9)
"""


def deltas_ms(count: int = 300) -> list[float]:
    """Return what begin and end cost together, of each pass [ms]."""
    clock = SystemClock()
    board = open_board(UUID)
    deltas = Deltas(board, clock)
    time.sleep(2.5)  # so that the driver's ring is full
    took = []
    for _ in range(count):
        started = time.perf_counter()
        deltas.begin()
        middle = time.perf_counter()
        time.sleep(0.005)
        resumed = time.perf_counter()
        gates(deltas.end())
        took.append((middle - started + time.perf_counter() - resumed) * 1e3)
    deltas.close()
    board.close()
    return took


def idle() -> None:
    """Do nothing for as long as the sampler is watched."""
    time.sleep(SECONDS)


def busy() -> None:
    """Run Python without a pause."""
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        pass


def holding() -> None:
    """Stay in C calls that keep the interpreter's lock for 300 ms each."""
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        ctypes.PyDLL(None).usleep(300_000)


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used [s], from the scheduler."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def waking() -> float:
    """Return what a Python takes of a core that wakes a hundred times a second."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", WAKING], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_s, start_s = cpu_s(process.pid), time.perf_counter()
        idle()
        share = (cpu_s(process.pid) - used_s) / (time.perf_counter() - start_s)
        process.kill()
    return share


def reached(value: float, most: float) -> str:
    """Return whether a goal was reached."""
    return "reached" if value <= most else "missed"


def watch(folder: Path) -> None:
    """Print how evenly the sampler works, and what it takes of a core."""
    p95s, shares = [], []
    print("| main thread | gap median | p95 | max | skipped | of a core |")
    print("|---|---|---|---|---|---|")
    for what in (idle, busy, holding):
        sampler = Sampler([UUID], SystemClock(), hz=100, folder=folder / what.__name__)
        sampler.start()
        time.sleep(0.2)
        start_s, used_s = sampler.mark(), cpu_s(sampler.pid)
        what()
        end_s, used_s = sampler.mark(), cpu_s(sampler.pid) - used_s
        records = sampler.records(start_s, end_s)
        times = [each.monotonic_s for each in records]
        gaps = sorted((b - a) * 1e3 for a, b in pairwise(times))
        p95s.append(gaps[int(len(gaps) * 0.95)])
        shares.append(used_s / (end_s - start_s))
        print(
            f"| {what.__name__} | {statistics.median(gaps):.2f} ms | {p95s[-1]:.2f} ms "
            f"| {gaps[-1]:.2f} ms | {sampler.skipped_count} "
            f"| {shares[-1]:.2%} |"
        )
        sampler.stop()
    print(f"| (a Python that only wakes) | | | | | {waking():.2%} |")
    print(
        f"\nof a core: at most {max(shares):.2%} (goal: {MOST_OF_A_CORE:.0%}, "
        f"{reached(max(shares), MOST_OF_A_CORE)}); p95 of the gaps: at most "
        f"{max(p95s):.2f} ms (goal: {MOST_P95_MS:g} ms, {reached(max(p95s), MOST_P95_MS)})"
    )


def main() -> None:
    """Measure both."""
    with tempfile.TemporaryDirectory() as name:
        folder = compiled(Path(name))
        if folder is None:
            sys.exit("there is no C compiler")
        if "FAKE_NVML_SCRIPT" not in os.environ:
            script = Path(name) / "script.csv"
            script.write_text(BURST + LINKS + METRICS)
            os.environ["FAKE_NVML_SCRIPT"] = str(script)
            os.environ["LD_LIBRARY_PATH"] = str(folder)
        ctypes.CDLL(str(folder / "libnvidia-ml.so.1"))  # pynvml finds it by its name
        took = sorted(deltas_ms())
        print(
            f"deltas and gates: {statistics.median(took):.3f} ms a test, "
            f"p95 {took[int(len(took) * 0.95)]:.3f} ms (goal: 1 ms)\n"
        )
        watch(Path(name))
    assert threading.active_count() == 1


if __name__ == "__main__":
    main()
