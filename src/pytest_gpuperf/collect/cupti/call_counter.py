"""Counters of one more call of what was timed, its kernels told apart.

Each kernel of the call runs again until every counter has had its turn. Where kernels
cannot be told apart, as those of a CUDA graph, the call is counted as one thing and is
made again for each pass.

*Unverified on hardware.*
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.base import TimedCall, calls, settle
from pytest_gpuperf.collect.cupti.range_profiler import (
    Counted,
    Ranged,
    RangeProfiler,
    kernel_replay_error,
)
from pytest_gpuperf.collect.cupti.subscription import attached_tool
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.sample import CacheMode

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cupti.libcupti import Libcupti
    from pytest_gpuperf.collect.runtime import DeviceRuntime
    from pytest_gpuperf.model.activity import Trace

__all__ = ["Call", "CallCounter", "CountedCall"]

_LONGEST_S = 60.0  # of a call's passes: what a test under ncu is given, too
_ROOM = 1024  # ranges, where nobody has seen how many kernels a call launches
_SPARE = 64  # more than were seen: CUPTI may count kernels of the driver's own
_MOST_KERNELS = 4096  # counted one by one: each takes some KiB for every counter
_WHOLE = "call"  # the name of the range that a whole call is

_FIXED = Gap(
    code=GapCode.UNSUPPORTED,
    reason="a call that launches CUDA graphs, or very many kernels, is made again for"
    " each pass, and the test fixes how often it is called",
    remedy="leave iterations out",
)
_NO_ROOM = Gap(
    code=GapCode.UNSUPPORTED,
    reason="the call had no room beside what counting takes, and the result that the"
    " test may ask for",
    remedy="measure it on less, or return less of it",
)


class Call(Frozen, frozen=True, kw_only=True):
    """
    A call that was timed, and may be made again.

    Attributes:
        request: What to call.

        time_s: How long it takes [s].

        trace: What CUPTI saw of one such call; None: nobody looked.
    """

    request: TimedCall
    time_s: float
    trace: Trace | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is counted as one thing, for its kernels cannot be."""
        trace = self.trace
        if trace is None:
            return False
        if trace.graphs or len(trace.launches) > _MOST_KERNELS:
            return True
        return any(any(piece.graph) for piece in trace.launches.pieces())


class CountedCall(Frozen, frozen=True, kw_only=True):
    """
    What was counted of a call.

    Attributes:
        counted: As CUPTI says it.

        names: Of the kernels, as the device's code has them, one for each range; empty:
            nobody can tell which is which.
    """

    counted: Counted
    names: tuple[str, ...] = ()


class CallCounter:
    """
    Counts calls in this process.

    Args:
        runtime: The device that they use.

        library: The libcupti; None: the one of this process.
    """

    def __init__(
        self, runtime: DeviceRuntime, *, library: Libcupti | None = None
    ) -> None:
        self._runtime = runtime
        self._library = library

    def count(self, call: Call, counters: Sequence[str]) -> CountedCall | Gap:
        """
        Count one more call.

        Args:
            call: It; caches are treated as those of its timed samples.

            counters: By CUPTI's own names, >= 1 of them.

        Returns:
            What was counted, or why nothing was.

        Raises:
            Exception: What the call itself raises passes through.
        """
        refused = _unfit(call)
        if refused is not None:
            return refused
        own = _OwnCode()
        try:
            counted = self._profiled(call, counters, own)
        except GpuPerfError as error:
            if error is own.raised:
                raise
            return Gap.of(error)
        except Exception as error:
            # torch's and cupy's: the timed calls had room
            if type(error).__name__ != "OutOfMemoryError":
                raise
            return _NO_ROOM
        if isinstance(counted, Gap):
            return counted
        if counted.void is not None:
            return counted.void.gap
        by_kernel = counted.mode.replay == "kernel"
        names = _names(call.trace, len(counted.ranges)) if by_kernel else ()
        return CountedCall(counted=counted, names=names)

    def _profiled(
        self, call: Call, counters: Sequence[str], own: _OwnCode
    ) -> Counted | Gap:
        """Return what CUPTI counts; where that takes too many passes, why nothing."""
        seen_count = None if call.trace is None else len(call.trace.launches)
        profiler = RangeProfiler(
            counters,
            synchronize=self._runtime.synchronize,
            max_ranges=_ROOM if seen_count is None else seen_count + _SPARE,
            cache="all" if call.request.cache == CacheMode.COLD else "none",
            library=self._library,
        )
        with _closed(profiler):
            total_s = profiler.passes_count * call.time_s
            if total_s > _LONGEST_S:
                return Gap(
                    code=GapCode.UNSUPPORTED,
                    reason=f"its {profiler.passes_count} passes take {total_s:.0f} s or"
                    f" more, and counting in this process {_LONGEST_S:.0f} s at most",
                    remedy="declare fewer counters, or measure less in a call",
                )
            if call.is_whole:
                return self._count_whole(profiler, call.request, own)
            return self._count_kernels(profiler, call.request, own)

    def _count_kernels(
        self, profiler: RangeProfiler, request: TimedCall, own: _OwnCode
    ) -> Counted:
        """Count each kernel of one call."""
        with own.runs():
            call = calls(request)()
        self._flush(request)

        def body() -> None:
            with own.runs():
                settle(call())

        return profiler.count_kernels(body)

    def _count_whole(
        self, profiler: RangeProfiler, request: TimedCall, own: _OwnCode
    ) -> Counted:
        """Count a call as one thing, in as many calls as there are passes."""
        if request.inputs is not None:  # each pass is to do the same
            request = replace(request, inputs=request.inputs[:1])
        next_call = calls(request)

        def body(ranged: Ranged) -> None:
            with own.runs():
                call = next_call()
            self._flush(request)
            self._runtime.synchronize()
            with ranged(_WHOLE), own.runs():
                settle(call())

        return profiler.count_ranges(body)

    def _flush(self, request: TimedCall) -> None:
        """Begin as the timed samples do."""
        if request.cache == CacheMode.COLD:
            self._runtime.flush_l2()


class _OwnCode:
    """Knows what the test's own code has raised: no refusal of CUPTI's."""

    raised: BaseException | None = None

    @contextlib.contextmanager
    def runs(self) -> Iterator[None]:
        """Run code of the test."""
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise


@contextlib.contextmanager
def _closed(profiler: RangeProfiler) -> Iterator[None]:
    """Close a profiler at the end; what goes wrong is not hidden by how that goes."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(GpuPerfError):
            profiler.close()
        raise
    profiler.close()


def _unfit(call: Call) -> Gap | None:
    """Return why a call is not counted in this process; None: it may be."""
    ranks = kernel_replay_error(os.environ, launches_graphs=False)
    if ranks is not None:
        remedy = "profile the job from outside, and read it with gpuperf.capture"
        return replace(Gap.of(ranks), remedy=remedy)
    tool = attached_tool(os.environ)
    if tool is None and call.request.iterations is not None and call.is_whole:
        return _FIXED
    return tool


def _names(trace: Trace | None, count: int) -> tuple[str, ...]:
    """
    Return the names of kernels in the order in which they were launched.

    Args:
        trace: What CUPTI saw of a call like the one that was counted.

        count: Kernels that were counted.

    Returns:
        Empty where they are not certain: nobody looked, another number was counted, or
        the order of the launches was not seen.
    """
    if trace is None or len(trace.launches) != count:
        return ()
    found = [
        (call_ns, piece.shapes[place].name)
        for piece in trace.launches.pieces()
        for call_ns, place in zip(piece.call_ns, piece.shape, strict=True)
    ]
    moments = {call_ns for call_ns, _ in found}
    if 0 in moments or len(moments) < count:
        return ()
    return tuple(name for _, name in sorted(found))
