"""How much of a run was judged and stored, and why not the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.verdict import JUDGED, Outcome, Verdict
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.lines import STYLES, Line, Style

__all__ = [
    "PRECEDENCE",
    "XFAILED",
    "Tally",
    "expected_failures",
    "judged_line",
    "nothing_stored",
    "stored_line",
    "tally",
    "worst",
]

XFAILED = "xfailed"  # pytest's word for a failure that is expected
_SHOWN_REASONS = 2  # of one outcome in the last line; more are counted
_JUDGED_ORDER = ("failed", "regressed", "improved", "unchanged", "passed")
_OPEN_ORDER = ("inconclusive", "unmeasured", "incomparable", "new")

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
        empty_count=max(0, completeness.expected_count - known),
        xfailed_count=len(expected),
    )


def expected_failures(run: Run) -> frozenset[str]:
    """Return the ids of the tests that failed by a verdict, as their xfail mark expects."""
    failed = {v.key.test_id for v in run.verdicts if v.outcome in words.LOUD}
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
    return min((first, *others), key=lambda each: PRECEDENCE.index(each.outcome))


def judged_line(run: Run) -> Line:
    """Return the last line: how many tests were judged, and why the others were not."""
    counted = tally(run)
    decided = [_counted(counted, name) for name in _JUDGED_ORDER]
    if counted.xfailed_count:
        decided.append(f"{counted.xfailed_count} {XFAILED}")
    undecided = [_counted(counted, name) for name in _OPEN_ORDER]
    undecided = _unlimited(counted, run.header.options, undecided)
    if counted.missing_count:
        undecided.append(f"{counted.missing_count} never reported")
    if counted.empty_count:
        undecided.append(f"{counted.empty_count} without a measurement")
    if run.header.completeness.interrupted:
        undecided.append(display.escape(run.header.completeness.interrupted))
    parts = (", ".join(filter(None, some)) for some in (decided, undecided))
    text = "; ".join(filter(None, parts))
    head = f"judged {counted.judged_count} of {counted.expected_count}"
    style = Style.BAD if not counted.judged_count else _gravest(counted)
    return Line(f"{head}: {text}" if text else head, style)


def nothing_stored(why: str) -> str:
    """Return the line of a run that was to store and did not."""
    return f"nothing was stored: {why}"


def stored_line(
    changes: Mapping[str, Sequence[object]],
    place: str,
    barred_count: int,
    alone_count: int = 0,
) -> str:
    """
    Return the line that says what was stored, and where.

    Args:
        changes: Stored sessions by GPU, chip or host.

        place: The store.

        barred_count: Measurements that must not be stored.

        alone_count: Of those stored, what was slower in the suite than alone.
    """
    count = sum(map(len, changes.values()))
    barred = display.plural(barred_count, "measurement")
    left_out = f"{barred} failed, void or inconclusive" if barred_count else ""
    if not count:
        return nothing_stored(left_out or "every series has what it needs")
    stored = display.plural(count, "measurement")
    folders = ", ".join(sorted(changes))
    text = display.escape(f"stored {stored} in {place} ({folders})")
    if alone_count:
        text += (
            f", {alone_count} of them as fresh processes measured, not the suite, where"
            " it was slower"
        )
    return f"{text}; not stored: {left_out}" if left_out else text


def _unlimited(
    counted: Tally, options: Mapping[str, str], undecided: list[str]
) -> list[str]:
    """Return what was not decided, with the tests that nothing could decide."""
    count = counted.unlimited_count
    if (
        "gpuperf_disable" in options
    ):  # whatever a test says of it: one reason, said once
        count += len(counted.of(Outcome.UNMEASURED))
        undecided = [_counted(counted, n) for n in _OPEN_ORDER if n != "unmeasured"]
        why = "disabled"
    elif options.get("gpuperf_max_regression", "").strip() == "off":
        why = "only shown"
    else:
        why = "without marker limit or baseline"
    return [*undecided, f"{count} {why}"] if count else undecided


def _gravest(counted: Tally) -> Style:
    """Return the style of the worst verdict."""
    if not counted.verdicts:
        return Style.DOUBT
    gravest = worst(counted.verdicts.values()).outcome
    good = gravest in JUDGED and gravest not in words.LOUD
    return STYLES[Outcome.NEW if good and counted.of(Outcome.NEW) else gravest]


def _counted(counted: Tally, name: str) -> str:
    """Return how many tests have an outcome, and what the reader should know of it."""
    verdicts = counted.of(Outcome(name))
    if not verdicts:
        return ""
    if name == "unchanged":
        aside = _blind(verdicts)
    else:
        aside = _why(verdicts) if name in _OPEN_ORDER[:3] else ""
    return f"{len(verdicts)} {name}{f' ({aside})' if aside else ''}"


def _blind(verdicts: Sequence[Verdict]) -> str:
    """Return how many unchanged tests could not have seen a change of the limit's size."""
    limits = [
        verdict.threshold
        for verdict in verdicts
        if verdict.change is not None
        and verdict.threshold is not None
        and (verdict.change.detectable_effect or 0.0) > verdict.threshold
    ]
    if not limits:
        return ""
    same = len(set(limits)) == 1
    below = display.exactly(limits[0], "fraction") if same else "their limits"
    return f"{len(limits)} blind below {below}"


def _why(verdicts: Sequence[Verdict]) -> str:
    """Return why tests were not judged, the most frequent reason first."""
    reasons = Counter(
        display.escape(verdict.detail[0])
        if verdict.outcome is Outcome.UNMEASURED and verdict.detail
        else words.short(verdict.reason)
        for verdict in verdicts
    )
    if len(reasons) == 1:
        return next(iter(reasons))
    most = reasons.most_common(_SHOWN_REASONS)
    texts = [f"{count} {reason}" for reason, count in most]
    if len(reasons) > _SHOWN_REASONS:
        left = len(verdicts) - sum(count for _, count in most)
        texts.append(f"{left} other{'s' if left > 1 else ''}")
    return ", ".join(texts)
