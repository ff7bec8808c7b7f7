"""The rules of judge/rows: other kernels, and the values that are compared."""

from __future__ import annotations

import pytest

from pytest_gpuperf.judge.case import Case, Policy
from pytest_gpuperf.judge.rule import (
    comparison_of,
    early_verdict,
    kernel_verdict,
    may_regress,
    needs_confirming,
)
from pytest_gpuperf.model.verdict import KernelChoice, Reason
from unit.judge.building import case, confirmation, estimate, stored

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

    assert may_regress(case(slow, steady, limit=0.14 / 0.6))
    assert may_regress(case(fast, steady, limit=0.14 / 0.6))
    assert not may_regress(case(slow, steady, limit=0.141 / 0.6))
    assert not may_regress(case(fast, steady, limit=0.141 / 0.6))


@pytest.mark.parametrize(
    ("subject", "needed"),
    [
        (case(1.2, (1.0,) * 3), True),
        (case(1.2, ()), True),
        (case(64.0, [64.0], "registers"), False),
        (case(64.0, [63.0, 64.0, 65.0], "registers"), True),
        (case(1.2, (1.0, 1.1, 1.2), estimate=REPORTED), False),
    ],
)
def test_only_noise_needs_fresh_processes(subject: Case, *, needed: bool) -> None:
    """Neither what equality decides nor what a file would say again."""
    assert needs_confirming(subject) is needed
