"""The rules of judge/explain: what a value is worth, without words."""

from __future__ import annotations

import pytest

from pytest_gpuperf.judge.explain import evidence_of_estimate, evidence_of_verdict
from pytest_gpuperf.judge.grammar import parse_limit
from pytest_gpuperf.judge.limit import judge_limit
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.model.record import Note
from pytest_gpuperf.model.sample import Series, SourceLabel
from unit.judge.building import case, estimate, record

NOTE = Note(code="trend", text="it rises")


def test_a_plain_value_brings_its_origin() -> None:
    """Unit, spread, samples, source and notes stand beside a value."""
    value = estimate(2.0, low=1.9, high=2.1, sample_count=40)
    series = Series(
        metric="time", unit="s", source="cupti", values=(), discarded_count=3
    )
    found = evidence_of_estimate(value, record(value, series=(series,), notes=(NOTE,)))

    assert (found.value, found.unit, found.source) == (2.0, "s", "cupti")
    assert found.half_width_fraction == pytest.approx(0.05)
    assert (found.sample_count, found.discarded_count) == (40, 3)
    assert found.notes == (NOTE,)
    assert found.label is SourceLabel.MEASURED
    assert evidence_of_estimate(estimate(2.0)).half_width_fraction is None


def test_a_limits_evidence_has_the_interval_that_decided() -> None:
    """The spread between sessions, not that of the samples."""
    value = estimate(50e-6, low=49.9e-6, high=50.1e-6)
    limit = parse_limit("time <= 60 us")
    found = evidence_of_verdict(judge_limit(limit, record(value)), record(value))

    assert found.limit == limit
    assert found.low is not None
    assert found.low < 49e-6
    assert found.half_width_fraction == pytest.approx(0.0386, abs=0.001)


def test_a_changes_evidence_has_its_baseline() -> None:
    """Effect and sessions of the comparison."""
    (verdict,) = settle([case(1.0, (1.0, 1.01, 0.99))])
    found = evidence_of_verdict(verdict)

    assert found.change is verdict.change
    assert found.baseline is verdict.baseline
    assert found.value == 1.0


def test_what_was_not_measured_has_no_value() -> None:
    """An unmeasured limit is evidence of nothing."""
    found = evidence_of_verdict(judge_limit(parse_limit("energy <= 1 J"), record()))
    assert (found.value, found.unit, found.sample_count) == (None, "", 0)
    assert found.label is SourceLabel.UNAVAILABLE
