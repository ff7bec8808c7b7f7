"""Tests measured again in fresh processes, or as they were recorded; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.model.record import Role
from pytest_gpuperf.pipeline.repeat import repeat, seats_of
from pytest_gpuperf.pipeline.verdicts import Again

if TYPE_CHECKING:
    from pytest_gpuperf.pipeline.suite import Suite
    from pytest_gpuperf.pipeline.verdicts import Looked

__all__ = ["confirm", "measure_again"]

_LEAST_TIMEOUT_S = 300.0  # a process may have to compile everything anew
_TIMEOUT_RATIO = 10  # so many times what the whole run took so far


def measure_again(suite: Suite) -> None:
    """Measure every test once more in each of --gpuperf-runs processes but the first."""
    test_ids = [test_id for test_id in suite.results if test_id in suite.passed]
    answers = _again(suite, test_ids, Role.REPEAT, suite.config.runs - 1)
    suite.failed_alone |= {
        test_id: again.failure for test_id, again in answers.items() if again.failure
    }


def confirm(suite: Suite, looked: Looked) -> Mapping[str, Again]:
    """Return what fresh processes gave for each suspect, and for the controls."""
    test_ids = [*looked.suspects, *looked.controls] if looked.suspects else []
    return _again(suite, test_ids, Role.CONFIRM, suite.config.confirm)


def _again(
    suite: Suite, test_ids: Sequence[str], role: Role, count: int
) -> Mapping[str, Again]:
    """Return what fresh processes of one role gave; the suite keeps their records."""
    if not count or not test_ids:
        return {}
    recording = suite.bench.recording
    failures: dict[str, str] = {}
    if recording is not None:
        records = recording.of_role(role, test_ids)
        test_ids = list(dict.fromkeys(record.key.test_id for record in records))
    else:
        runs = repeat(
            suite.command,
            test_ids,
            seats=seats_of(suite.bench.seat, role, count),
            runner=suite.bench.runner,
            timeout_s=max(_LEAST_TIMEOUT_S, _TIMEOUT_RATIO * suite.elapsed_s()),
        )
        records = [r for run in runs for a in run.answers.values() for r in a.records]
        for run in reversed(runs):  # the first failure is the one that is told
            found = {test_id: run.failure_of(test_id) for test_id in test_ids}
            failures |= {test_id: text for test_id, text in found.items() if text}
    suite.add(records)
    return {
        test_id: Again(
            records=tuple(r for r in records if r.key.test_id == test_id),
            failure=failures.get(test_id, ""),
        )
        for test_id in test_ids
    }
