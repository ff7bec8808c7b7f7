"""Compiled kernels into estimates and gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.devices import chip_limits, target_capability
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import is_compiled
from pytest_gpuperf.model.record import Kind
from pytest_gpuperf.model.sample import Estimate, Source, Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.collect.binary.instructions import InstructionMix
    from pytest_gpuperf.measure.assemble import Maker
    from pytest_gpuperf.model.launch import KernelResources
    from pytest_gpuperf.model.record import Record, RecordKey

__all__ = [
    "Code",
    "binary_record",
    "capability_text",
    "code_of",
    "compiled_values",
    "is_in_code",
]

_SPILLS = "spills_bytes"
_PREFIX = "instructions."
_LOG_REMEDY = "pass ptxas_log=, what `ptxas -v` printed"
_UNREAD = Gap(
    code=GapCode.NOT_ASKED, reason="its code was not read", remedy="ask for it"
)


class Code(Frozen, frozen=True, kw_only=True):
    """
    What was read of the kernels' machine code.

    Attributes:
        metrics: The metrics to take from it.

        mixes: What each kernel consists of, in their order; None: it was not read.

        gap: Why it could not be read; None: it could.
    """

    metrics: tuple[str, ...] = ()
    mixes: tuple[InstructionMix, ...] | None = None
    gap: Gap | None = None


def is_in_code(metric: str) -> bool:
    """Return whether the machine code must be read for a metric."""
    return is_compiled(metric) or metric == _SPILLS


def code_of(
    metrics: Sequence[str], read: Callable[[], tuple[InstructionMix, ...]]
) -> Code:
    """
    Return the code, or why it could not be read: the resources are known all the same.

    Args:
        metrics: The metrics to take from it; none: it is not read.

        read: Reads it.
    """
    if not metrics:
        return Code()
    try:
        return Code(metrics=tuple(metrics), mixes=read())
    except CollectError as error:
        return Code(metrics=tuple(metrics), gap=Gap.of(error))


def binary_record(
    maker: Maker,
    key: RecordKey,
    kernels: Sequence[KernelResources],
    code: Code | None = None,
) -> Record:
    """
    Return the record of compiled kernels: each one's values, and the largest.

    Args:
        maker: Makes the records of this process.

        key: The record's name.

        kernels: All of a binary.

        code: Their machine code, as far as it was read; None: it was not.
    """
    estimates, gaps = compiled_values(kernels, code or Code())
    targets = {capability_text(kernel.target) for kernel in kernels}
    return maker.record(
        key,
        Kind.BINARY,
        estimates,
        unmeasured=gaps,
        facts={"compute_capability": ", ".join(sorted(targets))},
        kernels=tuple(kernels),
    )


def compiled_values(
    kernels: Sequence[KernelResources], code: Code
) -> tuple[tuple[Estimate, ...], tuple[Unmeasured, ...]]:
    """
    Return each kernel's values and the largest of each, and those that are not known.

    What is not known of one kernel is not known of the whole.

    Args:
        kernels: All of a binary.

        code: Their machine code, as far as it was read.
    """
    single: list[Estimate] = []
    gaps: dict[str, Unmeasured] = {}
    for index, kernel in enumerate(kernels):
        mix = code.mixes[index] if code.mixes is not None else None
        for metric, (value, unit) in _kernel_metrics(kernel, mix, code).items():
            if value is not None:
                single.append(_resource(metric, value, unit, kernel.name))
            elif metric not in gaps:
                gaps[metric] = _gap(metric, kernel, kernels, mix, code)
    whole = [e for e in _largest(single) if e.metric not in gaps]
    return (*whole, *single), tuple(gaps.values())


def _kernel_metrics(
    kernel: KernelResources, mix: InstructionMix | None, code: Code
) -> dict[str, tuple[float | None, str]]:
    """Return a kernel's metrics, with its occupancy where its block is known."""
    from pytest_gpuperf.collect.translate.counters import kernel_values
    from pytest_gpuperf.compute.derive import kernel_occupancy

    metrics = kernel_values(kernel)
    capability = target_capability(kernel.target)
    limits = chip_limits(capability) if capability is not None else None
    occupancy = kernel_occupancy(kernel, limits) if limits is not None else None
    fraction = None if occupancy is None else occupancy.fraction
    metrics["occupancy.theoretical"] = (fraction, "fraction")
    if mix is not None and kernel.spills_bytes is None and _SPILLS in code.metrics:
        metrics[_SPILLS] = (mix.spills_bytes, "bytes")
    counts = None if mix is None else mix.counts
    for metric in filter(is_compiled, code.metrics):
        value = None if counts is None else counts[metric.removeprefix(_PREFIX)]
        metrics[metric] = (value, "count")
    return metrics


def _resource(metric: str, value: float, unit: str, kernel: str | None) -> Estimate:
    """Return the estimate of a resource: exact, from the binary."""
    return Estimate(
        metric=metric,
        value=float(value),
        unit=unit,
        source=Source.BINARY,
        kernel=kernel,
    )


def _largest(single: Sequence[Estimate]) -> list[Estimate]:
    """Return the worst kernel's value of each metric, as the value of the whole."""
    by_metric: dict[str, list[Estimate]] = {}
    for estimate in single:
        by_metric.setdefault(estimate.metric, []).append(estimate)
    return [
        _resource(
            metric,
            (min if metric.startswith("occupancy") else max)(e.value for e in values),
            values[0].unit,
            None,
        )
        for metric, values in by_metric.items()
    ]


def _gap(
    metric: str,
    kernel: KernelResources,
    kernels: Sequence[KernelResources],
    mix: InstructionMix | None,
    code: Code,
) -> Unmeasured:
    """Return why a kernel, and so the whole binary, has no value of a metric."""
    if metric in code.metrics:
        gap = _gap_in_code(metric, kernel, mix, code)
    else:
        gap = _gap_of_resource(metric, kernel, kernels)
    return Unmeasured.of_metric(metric, gap)


def _gap_in_code(
    metric: str, kernel: KernelResources, mix: InstructionMix | None, code: Code
) -> Gap:
    """Return why a kernel's code does not tell a metric."""
    name = kernel.demangled or kernel.name
    if mix is None:
        gap = code.gap or _UNREAD
    elif mix.doubt is not None:
        gap = Gap(
            code=GapCode.NOT_STATED,
            reason=f"not all code of {name} is known: {mix.doubt}",
            remedy="limit the other kernels by their names",
        )
    else:  # spills alone can be unknown of known code
        return Gap(
            code=GapCode.NOT_STATED,
            reason=f"local memory of {name} holds more than spilled registers",
            remedy=_LOG_REMEDY,
        )
    if metric == _SPILLS:
        return replace(gap, remedy=f"{gap.remedy}; or {_LOG_REMEDY}")
    return gap


def _gap_of_resource(
    metric: str, kernel: KernelResources, kernels: Sequence[KernelResources]
) -> Gap:
    """Return why a resource of a kernel is not known."""
    code = GapCode.NOT_STATED
    name = kernel.demangled or kernel.name
    if metric == "stack_bytes":
        reason = f"the compiler knows no bound for {name}, which recurses or calls"
        remedy = "limit the other kernels by their names"
    elif metric == _SPILLS and all(k.spills_bytes is None for k in kernels):
        reason = "a binary does not say what was spilled"
        remedy = f"{_LOG_REMEDY}; stack_bytes is known"
    elif metric == _SPILLS:
        reason = f"the compiler's log does not name {name}"
        remedy = "pass the log of the whole binary"
    elif kernel.threads_per_block is None:
        reason = "a binary does not say how many threads a block has"
        remedy = "pass block=, the threads of a block"
    else:
        code = GapCode.UNSUPPORTED
        reason = f"what a multiprocessor of {kernel.target} holds is not known"
        remedy = "compile it for a chip that is, as sm_90"
    return Gap(code=code, reason=reason, remedy=remedy)


def capability_text(target: str) -> str:
    """Return the compute capability of a target as text; the target where it has none."""
    capability = target_capability(target)
    return target if capability is None else f"{capability[0]}.{capability[1]}"
