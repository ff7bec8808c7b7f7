"""Verdicts on values that a test did not get, or that do not count."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import RecordKey, VoidCode
from pytest_gpuperf.model.run import Measured
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict, VerdictEvidence


def lacking(measured: Measured) -> list[Verdict]:
    """Return verdicts on void values, and on values that a test requested but did not get."""
    verdicts = []
    for refusal in measured.refusals:
        reporting = (
            record
            for record in measured.records
            if (record.void is not None and record.void.gap.code is refusal.code)
            or any(gap.metric == refusal.metric for gap in record.unmeasured)
        )
        # The first record that reports the gap, else the first record.
        asked = next(chain(reporting, measured.records), None)
        verdicts.append(
            Verdict(
                key=asked.key if asked else RecordKey(test_id=measured.test_id),
                metric=refusal.metric,
                outcome=Outcome.UNMEASURED,
                reason=Reason.NOT_MEASURED,
                evidence=VerdictEvidence(gap=refusal),
            )
        )
    for record in measured.records:
        void = record.void
        if void is None or void.code is VoidCode.DISABLED:
            continue
        if any(verdict.key == record.key for verdict in measured.verdicts):
            continue
        measured_it = bool(record.estimates)
        verdicts.append(
            Verdict(
                key=record.key,
                metric="time",
                outcome=Outcome.INCONCLUSIVE if measured_it else Outcome.UNMEASURED,
                reason=Reason.VOID if measured_it else Reason.NOT_MEASURED,
                evidence=VerdictEvidence(gap=Unmeasured.of_metric("time", void.gap)),
            )
        )
    return verdicts


def without_repeats(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Drop the verdict on a void value if the test has also been refused that value."""
    refused = {
        verdict.key
        for verdict in verdicts
        if verdict.outcome is Outcome.UNMEASURED
        and verdict.evidence is not None
        and verdict.evidence.gap is not None
        and verdict.evidence.gap.code is GapCode.VOID
    }
    return [
        verdict
        for verdict in verdicts
        if verdict.reason is not Reason.VOID or verdict.key not in refused
    ]


def lost_alone(test_id: str, failure: str) -> Verdict:
    """
    Return the verdict on a test that gave no value in a fresh process.

    Args:
        test_id: The test.

        failure: The last lines of that process.
    """
    return Verdict(
        key=RecordKey(test_id=test_id),
        metric="time",
        outcome=Outcome.FAILED,
        reason=Reason.CHILD_GAVE_NO_VALUE,
        evidence=VerdictEvidence(lines=tuple(failure.splitlines())),
    )
