"""How much of a run was judged, which verdict speaks for a test, and what fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Reason, Verdict

__all__ = [
    "PRECEDENCE",
    "Complaint",
    "Tally",
    "accepted_outcomes",
    "bars_storing",
    "complaints",
    "expected_failures",
    "fatal_outcomes",
    "tally",
    "worst",
]

# which verdict speaks for a test that has several: the first of these
PRECEDENCE = (
    Outcome.FAILED,
    Outcome.REGRESSED,
    Outcome.UNMEASURED,
    Outcome.INCONCLUSIVE,
    Outcome.INCOMPARABLE,
    Outcome.IMPROVED,
    Outcome.UNCHANGED,
    Outcome.NEW,  # a metric that is not stored yet hides no other's verdict
    Outcome.PASSED,
)


_UNDECIDED = frozenset({Outcome.NEW, Outcome.INCONCLUSIVE, Outcome.INCOMPARABLE})


class Complaint(str, Enum):
    """Why a run fails as a whole, though no test of it may have failed."""

    NOTHING_JUDGED = "nothing-judged"  # although a baseline was named
    TOO_FEW_JUDGED = "too-few-judged"  # fewer than were asked for
    NEVER_REPORTED = "never-reported"  # tests of a strict run


class Tally(Frozen, frozen=True, kw_only=True):
    """
    One verdict for each test of a run.

    Attributes:
        expected_count: Tests that were to be measured.

        verdicts: The worst verdict of each test that has one, by test id.

        unlimited_count: Tests that were measured and had nothing to be judged by.

        missing_count: Tests that never reported.

        empty_count: Tests that reported and measured nothing: skipped, or ended early.

        xfailed_count: Tests that failed by a verdict, as their xfail mark expects; they are
            judged, and none of `verdicts` is theirs.
    """

    expected_count: int
    verdicts: Mapping[str, Verdict]
    unlimited_count: int
    missing_count: int
    empty_count: int = 0
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
        return tuple(v for v in self.verdicts.values() if v.outcome is outcome)


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
    judged = verdicts.keys() | expected
    missing = set(completeness.missing) - judged
    known_count = len(measured | judged | missing)
    return Tally(
        expected_count=max(completeness.expected_count, known_count),
        verdicts=verdicts,
        unlimited_count=len(measured - judged - missing),
        missing_count=len(missing),
        empty_count=max(0, completeness.expected_count - known_count),
        xfailed_count=len(expected),
    )


def expected_failures(run: Run) -> frozenset[str]:
    """Return the ids of the tests that failed by a verdict, as their xfail mark expects."""
    failed = {v.key.test_id for v in run.verdicts if v.outcome in FAILING}
    return frozenset(failed.intersection(run.xfailed))


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """
    Return the verdict that speaks for all; of equal ones the first.

    Args:
        verdicts: One or more.
    """
    first, *others = verdicts
    if not others:  # nearly always, and it is asked several times for each row
        return first
    return min((first, *others), key=lambda verdict: PRECEDENCE.index(verdict.outcome))


def fatal_outcomes(config: Config) -> frozenset[Outcome]:
    """Return the outcomes for which a run fails a test."""
    fatal = {Outcome.FAILED}
    # a store that was only found shows; an update of all accepts what regressed
    if config.baseline_named and config.update is not Update.ALL:
        fatal.add(Outcome.REGRESSED)
    if config.strict:
        fatal |= _UNDECIDED
    return frozenset(fatal)


def accepted_outcomes(update: Update | None) -> frozenset[Outcome]:
    """Return the outcomes whose value becomes the baseline in place of what is stored."""
    if update is Update.ALL:
        return frozenset({Outcome.IMPROVED, Outcome.REGRESSED})
    return frozenset({Outcome.IMPROVED} if update is Update.IMPROVED else ())


def bars_storing(verdicts: Iterable[Verdict]) -> bool:
    """Return whether a measurement must not be stored: it failed, or nobody can tell."""
    return any(
        verdict.outcome is Outcome.FAILED
        or (
            verdict.limit is None
            and verdict.outcome is Outcome.INCONCLUSIVE
            and verdict.reason is not Reason.TOO_FEW_SESSIONS
        )
        for verdict in verdicts
    )


def complaints(run: Run, counted: Tally, config: Config) -> Iterator[Complaint]:
    """
    Yield why a run fails as a whole.

    Args:
        run: The run, judged.

        counted: Its tally.

        config: What it was asked to do.
    """
    gated = config.max_regression is not None or counted.verdicts
    decides = config.baseline_named and config.update is None and not config.disable
    if gated and decides and counted.expected_count and not _took_place(run):
        yield Complaint.NOTHING_JUDGED
    least = config.min_judged
    if least is not None and counted.judged_fraction < least:
        yield Complaint.TOO_FEW_JUDGED
    if config.strict and counted.missing_count:
        yield Complaint.NEVER_REPORTED


def _took_place(run: Run) -> bool:
    """
    Return whether anything was held against a limit or a baseline.

    What noise left open was compared all the same: the gate was on. That an unchanged
    suite of few tests fails for noise would make people switch it off.
    """
    return any(
        verdict.outcome in JUDGED
        or (verdict.change is not None and verdict.change.p_worse is not None)
        for verdict in run.verdicts
        if verdict.decides
    )
