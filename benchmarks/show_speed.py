"""How fast a report is shown, against reprospect doing the same.

Whole processes in interleaved pairs, so that whatever else the machine does slows both
sides alike; only ratios of one pair are compared. The other side is PyPI's reprospect
in an environment of its own (`--reference-python`), asked for the same metrics of the
same report.

    python benchmarks/show_speed.py FILE.ncu-rep --reference-python VENV/bin/python
"""

from __future__ import annotations

import argparse
import itertools
import json
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
# what the command does, for as long as it takes a command to test
OURS = """
import sys
from pytest_gpuperf.collect.ncu.text import capture_text
from pytest_gpuperf.collect.runner import ProcessRunner
names = sys.argv[2].split(",") if len(sys.argv) > 2 else None
sys.stdout.buffer.write(capture_text(sys.argv[1], runner=ProcessRunner(), metrics=names))
"""
# what a test does that asks for a tree of results
TREE = """
import json, sys
from pytest_gpuperf.collect.ncu.report import Report
names = sys.argv[2].split(",") if len(sys.argv) > 2 else None
found = Report(sys.argv[1]).extract_results_in_range(names)
json.dump(sum(len(leaf) for _, leaf in found.iter_launches()), sys.stdout)
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
from pytest_gpuperf.collect.ncu.capture import capture_text, read_capture
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
    """One question to both sides and how often ours has to be faster."""

    title: str
    names: tuple[str, ...]
    goal: float

    @property
    def arguments(self) -> list[str]:
        """What both programs take after the report."""
        return [",".join(self.names)] if self.names else []


CASES = (
    Case(title="all metrics", names=(), goal=2.5),
    Case(title="three metrics", names=THREE, goal=4.0),
)


def main() -> int:
    """Time both cases, as text and as a tree; return 0 where the goals are reached."""
    options = parsed()
    # installed packages have their bytecode; ours must not be compiled at each start
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    reached = True
    for case, program in itertools.product(CASES, (OURS, TREE)):
        ours = ours_argv(options, case, program)
        reference = [options.reference_python, "-c", REFERENCE, options.report]
        pairs = timed(ours, reference + case.arguments, options.pairs, environment)
        ratio = statistics.median(theirs / mine for mine, theirs in pairs)
        reached &= ratio >= case.goal
        print(
            f"{case.title}, {'text' if program is OURS else 'tree'}: "
            f"{statistics.median(mine for mine, _ in pairs):.3f} s against "
            f"{statistics.median(theirs for _, theirs in pairs):.3f} s; "
            f"ratio {ratio:.2f} (goal {case.goal}), "
            f"pairs {min(t / m for m, t in pairs):.2f} to "
            f"{max(t / m for m, t in pairs):.2f}"
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
        help="our command, as `gpuperf show`; FILE, --format=json and --metrics follow",
    )
    return parser.parse_args()


def ours_argv(options: argparse.Namespace, case: Case, program: str) -> list[str]:
    """Return our side's command; the text may come from the installed one."""
    if program is TREE or not options.command:
        return [sys.executable, "-c", program, str(options.report), *case.arguments]
    metrics = [f"--metrics={names}" for names in case.arguments]
    return [*shlex.split(options.command), options.report, "--format=json", *metrics]


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
            if argv is ours:
                json.loads(done.stdout)
        if number >= 0:
            found.append((seconds[True], seconds[False]))
    return found


if __name__ == "__main__":
    sys.exit(main())
