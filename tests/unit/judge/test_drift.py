"""What is too slow for a comparison is told as a drift."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from pytest_gpuperf.config import Config
from pytest_gpuperf.judge.case import Case, Reference, case_of
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.judge.tally import is_fatal
from pytest_gpuperf.model.environment import TEST
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    BoundClass,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.verdict import Outcome, Verdict
from unit.judge.building import (
    KEY,
    case,
    confirmation,
    estimate,
    processes,
    record,
    session,
    stored,
)


def history(factors: Sequence[float], *, noise: float = 0.01, seed: int = 1) -> Case:
    """A case whose newest value is today's."""
    draw = random.Random(seed)
    values = [factor * math.exp(draw.gauss(0, noise)) for factor in factors]
    return case(values[-1], values[:-1])


def only(one: Case, references: Sequence[Reference] = ()) -> Verdict:
    """The verdict of a case that fresh processes confirm."""
    assert one.current is not None
    (value,) = one.current.run_values
    again = confirmation(*[value] * 5)
    (verdict,) = settle([one], {one.name: again}, references=references)
    return verdict


def first_session_told(factors: Sequence[float]) -> int | None:
    """The number of the first session that is told to have drifted."""
    return next(
        (
            count
            for count in range(3, len(factors) + 1)
            if (change := only(history(factors[:count])).change) and change.drift
        ),
        None,
    )


def test_two_percent_a_session_are_told_from_the_eighth_on() -> None:
    """So are 3 %, and neither is a change that one comparison sees."""
    assert first_session_told([1.02**n for n in range(21)]) in {8, 9, 10}
    assert first_session_told([1.03**n for n in range(13)]) == 8


@pytest.mark.parametrize(
    "factors",
    [
        [1.0] * 23,
        [1.0] * 6 + [0.5] * 6 + [1.0] * 6,
        [1.0, 1.2] * 10,
        [0.98**n for n in range(20)],
        [1.003**n for n in range(20)],
    ],
    ids=["steady", "improved and back", "two speeds", "better", "within two limits"],
)
def test_these_do_not_drift(factors: Sequence[float]) -> None:
    """Nothing got slower for good, or not by two limits."""
    assert first_session_told(factors) is None


def test_a_drift_has_a_date_and_a_size() -> None:
    """It is measured from the oldest three sessions, whatever was stored since."""
    change = only(history([1.02**n for n in range(20)], noise=0.001)).change

    assert change is not None
    assert change.drift is not None
    assert change.drift.effect == pytest.approx(1.02**17 - 1, rel=0.02)
    assert change.drift.since_unix_s == 0.0
    assert change.drift.session_count == 20


def test_a_drift_does_not_blind_the_gate() -> None:
    """A jump of 30 % after a drift regresses: the spread is that about the trend."""
    factors = [1.01**n for n in range(20)]
    jumped = history([*factors, factors[-1] * 1.3])

    verdict = only(jumped)

    assert verdict.outcome.value == "regressed"
    assert verdict.change is not None
    assert verdict.change.session_spread is not None
    assert verdict.change.session_spread < 0.02


def test_a_rate_drifts_downwards() -> None:
    """More is better: a rate that falls has drifted, and one that grows has not."""
    metric = METRICS["throughput"]
    falling, growing = (
        only(replace(history(factors), metric=metric)).change
        for factors in ([0.97**n for n in range(16)], [1.03**n for n in range(16)])
    )

    assert falling is not None
    assert falling.drift is not None
    assert falling.drift.effect < 0
    assert growing is not None
    assert growing.drift is None


def test_a_machine_that_slows_down_has_no_drifting_tests() -> None:
    """The reference workloads have become slower alike, and no code moves them."""
    slow = [1.02**n for n in range(20)]
    references = [
        Reference(
            name=name,
            bound_class=BoundClass.HOST,
            current=processes([slow[-1]]),
            stored=stored(slow[:-1]),
        )
        for name in ("loop", "array", "copy")
    ]
    change = only(history(slow), references).change
    alone = only(history(slow)).change

    assert change is not None
    assert change.drift is None
    assert alone is not None
    assert alone.drift is not None


def test_all_tests_that_drift_are_told() -> None:
    """Other tests are no evidence of a slow machine: only reference workloads are."""
    cases = [
        replace(
            history([1.03**n for n in range(13)], seed=seed),
            key=RecordKey(test_id=f"test_a.py::test_{seed}"),
        )
        for seed in range(4)
    ]

    verdicts = settle(cases)

    assert all(v.change is not None and v.change.drift is not None for v in verdicts)


def test_a_drift_fails_a_strict_run_alone() -> None:
    """Without strict, an unchanged value that drifted is told, and passes."""
    drifted = replace(
        only(history([1.02**n for n in range(16)])), outcome=Outcome.UNCHANGED
    )
    assert drifted.change is not None
    quiet = replace(drifted, change=replace(drifted.change, drift=None))

    assert is_fatal(drifted, Config(root="", strict=True))
    assert not is_fatal(quiet, Config(root="", strict=True))
    assert not is_fatal(drifted, Config(root=""))


def test_the_oldest_sessions_show_a_drift_and_nothing_else() -> None:
    """A test that changed after them is compared with sessions of today's test alone."""
    digests = ["old"] * 3 + ["new"] * 20
    sessions = tuple(
        StoredRecord(
            key=KEY,
            session=session(number),
            values=(
                SessionValue(metric="time", unit="s", source="host", run_values=(1.0,)),
            ),
            test_digest=digest,
        )
        for number, digest in enumerate(digests)
    )
    found = case_of(
        [record(estimate(1.5, source="host"), test_digest="new")],
        sessions,
        metric="time",
        limit=0.05,
        session_id="now",
    )

    assert (len(found.oldest), len(found.stored)) == (3, 20)
    assert TEST not in found.moved
