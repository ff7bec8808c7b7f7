"""How noisy times are on this GPU: in one process, between processes, after idling.

Each fresh process runs the same measured tests, by the plugin itself. The spread between
processes is what a baseline has to bear, and the change that two sets of five sessions
can tell from it follows from that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from _gpu import Work, need_gpu, print_machine, print_rows
from _pairs import environment

PROCESSES = 6
ROUNDS_S = 90.0  # no further process is begun after that, but for the second
TESTS = """
import pytest
import torch


def work(name):
    if name == "product":
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(a)
        return lambda: torch.matmul(a, a, out=out)
    if name == "copy":
        x = torch.ones(1 << 27, device="cuda")
        out = torch.empty_like(x)
        return lambda: torch.add(x, 1, out=out)
    if name == "cycles":
        return lambda: torch.cuda._sleep(1_000_000)
    x = torch.ones(1 << 20, device="cuda")
    return lambda: x.add_(1)


@pytest.mark.parametrize("cache", ["cold", "warm"])
@pytest.mark.parametrize("name", ["product", "copy", "cycles", "small"])
def test_noise(gpuperf, name, cache):
    gpuperf.measure(work(name), cache=cache)
"""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    args = parser.parse_args()
    torch = need_gpu("gpu_noise")
    print_machine(torch)
    for collectors in ("events,host", "cupti,events,host"):
        print_between(collectors, args.processes)
    print_after_idling(torch)


def print_between(collectors: str, processes: int) -> None:
    """Print the spread in and between processes, by one set of collectors."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as name:
        Path(name, "test_noise.py").write_text(TESTS, "utf-8")
        begun, count = time.monotonic(), 0
        while count < processes:
            if count > 1 and time.monotonic() - begun > ROUNDS_S:
                break
            count += 1
            for key, estimate in run(Path(name), collectors).items():
                found.setdefault(key, []).append(estimate)
    rows = []
    for (test, source), estimates in found.items():
        values = [each["value"] for each in estimates]
        middle = statistics.median(values)
        widths = [
            (each["high"] - each["low"]) / each["value"]
            for each in estimates
            if each.get("low") is not None and each.get("high") is not None
        ]
        deviation = statistics.stdev(values) / middle if len(values) > 1 else 0.0
        rows.append(
            (
                test,
                source,
                f"{middle * 1e6:.2f}",
                f"{statistics.median(widths):.2%}" if widths else "-",
                f"{(max(values) - min(values)) / middle:.2%}",
                f"{deviation:.2%}",
                # five sessions on each side, at 95 %: t of 8 degrees of freedom
                f"{2.306 * deviation * (2 / 5) ** 0.5:.2%}",
            )
        )
    heads = ("call", "source", "us", "interval in a process", "between: range")
    more = ("between: standard deviation", "least change of 5 against 5")
    title = f"{count} processes, collectors {collectors}"
    print_rows(title, (*heads, *more), rows)


def run(folder: Path, collectors: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Run the tests in a fresh process; return each best estimate of `time`."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    options = [f"--gpuperf-collectors={collectors}", "--gpuperf-json=run.json"]
    ended = subprocess.run(
        [*argv, *options, "test_noise.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if (
        ended.returncode or " skipped" in ended.stdout
    ):  # what was not measured is skipped
        print(
            f"\n*{collectors}*: not measured: {(ended.stdout + ended.stderr).strip()[-600:]}"
        )
        return {}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for record in json.loads((folder / "run.json").read_bytes())["records"]:
        test = record["key"]["test_id"].partition("[")[2].rstrip("]")
        for estimate in record["estimates"]:
            if estimate["metric"] == "time":
                found.setdefault((test, estimate["source"]), estimate)
    return found


def print_after_idling(torch: ModuleType) -> None:
    """Print how a product's time settles after the GPU has idled: its clocks rise."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    for _ in range(3):
        torch.matmul(a, a, out=out)
    torch.cuda.synchronize()
    series = []
    for _ in range(5):
        time.sleep(2.0)
        series.append(times_s(torch, lambda: torch.matmul(a, a, out=out), 200))
    settled = statistics.median(each[-1] for each in series)
    rows = [
        (str(at + 1), f"{statistics.median(each[at] for each in series) / settled:.3f}")
        for at in (0, 1, 2, 4, 9, 19, 49, 99, 199)
    ]
    print_rows("a product after 2 s of idling", ("call", "to the 200th"), rows)


def times_s(torch: ModuleType, work: Work, count: int) -> Sequence[float]:
    """Return the time of each of some calls, by torch's events [s]."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(second) / 1000 for first, second in pairwise(events)]


if __name__ == "__main__":
    main()
