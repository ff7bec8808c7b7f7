"""Count the judged tests of a run, choose the verdict of each test, and decide what fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum

from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.judge.case import POLICY
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Reason, Verdict

# The verdict of a test is the first of these.
PRECEDENCE = (
    Outcome.FAILED,
    Outcome.REGRESSED,
    Outcome.UNMEASURED,
    Outcome.INCONCLUSIVE,
    Outcome.IMPROVED,
    Outcome.BLIND,
    Outcome.UNCHANGED,
    # A kept limit counts even if the baseline has nothing to compare.
    Outcome.PASSED,
    Outcome.INCOMPARABLE,
    Outcome.NEW,
)


_UNDECIDED = frozenset({Outcome.NEW, Outcome.INCONCLUSIVE, Outcome.INCOMPARABLE})
# A decided verdict takes precedence over these.
_OPEN = _UNDECIDED | {Outcome.BLIND}


class Complaint(str, Enum):
    """The reasons why a run fails as a whole, although no test of it may have failed."""

    # Nothing was compared, although a baseline was named.
    NOTHING_COMPARED = "nothing-compared"
    # Nothing was decided, although a revision was named.
    NOTHING_AGAINST = "nothing-against"
    # Measuring was disabled outside of the command line, which names a store.
    NOTHING_JUDGED = "nothing-judged"
    # Fewer tests were judged than requested.
    TOO_FEW_JUDGED = "too-few-judged"
    NEVER_REPORTED = "never-reported"  # Only in a strict run.
    NOT_MEASURED = "not-measured"  # Stored tests, only in a strict run.


class Tally(Frozen, frozen=True, kw_only=True):
    """
    One verdict per test of a run.

    Attributes:
        expected_count: Number of tests to be measured.

        verdicts: The deciding verdict of each test that has one, by test id.

        open_beside: The worst undecided verdict of tests that another verdict decided, by
            test id. Typically a limit was kept and the value could not be compared.

        asserted_count: Tests without a verdict whose own asserts on a value held. They
            count as judged.

        own_failed_count: Tests whose own assert on a value failed. They count as judged.

        broken_count: Tests that failed before anything was judged.

        skipped_count: Tests that measured, but ended by a skip or an expected failure
            before anything was judged.

        ungated_count: Tests without a gated metric.

        unlimited_count: Other tests that were measured and had nothing to be judged by.

        absent_count: Stored tests that no longer exist in the files collected by this run.

        left_out_count: Stored tests that a plugin left out of this run.

        due_count: Stored tests without a measurement, although the newest session with the
            same selection measured them.

        missing_count: Tests that never reported.

        empty_count: Tests that reported and measured nothing, because they were skipped or
            ended early.

        one_sided_count: Tests that the revision does not have, with nothing else to be
            judged by.

        xfailed_count: Tests that failed by a verdict, as their xfail mark expects. They
            count as judged and have no entry in `verdicts`.

        drifted_count: Tests with a value that drifted over many sessions.

        noise_fraction: Usual difference between the sessions of this machine, if too large
            for a stored baseline. None if acceptable or unknown.
    """

    expected_count: int
    verdicts: Mapping[str, Verdict]
    open_beside: Mapping[str, Verdict]
    asserted_count: int
    broken_count: int
    ungated_count: int
    unlimited_count: int
    missing_count: int
    absent_count: int = 0
    left_out_count: int = 0
    due_count: int = 0
    empty_count: int = 0
    one_sided_count: int = 0
    skipped_count: int = 0
    own_failed_count: int = 0
    xfailed_count: int = 0
    drifted_count: int = 0
    noise_fraction: float | None = None

    @property
    def judged_count(self) -> int:
        """Number of tests with a decided verdict, or with an assert of their own on a value."""
        judged = len([v for v in self.verdicts.values() if v.outcome in JUDGED])
        own_count = self.asserted_count + self.own_failed_count
        return judged + self.xfailed_count + own_count

    @property
    def judged_fraction(self) -> float:
        """Fraction of the intended tests that were judged, or 1 if there are none."""
        return self.judged_count / self.meant_count if self.meant_count else 1.0

    @property
    def meant_count(self) -> int:
        """Number of expected tests, plus the tests of the baseline that are missing."""
        return self.expected_count + self.absent_count + self.left_out_count

    def of(self, outcome: Outcome) -> tuple[Verdict, ...]:
        """Return the verdicts with an outcome, by test."""
        return tuple([v for v in self.verdicts.values() if v.outcome is outcome])


def tally(run: Run) -> Tally:
    """Return the tally of a run."""
    by_test: dict[str, list[Verdict]] = {}
    expected = expected_failures(run)
    for verdict in run.verdicts:
        if verdict.decides and verdict.key.test_id not in expected:
            by_test.setdefault(verdict.key.test_id, []).append(verdict)
    verdicts = {test_id: speaking(several) for test_id, several in by_test.items()}
    measured = {record.key.test_id for record in run.records}
    completeness = run.header.completeness
    judged = verdicts.keys() | expected
    missing = set(completeness.missing) - judged
    broken = set(run.broken) - judged - missing
    known_count = len(measured | judged | missing | broken)
    own_failed = {one.key.test_id for one in run.missed} - judged - missing
    rest = measured - judged - missing - broken - own_failed
    asserted = rest.intersection(run.asserted)
    skipped = rest.intersection(run.skipped)
    rest -= asserted | skipped
    one_sided = rest.intersection(
        run.against.only_new if run.against is not None else ()
    )
    ungated = _ungated(run, rest - one_sided)
    open_ = {
        test_id: undecided
        for test_id, several in by_test.items()
        if (undecided := [each for each in several if each.outcome in _OPEN])
        and verdicts[test_id].outcome in JUDGED
    }
    return Tally(
        expected_count=max(completeness.expected_count, known_count),
        verdicts=verdicts,
        open_beside={test_id: worst(several) for test_id, several in open_.items()},
        asserted_count=len(asserted),
        broken_count=len(broken),
        ungated_count=len(ungated),
        unlimited_count=len(rest - one_sided - ungated),
        missing_count=len(missing),
        absent_count=len(completeness.absent),
        left_out_count=len(completeness.left_out),
        due_count=len(completeness.due),
        empty_count=max(0, completeness.expected_count - known_count),
        one_sided_count=len(one_sided),
        skipped_count=len(skipped),
        own_failed_count=len(own_failed),
        xfailed_count=len(expected),
        drifted_count=len([1 for v in by_test.values() if any(map(has_drifted, v))]),
        noise_fraction=_noise_fraction(run),
    )


def _ungated(run: Run, test_ids: AbstractSet[str]) -> set[str]:
    """Return the tests that only recorded numbers, if other tests of the run are compared."""
    options = run.header.options
    compared = any(verdict.limit is None for verdict in run.verdicts)
    if not compared and "gpuperf_baseline" not in options:
        return set()  # The baseline itself is missing.
    if "gpuperf_disable" in options or options.get("gpuperf_max_regression") == "off":
        return set()  # Nothing is gated anywhere.
    metrics: dict[str, set[str]] = {}
    for record in run.records:
        names = {estimate.metric for estimate in record.estimates}
        metrics.setdefault(record.key.test_id, set()).update(names)
    return {t for t in test_ids if metrics[t] and "time" not in metrics[t]}


def _noise_fraction(run: Run) -> float | None:
    """Return the usual difference between sessions, or None if a stored baseline can work."""
    spreads = [
        verdict.change.session_spread
        for verdict in run.verdicts
        # For blocks this is the spread of the blocks.
        if verdict.against is None
        and verdict.change is not None
        and verdict.change.session_spread is not None
        # With one stored session this is only the prior.
        and verdict.change.session_count >= POLICY.least_sessions
    ]
    most = max(spreads, default=0.0)
    return most if most > POLICY.noisy_spread else None


def expected_failures(run: Run) -> frozenset[str]:
    """Return the ids of the tests that failed by a verdict, as expected by an xfail mark."""
    failed = {v.key.test_id for v in run.verdicts if v.outcome in FAILING}
    return frozenset(failed.intersection(run.xfailed))


def speaking(verdicts: Sequence[Verdict]) -> Verdict:
    """
    Return the deciding verdict of a test, preferring decided verdicts to undecided.

    A limit and a change are separate judgements. A limit that was kept stays *passed*, even
    if the value could not be compared with a baseline.

    Args:
        verdicts: One or more verdicts of a test.
    """
    if len(verdicts) == 1:  # Nearly always, and called several times for each row.
        return verdicts[0]
    first = worst(verdicts)
    if first.outcome not in _OPEN:
        return first
    decided = [verdict for verdict in verdicts if verdict.outcome in JUDGED]
    return worst(decided) if decided else first


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """
    Return the verdict with the highest precedence, the first in a tie.

    Args:
        verdicts: One or more verdicts.
    """
    return min(verdicts, key=lambda verdict: PRECEDENCE.index(verdict.outcome))


def is_fatal(verdict: Verdict, config: Config) -> bool:
    """Return True if a verdict makes the test fail."""
    if verdict.outcome is Outcome.FAILED:
        return True
    if verdict.outcome is Outcome.REGRESSED:
        # A store that was only found does not gate, and an update of all accepts
        # regressions.
        gated = config.baseline_named and config.update is not Update.ALL
        return gated or verdict.of_revision
    if config.strict and has_drifted(verdict):
        return True
    if verdict.outcome is Outcome.IMPROVED and config.fails_better:
        is_sure = verdict.reason is not Reason.NOT_CONFIRMED
        return is_sure and not verdict.of_revision
    if verdict.outcome is Outcome.BLIND:
        return config.strict and not verdict.default_limit
    return config.strict and verdict.outcome in _UNDECIDED


def has_drifted(verdict: Verdict) -> bool:
    """Return True if the stored sessions of a verdict's value drifted to the worse."""
    return verdict.change is not None and verdict.change.drift is not None


def accepted_outcomes(update: Update | None) -> frozenset[Outcome]:
    """Return the outcomes that replace the stored baseline."""
    if update is Update.ALL:
        return frozenset({Outcome.IMPROVED, Outcome.REGRESSED})
    return frozenset({Outcome.IMPROVED} if update is Update.IMPROVED else ())


def complaints(run: Run, counted: Tally, config: Config) -> Iterator[Complaint]:
    """
    Yield the reasons why a run fails as a whole.

    Args:
        run: The judged run.

        counted: The tally of the run.

        config: The configuration of the run.
    """
    changes = [
        v for v in run.verdicts if v.decides and v.limit is None and not v.of_revision
    ]
    gated = config.max_regression is not None or changes
    decides = config.baseline_named and config.update is None and not config.disable
    compared = any(map(_was_compared, changes))
    meant = counted.meant_count
    # Tests that use no changed file are not measured, and may be nearly all.
    unchanged = run.header.completeness.unchanged
    if gated and decides and meant and not compared and not unchanged:
        yield Complaint.NOTHING_COMPARED
    if config.disabled_aside and meant:
        yield Complaint.NOTHING_JUDGED
    decided = any(v.outcome in JUDGED for v in revision_verdicts(run))
    if config.against is not None and not decided and (meant or not unchanged):
        yield Complaint.NOTHING_AGAINST
    least = config.min_judged
    if least is not None and counted.judged_fraction < least:
        yield Complaint.TOO_FEW_JUDGED
    if config.strict and counted.missing_count:
        yield Complaint.NEVER_REPORTED
    if config.strict and decides and counted.due_count:
        yield Complaint.NOT_MEASURED


def revision_verdicts(run: Run) -> tuple[Verdict, ...]:
    """
    Return the verdicts that show if a run was compared with the revision.

    Tests that use no changed file do not count if the remaining tests could not be
    compared.
    """
    is_refused = run.against is not None and run.against.gap is not None
    return tuple(
        verdict
        for verdict in run.verdicts
        if verdict.of_revision
        and not (is_refused and verdict.reason is Reason.SAME_FILES)
    )


def _was_compared(verdict: Verdict) -> bool:
    """
    Return True if a value was compared with the baseline.

    A value that noise left undecided was compared: the gate was on. If noise made an
    unchanged suite of few tests fail, people would switch the gate off. A single stored
    session is not a comparison, whichever change it shows.
    """
    if verdict.outcome in JUDGED:
        return True
    change = verdict.change
    with_chance = change is not None and change.p_worse is not None
    few = verdict.reason is Reason.TOO_FEW_SESSIONS
    return with_chance and not few and verdict.reason is not Reason.VOID
