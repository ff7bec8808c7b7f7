"""A measured loop as a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuperf.compute.roofline import peak_fact
from pytest_gpuperf.compute.scorecard import (
    hardware_of,
    peaks_of,
    scorecard_of,
    utilisation_of,
)
from pytest_gpuperf.compute.steps import estimates_of, summarize
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import Kind, Note, Record, RecordKey, Void, VoidCode
from pytest_gpuperf.model.roofline import Peaks
from pytest_gpuperf.model.sample import (
    CacheMode,
    Series,
    Source,
    Unmeasured,
    unmeasured,
)
from pytest_gpuperf.model.scorecard import Hardware
from pytest_gpuperf.model.steps import Loop, Step, StepSummary, Waiting
from pytest_gpuperf.model.work import Work

if TYPE_CHECKING:
    from pytest_gpuperf.measure.assemble import Maker

__all__ = [
    "EndLoop",
    "loop_record",
]

# ends a loop, by the exception that ended it: its record, and what it ran on
EndLoop: TypeAlias = "Callable[[BaseException | None], tuple[Record, Hardware | None]]"


_USE_TORCH = "run it where torch is used"
_PROFILE = "profile one step with Nsight Systems"
_NAMED = 3  # void steps in a note; more are counted


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
    Return the record of a loop.

    Args:
        maker: Makes the records of this process.

        key: The record's name.

        loop: What was recorded.

        work: What one step has to do, as the test declares it.

        peaks: The roofs of the device; None: not known.

        hardware: What the test says of the hardware; None: nothing.

    Raises:
        MeasureError: The loop came to its end, and no step of it was to count.
    """
    summary = summarize(loop)
    if loop.failure is None:
        _refuse_empty(loop)
    ran_on = hardware_of(work, loop.units, peaks, hardware)
    utilisation = utilisation_of(summary, work, peaks, hardware)
    estimates, gaps = [*estimates_of(loop, summary)], [*_gaps_of(loop, summary)]
    if isinstance(utilisation, Unmeasured):
        gaps.append(utilisation)
    else:
        estimates.append(utilisation)
    peak = peak_fact(peaks_of(work, peaks, hardware), work.dtype) if work else {}
    record = maker.record(
        key,
        Kind.STEPS,
        tuple(estimates),
        series=_series(loop.counted),
        unmeasured=tuple(gaps),
        facts={**maker.facts, **_facts(loop), **peak},
        work=work,
    )
    return replace(
        record,
        void=_void_of(loop),
        notes=tuple(_notes_of(loop)),
        steps=_graded(summary, ran_on),
    )


def _gaps_of(loop: Loop, summary: StepSummary | None) -> Iterator[Unmeasured]:
    """Yield what a loop has no value of, and why."""
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
        yield _unexposed(loop)
    if summary.compiled is not None:
        if summary.compiled.time_s is None:
            reason = "this version of torch does not say how long it compiled"
            remedy = "limit compile.count instead"
            yield unmeasured("compile.time", GapCode.UNSUPPORTED, reason, remedy)
    else:
        reason = loop.uncompiled_reason or "its counters were cleared in the loop"
        for name in ("count", "graph_breaks", "time"):
            yield unmeasured(f"compile.{name}", GapCode.NOT_STATED, reason, _USE_TORCH)


def _notes_of(loop: Loop) -> Iterator[Note]:
    """Yield what the reader of a loop should know."""
    void = [step for step in loop.steps[loop.warmup_count :] if step.void]
    if void:
        named = "; ".join(f"step {step.index}: {step.void}" for step in void[:_NAMED])
        more = f"; {len(void) - _NAMED} more" if len(void) > _NAMED else ""
        text = f"{len(void)} of the steps did not count ({named}{more})"
        yield Note(code="void-steps", text=text)
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
    """Return why a loop must not be judged; None: it may."""
    if loop.failure is not None:
        count = len(loop.steps)
        reason = f"the loop was ended by {loop.failure} after {count} steps"
        return Void(code=VoidCode.LOOP_ENDED, reason=reason)
    if not loop.counted:
        first = next((step.void for step in loop.steps if step.void), "")
        reason = f"no step came to its end ({first})"
        return Void(code=VoidCode.NO_WHOLE_STEP, reason=reason)
    return None


def _refuse_empty(loop: Loop) -> None:
    """Refuse a loop whose steps are all for warming up, or that has none."""
    recorded, warmup = len(loop.steps), loop.warmup_count
    if recorded > warmup:
        return
    if not recorded:
        message = "the loop recorded no step"
        remedy = "put each turn of it into `with steps.step():`"
        raise MeasureError(message, remedy=remedy)
    message = f"all {recorded} steps of the loop are for warming up (warmup={warmup})"
    raise MeasureError(message, remedy="let it run more steps, or warm up fewer")


def _graded(
    summary: StepSummary | None, hardware: Hardware | None
) -> StepSummary | None:
    """Return a summary with the grade of the training scorecard, if it has one."""
    if summary is None or hardware is None:
        return summary
    scorecard = scorecard_of(summary, hardware)
    return replace(
        summary,
        grade=str(scorecard.grade),
        efficiency_fraction=scorecard.efficiency,
    )


def _series(counted: Sequence[Step]) -> tuple[Series, ...]:
    """Return the samples of the steps that count."""
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


def _facts(loop: Loop) -> dict[str, str]:
    """Return what makes two loops different things to measure."""
    waiting = "step" if loop.waiting is None else loop.waiting.value
    return {
        "cache_mode": CacheMode.AS_IT_COMES,
        "parameters": f"{loop.units:g} {loop.unit} a step, device waited for each {waiting}",
    }


def _unexposed(loop: Loop) -> Unmeasured:
    """Return why exposed communication is not known."""
    metric = "comm.exposed_time"
    if loop.waiting is not None:
        reason = "the host's clock does not see what the device does beside it"
        return unmeasured(metric, GapCode.UNSUPPORTED, reason, _PROFILE)
    reason = "no span of kind communication was recorded"
    remedy = 'record it: steps.phase("all_reduce", kind="communication")'
    return unmeasured(metric, GapCode.NOT_DECLARED, reason, remedy)
