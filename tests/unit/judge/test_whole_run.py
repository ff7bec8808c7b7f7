"""judge.regression: what a change owes to the rest of its run and to the policy."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from pytest_gpuperf.compute.change import changes
from pytest_gpuperf.judge.case import Case, Policy
from pytest_gpuperf.judge.regression import (
    baseline_priors,
    first_look,
    priors_of,
    settle,
    shown,
)
from pytest_gpuperf.judge.rule import comparable
from pytest_gpuperf.model.change import Level
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import Better, metric_of
from pytest_gpuperf.model.record import (
    BoundClass,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from unit.judge.building import case, confirmation, session, stored

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


def test_a_baseline_knows_variances_by_metric_and_family() -> None:
    """A time that the host took is none of the device's."""
    known = baseline_priors([*records(10), *records(9, "cupti")])

    assert known.keys() == {"time host-time"}


def test_a_baseline_of_one_session_knows_no_variance() -> None:
    """A single value does not vary."""
    assert baseline_priors(records(10)[::2]) == {}


# the policy


def of_two_choices() -> list[Case]:
    """Steady tests, whose kernels have two stored sessions, and other kernels four."""
    draw = random.Random(5)
    return [
        case(
            1.1,
            (),
            key=RecordKey(test_id=f"{n}"),
            stored=(
                *stored([draw.lognormvariate(0, 0.01) for _ in range(2)]),
                *stored([draw.lognormvariate(0, 0.3) for _ in range(4)], choice="B"),
            ),
        )
        for n in range(12)
    ]


def test_variances_are_those_of_the_sessions_that_the_policy_compares() -> None:
    """Two sessions of the own kernels, where the policy asks for two."""
    policy = Policy(least_sessions=2)
    cases = of_two_choices()
    free = [replace(c, limit=None) for c in cases]
    known = priors_of(cases, policy)

    assert known != priors_of(cases)
    assert first_look(cases, policy) == first_look(cases, policy, priors=known)
    assert settle(cases, {}, policy) == settle(cases, {}, policy, priors=known)
    assert shown(free, policy) == shown(free, policy, priors=known)


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
    level = Level(alpha=0.02, pair_count=noisy, noise_threshold=0.01, power=0.7)
    compared = comparable(several[0], policy)
    assert compared is not None
    (expected,) = changes([compared], priors={}, level=level)
    found = settle([*several, *exact], {}, policy, priors={})[0]

    assert found.change == expected


def test_a_shift_of_one_class_leaves_the_run_as_large_as_it_is() -> None:
    """What was taken out of a class makes its changes no surer."""
    moved = steady(12, bound_class=BoundClass.MEMORY)
    others = steady(30, "time.p50", bound_class=BoundClass.COMPUTE)
    again = {c.name: confirmation(1.1, control=True) for c in moved[1:9]}
    again[moved[0].name] = confirmation(1.1)
    alone = settle(moved, again, priors={})[0].change
    among = settle([*moved, *others], again, priors={})[0].change

    assert alone is not None
    assert among is not None
    assert alone.machine_shift == pytest.approx(0.1, abs=0.02)
    assert among.machine_shift == alone.machine_shift
    assert alone.detectable_effect is not None
    assert among.detectable_effect is not None
    assert among.detectable_effect > alone.detectable_effect


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
