"""The limits of tests, checked when the body of a test has ended."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.errors import GpuPerfError, PerfAssertionError, UnitError
from pytest_gpuperf.hooks import outcomes
from pytest_gpuperf.hooks.digests import Digests
from pytest_gpuperf.hooks.failures import (
    ending_text,
    failure_text,
    record_of_nothing,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.verdict import Outcome, Verdict
from pytest_gpuperf.pipeline.memory import Memory, slugs_of_machine
from pytest_gpuperf.pipeline.verdicts import judge_limits
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuperf.config import Config
    from pytest_gpuperf.fixture.values import Ledger
    from pytest_gpuperf.hooks.marked import MarkedTest
    from pytest_gpuperf.measure.site import Site

# For records that come from a recording.
_UNKNOWN = Digests()


def read_stored(tests: Sequence[MarkedTest], site: Site, memory: Memory) -> None:
    """Read the stored sessions of this machine before any test runs."""
    device = site.device()
    gpu_name = None if device is None else device.name
    memory.require(site.expected.judged)
    for test in tests:
        memory.learn(test.test_id, test.key)
    # The first test that needs the store fails with this error.
    with suppress(GpuPerfError):
        memory.read(slugs_of_machine(site.environment, gpu_name))


def check(test: MarkedTest, ledger: Ledger, config: Config, memory: Memory) -> None:
    """
    Check the limits of a test whose body has passed, and keep the verdicts.

    Args:
        test: The test. It has a limit or a least grade.

        ledger: What the test measured.

        config: The settings of the run.

        memory: The stored sessions, which show how much values differ.

    Raises:
        PerfAssertionError: A limit was missed.

        pytest.fail.Exception: The unit of a limit differs from that of the recorded number.
    """
    try:
        verdicts = _verdicts(test, ledger, config, memory)
    except UnitError as error:
        # The mistake is in the marker. A traceback would show the plugin's own code.
        raise pytest.fail.Exception(_of_limit(error), pytrace=False) from None
    test.verdicts = verdicts
    missed = [v for v in verdicts if v.outcome is Outcome.FAILED]
    if missed:
        raise PerfAssertionError(
            _missed_text(ledger, verdicts, config), verdict=missed[0]
        )


def check_what_ended_early(
    test: MarkedTest,
    ledger: Ledger,
    report: pytest.TestReport,
    call: pytest.CallInfo[None],
    *,
    config: Config,
    memory: Memory,
) -> None:
    """
    Check the limits of a test that measured before a skip or a missing value.

    A missed limit fails the test, unless an xfail mark expects that. A
    unittest.TestCase gets here without an exception in its call.

    Args:
        test: The test. It has a limit or a least grade.

        ledger: What the test measured.

        report: The report of the phase that ended. It is changed.

        call: That phase.

        config: The settings of the run.

        memory: The stored sessions, which show how much values differ.
    """
    lacked = outcomes.lacked_a_value(call)
    if not ((lacked or report.skipped) and ledger.records):
        return
    try:
        verdicts = test.verdicts or _verdicts(test, ledger, config, memory)
    except UnitError as error:
        outcomes.fail(report, _of_limit(error))
        return
    # The skip already says that values are missing.
    if not lacked:
        verdicts = tuple(v for v in verdicts if v.outcome is not Outcome.UNMEASURED)
    test.verdicts = verdicts
    expected = report.__dict__.get("gpuperf_expects", False)
    if not expected and any(v.outcome is Outcome.FAILED for v in verdicts):
        ending = ending_text(report, call)
        text = _missed_text(ledger, verdicts, config)
        outcomes.fail(report, "\n".join(filter(None, (text, ending))))
        # Reported as a failure of the test, because its setup has no error to repair.
        report.when = "call"


def _verdicts(
    test: MarkedTest, ledger: Ledger, config: Config, memory: Memory
) -> tuple[Verdict, ...]:
    """
    Return a verdict per limit of a test.

    Raises:
        UnitError: The unit of a limit differs from the unit of the recorded number.
    """
    plan, test_id = test.plan, test.test_id
    memory.learn(test_id, test.key)
    records = (test.digests or _UNKNOWN).of(ledger.records)
    if not records:
        records = [record_of_nothing(test_id, plan, ledger.raised)]
    verdicts = judge_limits(plan, test_id, records, memory, grades=config.grades)
    if test.typed:
        verdicts = tuple(replace(v, typed=test.typed) for v in verdicts)
    return verdicts


def _missed_text(ledger: Ledger, verdicts: Sequence[Verdict], config: Config) -> str:
    missed = [v for v in verdicts if v.outcome is Outcome.FAILED]
    keys = {verdict.key for verdict in missed}
    perfs = [p for p in ledger.perfs if p.ended and p.record.key in keys]
    unread = [v for v in verdicts if v.outcome is Outcome.UNMEASURED]
    return failure_text([*missed, *unread], config, perfs)


def _of_limit(error: UnitError) -> str:
    return f"limit {escape(str(error))}"
