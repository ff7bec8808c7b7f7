"""Rules of judge.rule for sets of kernels: which ran, and how often."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.verdict import Outcome
from unit.judge.building import case, confirmation, stored


@pytest.mark.parametrize(
    ("count", "sets", "counts", "outcome"),
    [
        (4, "AA", (4, 4), Outcome.REGRESSED),
        (4, "ABAB", (4, 5, 4, 5), Outcome.REGRESSED),
        (1, "ABAB", (4, 5, 4, 5), Outcome.REGRESSED),  # faster, and never seen
        (5, "ACAB", (4, 5, 4, 5), Outcome.UNCHANGED),
    ],
)
def test_a_set_that_no_session_had_regresses(
    count: int, sets: str, counts: Sequence[int], outcome: Outcome
) -> None:
    """Also where an autotuner made stored sessions differ in number."""
    sessions = tuple(
        replace(session, choice=choice)
        for session, choice in zip(
            stored([float(n) for n in counts]), sets, strict=True
        )
    )
    subject = case(
        float(count),
        [],
        "launches.kernels",
        limit=0.0,
        choice="C",
        stored=sessions,
        default_limit=False,
    )
    fresh = confirmation(*[float(count)] * 5, choices=("C",) * 5)
    (verdict,) = settle([subject], {subject.name: fresh})

    assert verdict.outcome is outcome
