"""How long and how large judging a big suite is: 10,000 tests, 5 metrics, 10 sessions.

Run it as a script; it fails when a target is missed. Building the inputs is not counted as
time, and is as memory.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import subprocess
import sys
import time
from itertools import pairwise

from pytest_gpuperf.judge.case import Case, StoredValue
from pytest_gpuperf.judge.look import first_look
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import collector_paused
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import RecordKey, SessionValue
from pytest_gpuperf.model.sample import CoreSpeed, Estimate

SECONDS = 5.0  # of the processor, for 10,000 tests
MEGABYTES = 400.0  # of the whole process, inputs included
SLACK = 1.5  # "linear": so many times the tests may take so many times more, and half
SIZES = (10_000, 30_000, 100_000)

_METRICS = ("time", "time.p95", "time.wall", "throughput", "registers")
_SESSIONS = 10


def cases(test_count: int) -> list[Case]:
    """Return a suite whose tests did not change."""
    draw = random.Random(1)  # noqa: S311 - a simulation
    sessions = [
        Session(id=f"s{i}", started_unix_s=float(i), host="h") for i in range(_SESSIONS)
    ]
    return [
        _case(RecordKey(test_id=f"test_suite.py::test_{i}"), name, sessions, draw)
        for i in range(test_count)
        for name in _METRICS
    ]


def _case(
    key: RecordKey, name: str, sessions: list[Session], draw: random.Random
) -> Case:
    """Return one metric of one test."""
    metric = METRICS[name]
    source = "cupti" if metric.exact else "host"

    def cores() -> tuple[CoreSpeed, ...]:  # no two processes find it equally fast
        loop_s = draw.lognormvariate(-10.8, 0.1)
        return (CoreSpeed(loop_s=loop_s, slope=0.9, precision=10.0),)

    def value() -> SessionValue:
        exact = metric.exact
        return SessionValue(
            metric=name,
            unit=metric.unit or "",
            source=source,
            run_values=(64.0 if exact else draw.lognormvariate(-9, 0.01),),
            half_widths=() if exact else (0.004,),
            cores=cores() if name == "time" else (),
        )

    current = value()
    return Case(
        key=key,
        metric=metric,
        limit=0.05,
        estimate=Estimate(
            metric=name,
            value=current.run_values[0],
            unit=metric.unit or "",
            source=source,
        ),
        current=current,
        choice="k",
        stored=tuple(
            StoredValue(value=value(), session=s, choice="k") for s in sessions
        ),
    )


def measure(test_count: int) -> None:
    """Print the seconds and the megabytes that a suite takes to be judged."""
    suite = cases(test_count)
    gc.collect()
    settle(suite[: len(_METRICS) * 10])  # imports are not counted: a run pays them once
    with collector_paused():  # as a run judges
        start = time.process_time()  # other programs are not the rule's
        looks = first_look(suite)
        looked = time.process_time() - start
        verdicts = settle(suite, looks=looks)
        judged = time.process_time() - start
    assert len(verdicts) == len(suite)
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(judged, megabytes, looked)


def main() -> None:
    """Measure in fresh processes, so that none has another's memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, help="measure one size, in this process")
    parser.add_argument("--largest", type=int, default=10_000, help="(10,000)")
    options = parser.parse_args()
    size = options.tests
    if size is not None:
        measure(size)
        return
    seconds: dict[int, float] = {}
    megabytes: dict[int, float] = {}
    sizes = [count for count in SIZES if count <= options.largest]
    for size in sizes:
        command = [sys.executable, __file__, f"--tests={size}"]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds[size], megabytes[size], looked = map(float, out.split())
        print(
            f"{size:7,} tests: judged in {seconds[size]:.2f} s, of which the first look "
            f"{looked:.2f} s, {megabytes[size]:.0f} MB",
            flush=True,
        )
    assert seconds[SIZES[0]] < SECONDS
    assert megabytes[SIZES[0]] < MEGABYTES
    for fewer, more in pairwise(sizes):
        ratios = [used[more] / used[fewer] for used in (seconds, megabytes)]
        print(
            f"{more / fewer:.1f} times the tests: time x {ratios[0]:.1f}, "
            f"memory x {ratios[1]:.1f}"
        )
        assert max(ratios) < SLACK * more / fewer


if __name__ == "__main__":
    main()
