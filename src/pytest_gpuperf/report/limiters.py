"""What limits each launch, as columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_gpuperf.model.counters import (
    Analysis,
    Bound,
    Evidence,
    Limiter,
    LimiterName,
    Unknown,
)
from pytest_gpuperf.report import display
from pytest_gpuperf.report.lines import Column

__all__ = ["limiter_columns", "limiter_text", "unknown_texts"]

_BLANK = "n/a"
_ROOFS = {"dram": "DRAM", "l2": "L2", "l1": "L1", "sm": "SM"}
_PIPES = {"sm": "SM", "issue": "issue slots"}  # no pipes, and limiters all the same


def limiter_columns(analyses: Sequence[Analysis | None]) -> tuple[Column, ...]:
    """
    Return time, bound, fraction, limiter and evidence of some launches.

    Args:
        analyses: One for each launch; None: it was not measured.
    """
    return (
        _column("time", analyses, _time, right=True),
        _column("bound", analyses, lambda each: _bound(each.bound)),
        _column("fraction", analyses, lambda each: _fraction(each.bound), right=True),
        _column("limiter", analyses, lambda each: limiter_text(each.limiter)),
        _column("evidence", analyses, lambda each: _evidence(each.limiter), blank=""),
    )


def limiter_text(limiter: Limiter | Unknown) -> str:
    """Return what a limiter is called; "" where it is not known."""
    if isinstance(limiter, Unknown):
        return ""
    if limiter.name is LimiterName.PIPE:
        pipe = limiter.detail or "sm"
        return _PIPES.get(pipe, f"{pipe} pipe")
    if limiter.name is LimiterName.LATENCY:
        return f"latency: {limiter.detail or 'stalls not collected'}"
    return _roof(limiter.name.value)


def unknown_texts(analyses: Sequence[Analysis | None]) -> tuple[str, ...]:
    """Return why launches have no limiter and what to collect, each sentence once."""
    limiters = (each.limiter for each in analyses if each is not None)
    texts = (_unknown(each) for each in limiters if isinstance(each, Unknown))
    return tuple(dict.fromkeys(texts))


def _unknown(unknown: Unknown) -> str:
    """Return why there is no limiter."""
    if not unknown.missing:
        return f"limiter n/a: {unknown.reason}"
    counters = ",".join(unknown.missing)
    return f"limiter n/a: {unknown.reason}; collect it: ncu --metrics {counters}"


def _column(
    head: str,
    analyses: Sequence[Analysis | None],
    text: Callable[[Analysis], str],
    *,
    right: bool = False,
    blank: str = _BLANK,
) -> Column:
    """Return one column; a launch that was not measured has nothing in it."""
    cells = tuple("" if each is None else text(each) for each in analyses)
    return Column(head=head, cells=cells, right=right, blank=blank)


def _time(analysis: Analysis) -> str:
    """Return the time of the kernel."""
    if analysis.duration_s is None:
        return ""
    return display.value(analysis.duration_s, "s")


def _bound(bound: Bound | None) -> str:
    """Return which side of the machine is busier."""
    return "" if bound is None else bound.side.value


def _fraction(bound: Bound | None) -> str:
    """Return how much of the closest roof was used, and which one that is."""
    if bound is None:
        return ""
    return f"{display.value(bound.fraction, 'fraction')} {_roof(bound.roof)}"


def _evidence(limiter: Limiter | Unknown) -> str:
    """Return the numbers behind a limiter, the deciding one first."""
    if isinstance(limiter, Unknown):
        return ""
    return ", ".join(map(_number, limiter.evidence))


def _number(evidence: Evidence) -> str:
    """Return one number of the evidence."""
    return f"{_roof(evidence.name)} {display.value(evidence.value, evidence.unit)}"


def _roof(name: str) -> str:
    """Return a roof as people write it."""
    return _ROOFS.get(name, name)
