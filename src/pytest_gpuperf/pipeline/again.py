"""Tests measured again in fresh processes, or as they were recorded; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuperf.model.record import Record, Role
from pytest_gpuperf.pipeline import verdicts
from pytest_gpuperf.pipeline.repeat import repeat, seats_of

if TYPE_CHECKING:
    from pytest_gpuperf.judge.regression import Case
    from pytest_gpuperf.pipeline.suite import Suite

__all__ = ["Again", "confirm_suspects", "measure_again"]

_LEAST_TIMEOUT_S = 300.0  # a process may have to compile everything anew
_TIMEOUT_RATIO = 10  # so many times what the whole run took so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """
    What fresh processes gave for one test.

    Attributes:
        records: What each of them measured.

        failure: Why one of them gave nothing; "" where all gave something.
    """

    records: tuple[Record, ...]
    failure: str


def measure_again(suite: Suite) -> None:
    """Measure every test once more in each of --gpuperf-runs processes but the first."""
    test_ids = [test_id for test_id in suite.results if test_id in suite.passed]
    count = suite.config.runs - 1
    if count and test_ids:
        _again(suite, test_ids, Role.REPEAT, count)


def confirm_suspects(suite: Suite, cases: Sequence[Case]) -> Mapping[str, Again]:
    """Return what fresh processes gave for each suspect, and for the controls."""
    count = suite.config.confirm
    suspects = verdicts.suspected(suite, cases)
    if not count or not suspects:
        return {}
    controls = verdicts.controls(suite, cases, suspects)
    return _again(suite, [*suspects, *controls], Role.CONFIRM, count)


def _again(
    suite: Suite, test_ids: Sequence[str], role: Role, count: int
) -> Mapping[str, Again]:
    """Return what fresh processes of one role gave; the suite keeps it too."""
    recording = suite.bench.recording
    if recording is not None:
        records = recording.of_role(role, test_ids)
        failures: dict[str, str] = {}
    else:
        runs = repeat(
            suite.command,
            test_ids,
            seats=seats_of(suite.bench.seat, role, count),
            runner=suite.bench.runner,
            timeout_s=max(_LEAST_TIMEOUT_S, _TIMEOUT_RATIO * suite.elapsed_s()),
        )
        records = [r for run in runs for a in run.answers.values() for r in a.records]
        failures = {
            test_id: text
            for run in reversed(runs)
            for test_id in test_ids
            if (text := run.failure_of(test_id))
        }
    suite.add(records, failures)
    return {
        test_id: Again(
            records=tuple(r for r in records if r.key.test_id == test_id),
            failure=failures.get(test_id, ""),
        )
        for test_id in test_ids
    }
