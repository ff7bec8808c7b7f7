"""The words of the likely cause of a worsening."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_gpuperf.model.environment import BOARD, MACHINE
from pytest_gpuperf.model.verdict import FAILING, Clue, Verdict
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import escape

_CLUES: Mapping[Clue, str] = MappingProxyType(
    {
        Clue.CLOCK: "the clock of the device moved",
        Clue.DATA_OR_SHAPE: (
            "the kernels have the same code, with other data or other limits of a launch"
        ),
        Clue.EXACT: "no machine changes such a number",
        Clue.MACHINE_CODE: "the machine code of the kernels changed",
        Clue.NOISY_MACHINE: "the machine is too noisy to tell",
        Clue.NOT_REPEATED: "fresh processes do not confirm the change",
        Clue.OTHER_BOARD: "another GPU",
        Clue.OTHER_COMMIT: "the commit differs, and nothing else that is recorded",
        Clue.OTHER_FILES: "files differ, and both sides ran on this machine",
        Clue.SAME_COMMIT: "no file differs from the stored sessions",
        Clue.SAME_MACHINE_CODE: (
            "the machine code is the same: driver, clock, host code or machine"
        ),
        Clue.SAME_ON_BOTH_SIDES: (
            "both sides have the same machine code: the code of the host or the input"
        ),
        Clue.SEEN_BEFORE: "stored sessions were as slow",
        Clue.SETTINGS: "other packages or settings",
        Clue.SHARED_MOVE: "most tests of its kind moved alike",
        Clue.TEST_CHANGED: "the test itself changed since the stored sessions",
        Clue.WITHIN_NULL: "runs of the same code differ as much",
        Clue.WITHIN_SPREAD: "stored sessions differ as much",
    }
)


def origin(verdict: Verdict) -> str:
    """Return where a failure likely comes from and why, or ""."""
    found = verdict.origin
    if found is None:
        return ""
    head = f"cause: {found.origin.value}"
    if found.clue is Clue.OTHER_BOARD:
        return f"{head}: {other_board(verdict)}"
    # The reason of an undecided verdict says it.
    if verdict.outcome not in FAILING:
        return ""
    names, text = display.listed(found.names), _CLUES[found.clue]
    if names and found.clue is Clue.OTHER_COMMIT:
        text = f"the commit differs; so does {names}, but other tests are as fast"
    elif names:
        text = f"{text} ({names})"
    return escape(f"{head}: {text}")


def other_board(*verdicts: Verdict) -> str:
    """Return the sentence about another GPU that explains worsenings, or "" without any."""
    found = [v for v in verdicts if v.origin and v.origin.clue is Clue.OTHER_BOARD]
    moves = [v.change.machine_shift or 0.0 for v in found if v.change is not None]
    sides: dict[str, None] = {}
    for moved_facts in (v.baseline.moved for v in found if v.baseline is not None):
        was, now = map(display.board, moved_facts[BOARD])
        if MACHINE in moved_facts:
            then, here = moved_facts[MACHINE]
            was, now = f"{was} of {then}", f"{now} of {here}"
        sides[f"{now}, not {was}"] = None
    if not moves or not sides:
        return ""
    most = "" if len(found) == 1 else "up to "
    moved = display.change(max(moves, key=abs), limits=())
    return escape(
        f"another GPU than in the baseline ({'; '.join(sides)}): other tests and reference "
        f"workloads are slower on it, and {most}{moved} is taken out"
    )
