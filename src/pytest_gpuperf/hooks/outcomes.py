"""Verdicts as pytest outcomes."""

from __future__ import annotations

import dis
import functools
import os
import sys
from numbers import Real
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.collect.base import is_call_of_the_test
from pytest_gpuperf.errors import (
    GpuPerfError,
    MetricUnavailableError,
    PerfAssertionError,
)
from pytest_gpuperf.fixture import Figure
from pytest_gpuperf.fixture.values import SWITCH_ON, Answer, Perf
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import Kind, Record, RecordKey, VoidCode
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import FailedComparison, Outcome, Verdict
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.explanation import (
    assert_lines,
    fitted,
    longrepr_lines,
    safe_repr,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType, FrameType, TracebackType

    from _pytest._io import TerminalWriter  # noqa: TID251 - no public name for the type

    from pytest_gpuperf.config import Config, Plan
    from pytest_gpuperf.fixture.values import Ledger
    from pytest_gpuperf.model.run import Measured, MissedAssert

# The prefix that pytest gives a strict xfail that passed.
_STRICT = "[XPASS(strict)] "
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
# The packages between the assert and this module when pytest asks for an explanation.
_EXPLAINERS = frozenset({"_pytest", "pluggy", "pytest_gpuperf"})
# Characters. The printer wraps the line for its terminal.
_UNBROKEN = 10**6
# Stands for a metric where a test measured nothing.
_ANY = "any metric"


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


def fail(report: pytest.TestReport, text: str) -> None:
    """Turn a report into a failure with the given text."""
    report.outcome = "failed"
    report.longrepr = VerdictRepr(report.location, text)  # type: ignore[assignment] # duck
    # The report is no longer an unexpected pass.
    report.__dict__.pop("wasxfail", None)


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


def ending_text(
    report: pytest.TestReport, call: pytest.CallInfo[None] | None = None
) -> str:
    """
    Return a line about the early end of a test, to follow the failing verdict, or "".

    Args:
        report: The report of the test, before it fails.

        call: The phase that ended, or None if the report alone shows the reason.
    """
    if call is not None and call.excinfo is not None and lacked_a_value(call):
        ended = f"unmeasured: {call.excinfo.value}"
    elif not report.skipped:
        return ""
    elif hasattr(report, "wasxfail"):
        ended = f"xfail: {report.wasxfail}"
    elif isinstance(report.longrepr, tuple):
        ended = report.longrepr[2]
    else:
        ended = str(report.longrepr)
    return f"    the test ended early, after this was measured: {escape(ended)}"


def hide_own_frames(error: BaseException) -> None:
    """
    Remove the plugin's frames from a traceback, so that it ends in the user's code.

    An unexpected exception of the plugin keeps all frames, because it is a bug. A
    failed call of the test's function is the test's error even if the traceback ends in
    the plugin, as with wrong arguments or a builtin.

    Args:
        error: The exception that ended a phase of a test. Its traceback is changed.
    """
    frames = _frames(error)
    hidden: list[bool] = []
    # Frames of the standard library that call the plugin are hidden, too.
    for frame in reversed(frames):
        for_ours = bool(hidden) and hidden[-1] and _is_stdlib(frame)
        hidden.append(for_ours or _is_ours(frame))
    hidden.reverse()
    if isinstance(error, GpuPerfError):
        cause = error.__cause__
        if cause is not None and not any(map(_is_users, _frames(cause))):
            error.__cause__ = None
            error.__suppress_context__ = True
    else:
        last = max((i for i, frame in enumerate(frames) if _is_ours(frame)), default=-1)
        calls_test = last >= 0 and is_call_of_the_test(frames[last].tb_frame.f_code)
        # The plugin itself may have raised, and not code that it called.
        if not (calls_test or any(map(_is_users, frames[last + 1 :]))):
            return
    shown = [frame for frame, hide in zip(frames, hidden, strict=True) if not hide]
    for frame, following in zip(shown, [*shown[1:], None], strict=True):
        frame.tb_next = following


def _frames(error: BaseException) -> list[TracebackType]:
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def _is_users(frame: TracebackType) -> bool:
    return not (_is_ours(frame) or _is_stdlib(frame))


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OURS)


def _is_stdlib(frame: TracebackType) -> bool:
    name = frame.tb_frame.f_code.co_filename
    return name.startswith(_stdlib()) and "-packages" not in name


@functools.cache
def _stdlib() -> str:
    import sysconfig

    return sysconfig.get_path("stdlib")


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
            r.text if r.metric == _ANY else f"{r.metric}: {r.text}"
            for r in measured.refusals
        ]
        reasons += [
            next(iter(longrepr_lines(verdict))).text
            for verdict in measured.verdicts
            if verdict.outcome is Outcome.UNMEASURED
        ]
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
        return Unmeasured(
            metric="time",
            code=GapCode.NOT_ASKED,
            reason="measuring is switched off (--gpuperf-disable)",
            remedy=SWITCH_ON,
        )
    if raised:
        return Unmeasured(
            metric=_ANY,
            code=GapCode.FAILED,
            reason=f"the test caught the exception of its measurement ({escape(raised)})",
            remedy="measure a call that succeeds, or drop the fixture and the marker",
        )
    return Unmeasured(
        metric=_ANY,
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


def unreadable(error: Exception) -> str:
    """Return the failure text of a test whose measurements cannot be decoded."""
    return f"gpuperf: the test's measurements cannot be read: {escape(str(error))}"


def unwritable(error: Exception) -> str:
    """Return the failure text of a test whose measurements cannot be encoded."""
    return f"gpuperf: the test's measurements cannot be written: {escape(str(error))}"


_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
    "==": eq,
    "!=": ne,
}
# Operators as seen from the right operand.
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def explained(
    op: str, left: object, right: object, ledger: Ledger | None
) -> list[str] | None:
    """
    Return the explanation of a comparison of measured values, or None if there are none.

    Args:
        op: The operator.

        left: The left operand.

        right: The right operand.

        ledger: The ledger of the running test. It notes a comparison that did not hold.
    """
    if not any(isinstance(side, (Figure, Answer)) for side in (left, right)):
        return _explained_by_card(op, left, right, ledger)
    lines = assert_lines(
        op,
        left,
        right,
        left_estimate=left.estimate if isinstance(left, Figure) else None,
        right_estimate=right.estimate if isinstance(right, Figure) else None,
    )
    failed: dict[Perf, list[FailedComparison]] = {}
    for side, operator in ((left, op), (right, _TURNED.get(op, op))):
        if isinstance(side, Figure):
            metric, kernel = side.estimate.metric, side.estimate.kernel
            comparison = FailedComparison(metric, operator, kernel)
            failed.setdefault(side.perf, []).append(comparison)
    lines += _advice_lines(failed)
    figures = [side for side in (left, right) if isinstance(side, Figure)]
    # pytest explains the last part of an `and` even if that part held. Only a comparison of
    # numbers can hold.
    if figures and not (
        op in _COMPARE
        and isinstance(left, Real)
        and isinstance(right, Real)
        and _COMPARE[op](float(left), float(right))
    ):
        figures[0].perf.missed(lines[0], _asserting_place())
    return lines


def _explained_by_card(
    op: str, left: object, right: object, ledger: Ledger | None
) -> list[str] | None:
    """Explain a comparison with a scorecard value, and note it in the test if it is false."""
    values = ledger.card_values if ledger is not None else ()
    # Identity, because an equal value, such as another test's grade, is a different object.
    sides = [[v for v in values if v.value is side][-1:] for side in (left, right)]
    taken = [*sides[0], *sides[1]]
    if not taken:
        return None
    texts = []
    for own, side in zip(sides, (left, right), strict=True):
        if not own:  # No other object is asked for its text.
            texts.append(safe_repr(side))
            continue
        shown = display.verbatim(side, "") if isinstance(side, float) else str(side)
        texts.append(f"{own[0].name} {shown}")
    line = escape(f"{texts[0]} {op} {texts[1]}")
    if op in _COMPARE and not _COMPARE[op](left, right):
        taken[0].perf.missed(line, _asserting_place())
    return [line]


def _asserting_place() -> tuple[CodeType, int] | None:
    """
    Return the place at which the assert being explained is going to raise.

    The place is the code object and the offset of the instruction. A line number would
    not do, because Python 3.10 gives the parts of a multi-line assert different lines.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect.currentframe` calls, too
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] not in _EXPLAINERS:
            break
        frame = frame.f_back
    if frame is None:
        return None
    code, last = frame.f_code, frame.f_lasti
    instructions = dis.get_instructions(code)
    raises = (i.offset for i in instructions if i.opname == "RAISE_VARARGS")
    return code, next((offset for offset in raises if offset > last), last)


def missed_assert(
    ledger: Ledger, call: pytest.CallInfo[None], report: pytest.TestReport
) -> MissedAssert | None:
    """Return the failed assert on a measured value, or None if the test failed otherwise."""
    if ledger.missed is None or call.excinfo is None or not report.failed:
        return None
    raised = call.excinfo.value
    # A test that catches a failed assert may fail at another assert.
    is_of_it = isinstance(raised, AssertionError) and any(
        (last.tb_frame.f_code, last.tb_lasti) == ledger.missed_at
        for last in _frames(raised)[-1:]
    )
    return ledger.missed if is_of_it else None


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
    return "\n".join((*lines, *_advice_lines(failed)))


def _advice_lines(failed: Mapping[Perf, Sequence[FailedComparison]]) -> list[str]:
    advised = [part for perf, why in failed.items() for part in perf.advice(why)]
    if not advised:
        return []
    # Imported here, because only failed captures and binaries have advice.
    from pytest_gpuperf.report.launches import advice_texts

    return [f"    {escape(text)}" for part in advised for text in advice_texts(part)]
