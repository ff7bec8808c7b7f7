"""How long ten metrics of a capture take a test, beside a direct loop in the test.

Whole pytest processes by turns: a test that reads ten metrics with `gpuperf.capture`, and
one that reads all values through NVIDIA's classes, as a test without the plugin would.
What the same pytest takes that reads nothing is subtracted from both within the round:
the ratios are of the reading alone, its child processes included. They are of the CPU:
a difference of two wall times is nothing on a machine that others use. "ten" is a direct
loop over the counters that the ten metrics are made of, where the report has them; it has
no goal.

    python benchmarks/captures_speed.py FILE.ncu-rep ...
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from _pairs import LEAST_ROUNDS, Cost, Variant, median_interval, rounds

GOAL = 1.2
# each test has the fixture: what it costs to make is not asked here
TESTS = """
import os

import pytest

from pytest_gpuperf.errors import MetricUnavailableError

REPORT = os.environ["REPORT"]
TEN = (
    "registers",
    "waves",
    "occupancy.theoretical",
    "occupancy.achieved",
    "dram.bytes",
    "dram.fraction",
    "l2.hit_fraction",
    "tensor.fraction",
    "instructions.count",
    "shared.bank_conflict_fraction",
)


def direct(names):
    import ncu_report

    report = ncu_report.load_report(REPORT)
    for number in range(report.num_ranges()):
        within = report.range_by_idx(number)
        for index in range(within.num_actions()):
            action = within.action_by_idx(index)
            for name in names or action.metric_names():
                metric = action.metric_by_name(name)
                assert metric is None or (metric.value(), metric.unit())


def test_nothing(gpuperf):
    assert gpuperf


def test_direct(gpuperf):
    direct(None)


def test_ten(gpuperf):
    from pytest_gpuperf.measure.captured import report_counters

    direct(report_counters(TEN))


def test_capture(gpuperf):
    perf = gpuperf.capture(REPORT)
    for name in TEN:
        try:
            assert perf[name] >= 0
        except MetricUnavailableError:
            pass
"""


def main() -> int:
    """Time all reports; return 0 where each reaches the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "test_it.py").write_text(TESTS, "utf-8")
        reached = [
            timed(folder, report.resolve(), options.rounds)
            for report in options.reports
        ]
    return 0 if all(reached) else 1


def timed(folder: Path, report: Path, count: int) -> bool:
    """Print what one report takes; return whether the goal was reached."""
    costs = rounds(variants(folder, report), count)
    print(f"\n{report.name} ({count} rounds)")
    reached = True
    for name in ("capture", "ten"):
        found = ratios(costs, name)
        line = f"{name:8} CPU {spelled(found)}"
        if name == "capture":
            missed = statistics.median(found) > GOAL
            reached = not missed
            line += f"  goal <= {GOAL}: {'MISSED' if missed else 'reached'}"
        print(line, flush=True)
    medians = (
        f"{name} {statistics.median(cost.cpu_s for cost in own):.2f} s"
        for name, own in costs.items()
    )
    print(f"CPU of whole processes: {', '.join(medians)}", flush=True)
    return reached


def variants(folder: Path, report: Path) -> list[Variant]:
    """Return the tests, each in a pytest of its own."""
    plain = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")
    return [
        Variant(
            name=name,
            argv=(sys.executable, *plain, f"test_it.py::test_{name}"),
            folder=folder,
            set_env={"REPORT": str(report)},
        )
        for name in ("nothing", "direct", "ten", "capture")
    ]


def ratios(costs: Mapping[str, Sequence[Cost]], name: str) -> list[float]:
    """Return what reading takes beside the direct loop, round by round."""
    own, direct, nothing = (
        [cost.cpu_s for cost in costs[side]] for side in (name, "direct", "nothing")
    )
    return [
        (mine - base) / (theirs - base)
        for mine, theirs, base in zip(own, direct, nothing, strict=True)
    ]


def spelled(values: Sequence[float]) -> str:
    """Return the median and its interval."""
    low, high = median_interval(values)
    return f"{statistics.median(values):.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
