"""The record of a loop, and what its recording leaves unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.compute.roofline import peak_fact
from pytest_gpuperf.compute.scorecard import (
    hardware_of,
    peaks_of,
    scorecard_of,
    utilisation_of,
)
from pytest_gpuperf.compute.steps import estimates_of, slow_start, summarize
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import Kind, Note, Record, RecordKey, Void, VoidCode
from pytest_gpuperf.model.sample import (
    CacheMode,
    Series,
    Source,
    Unmeasured,
    unmeasured,
)
from pytest_gpuperf.model.steps import Loop, Step, StepSummary, Waiting

if TYPE_CHECKING:
    from pytest_gpuperf.measure.assemble import Maker
    from pytest_gpuperf.model.roofline import Peaks
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

_USE_TORCH = "run it where torch is used"
_PROFILE = "profile one step with Nsight Systems"
# Void steps named in a note. The rest are counted.
_NAMED = 3


def loop_record(
    maker: Maker,
    key: RecordKey,
    loop: Loop,
    *,
    work: Work | None = None,
    peaks: Peaks | None = None,
    hardware: Hardware | None = None,
) -> Record:
    """
    Build the record of a loop.

    Args:
        maker: The maker of records of this process.

        key: The key of the record.

        loop: The recorded loop.

        work: The work of one step, as declared by the test.

        peaks: The roofs of the device, or None if unknown.

        hardware: The hardware as declared by the test, or None.

    Raises:
        MeasureError: The loop ended normally, but all of its steps are warm-up steps, or
            there are none.
    """
    summary = summarize(loop)
    recorded, warmup = len(loop.steps), loop.warmup_count
    if loop.failure is None and recorded <= warmup:
        raise _without_steps(recorded, warmup)
    ran_on = hardware_of(work, loop.units, peaks, hardware)
    utilisation = utilisation_of(summary, work, peaks, hardware)
    estimates, gaps = [*estimates_of(loop, summary)], [*_gaps_of(loop, summary)]
    if isinstance(utilisation, Unmeasured):
        gaps.append(utilisation)
    else:
        estimates.append(utilisation)
    peak = peak_fact(peaks_of(work, peaks, hardware), work.dtype) if work else {}
    waiting = "step" if loop.waiting is None else loop.waiting.value
    record = maker.record(
        key,
        Kind.STEPS,
        tuple(estimates),
        series=_series(loop.counted),
        unmeasured=tuple(gaps),
        facts={
            **maker.facts,
            "cache_mode": CacheMode.AS_IT_COMES,
            "parameters": f"{loop.units:g} {loop.unit} a step, device waited for each {waiting}",
            **peak,
        },
        work=work,
    )
    if summary is not None and ran_on is not None:
        card = scorecard_of(summary, ran_on)
        efficiency = card.efficiency
        summary = replace(
            summary, grade=str(card.grade), efficiency_fraction=efficiency
        )
    notes = tuple(_notes_of(loop))
    return replace(record, void=_void_of(loop), notes=notes, steps=summary)


def _without_steps(recorded: int, warmup: int) -> MeasureError:
    """Return the error of a loop of which no step counts."""
    if not recorded:
        remedy = "wrap each iteration in `with steps.step():`"
        return MeasureError("the loop recorded no step", remedy=remedy)
    message = f"all {recorded} steps of the loop are for warming up (warmup={warmup})"
    return MeasureError(message, remedy="run more steps, or warm up fewer")


def _gaps_of(loop: Loop, summary: StepSummary | None) -> Iterator[Unmeasured]:
    yield unmeasured(
        "time.idle_fraction",
        GapCode.UNSUPPORTED,
        "the host's clock does not see when the device idles",
        f"{_PROFILE}; data.wait_fraction is known",
    )
    if loop.peak_memory_bytes is None:
        reason = "torch holds no device memory in this process"
        yield unmeasured("memory.peak_bytes", GapCode.UNSUPPORTED, reason, _USE_TORCH)
    if summary is None:
        return
    if summary.exposed_s is None:
        metric = "comm.exposed_time"
        if loop.waiting is not None:
            reason = "the host's clock does not see what the device does in parallel"
            yield unmeasured(metric, GapCode.UNSUPPORTED, reason, _PROFILE)
        else:
            reason = "no span of kind communication was recorded"
            remedy = 'record it: steps.phase("all_reduce", kind="communication")'
            yield unmeasured(metric, GapCode.NOT_DECLARED, reason, remedy)
    if summary.compiled is not None:
        if summary.compiled.time_s is None:
            reason = "this version of torch does not say how long it compiled"
            remedy = "limit compile.count instead"
            yield unmeasured("compile.time", GapCode.UNSUPPORTED, reason, remedy)
    else:
        reason = loop.uncompiled_reason or "its counters were cleared in the loop"
        for name in ("count", "graph_breaks", "time"):
            metric = f"compile.{name}"
            # To ask avoids a skip.
            remedy = f'ask first: steps.has("{metric}"); or {_USE_TORCH}'
            yield unmeasured(metric, GapCode.NOT_STATED, reason, remedy)


def _notes_of(loop: Loop) -> Iterator[Note]:
    void = [step for step in loop.steps[loop.warmup_count :] if step.void]
    if void:
        named = "; ".join(f"step {step.index}: {step.void}" for step in void[:_NAMED])
        more = f"; {len(void) - _NAMED} more" if len(void) > _NAMED else ""
        text = f"{len(void)} of the steps did not count ({named}{more})"
        yield Note(code="void-steps", text=text)
    first = slow_start(loop.counted)
    if first is not None:
        count, ratio = first
        text = (
            f"the first {count} steps that count took {ratio:,.0f} times the median of the"
            " later steps, which may have less to do; let warmup= leave them out, or give"
            " each step new work"
        )
        yield Note(code="less-work", text=text, doubt=True)
    if loop.waiting is Waiting.STEP:
        yield Note(
            code="host-phases",
            text="phases are the host's times: the device may run behind them "
            '(synchronize="span" waits for it)',
        )
    if loop.waiting is Waiting.SPAN:
        yield Note(
            code="waited-for-spans",
            text="the device was waited for at every span, so that nothing overlaps "
            "and the steps are slower than without",
        )


def _void_of(loop: Loop) -> Void | None:
    if loop.failure is not None:
        count = len(loop.steps)
        reason = f"the loop was ended by {loop.failure} after {count} steps"
        return Void(code=VoidCode.LOOP_ENDED, reason=reason)
    if not loop.counted:
        first = next((step.void for step in loop.steps if step.void), "")
        reason = f"no step came to its end ({first})"
        return Void(code=VoidCode.NO_WHOLE_STEP, reason=reason)
    return None


def _series(counted: Sequence[Step]) -> tuple[Series, ...]:
    values = {
        "time": ("s", [step.duration_s for step in counted]),
        "period": ("s", [step.period_s for step in counted]),
        "throughput": (
            "1/s",
            [s.units / s.period_s for s in counted if s.period_s > 0],
        ),
    }
    return tuple(
        Series(metric=metric, unit=unit, source=Source.HOST, values=tuple(samples))
        for metric, (unit, samples) in values.items()
        if samples
    )
