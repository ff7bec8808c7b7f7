"""The texts of tests that failed, ended early or measured nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.errors import MetricUnavailableError
from pytest_gpuperf.fixture.values import SWITCH_ON
from pytest_gpuperf.hooks.asserts import advice_lines
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.run import ANY_METRIC
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import FailedComparison, Outcome, Verdict
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.explanation import fitted, longrepr_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    from _pytest._io import TerminalWriter  # noqa: TID251 - no public name for the type

    from pytest_gpuperf.config import Config, Plan
    from pytest_gpuperf.fixture.values import Perf

# Characters. The printer wraps the line for its terminal.
_UNBROKEN = 10**6


class _Crash:
    """The place and first line of a failure, for JUnit and the short summary."""

    def __init__(self, path: str, lineno: int, message: str) -> None:
        self.path = path
        self.lineno = lineno
        self.message = message

    def __str__(self) -> str:
        """Return the place and the message."""
        return f"{self.path}:{self.lineno}: {self.message}"


class VerdictRepr:
    """
    The text of a verdict as a test's longrepr, in place of a traceback.

    It has the attributes that the terminal, junitxml and pytest-html use: `toterminal`,
    `__str__` and `reprcrash.message`.
    """

    def __init__(self, location: tuple[str, int | None, str], text: str) -> None:
        self.text = text
        first = text.partition("\n")[0]
        self.reprcrash = _Crash(location[0], (location[1] or 0) + 1, first)

    def __str__(self) -> str:
        """Return the whole text."""
        return self.text

    def toterminal(self, writer: TerminalWriter) -> None:
        """Write the text wrapped to the terminal, with the first line as the error."""
        width = writer.fullwidth - len("E   ")
        first, _, rest = self.text.partition("\n")
        for line in fitted(first, width=width):
            writer.line(f"E   {line}", red=True, bold=True)
        for line in fitted(rest, width=width):
            writer.line(f"    {line}")


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


def nothing_measured(raised: str, *, disabled: bool) -> Unmeasured:
    """Return the reason why a completed test has no value at all."""
    if disabled:
        return Unmeasured(
            metric="time",
            code=GapCode.NOT_ASKED,
            reason="measuring is switched off (--gpuperf-disable)",
            remedy=SWITCH_ON,
        )
    if raised:
        return Unmeasured(
            metric=ANY_METRIC,
            code=GapCode.FAILED,
            reason=f"the test caught the exception of its measurement ({escape(raised)})",
            remedy="measure a call that succeeds, or drop the fixture and the marker",
        )
    return Unmeasured(
        metric=ANY_METRIC,
        code=GapCode.NOT_REACHED,
        reason="the test never measured anything",
        remedy="call gpuperf.measure(fn, …) in it, or drop the fixture and the marker",
    )


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
