"""The estimate that a limit is about, in the limit's unit; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from pytest_gpuperf.judge.source import best_source
from pytest_gpuperf.model.counter_unit import counter_unit
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.limit import Limit
from pytest_gpuperf.model.metric import METRICS, is_counter
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.sample import Estimate

__all__ = ["Gap", "select"]

_SHOWN_KERNELS = 10  # of a record without the kernel that a limit names


class Gap(Frozen, frozen=True, kw_only=True):
    """
    Why a limit has no value to be held against.

    Attributes:
        reason: As a fragment.

        remedy: As a sentence.

        detail: What else is known.
    """

    reason: str
    remedy: str
    detail: tuple[str, ...] = ()


def select(limit: Limit, record: Record) -> Estimate | Gap:
    """
    Return the estimate that a limit is about.

    Of several sources the best is taken; of several kernels that match a pattern the one
    nearest to breaking the limit. A limit in bytes, seconds or percent gets a counter's
    value in that unit; a bare number is in the counter's own.

    Returns:
        The estimate in the limit's unit, or why there is none.
    """
    found = [e for e in record.estimates if e.metric == limit.metric]
    source = best_source(e.source for e in found)
    found = [e for e in found if e.source == source]
    if not found:
        return _missing(limit, record)
    chosen = _of_kernels(limit, record, found)
    if isinstance(chosen, Gap):
        return chosen
    converted = [_in_unit_of(limit, estimate) for estimate in chosen]
    fitting = [e for e in converted if e is not None]
    if len(fitting) < len(converted):
        return _misfit(limit, chosen)
    return _worst(limit, fitting)


def _missing(limit: Limit, record: Record) -> Gap:
    """Return why a metric is not in a record."""
    for gap in record.unmeasured:
        if gap.metric == limit.metric:
            return Gap(reason=gap.reason, remedy=gap.remedy)
    if is_counter(limit.metric):
        remedy = f'declare it: counters=["{limit.metric}"]'
    elif limit.metric in METRICS:
        remedy = "see docs/metrics.md for what measures it"
    else:
        remedy = f'record it: gpuperf.record("{limit.metric}", …)'
    return Gap(reason=f"{limit.metric} was not measured", remedy=remedy)


def _of_kernels(
    limit: Limit, record: Record, found: Sequence[Estimate]
) -> list[Estimate] | Gap:
    """Return the estimates of the kernels that are meant, or of the whole record."""
    if limit.kernel is not None:
        matching = [e for e in found if _matches(limit.kernel, e.kernel, record)]
        return matching or _no_kernel(limit, found)
    whole = [e for e in found if e.kernel is None]
    if whole or len(found) == 1:  # of one kernel alone the whole is its own
        return whole[:1] or list(found)
    return Gap(
        reason=f"{limit.metric} is known by kernel only",
        remedy=f'name the kernel: {limit.metric}["{found[0].kernel}"]',
        detail=_named(found),
    )


def _matches(pattern: str, kernel: str | None, record: Record) -> bool:
    """Return whether a kernel's name, or what it demangles to, fits a pattern."""
    if kernel is None:
        return False
    readable = [k.demangled for k in record.kernels if k.name == kernel and k.demangled]
    return any(fnmatchcase(name, pattern) for name in (kernel, *readable))


def _no_kernel(limit: Limit, found: Sequence[Estimate]) -> Gap:
    """Return why no kernel fits a pattern, with those there are."""
    names = _named(found)
    if not names:
        return Gap(
            reason=f"{limit.metric} is not known by kernel here",
            remedy=f"write the limit without a kernel: {limit.metric}",
        )
    return Gap(
        reason=f'no kernel fits "{limit.kernel}"',
        remedy="write a pattern that fits one of these kernels",
        detail=names,
    )


def _named(found: Sequence[Estimate]) -> tuple[str, ...]:
    """Return the kernels of some estimates, not more than a reader can use."""
    names = list(dict.fromkeys(e.kernel for e in found if e.kernel is not None))
    shown = names[:_SHOWN_KERNELS]
    if len(names) > len(shown):
        shown.append(f"{len(names) - len(shown)} more kernels")
    return tuple(shown)


def _in_unit_of(limit: Limit, estimate: Estimate) -> Estimate | None:
    """Return an estimate in its limit's unit; None: it cannot be converted."""
    if limit.unit is None or limit.unit == estimate.unit:
        return estimate
    unit = counter_unit(estimate.unit)
    if unit is None:  # "inst", "sector": words for a count
        return estimate if limit.unit == "count" else None
    if unit.si != limit.unit:
        return None
    low, high = estimate.low, estimate.high
    return replace(
        estimate,
        value=unit.to_si(estimate.value),
        low=None if low is None else unit.to_si(low),
        high=None if high is None else unit.to_si(high),
        unit=limit.unit,
    )


def _misfit(limit: Limit, chosen: Sequence[Estimate]) -> Gap:
    """
    Return why a value and its limit cannot be compared.

    A tool says the unit of its counter only with the value, and changes it between its
    versions: too late for an error of the limit's text, and no failure of the code.
    """
    unit = chosen[0].unit
    return Gap(
        reason=f"{limit.metric} is in {unit}, its limit in {limit.unit}",
        remedy=f"write the limit in {unit}, or as a bare number",
    )


def _worst(limit: Limit, found: Sequence[Estimate]) -> Estimate:
    """Return the estimate that is nearest to breaking a limit, or farthest beyond it."""
    if limit.operator in {"<=", "<"}:
        return max(found, key=lambda e: e.value)
    if limit.operator in {">=", ">"}:
        return min(found, key=lambda e: e.value)
    return max(found, key=lambda e: abs(e.value - limit.threshold))
