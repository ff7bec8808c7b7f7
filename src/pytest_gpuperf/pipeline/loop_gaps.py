"""What a loop cannot say, and why; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuperf.model.record import Note, Void
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.step_summary import StepSummary
from pytest_gpuperf.model.steps import Loop, Waiting

__all__ = ["gaps_of", "notes_of", "void_of"]

_USE_TORCH = "run it where torch is used"
_PROFILE = "profile one step with Nsight Systems"
_NAMED = 3  # void steps in a note; more are counted


def gaps_of(loop: Loop, summary: StepSummary | None) -> Iterator[Unmeasured]:
    """Yield what a loop has no value of, and why."""
    yield _gap(
        "time.idle_fraction",
        "the host's clock does not see when the device idles",
        f"{_PROFILE}; data.wait_fraction is known",
    )
    if loop.peak_memory_bytes is None:
        reason = "torch holds no device memory in this process"
        yield _gap("memory.peak_bytes", reason, _USE_TORCH)
    if summary is None:
        return
    if summary.exposed_s is None:
        yield _gap("comm.exposed_time", *_why_not_exposed(loop))
    if summary.compiled is not None:
        if summary.compiled.time_s is None:
            reason = "this version of torch does not say how long it compiled"
            yield _gap("compile.time", reason, "limit compile.count instead")
    else:
        reason = loop.uncompiled_reason or "its counters were cleared in the loop"
        for name in ("count", "graph_breaks", "time"):
            yield _gap(f"compile.{name}", reason, _USE_TORCH)


def _why_not_exposed(loop: Loop) -> tuple[str, str]:
    """Return why exposed communication is not known, and what to do about it."""
    if loop.waiting is not None:
        return (
            "the host's clock does not see what the device does beside it",
            _PROFILE,
        )
    return (
        "no span of kind communication was recorded",
        'record it: steps.phase("all_reduce", kind="communication")',
    )


def notes_of(loop: Loop) -> Iterator[Note]:
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


def void_of(loop: Loop) -> Void | None:
    """Return why a loop must not be judged; None: it may."""
    if loop.failure is not None:
        count = len(loop.steps)
        text = f"the loop was ended by {loop.failure} after {count} steps"
        return Void(code="loop-ended", text=text)
    if not loop.counted:
        reason = next((step.void for step in loop.steps if step.void), "")
        text = f"no step came to its end ({reason})"
        return Void(code="no-whole-step", text=text)
    return None


def _gap(metric: str, reason: str, remedy: str) -> Unmeasured:
    """Return why a metric has no value."""
    return Unmeasured(metric=metric, reason=reason, remedy=remedy)
