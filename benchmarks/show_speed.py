"""How fast a report is shown, against reprospect doing the same.

Whole processes in interleaved pairs, so that whatever else the machine does slows both
sides alike; only ratios of one pair are compared. The other side is PyPI's reprospect
in an environment of its own (`--reference-python`), asked for the same metrics of the
same report. Two more rows have no goal: "text", which the other side does not write, and
"least", the shortest program that reads the same values through the classes of NVIDIA's
interface, in the process that asks.

    python benchmarks/show_speed.py FILE.ncu-rep --reference-python VENV/bin/python
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

THREE = (
    "gpu__time_duration.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "launch__grid_size",
)
# the command, without what finding its entry point costs
COMMAND = """
import sys
from pytest_gpuperf.cli import main
metrics = [f"--metrics={names}" for names in sys.argv[2:]]
# as typed: only then the reading begins before the command is imported
sys.argv[1:] = ["show", sys.argv[1], "--format=FORM", *metrics]
sys.exit(main())
"""
# what a test does that asks for a tree of results
TREE = """
import json, sys
from pytest_gpuperf.collect.ncu.report import Report
names = sys.argv[2].split(",") if len(sys.argv) > 2 else None
found = Report(sys.argv[1]).extract_results_in_range(names)
json.dump(sum(len(leaf) for _, leaf in found.iter_launches()), sys.stdout)
"""
LEAST = """
import json, sys
import ncu_report
names = sys.argv[2].split(",") if len(sys.argv) > 2 else None
report = ncu_report.load_report(sys.argv[1])
found = []
for number in range(report.num_ranges()):
    within = report.range_by_idx(number)
    for index in range(within.num_actions()):
        action = within.action_by_idx(index)
        metrics = [action.metric_by_name(n) for n in names or action.metric_names()]
        found.append([metric and (metric.value(), metric.unit()) for metric in metrics])
json.dump(found, sys.stdout)
"""
# all names come from one action: reprospect has no way to ask for all of them
REFERENCE = """
import json, pathlib, sys
from reprospect.tools.ncu import Metric, Report
path = pathlib.Path(sys.argv[1])
report = Report(path=path.parent, name=path.stem)
if len(sys.argv) > 2:
    names = sys.argv[2].split(",")
else:
    names = report.report.range_by_idx(0).action_by_idx(0).metric_names()
found = report.extract_results_in_range(metrics=[Metric(name) for name in names])
def plain(node):
    return {name: plain(each) for name, each in node.data.items()} if hasattr(node, "data") else node
json.dump(plain(found), sys.stdout)
"""
GROWTH = """
import sys
from pytest_gpuperf.collect.ncu.launches import read_capture
from pytest_gpuperf.collect.ncu.text import capture_text
from pytest_gpuperf.collect.runner import ProcessRunner
def peak_kib():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):  # ru_maxrss would count who started us, too
            return int(line.split()[1])
from pytest_gpuperf.collect.ncu.report import Report
def tree(path, runner, metrics):
    return Report(path, runner=runner).extract_results_in_range(metrics)
readers = {"capture_text": capture_text, "read_capture": read_capture, "tree": tree}
read, three = readers[sys.argv[2]], None
if len(sys.argv) > 3:
    three = sys.argv[3].split(",")
before = peak_kib()
kept = read(sys.argv[1], runner=ProcessRunner(), metrics=three)
print(peak_kib() - before)
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question to both sides and how many times faster ours has to be."""

    title: str
    names: tuple[str, ...]
    goal: float

    @property
    def arguments(self) -> list[str]:
        """What both programs take after the report."""
        return [",".join(self.names)] if self.names else []


CASES = (
    Case(title="all metrics", names=(), goal=2.5),
    Case(title="three metrics", names=THREE, goal=3.0),
)
WITHOUT_GOAL = {"text", "least"}
PROGRAMS = {
    "json": COMMAND.replace("FORM", "json"),
    "text": COMMAND.replace("FORM", "text"),
    "tree": TREE,
    "least": LEAST,
}


def main() -> int:
    """Time all forms of both cases; return 0 where the goals are reached."""
    options = parsed()
    # installed packages have their bytecode; ours must not be compiled at each start
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    reached = True
    for case, form in itertools.product(CASES, PROGRAMS):
        ours = ours_argv(options, case, form)
        reference = [options.reference_python, "-c", REFERENCE, options.report]
        pairs = timed(ours, reference + case.arguments, options.pairs, environment)
        ratios = sorted(theirs / mine for mine, theirs in pairs)
        ratio = statistics.median(ratios)
        is_held = form not in WITHOUT_GOAL
        reached &= not is_held or ratio >= case.goal
        goal = f"goal {case.goal}" if is_held else "no goal"
        low, _, high = statistics.quantiles(ratios)
        print(
            f"{case.title}, {form}: "
            f"{statistics.median(mine for mine, _ in pairs):.3f} s against "
            f"{statistics.median(theirs for _, theirs in pairs):.3f} s; "
            f"ratio {ratio:.2f} ({goal}), "
            f"half of the pairs {low:.2f} to {high:.2f}, "
            f"all {ratios[0]:.2f} to {ratios[-1]:.2f}",
            flush=True,
        )
    for case in CASES:
        for reader in ("capture_text", "read_capture", "tree"):
            argv = [sys.executable, "-c", GROWTH, options.report, reader]
            grown = subprocess.run(
                argv + case.arguments, check=True, capture_output=True, env=environment
            ).stdout
            print(
                f"{case.title}, {reader}: the reading process grows by "
                f"{int(grown) / 1024:.1f} MiB"
            )
    return 0 if reached else 1


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--reference-python", required=True)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument(
        "--command",
        help="our command, as `gpuperf show`; FILE, --format and --metrics follow",
    )
    return parser.parse_args()


def ours_argv(options: argparse.Namespace, case: Case, form: str) -> list[str]:
    """Return our side's command; an installed one may take the place of its module."""
    if options.command and form in {"json", "text"}:
        metrics = [f"--metrics={names}" for names in case.arguments]
        command = shlex.split(options.command)
        return [*command, str(options.report), f"--format={form}", *metrics]
    program = PROGRAMS[form]
    return [sys.executable, "-c", program, str(options.report), *case.arguments]


def timed(
    ours: Sequence[str],
    reference: Sequence[str],
    pairs: int,
    environment: dict[str, str],
) -> list[tuple[float, float]]:
    """Return both sides' durations [s] of each pair, the order changing by turns."""
    found = []
    for number in range(-1, pairs):  # the first pair fills the caches
        seconds = {}
        for argv in (ours, reference) if number % 2 else (reference, ours):
            begin = time.perf_counter()
            done = subprocess.run(
                argv, check=True, capture_output=True, env=environment
            )
            seconds[argv is ours] = time.perf_counter() - begin
            assert done.stdout
        if number >= 0:
            found.append((seconds[True], seconds[False]))
    return found


if __name__ == "__main__":
    sys.exit(main())
