"""The estimate that a limit is about, of the best source and in the limit's unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pytest_gpuperf.errors import SITE
from pytest_gpuperf.judge.case import best_source
from pytest_gpuperf.model.activity import fits_kernel
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import (
    METRICS,
    Family,
    Metric,
    is_counter,
    metric_of,
)
from pytest_gpuperf.model.quantity import counter_unit
from pytest_gpuperf.model.record import Kind, Record
from pytest_gpuperf.model.sample import Estimate, Source
from pytest_gpuperf.model.verdict import Limit

__all__ = ["not_given", "select"]

_PHASE = "phase."  # how the time of a loop's phase begins
_SHOWN_KERNELS = 5  # of a record without the kernel that a limit names

_RUN = (Kind.MEASURE, Kind.RANGE, Kind.STEPS)  # kinds of which a profiler can count
_NOT_GIVEN: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.MEASURE: "timing a call does not give it",
        Kind.RANGE: "timing a block does not give it",
        Kind.COMPARE: "a comparison gives the speedup alone",
        Kind.BINARY: "a compiled kernel does not say it: nothing runs",
        Kind.CAPTURE: "a report holds counters, and none of them is this metric",
        Kind.RECORD: "a number of the test's own is all that was recorded",
        Kind.STEPS: "timing the steps of a loop does not give it",
    }
)


def select(limit: Limit, record: Record) -> Estimate | Gap:
    """
    Return the estimate that a limit is about.

    Of several sources the best is taken; of several kernels that match a pattern the one
    nearest to breaking the limit. A limit in bytes, seconds or percent gets a counter's
    value in that unit; a bare number is in the counter's own.

    Returns:
        The estimate in the limit's unit, or why there is none.
    """
    estimates = [e for e in record.estimates if e.metric == limit.metric]
    source = best_source(e.source for e in estimates)
    estimates = [e for e in estimates if e.source == source]
    if not estimates:
        return _missing(limit, record)
    chosen = _of_kernels(limit, record, estimates)
    if isinstance(chosen, Gap):
        return chosen
    converted = [_in_unit_of(limit, estimate) for estimate in chosen]
    fitting = [e for e in converted if e is not None]
    if len(fitting) < len(converted):
        return _misfit(limit, chosen)
    return _worst(limit, fitting)


def not_given(metric: str, kind: Kind) -> Gap:
    """
    Return why a measurement has no value of a metric, and what would give one.

    Args:
        metric: Of the catalogue, a counter, or a number that a test has recorded.

        kind: The kind of measurement.
    """
    definition = metric_of(metric)
    if kind in definition.kinds:
        return _not_here(definition, kind)
    if kind is Kind.COMPARE and Kind.MEASURE in definition.kinds:
        return Gap(
            code=GapCode.OTHER_WAY,
            reason=_NOT_GIVEN[kind],
            remedy="ask one of its sides, as pair.a.time",
        )
    remedy = f"take it with {_fixtures(definition.kinds)}"
    if kind in _RUN and definition.family is Family.COUNTER:
        remedy += f", or declare what it is made of (counters=[…], {SITE}/metrics.html)"
    return Gap(code=GapCode.OTHER_WAY, reason=_NOT_GIVEN[kind], remedy=remedy)


def _not_here(metric: Metric, kind: Kind) -> Gap:
    """Return why the right kind of measurement gave no value of a metric this time."""
    sources = metric.sources[kind]
    if metric.sampled:
        return Gap(
            code=GapCode.NOT_SAMPLED,
            reason="no sensor of a GPU was sampled meanwhile",
            remedy="",  # it names an option: report has it
        )
    if not metric.gpu:
        return Gap(
            code=GapCode.METRIC_UNAVAILABLE,
            reason="this measurement gave no value of it",
            remedy=f"see {SITE}/metrics.html for what measures it",
        )
    measure = "measures" if len(sources) == 1 else "measure"
    what = "a block" if kind is Kind.RANGE else "a call"
    remedy = "use a GPU"
    checked = [source for source in sources if source != Source.HOST]
    if checked:
        remedy += f", and see what `gpuperf doctor` says of {' and '.join(checked)}"
    kinds = [k for k in metric.kinds if metric.sources[k] != sources]
    if kinds:
        remedy += f"; or take it with {_fixtures(kinds)}"
    reason = f"only {' and '.join(sources)} {measure} it in {what}, and only on a GPU"
    return Gap(code=GapCode.COLLECTOR_UNAVAILABLE, reason=reason, remedy=remedy)


def _fixtures(kinds: Sequence[Kind]) -> str:
    """Return the fixture's ways to take a metric."""
    *ways, last = (f"gpuperf.{kind.value}" for kind in kinds)
    return " or ".join(filter(None, (", ".join(ways), last)))


def _missing(limit: Limit, record: Record) -> Gap:
    """Return why a metric is not in a record."""
    gap = _stated_gap(limit, record)
    if gap is not None:
        return gap
    phases = [e.metric for e in record.estimates if e.metric.startswith(_PHASE)]
    if limit.metric.startswith(_PHASE) and phases:
        remedy = f"name one that the loop recorded: {', '.join(phases)}"
    elif is_counter(limit.metric):
        remedy = f'declare it: counters=["{limit.metric}"]'
    elif limit.metric in METRICS:
        return not_given(limit.metric, record.kind)
    else:
        remedy = f'record it: gpuperf.record("{limit.metric}", …)'
    return Gap(code=GapCode.NOT_DECLARED, reason="it was not measured", remedy=remedy)


def _stated_gap(limit: Limit, record: Record) -> Gap | None:
    """Return why whoever measured says that a metric has no value; None: nobody does."""
    for gap in record.unmeasured:
        if gap.metric == limit.metric:
            return gap
    return None


def _of_kernels(
    limit: Limit, record: Record, estimates: Sequence[Estimate]
) -> list[Estimate] | Gap:
    """Return the estimates of the kernels that are meant, or of the whole record."""
    if limit.kernel is not None:
        matching = [e for e in estimates if _matches(limit.kernel, e.kernel, record)]
        return matching or _no_kernel(limit, record, estimates)
    whole = [e for e in estimates if e.kernel is None]
    if whole or len(estimates) == 1:  # of one kernel alone the whole is its own
        return whole[:1] or list(estimates)
    return _stated_gap(limit, record) or Gap(
        code=GapCode.NO_KERNEL,
        reason=f"{limit.metric} is known by kernel only",
        remedy=f'name the kernel: {limit.metric}["{estimates[0].kernel}"]',
    )


def _matches(pattern: str, kernel: str | None, record: Record) -> bool:
    """Return whether a kernel's name, or what it demangles to, fits a pattern."""
    if kernel is None:
        return False
    readable = {k.name: k.demangled for k in record.kernels}
    return fits_kernel(pattern, kernel, readable.get(kernel))


def _no_kernel(limit: Limit, record: Record, estimates: Sequence[Estimate]) -> Gap:
    """Return why no kernel fits a pattern, with those there are."""
    names = _named(record, estimates)
    if not names:
        return Gap(
            code=GapCode.NO_KERNEL,
            reason=f"{limit.metric} is not known by kernel here",
            remedy=f"write the limit without a kernel: {limit.metric}",
        )
    return Gap(
        code=GapCode.NO_SUCH_KERNEL,
        reason=f'no kernel fits "{limit.kernel}"',
        remedy=f"write a pattern that fits one of {names}",
    )


def _named(record: Record, estimates: Sequence[Estimate]) -> str:
    """Return the kernels of some estimates, not more than a reader can use."""
    readable = {
        k.name: k.demangled.removeprefix("void ") for k in record.kernels if k.demangled
    }
    kernels = dict.fromkeys(e.kernel for e in estimates if e.kernel is not None)
    names = [readable.get(kernel, kernel) for kernel in kernels]
    shown = names[:_SHOWN_KERNELS]
    if len(names) > len(shown):
        shown.append(f"{len(names) - len(shown)} more")
    return ", ".join(shown)


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
        code=GapCode.UNIT_MISMATCH,
        reason=f"{limit.metric} is in {unit}, its limit in {limit.unit}",
        remedy=f"write the limit in {unit}, or as a bare number",
    )


def _worst(limit: Limit, estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate that is nearest to breaking a limit, or farthest beyond it."""
    if limit.operator in {"<=", "<"}:
        return max(estimates, key=lambda e: e.value)
    if limit.operator in {">=", ">"}:
        return min(estimates, key=lambda e: e.value)
    return max(estimates, key=lambda e: abs(e.value - limit.threshold))
