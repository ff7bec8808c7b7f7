"""Explanations of failed plain asserts on measured values."""

from __future__ import annotations

import dis
import sys
from numbers import Real
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.fixture.answer import Answer
from pytest_gpuperf.fixture.values import Figure, Perf
from pytest_gpuperf.hooks.tracebacks import frames_of
from pytest_gpuperf.model.verdict import FailedComparison
from pytest_gpuperf.report import display
from pytest_gpuperf.report.asserted import assert_lines, safe_repr
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType, FrameType

    import pytest

    from pytest_gpuperf.fixture.values import Ledger
    from pytest_gpuperf.model.run import MissedAssert

# The packages between the assert and this module when pytest asks for an explanation.
_EXPLAINERS = frozenset({"_pytest", "pluggy", "pytest_gpuperf"})

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
    lines += advice_lines(failed)
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


def advice_lines(failed: Mapping[Perf, Sequence[FailedComparison]]) -> list[str]:
    """Return the advice for failed comparisons of captures and binaries as lines."""
    advised = [part for perf, why in failed.items() for part in perf.advice(why)]
    if not advised:
        return []
    # Imported here, because only failed captures and binaries have advice.
    from pytest_gpuperf.report.launches import advice_texts

    return [f"    {escape(text)}" for part in advised for text in advice_texts(part)]


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
        for last in frames_of(raised)[-1:]
    )
    return ledger.missed if is_of_it else None
