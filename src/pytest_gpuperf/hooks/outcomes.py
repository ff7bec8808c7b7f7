"""Verdicts as pytest outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.errors import MetricUnavailableError, PerfAssertionError
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import VoidCode
from pytest_gpuperf.model.run import ANY_METRIC
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import Outcome, Verdict
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _pytest._io import TerminalWriter  # noqa: TID251 - no public name for the type

    from pytest_gpuperf.config import Config
    from pytest_gpuperf.model.run import Measured

# The prefix that pytest gives a strict xfail that passed.
_STRICT = "[XPASS(strict)] "


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
        # Only failures are explained.
        from pytest_gpuperf.report.explanation import fitted

        width = writer.fullwidth - len("E   ")
        first, _, rest = self.text.partition("\n")
        for line in fitted(first, width=width):
            writer.line(f"E   {line}", red=True, bold=True)
        for line in fitted(rest, width=width):
            writer.line(f"    {line}")


def fail(report: pytest.TestReport, text: str) -> None:
    """Turn a report into a failure with the given text."""
    report.outcome = "failed"
    report.longrepr = VerdictRepr(report.location, text)  # type: ignore[assignment] # duck
    # The report is no longer an unexpected pass.
    report.__dict__.pop("wasxfail", None)


def is_explained(report: pytest.TestReport) -> bool:
    """Return True if a report still has the text that `fail` gave it."""
    return isinstance(report.longrepr, VerdictRepr)


def expected_failure(report: pytest.TestReport) -> str | None:
    """
    Return the xfail reason of a call that passed or failed as expected, or None.

    A strict mark turns a passed call into a failure.
    """
    if report.when != "call":
        return None
    if not report.failed:
        return getattr(report, "wasxfail", None)
    text = report.longrepr
    strict = isinstance(text, str) and text.startswith(_STRICT)
    return str(text).removeprefix(_STRICT) if strict else None


def passed_unexpectedly(report: pytest.TestReport) -> bool:
    """Return True if pytest fails a passed call because of a strict xfail mark."""
    return report.outcome == "failed" and expected_failure(report) is not None


def expect_failure(report: pytest.TestReport, why: str, text: str) -> None:
    """Turn a report into an expected failure."""
    fail(report, text)
    report.outcome = "skipped"
    report.wasxfail = why


def lacked_a_value(call: pytest.CallInfo[None]) -> bool:
    """Return True if a phase ended because a value was unavailable."""
    return call.excinfo is not None and call.excinfo.errisinstance(
        MetricUnavailableError
    )


def missed_a_limit(call: pytest.CallInfo[None]) -> bool:
    """Return True if a phase ended because a limit was missed."""
    return call.excinfo is not None and call.excinfo.errisinstance(PerfAssertionError)


def calls_xfail(call: pytest.CallInfo[None]) -> bool:
    """Return True if a phase ended by a call of `pytest.xfail`, which names no exception."""
    return call.excinfo is not None and call.excinfo.errisinstance(
        pytest.xfail.Exception
    )


def explain_failure(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Replace the traceback of a missed limit by the explanation."""
    if report.failed and call.excinfo is not None and missed_a_limit(call):
        fail(report, str(call.excinfo.value))


def apply_unmeasured(
    report: pytest.TestReport, measured: Measured, config: Config
) -> None:
    """
    Turn a test that lacks a value into a skip, or into a failure in strict mode.

    A test that failed for another reason keeps its failure, and a skipped test keeps
    its reason.
    """
    reasons: list[str] = []
    if measured.refusals or measured.verdicts:  # Few tests have any.
        reasons += [
            r.text if r.metric == ANY_METRIC else f"{r.metric}: {r.text}"
            for r in measured.refusals
        ]
        reasons += _reasons_of_limits(measured.verdicts)
    for record in () if reasons else measured.records:
        # Of a disabled measurement, no value was requested.
        if (
            record.void is not None
            and not record.estimates
            and record.void.code is not VoidCode.DISABLED
        ):
            name, text = record.key.name, record.void.text
            reasons.append(f"{name}: {text}" if name else text)
    if not reasons:
        return
    text = "; ".join(filter(None, dict.fromkeys(reasons)))
    ended = measured.body_failed or measured.skipped
    if not text or ended or missed_limits(measured):
        return
    if config.strict and not config.disable:
        fail(report, f"unmeasured: {text}")
        # Reported as a failure of the test, because its setup has no error to repair.
        report.when = "call"
    else:
        word = "disabled" if config.disable else "unmeasured"
        skip(report, f"{word}: {text}")
    # The report is neither an expected failure nor an unexpected pass.
    if hasattr(report, "wasxfail"):
        del report.wasxfail


def _reasons_of_limits(verdicts: Sequence[Verdict]) -> list[str]:
    unmeasured = [v for v in verdicts if v.outcome is Outcome.UNMEASURED]
    if not unmeasured:
        return []
    from pytest_gpuperf.report.explanation import longrepr_lines

    return [next(iter(longrepr_lines(verdict))).text for verdict in unmeasured]


def skip(report: pytest.TestReport, text: str) -> None:
    """Turn a report into a skip with the given text."""
    path, lineno, _ = report.location
    report.outcome = "skipped"
    report.longrepr = (path, (lineno or 0) + 1, f"Skipped: {text}")


def missed_limits(measured: Measured) -> list[Verdict]:
    """Return the verdicts of missed limits."""
    if not measured.verdicts:  # Nearly all tests.
        return []
    return [v for v in measured.verdicts if v.outcome is Outcome.FAILED]


def nothing_measured(raised: str, *, disabled: bool) -> Unmeasured:
    """Return the reason why a completed test has no value at all."""
    if disabled:
        # A process that runs tests has it.
        from pytest_gpuperf.fixture.values import SWITCH_ON

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


def unreadable(error: Exception) -> str:
    """Return the failure text of a test whose measurements cannot be decoded."""
    return f"gpuperf: the test's measurements cannot be read: {escape(str(error))}"


def unwritable(error: Exception) -> str:
    """Return the failure text of a test whose measurements cannot be encoded."""
    return f"gpuperf: the test's measurements cannot be written: {escape(str(error))}"
