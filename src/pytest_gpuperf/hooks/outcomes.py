"""Verdicts as outcomes in pytest's own words; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.errors import MetricUnavailableError, PerfAssertionError
from pytest_gpuperf.fixture import Figure
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.report import terminal
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    from _pytest._io import TerminalWriter  # noqa: TID251 - no public name for the type

    from pytest_gpuperf.config import Config
    from pytest_gpuperf.model.measured import Measured
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.verdict import Verdict

__all__ = [
    "VerdictRepr",
    "apply_unmeasured",
    "comparison_lines",
    "expect_failure",
    "expected_failure",
    "explain_failure",
    "fail",
    "failure_text",
    "lacked_a_value",
    "nothing_measured",
    "unreadable",
    "unwritable",
]


_STRICT = "[XPASS(strict)] "  # how pytest begins the text of a strict xfail that passed


class _Crash:
    """Where and in one line: what JUnit and the short summary print."""

    def __init__(self, path: str, lineno: int, message: str) -> None:
        self.path = path
        self.lineno = lineno
        self.message = message

    def __str__(self) -> str:
        """Return place and message."""
        return f"{self.path}:{self.lineno}: {self.message}"


class VerdictRepr:
    """
    The failure of a test as its verdict tells it, in place of a traceback.

    It has what the terminal, junitxml and pytest-html ask of a longrepr: `toterminal`,
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
        """Write the text, the first line as the error."""
        first, *rest = self.text.splitlines()
        writer.line(f"E   {first}", red=True, bold=True)
        for line in rest:
            writer.line(f"    {line}")


def fail(report: pytest.TestReport, text: str) -> None:
    """Turn a report into a failure that says `text`."""
    report.outcome = "failed"
    report.longrepr = VerdictRepr(report.location, text)  # type: ignore[assignment] # duck
    report.__dict__.pop("wasxfail", None)  # no unexpected pass any more


def expected_failure(report: pytest.TestReport) -> str | None:
    """Return why a call that passed was expected to fail; None: it was not."""
    if report.when != "call":
        return None
    if report.passed:
        return getattr(report, "wasxfail", None)
    text = report.longrepr
    strict = isinstance(text, str) and text.startswith(_STRICT)
    return str(text).removeprefix(_STRICT) if strict else None


def expect_failure(report: pytest.TestReport, why: str, text: str) -> None:
    """Turn a report into the failure that an xfail mark expects."""
    fail(report, text)
    report.outcome = "skipped"
    report.wasxfail = why


def lacked_a_value(call: pytest.CallInfo[None]) -> bool:
    """Return whether a phase ended because a value was not there."""
    return call.excinfo is not None and call.excinfo.errisinstance(
        MetricUnavailableError
    )


def explain_failure(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Replace the traceback of a missed limit by its explanation."""
    if (
        report.failed
        and call.excinfo is not None
        and call.excinfo.errisinstance(PerfAssertionError)
    ):
        fail(report, str(call.excinfo.value))


def apply_unmeasured(
    report: pytest.TestReport, measured: Measured, config: Config
) -> None:
    """
    Turn a test that lacks a value into a skip, or into a failure in strict mode.

    A test that failed for another reason keeps its failure.
    """
    reasons = _reasons(measured)
    if not reasons or measured.body_failed or _limit_failed(measured):
        return
    text = "; ".join(reasons)
    if config.strict and not config.disable:
        fail(report, f"unmeasured: {text}")
        report.when = "call"  # a test that failed: its setup has no error to repair
    else:
        word = "disabled" if config.disable else "unmeasured"
        path, lineno, _ = report.location
        report.outcome = "skipped"
        report.longrepr = (path, (lineno or 0) + 1, f"Skipped: {word}: {text}")
    if hasattr(
        report, "wasxfail"
    ):  # neither an expected failure nor an unexpected pass
        del report.wasxfail


def _reasons(measured: Measured) -> tuple[str, ...]:
    """Return why a test lacks values; empty where it does not."""
    said = [f"{r.metric}: {r.reason}; {r.remedy}" for r in measured.refusals]
    said += [
        _headline(verdict)
        for verdict in measured.verdicts
        if verdict.outcome is Outcome.UNMEASURED
    ]
    if not said:
        said += [_without_value(r) for r in measured.records if not r.estimates]
    return tuple(filter(None, dict.fromkeys(said)))


def _without_value(record: Record) -> str:
    """Return why a measurement gave no value; "" where nobody wanted one."""
    void = record.void
    if void is None or void.code == "disabled":
        return ""
    return f"{record.key.name or 'any metric'}: {void.text}"


def _limit_failed(measured: Measured) -> bool:
    """Return whether a limit was missed."""
    return any(verdict.outcome is Outcome.FAILED for verdict in measured.verdicts)


def nothing_measured(*, disabled: bool) -> Unmeasured:
    """Return why a test that ran to its end has no value at all."""
    if disabled:
        return Unmeasured(
            metric="time",
            reason="measuring is switched off (--gpuperf-disable)",
            remedy="drop --gpuperf-disable",
        )
    return Unmeasured(
        metric="any metric",
        reason="the test never measured anything",
        remedy="call gpuperf(fn, …) in it, or drop the fixture and the marker",
    )


def unreadable(error: Exception) -> str:
    """Return what a test shows whose measurements arrived, and are none."""
    return f"gpuperf: its measurements cannot be read: {escape(str(error))}"


def unwritable(error: Exception) -> str:
    """Return what a test shows whose measurements cannot leave its process."""
    return f"gpuperf: its measurements cannot be written: {escape(str(error))}"


def comparison_lines(op: str, left: object, right: object) -> list[str]:
    """Return the explanation of a comparison with measured values in it."""
    return terminal.assert_lines(
        op,
        left,
        right,
        left_estimate=left.estimate if isinstance(left, Figure) else None,
        right_estimate=right.estimate if isinstance(right, Figure) else None,
    )


def failure_text(verdicts: Sequence[Verdict], config: Config) -> str:
    """Return what a test that failed for some verdicts shows."""
    lines = [
        line.text
        for verdict in verdicts
        for line in terminal.longrepr_lines(verdict, options=config.given)
    ]
    return "\n".join(lines)


def _headline(verdict: Verdict) -> str:
    """Return a verdict in one line."""
    return next(iter(terminal.longrepr_lines(verdict))).text
