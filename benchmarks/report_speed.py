"""How long the reports of a run of 10,000 tests take, and how large they are.

Run it as a script; it fails when a target is missed. Seconds are the processor's: other
programs are not the report's.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.codec import SCHEMA_VERSION, decode_run, encode_run
from pytest_gpuperf.model.environment import Environment, Session
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.run import Completeness, Header, Run
from pytest_gpuperf.model.sample import Estimate, Series
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict
from pytest_gpuperf.report.exports import csv_bytes
from pytest_gpuperf.report.html.page import html_bytes
from pytest_gpuperf.report.runs import run_markdown

TARGETS_S = {"JSON written": 1.0, "JSON read": 1.0, "Markdown": 1.0}
_METRICS = ("time", "time.p50", "time.p95", "time.min", "time.wall", "time.first_call")
_SAMPLES = 240  # of a test: as many as a second holds of a call of 4 ms


def a_run(test_count: int) -> Run:
    """Return a run whose tests did not change."""
    draw = random.Random(1)  # noqa: S311 - a simulation
    keys = [
        RecordKey(test_id=f"tests/test_{i // 50}.py::test_kernel[{i % 50}]")
        for i in range(test_count)
    ]
    return Run(
        schema=SCHEMA_VERSION,
        header=Header(
            session=Session(id="s", started_unix_s=1.8e9, host="h"),
            environment=Environment(
                cpu_model="a", core_count=2, python_minor="3.12", platform="linux"
            ),
            completeness=Completeness(
                expected_count=test_count, reported_count=test_count
            ),
        ),
        records=tuple(_record(key, draw) for key in keys),
        verdicts=tuple(_verdict(key) for key in keys),
    )


def _record(key: RecordKey, draw: random.Random) -> Record:
    """Return what was measured for one test."""
    values = tuple(draw.lognormvariate(-9, 0.02) for _ in range(_SAMPLES))
    return Record(
        key=key,
        kind=Kind.MEASURE,
        estimates=tuple(_estimate(name) for name in _METRICS),
        series=(Series(metric="time", unit="s", source="host", values=values),),
        facts={"host-time": {"cpu_model": "a", "core_count": "2"}},
    )


def _estimate(name: str) -> Estimate:
    """Return one of a test's metrics."""
    return Estimate(
        metric=name, value=123e-6, unit="s", source="host", low=122e-6, high=124e-6
    )


def _verdict(key: RecordKey) -> Verdict:
    """Return the verdict of one test."""
    return Verdict(
        key=key,
        metric="time",
        outcome=Outcome.UNCHANGED,
        reason=Reason.WITHIN_NOISE,
        threshold=0.05,
        estimate=_estimate("time"),
        change=Change(
            effect=0.001,
            low=-0.01,
            high=0.012,
            current=123e-6,
            reference=122.9e-6,
            session_count=5,
            run_count=1,
        ),
    )


def timed(name: str, make: Callable[[], bytes | str | Run]) -> bool:
    """Print what a form takes; return whether it is within its target."""
    start = time.process_time()
    made = make()
    seconds = time.process_time() - start
    size = "" if isinstance(made, Run) else f", {len(made) / 1e6:.1f} MB"
    print(f"{name:12} {seconds:.2f} s{size}")
    return seconds <= TARGETS_S.get(name, float("inf"))


def main() -> None:
    """Write and read the run in each form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=10_000, help="(10,000)")
    run = a_run(parser.parse_args().tests)
    text = encode_run(run)
    assert decode_run(text) == run
    within = [
        timed("JSON written", lambda: encode_run(run)),
        timed("JSON read", lambda: decode_run(text)),
        timed("Markdown", lambda: run_markdown(run)),
        timed("CSV", lambda: csv_bytes(run)),
        timed("HTML", lambda: html_bytes(run)),
    ]
    assert all(within), TARGETS_S


if __name__ == "__main__":
    main()
