"""Whole processes measured by turns, and what their ratios say.

A machine that others use too gives absolute times that mean nothing. So all variants run
once in every round, in random order, and are compared within the round. A control is the
base once more: read nothing below its interval.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LEAST_ROUNDS = 15
CHECKOUT = Path(__file__).resolve().parent.parent

# what would let the person's own habits into the processes measured
_FOREIGN = (
    "PYTEST_ADDOPTS",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD",
    "PYTEST_PLUGINS",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "PYTHONPYCACHEPREFIX",
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """
    One side of a comparison.

    Attributes:
        name: What the table calls it.

        argv: What is started.

        folder: Where it is started.

        set_env: Variables to set beside those of this process.

        good: The exit statuses that are not mistake.

        value: Takes the figure from what was printed; None: the wall time [s].
    """

    name: str
    argv: Sequence[str]
    folder: Path
    set_env: Mapping[str, str] = field(default_factory=dict)
    good: frozenset[int] = frozenset({0})
    value: Callable[[str], float] | None = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one process took: its figure (wall time or another) [s], CPU time, memory."""

    value_s: float
    cpu_s: float
    peak_bytes: int


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of this process without those that would change the result."""
    kept = {name: text for name, text in os.environ.items() if name not in _FOREIGN}
    return {**kept, **(extra or {})}


def run(variant: Variant) -> Cost:
    """
    Run a variant once.

    The peak is never below this process's own, which fork hands on: keep this one small.
    """
    out = variant.folder / ".printed"
    with out.open("wb") as file:
        begin = time.perf_counter()
        process = subprocess.Popen(
            variant.argv,
            cwd=variant.folder,
            env=environment(variant.set_env),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    printed = out.read_text("utf-8", "replace")
    if process.returncode not in variant.good:
        tail = "\n".join(printed.splitlines()[-30:])
        sys.exit(f"{variant.name}: exit status {process.returncode}\n{tail}")
    return Cost(
        value_s=wall_s if variant.value is None else variant.value(printed),
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * 1024,  # Linux counts in KiB
    )


def rounds(
    variants: Sequence[Variant], count: int, *, seed: int = 1
) -> dict[str, list[Cost]]:
    """Return the costs of all variants by name, one of each round."""
    order = random.Random(seed)  # noqa: S311 - an order, no secret
    costs: dict[str, list[Cost]] = {variant.name: [] for variant in variants}
    for number in range(-1, count):  # the first round fills the caches
        for variant in order.sample(variants, len(variants)):
            cost = run(variant)
            if number >= 0:
                costs[variant.name].append(cost)
    return costs


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """
    Return order statistics that hold the median in at least 95 % of all cases.

    Free of any assumption on the distribution: a value is above the median as often as
    a coin falls on its head.
    """
    ordered, count = sorted(values), len(values)
    outside = 0.0
    for rank in range(count):
        outside += 2 * math.comb(count, rank) / 2**count
        if outside > 0.05:
            if rank == 0:
                raise ValueError(f"{count} values are too few for an interval")
            return ordered[rank - 1], ordered[count - rank]
    raise ValueError("no values")


def ratio(costs: Sequence[Cost], base: Sequence[Cost], figure: str) -> str:
    """Return the median ratio to the base within each round, and its interval."""
    found = ratios(costs, base, figure)
    low, high = median_interval(found)
    return f"{statistics.median(found):.3f} [{low:.3f}, {high:.3f}]"


def ratios(costs: Sequence[Cost], base: Sequence[Cost], figure: str) -> list[float]:
    """Return the ratio of one figure to the base's within each round."""
    pairs = zip(costs, base, strict=True)
    return [getattr(a, figure) / getattr(b, figure) for a, b in pairs]


def print_table(
    title: str,
    costs: Mapping[str, Sequence[Cost]],
    base: str,
    *,
    goals: Mapping[str, float] | None = None,
    figure: str = "value_s",
) -> bool:
    """
    Print medians and ratios to the base; return whether every goal was reached.

    Args:
        title: The heading.

        costs: The rounds of each variant, by its name.

        base: The variant that the others are compared with.

        goals: The largest ratio of a variant.

        figure: What the goals are of: "value_s" or "cpu_s".
    """
    goals = goals or {}
    width = max(len(name) for name in costs)
    print(f"\n{title} ({len(costs[base])} rounds)")
    heads = ("median", "wall ratio, 95 %", "CPU ratio, 95 %", "peak")
    print(f"{'':{width}}  {heads[0]:>9}  {heads[1]:20}  {heads[2]:20}  {heads[3]}")
    reached = True
    for name, own in costs.items():
        middle = f"{1000 * statistics.median(c.value_s for c in own):.1f} ms"
        wall, cpu = (
            "" if name == base else ratio(own, costs[base], of_figure)
            for of_figure in ("value_s", "cpu_s")
        )
        peak = statistics.median(c.peak_bytes for c in own) / 2**20
        line = f"{name:{width}}  {middle:>9}  {wall:20}  {cpu:20}  {peak:.1f} MiB"
        if name in goals:
            found = statistics.median(ratios(own, costs[base], figure))
            missed = found > goals[name]
            reached &= not missed
            line += f"  goal <= {goals[name]}: {'MISSED' if missed else 'reached'}"
        print(line)
    return reached


def print_values(title: str, costs: Sequence[Cost], goal_s: float) -> bool:
    """Print a figure that is not a ratio; return whether its goal was reached."""
    values = [cost.value_s for cost in costs]
    low, high = median_interval(values)
    median = statistics.median(values)
    print(
        f"{title}: {1000 * median:.2f} ms [{1000 * low:.2f}, {1000 * high:.2f}], "
        f"fastest {1000 * min(values):.2f} ms; goal <= {1000 * goal_s:.0f} ms: "
        f"{'reached' if median <= goal_s else 'MISSED'}"
    )
    return median <= goal_s


def new_environment(folder: Path, *requirements: str) -> Path:
    """
    Return the Python of a fresh environment that holds some packages.

    This checkout among them is built into a wheel, and that is what is installed.
    """
    python = folder / "bin" / "python"
    argv = [sys.executable, "-m", "venv", folder]
    subprocess.run(argv, check=True, env=environment())
    pip(python, "install", *requirements)
    return python


def pip(python: Path, *arguments: str) -> None:
    """Run pip of an environment."""
    argv = [python, "-m", "pip", "--disable-pip-version-check", "-qq", *arguments]
    subprocess.run(argv, check=True, env=environment())
