"""What comparisons with a revision do on this machine: A/B runs, and bisects.

A try commits the suite of `real_gate.py`, makes one of its tests slower by the planted
share, and compares with that commit (`--gpuperf-against`). A bisect is of 16 commits, one
of which plants a slowdown; `git bisect run` with a fixed threshold, half of the slowdown
above what the good commit took once, searches the same history beside it.

    python benchmarks/against_gate.py --tries 3
    python benchmarks/against_gate.py --tries 20 --planted 0 --budget 2min --busy 2
    python benchmarks/against_gate.py --tries 0 --bisects 10
    python benchmarks/against_gate.py --tries 0 --readme 3

A run of `--readme` is of the 40 bodies of `clean_runs.py`, of whose files README.md alone
differs from the commit; the same suite runs beside it without a comparison.

Prints a line for each run as it ends: each test's verdict, change, blocks and what the same
code differed by; then a table. Fails where a test regressed that was not planted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _pairs import CHECKOUT, environment, new_environment
from clean_runs import SUITE
from real_gate import TESTS, Gate, busy, git, is_regressed, plant, project, test_of

COMMITS = 16  # after the good one
ANSWERS = {0, 1, 3}  # of `gpuperf bisect`: it is named, there is none, undecided
# the usual way: one run of the test, and a number that somebody chose; 125 skips a commit
STEP = """
import json, subprocess, sys

argv = [sys.executable, "-m", "pytest", "-q", sys.argv[1], "--gpuperf-json=run.json"]
if subprocess.run(argv, stdout=subprocess.DEVNULL).returncode:
    sys.exit(125)
with open("run.json") as file:
    estimates = json.load(file)["records"][0]["estimates"]
(time_s,) = (e["value"] for e in estimates if e["metric"] == "time")
print(time_s)
sys.exit(time_s > float(sys.argv[2]))
"""


@dataclass(kw_only=True)
class Tally:
    """What the tries of one slowdown came to; outcomes are those of the planted test."""

    outcomes: list[str] = field(default_factory=list)  # of all where none is planted
    alarms: int = 0
    blocks: list[int] = field(default_factory=list)
    walls_s: list[float] = field(default_factory=list)
    nulls: list[float] = field(default_factory=list)


def percent(fraction: float | None) -> str:
    """Return a fraction in percent; a dash: there is none."""
    return "-" if fraction is None else f"{fraction:+.1%}"


def said(verdict: Mapping[str, Any]) -> str:
    """Return what one verdict says, for a line."""
    change, against = verdict["change"] or {}, verdict["against"] or {}
    return (
        f"{test_of(dict(verdict))} {verdict['outcome']} {percent(change.get('effect'))} "
        f"({against.get('block_count')} blocks, "
        f"same code {percent(against.get('null_fraction'))})"
    )


def tries(gate: Gate, count: int, shares: Sequence[float]) -> dict[float, Tally]:
    """Return what came of each slowdown; each try has a project of its own."""
    draw = random.Random(1)  # noqa: S311 - an order, not a secret
    tallies = {share: Tally() for share in shares}
    for number in range(count):
        for share in draw.sample(shares, len(shares)):
            project(gate.folder)
            test = draw.choice(TESTS) if share else ""
            plant(gate.folder, test, share)
            begun = time.perf_counter()
            verdicts = gate.run(*gate.options)
            wall_s = time.perf_counter() - begun
            run = json.loads((gate.folder / "run.json").read_text("utf-8"))["against"]
            add(tallies[share], verdicts, run, test, wall_s)
            print(
                f"try {number + 1}: {share:+.0%} {test or '-'}: {run['block_count']} "
                f"blocks, {wall_s:.0f} s, same code {percent(run['null_fraction'])}: "
                f"{'; '.join(map(said, verdicts))}",
                flush=True,
            )
    return tallies


def add(
    tally: Tally,
    verdicts: Sequence[dict[str, object]],
    run: Mapping[str, Any],
    planted: str,
    wall_s: float,
) -> None:
    """Add a run; planted: the slowed test, "" for none."""
    own = [v for v in verdicts if planted in {"", test_of(v)}]
    regressed = {test_of(v) for v in verdicts if is_regressed(v)}
    tally.outcomes += [str(verdict["outcome"]) for verdict in own]
    tally.alarms += bool(regressed - {planted})
    tally.blocks.append(run["block_count"])
    tally.walls_s.append(wall_s)
    if run["null_fraction"] is not None:
        tally.nulls.append(run["null_fraction"])


def print_table(tallies: Mapping[float, Tally]) -> None:
    """Print what the tries came to."""
    print(f"{'planted':>7}  {'alarms':>6}  blocks  wall [s]  same code  outcomes")
    for share, tally in sorted(tallies.items()):
        if not tally.walls_s:
            continue
        names = sorted(set(tally.outcomes))
        counts = ", ".join(f"{tally.outcomes.count(name)} {name}" for name in names)
        null = statistics.median(tally.nulls) if tally.nulls else None
        print(
            f"{share:>7.0%}  {tally.alarms:>6}  {statistics.median(tally.blocks):>6.0f}  "
            f"{statistics.median(tally.walls_s):>8.0f}  {percent(null):>9}  {counts}"
        )


def history(folder: Path, test: str, share: float, culprit: int) -> list[str]:
    """Make a project of 16 commits after the good one; return all commits."""
    project(folder)
    commits = [git(folder, "rev-parse", "HEAD")]
    for number in range(1, COMMITS + 1):
        plant(folder, test, share if number >= culprit else 0.0)
        (folder / "notes.py").write_text(f"NUMBER = {number}\n", "utf-8")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", f"commit {number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


def gpuperf_bisect(
    gate: Gate, test_id: str, commits: Sequence[str], budget: str
) -> tuple[str, list[str]]:
    """Return how `gpuperf bisect` ended, and the commits that it names."""
    ends = ("--good", commits[0], "--bad", commits[-1])
    argv = [gate.python, "-m", "pytest_gpuperf", "bisect", test_id, *ends]
    done = subprocess.run(
        [*argv, "--restart", "--format=json", f"--budget={budget}"],
        cwd=gate.folder,
        env=environment({}),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode not in ANSWERS:
        sys.exit(f"gpuperf bisect: exit status {done.returncode}\n{done.stdout}")
    answer = json.loads(done.stdout)
    return answer["ending"], [commit["id"] for commit in answer["commits"]]


def git_bisect(
    gate: Gate, test_id: str, commits: Sequence[str], share: float
) -> list[str]:
    """Return the commit that `git bisect run` names; empty: it names none."""
    step = gate.folder.with_name("step.py")
    step.write_text(STEP, "utf-8")
    argv = [str(gate.python), str(step), test_id]
    git(gate.folder, "checkout", "-q", commits[0])
    first = subprocess.run(
        [*argv, "inf"],
        cwd=gate.folder,
        env=environment({}),
        check=True,
        capture_output=True,
        text=True,
    )
    threshold_s = float(first.stdout) * (1 + share / 2)
    git(gate.folder, "bisect", "start", commits[-1], commits[0])
    try:
        text = git(gate.folder, "bisect", "run", *argv, f"{threshold_s}")
    except subprocess.CalledProcessError:  # all of them say nothing
        return []
    return [commit for commit in commits if f"{commit} is the first bad" in text]


def readme(gate: Gate, count: int) -> None:
    """Print what a comparison costs in which no file of a test differs."""
    project(gate.folder, SUITE)
    page = gate.folder / "README.md"
    page.write_text("# Bodies\n", "utf-8")
    git(gate.folder, "add", ".")
    git(gate.folder, "commit", "-qm", "describe it")
    page.write_text("# Bodies\n\nForty of them.\n", "utf-8")
    for number in range(count):
        walls_s = []
        for options in (gate.options, ()):
            begun = time.perf_counter()
            verdicts = gate.run(*options)
            walls_s.append(time.perf_counter() - begun)
            if options:
                outcomes = sorted({str(verdict["reason"]) for verdict in verdicts})
        print(
            f"readme {number + 1}: {', '.join(outcomes)}, {walls_s[0]:.1f} s; without a "
            f"comparison {walls_s[1]:.1f} s; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def bisects(gate: Gate, count: int, share: float, budget: str) -> None:
    """Print which commit both searches name, and how often it is the right one."""
    draw = random.Random(2)  # noqa: S311 - an order, not a secret
    right = {"gpuperf bisect": 0, "git bisect run": 0}
    for number in range(count):
        test, culprit = draw.choice(TESTS), draw.randint(1, COMMITS)
        commits = history(gate.folder, test, share, culprit)
        test_id = f"test_real.py::test_{test}"
        begun = time.perf_counter()
        ending, named = gpuperf_bisect(gate, test_id, commits, budget)
        middle = time.perf_counter()
        named_by_git = git_bisect(gate, test_id, commits, share)
        walls_s = middle - begun, time.perf_counter() - middle
        answers = ending, "found" if named_by_git else "none"
        words = []
        for tool, answer, names, wall_s in zip(
            right, answers, (named, named_by_git), walls_s, strict=True
        ):
            right[tool] += names == [commits[culprit]]
            numbers = ", ".join(str(commits.index(name)) for name in names) or "none"
            words.append(f"{tool}: {answer}, {numbers} ({wall_s:.0f} s)")
        print(
            f"bisect {number + 1}: {share:+.0%} {test}, culprit {culprit}: "
            f"{'; '.join(words)}",
            flush=True,
        )
    for tool, times in right.items():
        print(f"{tool}: the right commit in {times} of {count}")


def main() -> int:
    """Run what was asked for; return 0 where nothing unplanted regressed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument(
        "--planted", type=int, nargs="+", default=[0, 3, 5, 10, 20, 60], metavar="%%"
    )
    parser.add_argument("--bisects", type=int, default=0)
    parser.add_argument("--readme", type=int, default=0, metavar="RUNS")
    parser.add_argument("--slowdown", type=int, default=20, metavar="%%")
    parser.add_argument("--budget", default="10min", help="of each comparison (10min)")
    parser.add_argument("--busy", type=int, default=0, metavar="LOOPS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, busy(options.busy):
        gate = Gate(
            python=new_environment(Path(scratch, "python"), str(CHECKOUT), "numpy"),
            folder=Path(scratch, "project"),
            options=("--gpuperf-against=HEAD", f"--gpuperf-budget={options.budget}"),
            log=None,
            loops=options.busy,
        )
        print(f"load {os.getloadavg()[0]:.1f}, {options.busy} busy loops", flush=True)
        shares = [percent_ / 100 for percent_ in options.planted]
        tallies = tries(gate, options.tries, shares)
        print_table(tallies)
        bisects(gate, options.bisects, options.slowdown / 100, options.budget)
        readme(gate, options.readme)
    return 1 if any(tally.alarms for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
