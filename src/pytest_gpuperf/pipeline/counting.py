"""Hardware counters of a test: what it needs, and what its record gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.ncu.command import paired_modes
from pytest_gpuperf.collect.translate.counters import SPELLINGS
from pytest_gpuperf.collect.translate.ncu import captured_facts
from pytest_gpuperf.compute.derive import FORMULAS
from pytest_gpuperf.compute.limiter import LIMITING
from pytest_gpuperf.model.counters import DECLARED_BYTES
from pytest_gpuperf.model.fingerprint import family_facts, family_of
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS, Family, is_counter
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.pipeline.captured import capture_values, kernel_analyses

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.capture import CapturedLaunch
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.model.device import Device
    from pytest_gpuperf.model.work import Work

__all__ = [
    "AS_IT_COMES",
    "COUNT",
    "HERE",
    "SOURCE",
    "cache_control_of",
    "limiting_counters",
    "made_of",
    "may_count_here",
    "wanted_metrics",
    "with_counters",
]

SOURCE, HERE = "ncu", "cupti"  # another process counts, or this one
COUNT = "launches.count"
AS_IT_COMES = paired_modes("none").cache_control  # of a range, a loop, a whole test
_UNCOUNTED = {  # by source: why it does not say how many kernels were launched
    SOURCE: Unmeasured(
        metric=COUNT,
        reason="ncu counts a whole range as one (--gpuperf-ncu-replay=range)",
        remedy="count it with --gpuperf-ncu-replay=kernel, or with cupti",
    ),
    HERE: Unmeasured(
        metric=COUNT,
        reason="a CUDA graph may be one of the ranges that CUPTI counts in",
        remedy="have CUPTI see launches: `gpuperf doctor` says why it does not",
    ),
}


def wanted_metrics(plan: Plan, collectors: Sequence[str]) -> tuple[str, ...]:
    """
    Return what a test needs a profiler for; empty: nothing.

    Counters are needed where they are declared or named by a limit. What counters become
    (`dram.bytes`) may as well come from a report that the test reads, so it alone starts
    nothing unless what counts, ncu or CUPTI, was asked for by name.

    Args:
        plan: What its markers ask for.

        collectors: Those that were asked for by name; empty: none were.
    """
    named = (*(limit.metric for limit in plan.limits), *plan.max_regression)
    counters = (*plan.counters, *(name for name in named if is_counter(name)))
    if not counters and not {SOURCE, HERE} & {*collectors}:
        return ()
    # CUPTI that is asked for sees launches without counting anything
    seen = not counters and SOURCE not in collectors
    derived = (n for n in named if n in FORMULAS or (n == COUNT and not seen))
    return tuple(dict.fromkeys((*counters, *derived)))


def may_count_here(collectors: Sequence[str], device: Device | None) -> bool:
    """
    Return whether this process may count itself: CUPTI is not left out, and a GPU there.

    Whether it can shows only when a test uses the GPU.
    """
    return (not collectors or HERE in collectors) and device is not None


def cache_control_of(plan: Plan) -> str:
    """Return what to do about caches, as far as a test's markers tell."""
    if not plan.uses_fixture:
        return AS_IT_COMES
    return paired_modes(plan.cache or "cold").cache_control


def _has_all(_: str) -> bool:
    """Return that a tool lacks no counter of the chip."""
    return False


def made_of(
    metrics: Sequence[str],
    capability: tuple[int, int] | None,
    *,
    lacks: Callable[[str], bool] = _has_all,
) -> tuple[str, ...]:
    """
    Return the counters that metrics are made of, each once: no more than are needed, and
    none that the chip lacks, for ncu refuses them all where it lacks one.

    Args:
        metrics: Counters by their own names, and metrics of the catalogue.

        capability: The chip's compute capability; None: not known.

        lacks: Whether what counts does not know a counter, although the chip has it.
    """
    own = [name for name in metrics if name not in METRICS and not lacks(name)]
    ways = (_way(name, capability, lacks) for name in metrics if name in FORMULAS)
    return tuple(dict.fromkeys((*own, *(counter for way in ways for counter in way))))


def limiting_counters(capability: tuple[int, int] | None) -> tuple[str, ...]:
    """
    Return the counters that say what limits a kernel, and no more than that takes.

    Args:
        capability: The chip's compute capability; None: not known.
    """
    found = (
        next((s.counter for s in SPELLINGS.get(name, ()) if s.fits(capability)), None)
        for name in LIMITING
    )
    return tuple(counter for counter in found if counter is not None)


def _way(
    metric: str, capability: tuple[int, int] | None, lacks: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the counters of the first way to a metric that is there; empty: none is."""
    for way in FORMULAS[metric].ways:
        needs = [need for need in way.needs if need != DECLARED_BYTES]
        spelled = [
            next(
                (
                    s.counter
                    for s in SPELLINGS.get(need, ())
                    if s.fits(capability) and not lacks(s.counter)
                ),
                "",
            )
            for need in needs
        ]
        if all(spelled):
            return tuple(spelled)
    return ()


def with_counters(
    record: Record,
    launches: Sequence[CapturedLaunch],
    metrics: Sequence[str],
    *,
    work: Work | None,
    facts: Mapping[str, str],
    source: str = SOURCE,
    by_kernel: bool = True,
) -> Record:
    """
    Return a record with what was counted of the same call, made once more.

    Its time stays what it is: a profiler's clocks and caches are not those of a run.

    Args:
        record: What this process measured.

        launches: The kernels of one call, >= 1, each measured.

        metrics: What the test asks for: those without a value become *unmeasured*.

        work: What one call has to do.

        facts: Hard facts of this process and of the profile.

        source: What counted: SOURCE or HERE.

        by_kernel: Whether the launches are those of kernels with a name.
    """
    estimates, gaps = capture_values(launches, metrics, work)
    others = [
        name
        for name, metric in METRICS.items()
        if metric.family is Family.COUNTER and name in FORMULAS and name not in metrics
    ]
    besides, _ = capture_values(launches, others, work)  # as far as they are there
    counted = [
        replace(e, source=source)
        for e in (*estimates, *(e for e in besides if e.metric != COUNT))
    ]
    if not by_kernel:  # one result for all that was launched
        counted = [e for e in counted if e.kernel is None]
    if not by_kernel or source == HERE:
        counted = [e for e in counted if e.metric != COUNT]
        gaps = (*gaps, *(_UNCOUNTED[source] for name in metrics if name == COUNT))
    known = {**captured_facts(launches[0]), **facts}
    families = {family_of(e.metric, source) for e in counted}
    own = {family.value: family_facts(family, known) for family in sorted(families)}
    return replace(
        record,
        estimates=(*record.estimates, *counted),
        unmeasured=(*record.unmeasured, *(_collected(gap, source) for gap in gaps)),
        facts={**record.facts, **own},
        analyses=kernel_analyses(launches) if by_kernel else (),
    )


def _collected(gap: Unmeasured, source: str) -> Unmeasured:
    """Return a gap in what was collected for the test: the advice is not to collect it."""
    if not gap.remedy.startswith("collect it"):
        return gap
    reason = f"{source} gave no value of it for this call"
    remedy = "see that this GPU has it: gpuperf metrics check"
    if "." not in gap.metric:  # most names stand for a value only with one
        remedy = f"write an ending behind it (dram__bytes.sum has one), or {remedy}"
    return replace(gap, reason=reason, remedy=remedy)
