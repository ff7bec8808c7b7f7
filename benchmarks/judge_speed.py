"""How long and how large judging a big suite is: 10,000 tests, 5 metrics, 10 sessions.

Run it as a script; it fails when a target is missed. Building the inputs is not counted as
time, and is as memory. `--as-run` builds them as a run does, test by test: from the records
of its stored sessions, which are then dropped, with what is compared beside each case.
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

from pytest_gpuperf.judge.case import POLICY, Case, StoredValue, StoredValues, case_of
from pytest_gpuperf.judge.look import first_look
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.judge.rule import comparable
from pytest_gpuperf.model.change import Comparison
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import collector_paused
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    Kind,
    Record,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import CoreSpeed, Estimate

SECONDS = 4.0  # of the processor, for 10,000 tests
MEGABYTES = 150.0  # of the whole process, inputs included
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
        stored=StoredValues.of(
            [StoredValue(value=value(), session=s, choice="k") for s in sessions]
        ),
    )


def as_run(test_count: int) -> tuple[list[Case], list[Comparison | None]]:
    """Return a suite as a run builds it, with what is compared."""
    suite: list[Case] = []
    compared: list[Comparison | None] = []
    built = cases(test_count)
    built.reverse()
    while built:
        of_test = [built.pop() for _ in _METRICS]
        first = of_test[0]
        estimates = [case.estimate for case in of_test if case.estimate is not None]
        record = Record(
            key=first.key, kind=Kind.MEASURE, estimates=tuple(estimates), choice="k"
        )
        sessions = zip(*(case.stored for case in of_test), strict=True)
        stored = [
            StoredRecord(
                key=first.key,
                session=values[0].session,
                values=tuple(each.value for each in values),
                choice="k",
            )
            for values in sessions
        ]
        for case in of_test:
            name = case.metric.name
            own = case_of([record], stored, metric=name, limit=0.05, session_id="")
            suite.append(own)
            compared.append(comparable(own, POLICY))
    return suite, compared


def measure(test_count: int, *, is_run: bool) -> None:
    """Print the seconds and the megabytes that a suite takes to be judged."""
    suite, compared = as_run(test_count) if is_run else (cases(test_count), None)
    gc.collect()
    settle(suite[: len(_METRICS) * 10])  # imports are not counted: a run pays them once
    with collector_paused():  # as a run judges
        start = time.process_time()  # other programs are not the rule's
        looks = first_look(suite, compared=compared)
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
    parser.add_argument("--as-run", action="store_true", help="see above")
    options = parser.parse_args()
    size = options.tests
    if size is not None:
        measure(size, is_run=options.as_run)
        return
    seconds: dict[int, float] = {}
    megabytes: dict[int, float] = {}
    sizes = [count for count in SIZES if count <= options.largest]
    for size in sizes:
        command = [sys.executable, __file__, f"--tests={size}"]
        command += ["--as-run"] if options.as_run else []
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
