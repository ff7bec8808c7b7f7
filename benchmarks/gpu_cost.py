"""What measuring costs on a GPU: a launch, a reading, a test, a start of ncu.

Launches are timed by the host's clock, by turns within each round: bare, recorded by
CUPTI, and bare again. Tests are whole runs of pytest in processes of their own.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType

from _gpu import Work, need_gpu, print_machine, print_rows, said, spread
from _pairs import environment

from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.runtime import find_runtime
from pytest_gpuperf.collect.timing.events import EventTimer, find_events

ROUNDS = 9
LAUNCHES = 2000
TEST_COUNT = 40
REFRESH_S = 3.0
ROUNDS_S = 80.0  # no further round of runs is begun after that
TESTS = f"""
import pytest
import torch

x = torch.ones(1 << 20, device="cuda")


@pytest.mark.parametrize("n", range({TEST_COUNT}))
@pytest.mark.gpuperf(iterations=20)
def test_it(gpuperf, n):
    gpuperf.measure(x.add_, 1)
"""
COUNTED = """
import pytest
import torch


@pytest.mark.parametrize("n", range(4))
@pytest.mark.gpuperf(counters=["dram__bytes_read.sum"], iterations=5)
def test_it(gpuperf, n):
    x = torch.ones(1 << (18 + n), device="cuda")
    gpuperf.measure(x.add_, 1)
"""


def main() -> None:
    """Print the tables."""
    torch = need_gpu("gpu_cost")
    print_machine(torch)
    # runs of the plugin first: once this process has a context, NVML names it to them
    for name, show in (
        ("tests", tests),
        ("counting under ncu", under_ncu),
        ("launches", launches),
        ("readings", readings),
        ("refresh of counters", refresh),
        ("counting in process", counting),
    ):
        try:
            show(torch)
        except Exception as error:  # noqa: BLE001 - what is not there must not cost the rest
            said({name: f"{type(error).__name__}: {error}"})


def took_s(torch: ModuleType, work: Work, count: int) -> float:
    """Return the host's time of one of many calls [s]."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / count


def launches(torch: ModuleType) -> None:
    """Print what a launch costs while CUPTI records, and what reading it costs."""
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector

    x = torch.ones(1 << 10, device="cuda")
    work: Work = lambda: x.add_(1)  # noqa: E731 - its type is said
    found: dict[str, list[float]] = {
        name: []
        for name in ("bare", "recorded", "bare again", "opening", "closing", "reading")
    }
    took_s(torch, work, LAUNCHES)
    for _ in range(ROUNDS):
        found["bare"].append(took_s(torch, work, LAUNCHES))
        collector = ActivityCollector(torch.cuda.synchronize)
        begun = time.perf_counter()
        collector.open()
        found["opening"].append(time.perf_counter() - begun)
        work()
        with collector.window() as window:
            found["recorded"].append(took_s(torch, work, LAUNCHES))
        begun = time.perf_counter()
        trace = window.trace()
        found["reading"].append((time.perf_counter() - begun) / len(trace.launches))
        begun = time.perf_counter()
        collector.close()
        found["closing"].append(time.perf_counter() - begun)
        found["bare again"].append(took_s(torch, work, LAUNCHES))
    found["a pair of events, recorded"] = events_s(torch)
    rows = [(name, spread(values)) for name, values in found.items()]
    print_rows("a launch, and CUPTI's records of it", ("what", "us"), rows)


def events_s(torch: ModuleType) -> list[float]:
    """Return what a pair of our events costs the host, a value a round [s]."""
    timer = EventTimer(find_events(), SystemClock.now_ns)
    pairs = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(LAUNCHES // 10):
            timer.begin()
            timer.end()
        pairs.append((time.perf_counter() - begun) / (LAUNCHES // 10))
        torch.cuda.synchronize()
        timer.taken()
    return pairs


def readings(torch: ModuleType) -> None:
    """Print what reading the sensors costs, together and one by one."""
    from pytest_gpuperf.collect.nvml.deltas import Deltas
    from pytest_gpuperf.collect.nvml.library import open_board

    torch.cuda.synchronize()
    board = open_board(str(find_runtime().device_uuid()))
    rows = []
    for gpm in (False, True):
        deltas = Deltas(board, SystemClock(), gpm=gpm)
        begins, ends = [], []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            deltas.begin()
            begins.append(time.perf_counter() - begun)
            time.sleep(0.15)
            begun = time.perf_counter()
            deltas.end()
            ends.append(time.perf_counter() - begun)
        kind = "with GPM" if gpm else "without GPM"
        rows += [
            (f"all before a test, {kind}", spread(begins)),
            (f"all after it, {kind}", spread(ends)),
        ]
        deltas.close()
    sm = board.nvml.NVML_CLOCK_SM
    for name, function, arguments in (
        ("energy", "nvmlDeviceGetTotalEnergyConsumption", ()),
        ("power", "nvmlDeviceGetPowerUsage", ()),
        ("SM clock", "nvmlDeviceGetClockInfo", (sm,)),
        ("busy time", "nvmlDeviceGetUtilizationRates", ()),
        ("clock reasons", "nvmlDeviceGetCurrentClocksEventReasons", ()),
        ("processes", "nvmlDeviceGetComputeRunningProcesses", ()),
        ("memory", "nvmlDeviceGetMemoryInfo", ()),
        ("temperature", "nvmlDeviceGetTemperature", (0,)),
        ("PCIe rate", "nvmlDeviceGetPcieThroughput", (0,)),
        ("power ring", "nvmlDeviceGetSamples", (0, 0)),
    ):
        times = []
        for _ in range(30):
            begun = time.perf_counter()
            board.call(name, function, *arguments)
            times.append(time.perf_counter() - begun)
        gap = board.silent.get(name)
        rows.append((name, spread(times) if gap is None else gap.reason))
    board.close()
    print_rows("reading the sensors", ("what", "us"), rows)


def refresh(torch: ModuleType) -> None:
    """Print how often each counter moves under load: asked without a pause."""
    from pytest_gpuperf.collect.nvml.library import open_board

    board = open_board(str(find_runtime().device_uuid()))
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    asked: dict[str, Callable[[], object]] = {
        "energy": board.energy_joules,
        "SM clock": board.sm_clock_hz,
        "power": lambda: board.call("power", "nvmlDeviceGetPowerUsage"),
        "busy time": lambda: board.call("busy", "nvmlDeviceGetUtilizationRates").gpu,
    }
    rows = []
    for name, ask in asked.items():
        moved, last = [], ask()
        begun = time.perf_counter()
        while (now := time.perf_counter()) - begun < REFRESH_S:
            if int((now - begun) * 4) % 2:  # busy and idle, a quarter of a second each
                a @ a
                torch.cuda.synchronize()
            value = ask()
            if value != last:
                moved.append(now)
                last = value
        gaps = [second - first for first, second in pairwise(moved)]
        middle = f"{statistics.median(gaps) * 1e3:.1f}" if gaps else "-"
        least = f"{min(gaps) * 1e3:.1f}" if gaps else "-"
        rows.append((name, str(len(moved)), middle, least))
    board.close()
    heads = ("counter", f"moved in {REFRESH_S:g} s", "median gap, ms", "least, ms")
    print_rows("how often counters move", heads, rows)


def repeated(work: Work, count: int) -> None:
    """Call something some times."""
    for _ in range(count):
        work()


def counting(torch: ModuleType) -> None:
    """Print what the range profiler costs, by passes."""
    from pytest_gpuperf.collect.cupti.range_profiler import RangeProfiler

    x = torch.ones(1 << 20, device="cuda")
    rows = []
    for metrics in (
        ("dram__bytes_read.sum",),
        ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"),
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    ):
        for count in (1, 50):
            begun = time.perf_counter()
            profiler = RangeProfiler(metrics, synchronize=torch.cuda.synchronize)
            made_s = time.perf_counter() - begun
            begun = time.perf_counter()
            profiler.count_kernels(partial(repeated, partial(x.add_, 1), count))
            counted_s = time.perf_counter() - begun
            passes = profiler.passes_count
            profiler.close()
            rows.append(
                (
                    f"{len(metrics)} of {metrics[0]}",
                    str(count),
                    str(passes),
                    f"{made_s * 1e3:.1f}",
                    f"{counted_s * 1e3:.1f}",
                    f"{counted_s / count / passes * 1e3:.2f}",
                )
            )
    heads = ("metrics", "kernels", "passes", "prepare, ms", "count, ms", "ms a pass")
    print_rows("the range profiler, kernel replay", heads, rows)


def tests(_: ModuleType) -> None:
    """Print what a test costs by its collectors, beside one that is not measured."""
    kinds: dict[str, Sequence[str]] = {
        "not measured": ("--gpuperf-disable",),
        "host": ("--gpuperf-collectors=host",),
        "events": ("--gpuperf-collectors=events,host",),
        "cupti": ("--gpuperf-collectors=cupti,events,host",),
        "nvml beside events": ("--gpuperf-collectors=events,host,nvml",),
        "auto": (),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        Path(name, "test_cost.py").write_text(TESTS, "utf-8")
        begun = time.monotonic()
        for _ in range(3):
            if time.monotonic() - begun > ROUNDS_S:
                break
            for kind, options in kinds.items():
                if kind in failures:
                    continue
                try:
                    found[kind].append(run_s(Path(name), *options))
                except RuntimeError as error:
                    failures[kind] = str(error)
    base = statistics.median(found["not measured"])
    rows = [
        (
            kind,
            f"{statistics.median(values):.2f}",
            f"{(statistics.median(values) - base) / TEST_COUNT * 1e3:.1f}",
        )
        for kind, values in found.items()
        if kind not in failures
    ]
    heads = ("collectors", "run, s", "a test beyond its body, ms")
    rounds = len(found["not measured"])
    print_rows(f"{TEST_COUNT} tests of 20 samples, {rounds} runs each", heads, rows)
    said(failures)


def under_ncu(_: ModuleType) -> None:
    """Print what four tests cost under one start of ncu, and under one each."""
    if shutil.which("ncu") is None:
        print("\n*counting under ncu*: not measured: there is no ncu on PATH")
        return
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_cost.py").write_text(COUNTED, "utf-8")
        plain_s = run_s(folder, "--gpuperf-disable")
        together_s = run_s(folder, cache=folder / "together")
        again_s = run_s(folder, cache=folder / "together")
        single_s = sum(
            run_s(folder, f"test_cost.py::test_it[{n}]", cache=folder / f"single{n}")
            for n in range(4)
        )
        rows = [
            ("not measured", f"{plain_s:.1f}"),
            ("one start for four tests", f"{together_s:.1f}"),
            ("the same again, from the cache", f"{again_s:.1f}"),
            ("one run and one start for each", f"{single_s:.1f}"),
        ]
    print_rows("four tests with a counter", ("how", "s"), rows)


def run_s(folder: Path, *options: str, cache: Path | None = None) -> float:
    """Return how long a run of pytest takes in a process of its own [s]."""
    named = any("::" in option for option in options)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    set_env = {"GPUPERF_CACHE_DIR": str(cache)} if cache else {}
    begun = time.perf_counter()
    ended = subprocess.run(
        [*argv, *([] if named else ["test_cost.py"])],
        cwd=folder,
        env={**environment(), **set_env},
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.perf_counter() - begun
    if (
        ended.returncode or " skipped" in ended.stdout
    ):  # what was not measured is skipped
        raise RuntimeError((ended.stdout + ended.stderr).strip()[-400:])
    return took


if __name__ == "__main__":
    main()
