"""What ncu itself says of a captured launch, for a test that failed on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from pytest_gpuperf.model.record import Note
from pytest_gpuperf.report import display

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.capture import CapturedLaunch
    from pytest_gpuperf.collect.ncu.launches import RuleResult, StallLine
    from pytest_gpuperf.collect.runner import Runner

__all__ = ["advice", "slowest"]

_DURATION = "gpu__time_duration.sum"
_MOST_RULES = 2  # a report has some twenty; the first ones are worth the others
_ADVISING = frozenset({"optimization", "warning", "error"})
_LONGEST = 300  # of a rule's message: it goes on for a paragraph


def slowest(
    places: Sequence[tuple[int, CapturedLaunch]],
) -> tuple[int, CapturedLaunch]:
    """
    Return the launch that is worth advice: the longest, else the first.

    Args:
        places: The number of its range beside each launch, >= 1 of them.
    """

    def duration(place: tuple[int, CapturedLaunch]) -> float:
        found = place[1].metrics.get(_DURATION)
        known = found is not None and isinstance(found.value, (int, float))
        return float(found.value) if known else -1.0  # type: ignore[union-attr, arg-type] # known says so

    return max(places, key=duration)


def advice(
    path: str, range_index: int, launch: CapturedLaunch, *, runner: Runner
) -> tuple[Note, ...]:
    """
    Return what the report says of one launch: where its warps waited, what rules found.

    Args:
        path: The report.

        range_index: The launch's range, from 0.

        launch: One of its launches.

        runner: Starts the process that reads the report.

    Raises:
        CollectError: The report cannot be read any more.
    """
    from pytest_gpuperf.collect.ncu.report import Report

    where = PurePath(path)
    report = Report(path=str(where.parent), name=where.stem, runner=runner)
    found = report.advice(launch.index, range_index)
    name = f"{launch.kernel} (launch {launch.index})"
    notes = [] if found.stall is None else [_stall_note(name, found.stall)]
    rules = [rule for rule in found.rules if rule.level in _ADVISING]
    rules.sort(key=lambda rule: -(rule.speedup_fraction or 0.0))
    notes += [_rule_note(name, rule) for rule in rules[:_MOST_RULES]]
    return tuple(notes)


def _stall_note(name: str, stall: StallLine) -> Note:
    """Return where the warps of a launch waited most."""
    share = display.value(stall.samples_fraction, "fraction")
    place = stall.sass or "an instruction that the report does not name"
    if stall.file is not None and stall.line is not None:
        place = f"{PurePath(stall.file).name}:{stall.line}"
    text = f"{name}: {share} of the waiting was at {place}, most for {stall.reason}"
    return Note(code="ncu-stall", text=text)


def _rule_note(name: str, rule: RuleResult) -> Note:
    """Return what one of ncu's rules says, and what it would gain."""
    said = " ".join(rule.text.split())
    said = f"{said[:_LONGEST].rsplit(' ', 1)[0]} …" if len(said) > _LONGEST else said
    gain = ""
    if rule.speedup_fraction:
        share = display.value(rule.speedup_fraction, "fraction")
        scope = "" if rule.speedup_scope == "global" else " of one unit"
        gain = f" (ncu estimates {share}{scope} to gain)"
    title = f"{rule.title}: " if rule.title else ""
    return Note(code="ncu-rule", text=f"{name}: {title}{said}{gain}")
