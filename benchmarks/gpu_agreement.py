"""How far the sources of time agree: CUPTI, events, host, ncu, and what others measure.

All of them time the same four calls, by turns within each round, in one process; ncu in
one of its own, for each mode of caches. A ratio to CUPTI's time is taken within its
round. Cold: L2 is flushed before each sample, as do_bench does. Warm: it is not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from _gpu import (
    Work,
    first_line,
    known_work,
    need_gpu,
    print_machine,
    print_row,
    print_rows,
    said,
    spread,
)

from pytest_gpuperf.collect.base import DeviceTimer
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.runtime import find_runtime
from pytest_gpuperf.collect.timing.events import EventTimer, find_events
from pytest_gpuperf.errors import GpuPerfError

ROUNDS = 9
SAMPLES = 15
HEADS = ("call", "source", "us", "to the first")
TIME = "gpu__time_duration.sum"
Source = Callable[[Work], float]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--child", action="store_true", help="be what ncu profiles")
    args = parser.parse_args()
    torch = need_gpu("gpu_agreement")
    if args.child:
        profiled(torch)
        return
    print_machine(torch)
    works = known_work(torch)
    first_s: dict[str, dict[str, float]] = {"cold": {}, "warm": {}}
    for cache, medians_s in first_s.items():
        print_rows(f"{cache}: time of a call", HEADS, ())
        for name, work in works.items():
            failures: dict[str, str] = {}
            times = measured(torch, work, cache, args.rounds, failures)
            for row in rows_of(name, times, failures):
                print_row(row)
            if times:
                medians_s[name] = statistics.median(next(iter(times.values())))
    # last: it takes as long as all others, and may give nothing
    for cache, medians_s in first_s.items():
        failures = {}
        print_rows(f"{cache}: time of a call under ncu", HEADS, ())
        for name, time_s in by_ncu(cache, failures).items():
            ratio = f"{time_s / medians_s[name]:.3f}" if name in medians_s else "-"
            print_row((name, "ncu", f"{time_s * 1e6:.2f}", ratio))
        said(failures)


def rows_of(
    name: str, times: Mapping[str, list[float]], failures: Mapping[str, str]
) -> Iterator[Sequence[str]]:
    """Yield a row of each source of a call; ratios are to the first that was measured."""
    base = next(iter(times.values()), [])
    for source, times_s in times.items():
        ratios = [mine / its for mine, its in zip(times_s, base, strict=True)]
        yield name, source, spread(times_s), spread(ratios, 1, 3)
    for source, why in failures.items():
        yield name, source, f"not measured: {first_line(why)}", "-"


def measured(
    torch: ModuleType, work: Work, cache: str, rounds: int, failures: dict[str, str]
) -> dict[str, list[float]]:
    """
    Return the median of each round by source; all sources take turns in a round.

    A source that fails is left out of this call and asked again for the next.
    """
    for _ in range(5):
        work()
    torch.cuda.synchronize()
    sources = sources_of(torch, cache)
    found: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, source in sources.items():
            if name in failures:
                continue
            try:
                found[name].append(source(work))
            except Exception as error:  # noqa: BLE001 - a tool that is not there is told
                failures[name] = f"{type(error).__name__}: {error}"
    return {name: times for name, times in found.items() if len(times) == rounds}


def sources_of(torch: ModuleType, cache: str) -> dict[str, Source]:
    """Return what times a call, by name; the others' own only in their mode of caches."""
    prepare = find_runtime().flush_l2 if cache == "cold" else nothing

    def by_cupti(work: Work) -> float:
        with activity_timer(torch) as timer:
            work()
            return device_s(torch, timer, work, prepare)

    def by_events(work: Work) -> float:
        timer = EventTimer(find_events(), SystemClock.now_ns)
        return device_s(torch, timer, work, prepare)

    sources: dict[str, Source] = {
        "cupti": by_cupti,
        "events": by_events,
        "host, to synchronisation": lambda work: host_s(torch, work, prepare),
        "torch.cuda.Event": lambda work: torchs_s(torch, work, prepare),
    }
    if cache == "cold":
        return {**sources, "triton.testing.do_bench": do_bench_s}
    return {
        **sources,
        "torch.utils.benchmark": timer_s,
        "CUDA graph of 20 calls": lambda work: graph_s(torch, work),
    }


@contextmanager
def activity_timer(torch: ModuleType) -> Iterator[DeviceTimer]:
    """Yield a timer by CUPTI, which has it no longer than that."""
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector, ActivityTimer

    collector = ActivityCollector(torch.cuda.synchronize)
    collector.open()
    try:
        yield ActivityTimer(collector)
    finally:
        collector.close()


def nothing() -> None:
    """Leave the caches as they are."""


def device_s(torch: ModuleType, timer: DeviceTimer, work: Work, prepare: Work) -> float:
    """Return the median of some samples by a timer of the device [s]."""
    for _ in range(SAMPLES):
        prepare()
        torch.cuda.synchronize()
        timer.begin()
        work()
        timer.end()
        torch.cuda.synchronize()
    times = [each for each in timer.taken() if each is not None]
    refusal = timer.refusal()
    if refusal is not None or not times:
        raise RuntimeError(refusal.text if refusal else "no sample was timed")
    return statistics.median(times)


def host_s(torch: ModuleType, work: Work, prepare: Work) -> float:
    """Return the median by the host's clock, from the call to an idle device [s]."""
    times = []
    for _ in range(SAMPLES):
        prepare()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def torchs_s(torch: ModuleType, work: Work, prepare: Work) -> float:
    """Return the median by torch's own events [s]."""
    times = []
    for _ in range(SAMPLES):
        prepare()
        torch.cuda.synchronize()
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        work()
        ended.record()
        torch.cuda.synchronize()
        times.append(float(begun.elapsed_time(ended)) / 1000)
    return statistics.median(times)


def do_bench_s(work: Work) -> float:
    """Return the median of triton.testing.do_bench [s]."""
    from triton.testing import do_bench

    return float(do_bench(work, warmup=5, rep=30, return_mode="median")) / 1000


def timer_s(work: Work) -> float:
    """Return the median of torch.utils.benchmark [s]: the host's, of many calls."""
    from torch.utils.benchmark import Timer

    timer = Timer("work()", globals={"work": work})
    return float(timer.blocked_autorange(min_run_time=0.05).median)


def graph_s(torch: ModuleType, work: Work) -> float:
    """Return a twentieth of a graph of 20 calls, by events: no gap of launching [s]."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            work()
    graph.replay()
    return torchs_s(torch, graph.replay, nothing) / 20


def by_ncu(cache: str, failures: dict[str, str]) -> Mapping[str, float]:
    """Return the median time of each call's kernels under ncu [s]."""
    from pytest_gpuperf.collect.ncu import Command, Session
    from pytest_gpuperf.collect.ncu.launches import read_capture
    from pytest_gpuperf.collect.ncu.nvtx import DOMAIN, INCLUDE
    from pytest_gpuperf.collect.runner import ProcessRunner

    with tempfile.TemporaryDirectory() as folder:
        command = Command(
            executable=sys.executable,
            args=(__file__, "--child"),
            output=Path(folder, "report"),
            metrics=(TIME,),
            nvtx_includes=(INCLUDE,),
            cache_control="all" if cache == "cold" else "none",
            timeout_s=120,
        )
        try:
            Session(command=command).run(retries=3)
            capture = read_capture(
                command.report, runner=ProcessRunner(), metrics=(TIME,)
            )
        except GpuPerfError as error:
            failures[f"ncu, {cache}"] = str(error)
            return {}
    sums: dict[str, float] = {}  # by range: one call of one kind
    for each in capture.ranges:
        for launch in each.launches:
            value = launch.metrics[TIME].value
            (name,) = launch.nvtx[DOMAIN]
            if isinstance(value, (int, float)):
                sums[name] = sums.get(name, 0.0) + value / 1e9
    calls: dict[str, list[float]] = {}
    for name, total_s in sums.items():
        calls.setdefault(name.rpartition("#")[0], []).append(total_s)
    return {name: statistics.median(each) for name, each in calls.items()}


def profiled(torch: ModuleType) -> None:
    """Call each kind five times, each in a range of its own."""
    from pytest_gpuperf.collect.ncu.nvtx import find_ranges

    ranges = find_ranges()
    for name, work in known_work(torch).items():
        work()
        torch.cuda.synchronize()
        for number in range(5):
            opened = ranges.open(f"{name}#{number}")
            work()
            torch.cuda.synchronize()
            ranges.close(opened)


if __name__ == "__main__":
    main()
