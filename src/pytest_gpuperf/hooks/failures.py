"""The texts of tests that missed a limit or a baseline, or ended early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.errors import MetricUnavailableError
from pytest_gpuperf.hooks.asserts import advice_lines
from pytest_gpuperf.hooks.outcomes import nothing_measured
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import FailedComparison, Outcome, Verdict
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.explanation import longrepr_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_gpuperf.config import Config, Plan
    from pytest_gpuperf.fixture.values import Perf

# Characters. The printer wraps the line for its terminal.
_UNBROKEN = 10**6


def ending_text(
    report: pytest.TestReport, call: pytest.CallInfo[None] | None = None
) -> str:
    """
    Return a line about the early end of a test, to follow the failing verdict, or "".

    Args:
        report: The report of the test, before it fails.

        call: The phase that ended, or None if the report alone shows the reason.
    """
    info = None if call is None else call.excinfo
    if info is not None and info.errisinstance(MetricUnavailableError):
        ended = f"unmeasured: {info.value}"
    elif not report.skipped:
        return ""
    elif hasattr(report, "wasxfail"):
        ended = f"xfail: {report.wasxfail}"
    elif isinstance(report.longrepr, tuple):
        ended = report.longrepr[2]
    else:
        ended = str(report.longrepr)
    return f"    the test ended early, after this was measured: {escape(ended)}"


def record_of_nothing(test_id: str, plan: Plan, raised: str) -> Record:
    """
    Create the record that limits are judged against if a test measured nothing.

    The record has the reason in place of every limited metric.
    """
    gap = nothing_measured(raised, disabled=False)
    metrics = (*(limit.metric for limit in plan.limits), "roofline.fraction")
    return Record(
        key=RecordKey(test_id=test_id),
        kind=Kind.RANGE,
        estimates=(),
        unmeasured=tuple(Unmeasured.of_metric(metric, gap) for metric in metrics),
    )


def failure_text(
    verdicts: Sequence[Verdict], config: Config, perfs: Sequence[Perf] = ()
) -> str:
    """Return the failure text of verdicts, with advice for the failed values."""
    lines = [
        f"unmeasured: {line.text}" if is_unmeasured else line.text
        for verdict in verdicts
        for is_unmeasured in (verdict.outcome is Outcome.UNMEASURED,)
        for line in longrepr_lines(
            verdict, options=config.option_texts, width=_UNBROKEN
        )
    ]
    failed = {
        perf: [
            FailedComparison(v.limit.metric, v.limit.operator, v.limit.kernel)
            for v in verdicts
            if v.limit is not None and v.key == perf.record.key
        ]
        for perf in perfs
    }
    return "\n".join((*lines, *advice_lines(failed)))
