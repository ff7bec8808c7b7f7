"""How the gate does on this GPU: sessions are stored, and slowdowns planted into some tests.

Every run is pytest in a process of its own, by the plugin alone: sessions into a baseline,
then runs in which nothing has changed, then runs with 3, 5 and 10 % more work in a test
each of two kinds, bound by the SM clock and by memory. No further run is begun when the
time is up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _gpu import need_gpu, print_machine, print_row, print_rows
from _pairs import environment

SESSIONS = 5
TESTS = """
import json
import os

import pytest
import torch

FACTORS = json.loads(os.environ.get("FACTORS", "{}"))
NAMES = ["same", "three", "five", "ten"]


@pytest.mark.gpuperf(max_regression={"time": "2 %"})
@pytest.mark.parametrize("name", NAMES)
def test_cycles(gpuperf, name):
    gpuperf.measure(torch.cuda._sleep, int(1_000_000 * FACTORS.get(name, 1.0)))


@pytest.mark.gpuperf(max_regression={"time": "2 %"})
@pytest.mark.parametrize("name", NAMES)
def test_bytes(gpuperf, name):
    x = torch.ones(int((64 << 20) * FACTORS.get(name, 1.0)), device="cuda")
    out = torch.empty_like(x)
    gpuperf.measure(lambda: torch.add(x, 1, out=out))
"""
PLANTED = {"three": 1.03, "five": 1.05, "ten": 1.10}
COLLECTORS = "--gpuperf-collectors=cupti,events,host"


def main() -> None:
    """Print a row a run as it ends, then the spread between sessions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--unchanged", type=int, default=3, help="runs without a change"
    )
    parser.add_argument("--planted", type=int, default=3, help="runs with slowdowns")
    parser.add_argument("--confirm", type=int, default=5, help="fresh processes")
    parser.add_argument("--seconds", type=float, default=200.0)
    args = parser.parse_args()
    torch = need_gpu("gpu_gate")
    print_machine(torch)
    kinds = [
        *SESSIONS * ["session"],
        *args.unchanged * ["unchanged"],
        *args.planted * ["planted"],
    ]
    heads = ("run", "s", "regressed", "inconclusive", "other outcomes", "exit")
    print_rows(f"a baseline of {SESSIONS} sessions, limits of 2 %", heads, ())
    begun = time.monotonic()
    sessions: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as name:
        folder = Path(name)
        (folder / "test_gate.py").write_text(TESTS, "utf-8")
        for kind in kinds:
            if time.monotonic() - begun > args.seconds:
                break
            run_s, code, report = run(folder, kind, args.confirm)
            if kind == "session":
                for test, value in times_s(report):
                    sessions.setdefault(test, []).append(value)
            print_row((kind, f"{run_s:.1f}", *outcomes(report), str(code)))
    print_rows(
        "between the sessions",
        ("test", "us", "standard deviation", "range"),
        [spread_of(test, values) for test, values in sessions.items()],
    )


def run(folder: Path, kind: str, confirm: int) -> tuple[float, int, Mapping[str, Any]]:
    """Run the suite; return how long it took [s], its exit status and its report."""
    options = {
        "session": ("--gpuperf-update=all",),
        "unchanged": ("--gpuperf-baseline=.gpuperf", f"--gpuperf-confirm={confirm}"),
    }
    factors = {"FACTORS": json.dumps(PLANTED)} if kind == "planted" else {}
    begun = time.perf_counter()
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(COLLECTORS, "--gpuperf-json=run.json"),
            *options.get(kind, options["unchanged"]),
        ],
        cwd=folder,
        env={**environment(), **factors},
        capture_output=True,
        text=True,
        check=False,
    )
    took_s = time.perf_counter() - begun
    if os.environ.get("GPU_GATE_LOG"):
        with Path(os.environ["GPU_GATE_LOG"]).open("a", encoding="utf-8") as log:
            log.write(f"\n=== {kind}\n{ended.stdout}{ended.stderr}")
    report = folder / "run.json"
    found = json.loads(report.read_bytes()) if report.exists() else {}
    return took_s, ended.returncode, found


def times_s(report: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the tests, and the time of each by its best source [s]."""
    for record in report.get("records", ()):
        test = record["key"]["test_id"].partition("::")[2]
        times = [each for each in record["estimates"] if each["metric"] == "time"]
        yield from ((test, each["value"]) for each in times[:1])


def outcomes(report: Mapping[str, Any]) -> Sequence[str]:
    """Return the tests that regressed, those that are inconclusive, and the rest by number."""
    found: dict[str, list[str]] = {}
    for verdict in report.get("verdicts", ()):
        if verdict["metric"] == "time":
            name = verdict["key"]["test_id"].partition("::")[2]
            found.setdefault(verdict["outcome"], []).append(name.removeprefix("test_"))
    named = [" ".join(found.pop(each, ())) for each in ("regressed", "inconclusive")]
    rest = ", ".join(f"{len(names)} {outcome}" for outcome, names in found.items())
    return (*(each or "-" for each in named), rest or "-")


def spread_of(test: str, values: Sequence[float]) -> Sequence[str]:
    """Return a row of a test's sessions."""
    middle = statistics.median(values)
    deviation = statistics.stdev(values) / middle if len(values) > 1 else 0.0
    width = (max(values) - min(values)) / middle
    return test, f"{middle * 1e6:.2f}", f"{deviation:.2%}", f"{width:.2%}"


if __name__ == "__main__":
    main()
