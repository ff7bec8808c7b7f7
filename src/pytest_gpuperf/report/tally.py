"""How many tests were judged, one verdict a test; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.verdict import JUDGED, Outcome, Verdict

__all__ = ["PRECEDENCE", "Tally", "expected_failures", "tally", "worst"]

# which verdict speaks for a test that has several: the first of these
PRECEDENCE = (
    Outcome.FAILED,
    Outcome.REGRESSED,
    Outcome.UNMEASURED,
    Outcome.INCONCLUSIVE,
    Outcome.INCOMPARABLE,
    Outcome.NEW,
    Outcome.IMPROVED,
    Outcome.UNCHANGED,
    Outcome.PASSED,
)


class Tally(Frozen, frozen=True, kw_only=True):
    """
    One verdict for each test of a run.

    Attributes:
        expected_count: Tests that were to be measured.

        verdicts: The worst verdict of each test that has one, by test id.

        unlimited_count: Tests that were measured and had nothing to be judged by.

        missing_count: Tests that never reported.

        xfailed_count: Tests that missed a limit, as their xfail mark expects; they are
            judged, and none of `verdicts` is theirs.
    """

    expected_count: int
    verdicts: Mapping[str, Verdict]
    unlimited_count: int
    missing_count: int
    xfailed_count: int = 0

    @property
    def judged_count(self) -> int:
        """Tests whose verdict decides something."""
        judged = sum(verdict.outcome in JUDGED for verdict in self.verdicts.values())
        return judged + self.xfailed_count

    @property
    def judged_fraction(self) -> float:
        """Judged tests of those expected; 1 where none was expected."""
        if not self.expected_count:
            return 1.0
        return self.judged_count / self.expected_count

    def of(self, outcome: Outcome) -> tuple[Verdict, ...]:
        """Return the verdicts of one outcome, by test."""
        return tuple(each for each in self.verdicts.values() if each.outcome is outcome)


def tally(run: Run) -> Tally:
    """Return one verdict for each test of a run."""
    by_test: dict[str, list[Verdict]] = {}
    expected = expected_failures(run)
    for verdict in run.verdicts:
        if verdict.decides and verdict.key.test_id not in expected:
            by_test.setdefault(verdict.key.test_id, []).append(verdict)
    verdicts = {test_id: worst(several) for test_id, several in by_test.items()}
    measured = {record.key.test_id for record in run.records}
    completeness = run.header.completeness
    told = verdicts.keys() | expected
    missing = set(completeness.missing) - told
    known = len(measured | told | missing)
    return Tally(
        expected_count=max(completeness.expected_count, known),
        verdicts=verdicts,
        unlimited_count=len(measured - told - missing),
        missing_count=len(missing),
        xfailed_count=len(expected),
    )


def expected_failures(run: Run) -> frozenset[str]:
    """Return the ids of the tests that missed a limit, as their xfail mark expects."""
    failed = {v.key.test_id for v in run.verdicts if v.outcome is Outcome.FAILED}
    return frozenset(failed.intersection(run.xfailed))


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """
    Return the verdict that speaks for all; of equal ones the first.

    Args:
        verdicts: One or more.
    """
    return min(verdicts, key=lambda verdict: PRECEDENCE.index(verdict.outcome))
