"""judge.regression: what a change owes to the rest of its run and to the policy."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_gpuperf.compute.change import changes
from pytest_gpuperf.compute.spread import usual_spread
from pytest_gpuperf.judge.case import Case, Policy
from pytest_gpuperf.judge.history import newest_case
from pytest_gpuperf.judge.look import baseline_spreads, first_look
from pytest_gpuperf.judge.regression import settle, shown, smallest_seen
from pytest_gpuperf.judge.rule import comparable
from pytest_gpuperf.model.change import Sureness, TimeBase
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import Better, metric_of
from pytest_gpuperf.model.record import (
    BoundClass,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.verdict import Outcome
from unit.judge.building import KEY, case, confirmation, session

KEY_NAME = (KEY, "time")
THEN = (1.00, 1.01, 0.99, 1.005, 0.995)


def steady(count: int, metric: str = "time", **fields: Any) -> list[Case]:
    """Tests of a suite that did not change, with noise."""
    draw = random.Random(3)
    return [
        case(
            1.0,
            [draw.lognormvariate(0, 0.01) for _ in THEN],
            metric,
            key=RecordKey(test_id=f"{metric}_{n}"),
            **fields,
        )
        for n in range(count)
    ]


# the baseline


def records(count: int, source: str = "host") -> list[StoredRecord]:
    """Stored sessions of some tests, two of each."""
    draw = random.Random(4)
    return [
        StoredRecord(
            key=RecordKey(test_id=f"{n}"),
            session=session(number),
            values=(
                SessionValue(
                    metric="time",
                    unit="s",
                    source=source,
                    run_values=(draw.lognormvariate(0, 0.01),),
                ),
            ),
        )
        for n in range(count)
        for number in range(2)
    ]


def test_a_baseline_knows_what_is_usual_by_metric_and_family() -> None:
    """A time that the host took is none of the device's."""
    known = baseline_spreads([*records(10), *records(9, "cupti")])

    assert known.keys() == {"time host-time", "time device-time"}
    assert known["time host-time"] != known["time device-time"]


def test_a_baseline_of_one_session_knows_what_is_known_of_machines() -> None:
    """A single value does not vary."""
    (known,) = baseline_spreads(records(10)[::2]).values()

    assert known == usual_spread((), TimeBase.HOST, least_equality=4)


# the policy


def test_a_look_that_was_taken_is_not_taken_again() -> None:
    """The verdicts are those of the look that is handed on."""
    cases = [*steady(12), *steady(3, "time.p50", limit=None)]
    looks = first_look(cases)

    assert settle(cases) == settle(cases, looks=looks)
    assert shown(cases) == shown(cases, looks=looks)
    assert len(shown(cases)) == 3


@pytest.mark.parametrize(("noisy", "counts"), [(1, 0), (1, 3), (4, 0), (4, 3)])
def test_what_would_have_been_seen_is_asked_of_the_whole_run(
    noisy: int, counts: int
) -> None:
    """As sure as so many noisy pairs need, by every constant of the policy."""
    policy = Policy(alpha=0.02, noise_threshold=0.01, power=0.7)
    several = steady(noisy)
    exact = [
        case(64.0, [64.0], "registers", key=RecordKey(test_id=f"count_{n}"))
        for n in range(counts)
    ]
    level = Sureness(
        alpha=policy.level(noisy), pair_count=noisy, noise_threshold=0.01, power=0.7
    )
    compared = [c for one in several if (c := comparable(one, policy)) is not None]
    expected, *_ = changes(compared, level=level)
    found = settle([*several, *exact], {}, policy)[0]

    assert found.change == expected


def test_what_is_seen_is_that_of_the_decision() -> None:
    """Of what is gated and has sessions enough, references or not; less with more."""
    several = [
        *steady(5),
        case(1.0, [1.0], key=RecordKey(test_id="one session")),
        case(1.0, THEN, key=RecordKey(test_id="shown"), limit=None),
        case(64.0, [64.0], "registers", key=RecordKey(test_id="count")),
    ]
    decided = [look.change for look in first_look(several)]
    now, later = (smallest_seen(several, more_sessions=n) for n in (0, 2))

    assert now[5:] == later[5:] == (None, None, None)
    for change, sees, more in zip(decided[:5], now, later, strict=False):
        assert change is not None
        assert sees is not None
        assert more is not None
        assert sees == pytest.approx(change.detectable_effect)
        assert 0.05 < more < sees


def test_the_newest_session_stands_for_today() -> None:
    """With the sessions that its facts and its source may be compared with."""
    sessions = records(1)
    facts = {"host-time": {"cpu_model": "other"}}
    moved = replace(sessions[1], facts=facts, bound_class=BoundClass.WAIT)
    alike, apart = (
        newest_case([sessions[0], last], "time", limit=0.05)
        for last in (sessions[1], moved)
    )

    assert alike.current == sessions[1].values[0]
    assert [s.session.id for s in alike.stored] == ["s0", "s1"]
    assert [s.session.id for s in apart.stored] == ["s1"]
    assert (alike.bound_class, apart.bound_class) == (BoundClass.HOST, BoundClass.WAIT)
    assert newest_case(sessions, "energy").current is None


def test_a_shift_of_one_class_leaves_the_run_as_large_as_it_is() -> None:
    """What was taken out of a class makes its changes no surer."""
    moved = steady(12, bound_class=BoundClass.MEMORY)
    other = steady(30, "time.p50", bound_class=BoundClass.COMPUTE)
    again = {c.name: confirmation(*[1.1] * 5, control=True) for c in moved[1:9]}
    again[moved[0].name] = confirmation(*[1.1] * 5)
    alone = settle(moved, again)[0].change
    among = settle([*moved, *other], again)[0].change

    assert alone is not None
    assert among is not None
    assert alone.machine_shift is not None
    assert among.machine_shift == alone.machine_shift
    assert alone.detectable_effect is not None
    assert among.detectable_effect is not None
    assert among.detectable_effect > alone.detectable_effect


# series of every shape

ODD = {
    "one outlier": (1.0, 1.01, 30.0, 0.99, 1.0),
    "all outliers": (1.0, 30.0, 0.03, 900.0, 0.001),
    "identical": (1.0,) * 5,
    "six decades": (1e-3, 1e-2, 1.0, 1e2, 1e3),
    "two sessions": (1.0, 1.01),
    "one session": (1.0,),
}


@pytest.mark.parametrize(
    ("shape", "count"), [*((shape, 1) for shape in ODD), ("one outlier", 1000)]
)
def test_a_series_of_any_shape_is_judged(shape: str, count: int) -> None:
    """Alone or among tests with more and with fewer sessions, and never against reason."""
    draw = random.Random(5)
    suite = [
        case(
            draw.lognormvariate(0, 0.01),
            [draw.lognormvariate(0, 0.01) for _ in range(1 + n % 6)],
            key=RecordKey(test_id=f"other_{n}"),
        )
        for n in range(count - 1)
    ]
    again = {"same": confirmation(*[1.0] * 5), "slower": confirmation(*[1.6] * 5)}
    same, slower = (
        settle([case(value.run_values[0], ODD[shape]), *suite], {KEY_NAME: value})
        for value in again.values()
    )

    assert len(same) == len(slower) == count
    assert same[0].outcome in {
        Outcome.UNCHANGED,
        Outcome.BLIND,
        Outcome.INCONCLUSIVE,
    }
    found = shape in {"identical", "one outlier", "two sessions"}
    assert (slower[0].outcome is Outcome.REGRESSED) == found
    assert slower[0].change is not None
    assert not {v.outcome for v in slower[1:]} & {Outcome.REGRESSED, Outcome.IMPROVED}


# fresh processes of two speeds

TWICE = (3.1, 1.6, 1.62, 3.2, 1.59)


@pytest.mark.parametrize(
    ("again", "outcome"),
    [
        (TWICE, Outcome.REGRESSED),
        ([1 / time for time in TWICE], Outcome.IMPROVED),
        ((2.0, 1.0, 1.6, 2.1, 1.6), Outcome.INCONCLUSIVE),
        ((1.0, 1.0, 1.6, 1.6, 1.6), Outcome.INCONCLUSIVE),
    ],
)
def test_what_every_fresh_process_shows_is_decided(
    again: Sequence[float], outcome: Outcome
) -> None:
    """A neighbour that slows two of five hides no change that all five have."""
    suite = steady(4)
    first = replace(suite[0], current=confirmation(again[2]).value)
    verdict = settle([first, *suite[1:]], {first.name: confirmation(*again)})[0]

    assert verdict.outcome is outcome
    if outcome is Outcome.REGRESSED:
        assert verdict.change is not None
        assert verdict.change.effect == pytest.approx(0.6, abs=0.05)
        assert verdict.change.low is not None
        assert verdict.change.low > 0.05


# the borders of a first look


@pytest.mark.parametrize(("now", "sign"), [(-2.0, 1), (-6.0, -1)])
def test_at_its_share_of_the_limit_nothing_is_suspected(now: float, sign: int) -> None:
    """A half of its limit, where a half is not enough; either way."""
    metric = metric_of("x", unit="", better=Better.LOWER)
    subject = replace(case(now, (-4.0,) * 5, limit=1.0), metric=metric)
    (at,) = first_look([subject], Policy(suspect_share=0.5))
    (beyond,) = first_look([subject], Policy(suspect_share=0.49))

    assert at.change is not None
    assert at.change.effect == sign * 0.5
    assert not at.suspect
    assert (beyond.worse, beyond.better) == (sign > 0, sign < 0)


def test_noise_is_a_likely_explanation_at_its_border() -> None:
    """Only what is less probable is suspected."""
    subject = case(1.035, THEN)
    (look,) = first_look([subject])
    assert look.change is not None
    p_value = look.change.p_worse
    assert p_value is not None
    above = math.nextafter(p_value, 1.0)

    assert not first_look([subject], Policy(suspect_p=p_value))[0].suspect
    assert first_look([subject], Policy(suspect_p=above))[0].suspect


# suspects


@pytest.mark.parametrize("slower_count", [2, 3])
def test_suspects_say_nothing_of_the_machine_for_those_beside_them(
    slower_count: int,
) -> None:
    """Two of five tests regressed: the other three did not get faster for that."""
    draw = random.Random(5)
    cases = [
        case(
            1.1 if n < slower_count else 1.0,
            [draw.lognormvariate(0, 0.001) for _ in THEN],
            key=RecordKey(test_id=f"t{n}"),
            bound_class=BoundClass.COMPUTE,
        )
        for n in range(5)
    ]
    looks = first_look(cases)
    suspects = [look.suspect for look in looks]
    fresh = {
        one.name: confirmation(*[1.1] * 5)
        for one, suspect in zip(cases, suspects, strict=True)
        if suspect
    }
    verdicts = settle(cases, fresh, looks=looks)

    assert suspects == [n < slower_count for n in range(5)]
    assert [v.outcome for v in verdicts] == [
        Outcome.REGRESSED if suspect else Outcome.UNCHANGED for suspect in suspects
    ]
    for verdict in verdicts[slower_count:]:
        assert verdict.change is not None
        assert abs(verdict.change.machine_shift or 0.0) < 0.001
        assert abs(verdict.change.effect or 0.0) < 0.002
