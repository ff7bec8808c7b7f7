"""The rules of judge/rows: other kernels, and the values that are compared."""

from __future__ import annotations

import pytest

from fakes.runs import kernel_use
from pytest_gpuperf.judge.case import Case, Policy
from pytest_gpuperf.judge.origin import with_kernels
from pytest_gpuperf.judge.rule import (
    comparable,
    comparison_of,
    early_verdict,
    may_change,
)
from pytest_gpuperf.judge.ruling import kernel_verdict
from pytest_gpuperf.model.activity import ActivitySummary
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.kernel import KernelTotal
from pytest_gpuperf.model.record import Record, Role, StoredRecord
from pytest_gpuperf.model.verdict import (
    KernelChoice,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)
from unit.judge.building import (
    KEY,
    case,
    confirmation,
    estimate,
    record,
    session,
    stored,
)

OLD, NEW = "0123456789abcdef", "fedcba9876543210"
REPORTED = estimate(1.2, source="ncu-report")


def of_choices(choices: tuple[str | None, ...], metric: str = "time") -> Case:
    """A case each stored session of which made a choice of its own."""
    sessions = tuple(s for made in choices for s in stored([1.0], choice=made))
    return case(1.0, (), metric, stored=sessions, choice=OLD)


@pytest.mark.parametrize(
    ("then", "before"),
    [
        ((OLD, OLD, NEW), OLD),
        ((None, None, NEW), None),
    ],
)
def test_other_kernels_are_told_with_how_many_ran_them(
    then: tuple[str | None, ...], before: str | None
) -> None:
    """What most sessions ran, and what most processes run."""
    again = confirmation(1.0, 1.1, 1.2, choices=(NEW, NEW, OLD))
    found = kernel_verdict(of_choices(then), Policy(), again)

    assert found is not None
    assert found.reason is Reason.OTHER_KERNEL
    assert found.evidence is not None
    assert found.evidence.kernels == (
        KernelChoice(choice=before, count=2, total_count=3),
        KernelChoice(choice=NEW, count=2, total_count=3),
    )


def recorded(*names: str, role: Role = Role.CONFIRM, choice: str = NEW) -> Record:
    """What a process ran."""
    uses = tuple(map(kernel_use, names))
    activity = ActivitySummary(kernels=uses, kernels_count=len(names))
    return record(choice=choice, role=role, activity=activity)


def kept(*names: str, choice: str = OLD, total_s: float = 1.0) -> StoredRecord:
    """A stored session with its kernels."""
    kernels = tuple(KernelTotal(name=name, total_s=total_s) for name in names)
    return StoredRecord(
        key=KEY, session=session(1), values=(), choice=choice, kernels=kernels
    )


MOVED = Verdict(
    key=KEY,
    metric="time",
    outcome=Outcome.REGRESSED,
    reason=Reason.SLOWER_THAN_LIMIT,
)


def test_a_regression_names_the_kernels_that_its_fresh_processes_ran() -> None:
    """Those of the first process may be another choice; sessions share theirs."""
    records = [
        recorded("axpy", role=Role.MAIN, choice="other"),
        recorded("gemm_64", "gemm_64", "axpy"),
        recorded("gemm_64", "axpy"),
    ]
    sessions = [kept(), kept("gemm_128", "axpy"), kept(choice=NEW)]
    found = with_kernels(MOVED, records, sessions)

    assert found.evidence is not None
    assert found.evidence.kernels == (
        KernelChoice(choice=OLD, count=2, total_count=3, names=("gemm_128", "axpy")),
        KernelChoice(choice=NEW, count=2, total_count=2, names=("gemm_64", "axpy")),
    )


def test_other_kernels_get_their_names_and_keep_their_counts() -> None:
    """A choice nobody has a list of keeps its hash."""
    choices = (
        KernelChoice(choice=OLD, count=5, total_count=6),
        KernelChoice(choice=NEW, count=3, total_count=3),
    )
    verdict = replace(
        MOVED,
        outcome=Outcome.INCONCLUSIVE,
        reason=Reason.OTHER_KERNEL,
        evidence=VerdictEvidence(kernels=choices),
    )
    found = with_kernels(verdict, [recorded("gemm_64")], [kept()])

    assert found.evidence is not None
    assert found.evidence.kernels == (
        choices[0],
        replace(choices[1], names=("gemm_64",)),
    )


@pytest.mark.parametrize(
    ("verdict", "sessions"),
    [
        (MOVED, []),
        (MOVED, [kept(choice=NEW)]),
        (replace(MOVED, outcome=Outcome.UNCHANGED), [kept("gemm_128")]),
    ],
    ids=["no session", "no kernels", "nothing to explain"],
)
def test_kernels_explain_a_change_alone(
    verdict: Verdict, sessions: list[StoredRecord]
) -> None:
    """Where nobody knows them, or nothing moved, they are not told."""
    assert with_kernels(verdict, [recorded("gemm_64")], sessions) == verdict


def test_a_regression_says_what_each_kernel_takes_more() -> None:
    """By the fresh processes, and the sessions of the same kernels."""
    records = [recorded("axpy", role=Role.MAIN), recorded("gemm_64", "axpy")]
    sessions = [
        kept("gemm_64", "axpy", choice=NEW, total_s=0.25),
        kept("norm", choice=OLD),
        kept("gemm_64", "axpy", choice=NEW, total_s=0.25),
    ]
    found = with_kernels(MOVED, records, sessions)

    assert found.evidence is not None
    assert found.evidence.kernels is None  # the same ones
    assert found.evidence.account is not None
    assert (found.evidence.account.then_s, found.evidence.account.now_s) == (0.5, 2.0)
    assert [
        (move.then.name, move.difference_s)
        for move in found.evidence.account.moves
        if move.then is not None
    ] == [("gemm_64", 0.75), ("axpy", 0.75)]


def test_a_number_of_ones_own_is_no_matter_of_kernels() -> None:
    """Nobody knows what it counts."""
    own = replace(MOVED, estimate=estimate(1.0, source="user"))
    session = kept("gemm_64", choice=NEW)

    assert with_kernels(own, [recorded("gemm_64")], [session]) == own


@pytest.mark.parametrize(
    ("source", "group", "moved"),
    [
        ("cupti", "time device-time", "host time"),
        ("host", "time host-time", "host time"),
    ],
)
def test_a_time_of_the_hosts_clock_has_variances_of_its_own(
    source: str, group: str, moved: str
) -> None:
    """Whatever it is the time of; a machine moves both."""
    subject = case(1.0, (1.0,) * 3, estimate=estimate(1.0, source=source))
    found = comparison_of(subject, Policy())

    assert found is not None
    assert (found.group, found.shift_group) == (group, moved)


def test_what_samples_leave_open_of_a_confirming_process_is_kept() -> None:
    """Its intervals go with its values into what is compared."""
    again = confirmation(1.0, 1.1, widths=(0.01, 0.02))
    found = comparison_of(case(1.0, (1.0,) * 3), Policy(), again)

    assert found is not None
    assert found.current.half_widths == (0.01, 0.02)


def test_counts_that_disagree_in_one_session_are_too_few() -> None:
    """Two processes of one session disagree: no value of it is the only one."""
    sessions = stored([(63.0, 65.0)])
    found = early_verdict(case(64.0, (), "registers", stored=sessions), Policy(), None)

    assert found is not None
    assert found.reason is Reason.TOO_FEW_SESSIONS


def test_all_processes_of_a_session_say_how_slow_it_is() -> None:
    """Their mean on a log scale, whichever ran first."""
    slow, fast = (1.0, 1.3), (1.3, 1.0)
    steady = (1.0,) * 3

    for values in (slow, fast):
        narrow, wide = (case(values, steady, limit=x / 0.6) for x in (0.14, 0.141))
        assert may_change(narrow, comparable(narrow, Policy()))
        assert not may_change(wide, comparable(wide, Policy()))
