"""What a GPU's clock is worth to the gate: simulated boards, judged with and without it.

Sessions of a board differ by a factor that all of its tests share, and by one of each
test's own; a board of an H200 had 0.02 to 0.24 % in all. The clock stands still. Prints how
often an unchanged suite fails (goal: at most 1 of 100), and how often +10 % is found that
was planted into one test, and into all of them.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Collection, Sequence

from pytest_gpuperf.config import Config
from pytest_gpuperf.judge.case import Case, StoredValue
from pytest_gpuperf.judge.confirmation import Retest
from pytest_gpuperf.judge.look import plan_retests
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.judge.retests import confirmations
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    Record,
    RecordKey,
    SessionValue,
)
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import Outcome

CONFIG = Config(root=".", baseline=".gpuperf", baseline_named=True)
CLOCK_HZ = 1.98e9
SESSIONS = 5
FRESH = 5  # processes: the default of --gpuperf-confirm
PLANTED = 1.10
# what all tests of a board share and what each has alone: standard deviations
BOARDS = ((0.002, 0.002), (0.01, 0.002), (0.02, 0.005), (0.05, 0.01))


def main() -> None:
    """Print a row a board and size of a suite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", type=int, default=100)
    parser.add_argument("--limit", type=float, default=0.05)
    args = parser.parse_args()
    rng = random.Random(1)  # noqa: S311 - a simulation; the same each time
    print("| tests | shared, own | clock | alarms | one +10 % | all +10 % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for count in (4, 12):
        for board in BOARDS:
            for known in (False, True):
                shares = [
                    sum(
                        bool(failed(rng, count, board, planted, args.limit, known))
                        for _ in range(args.suites)
                    )
                    / args.suites
                    for planted in ((), (0,), range(count))
                ]
                cells = (
                    f"{count}",
                    f"{board[0]:.1%}, {board[1]:.1%}",
                    "known" if known else "unknown",
                    f"{shares[0]:.1%}",
                    *(f"{share:.2f}" for share in shares[1:]),
                )
                print(f"| {' | '.join(cells)} |", flush=True)


def failed(
    rng: random.Random,
    count: int,
    board: tuple[float, float],
    planted: Collection[int],
    limit: float,
    known: bool,  # noqa: FBT001 - a column of the table
) -> set[str]:
    """Return the tests of one suite that regress."""
    shared, own = board
    then = [rng.gauss(0, shared) for _ in range(SESSIONS)]
    now = rng.gauss(0, shared)
    values = {
        str(n): math.exp(now + rng.gauss(0, own)) * (PLANTED if n in planted else 1)
        for n in range(count)
    }
    cases = [
        case_of(
            test,
            value,
            [math.exp(level + rng.gauss(0, own)) for level in then],
            limit,
            known,
        )
        for test, value in values.items()
    ]
    look = plan_retests(cases, CONFIG)
    retests = {
        test: Retest(
            records=tuple(
                Record(
                    key=RecordKey(test_id=test),
                    kind=Kind.MEASURE,
                    estimates=(
                        estimate(values[test] * math.exp(rng.gauss(0, own / 2)), known),
                    ),
                )
                for _ in range(FRESH)
            )
        )
        for test in (*look.suspects, *look.controls)
    }
    verdicts = settle(look.cases, confirmations(look, retests), looks=look.looks)
    return {v.key.test_id for v in verdicts if v.outcome is Outcome.REGRESSED}


def estimate(value: float, known: bool) -> Estimate:  # noqa: FBT001 - as above
    """Return a time of a device."""
    return Estimate(
        metric="time",
        value=value,
        unit="s",
        source="cupti",
        sm_clock_hz=CLOCK_HZ if known else None,
    )


def case_of(
    test: str,
    now: float,
    then: Sequence[float],
    limit: float,
    known: bool,  # noqa: FBT001 - as above
) -> Case:
    """Return a test of a suite."""
    return Case(
        key=RecordKey(test_id=test),
        metric=METRICS["time"],
        limit=limit,
        estimate=estimate(now, known),
        current=SessionValue.of([estimate(now, known)]),
        stored=tuple(
            StoredValue(
                value=SessionValue.of([estimate(value, known)]),
                session=Session(id=f"s{at}", started_unix_s=float(at), host="h"),
            )
            for at, value in enumerate(then)
        ),
        bound_class=BoundClass.COMPUTE,
    )


if __name__ == "__main__":
    main()
