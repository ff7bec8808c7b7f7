"""Counters of one more call of the timed function, kernel by kernel.

Each kernel of the call is replayed once for each pass. Kernels of a CUDA graph cannot be
distinguished: such a call is counted as a whole and repeated for each pass.

H200, libcupti 13.0: kernels of a call in launch order, and a graph as a whole.
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

_LONGEST_S = 60.0  # of a call's passes: as much as a test under ncu has
_MAX_RANGES = 1024  # if the number of kernels is unknown
_SPARE = 64  # more than were recorded: the driver may launch kernels of its own
_MOST_KERNELS = 4096  # counted one by one: each takes some KiB for every counter
_WHOLE = "call"  # the name of the range of a whole call

_FIXED = Gap(
    code=GapCode.UNSUPPORTED,
    reason="a call that launches CUDA graphs, or very many kernels, is repeated for each"
    " pass, and the test fixes the number of calls",
    remedy="leave iterations out",
)
_NO_ROOM = Gap(
    code=GapCode.UNSUPPORTED,
    reason="the GPU has too little memory for the call, its result and the counters",
    remedy="measure the call on less data, or return less of it",
)


class Call(Frozen, frozen=True, kw_only=True):
    """
    A timed call that may be repeated.

    Attributes:
        request: The call.

        time_s: Its duration [s].

        trace: CUPTI's trace of one such call; None: not recorded.
    """

    request: TimedCall
    time_s: float
    trace: Trace | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is counted as a whole, because its kernels cannot be."""
        trace = self.trace
        if trace is None:
            return False
        if trace.graphs or len(trace.launches) > _MOST_KERNELS:
            return True
        return any(any(piece.graph) for piece in trace.launches.pieces())


class CountedCall(Frozen, frozen=True, kw_only=True):
    """
    The counters of a call.

    Attributes:
        counted: The counters by range.

        names: The mangled name of each range's kernel; empty: unknown.
    """

    counted: Counted
    names: tuple[str, ...] = ()


class CallCounter:
    """
    Counts calls in this process.

    Args:
        runtime: The device of the calls.

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
            call: The call; its caches are treated as in its timed samples.

            counters: By CUPTI's own names, >= 1 of them.

        Returns:
            The counters, or why there are none.

        Raises:
            Exception: An error of the call itself passes through.
        """
        gap = _unfit(call)
        if gap is not None:
            return gap
        test_code = _TestCode()
        try:
            counted = self._profiled(call, counters, test_code)
        except GpuPerfError as error:
            if error is test_code.raised:
                raise
            return Gap.of(error)
        except Exception as error:
            # of torch and cupy: the timed calls had enough memory
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
        self, call: Call, counters: Sequence[str], test_code: _TestCode
    ) -> Counted | Gap:
        """Return the counters; a gap if they take too many passes."""
        max_ranges = _MAX_RANGES
        if call.trace is not None:
            max_ranges = len(call.trace.launches) + _SPARE
        profiler = RangeProfiler(
            counters,
            synchronize=self._runtime.synchronize,
            max_ranges=max_ranges,
            cache="all" if call.request.cache == CacheMode.COLD else "none",
            library=self._library,
        )
        with _closed(profiler):
            total_s = profiler.passes_count * call.time_s
            if total_s > _LONGEST_S:
                return Gap(
                    code=GapCode.UNSUPPORTED,
                    reason=f"its {profiler.passes_count} passes take {total_s:.0f} s or"
                    f" more, and the limit of counting in this process is"
                    f" {_LONGEST_S:.0f} s",
                    remedy="declare fewer counters, or measure less in a call",
                )
            if call.is_whole:
                return self._count_whole(profiler, call.request, test_code)
            return self._count_kernels(profiler, call.request, test_code)

    def _count_kernels(
        self, profiler: RangeProfiler, request: TimedCall, test_code: _TestCode
    ) -> Counted:
        """Count each kernel of one call."""
        with test_code.runs():
            call = calls(request)()
        self._flush(request)

        def body() -> None:
            with test_code.runs():
                settle(call())

        return profiler.count_kernels(body)

    def _count_whole(
        self, profiler: RangeProfiler, request: TimedCall, test_code: _TestCode
    ) -> Counted:
        """Count a call as a whole, in one call for each pass."""
        if request.inputs is not None:  # each pass must do the same
            request = replace(request, inputs=request.inputs[:1])
        next_call = calls(request)

        def body(ranged: Ranged) -> None:
            with test_code.runs():
                call = next_call()
            self._flush(request)
            self._runtime.synchronize()
            with ranged(_WHOLE), test_code.runs():
                settle(call())

        return profiler.count_ranges(body)

    def _flush(self, request: TimedCall) -> None:
        """Flush the L2 cache if the timed samples do."""
        if request.cache == CacheMode.COLD:
            self._runtime.flush_l2()


class _TestCode:
    """Distinguishes errors of the test's code from those of CUPTI."""

    raised: BaseException | None = None

    @contextlib.contextmanager
    def runs(self) -> Iterator[None]:
        """Run code of the test, and remember its error."""
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise


@contextlib.contextmanager
def _closed(profiler: RangeProfiler) -> Iterator[None]:
    """Close a profiler at the end; an error of closing does not hide an earlier one."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(GpuPerfError):
            profiler.close()
        raise
    profiler.close()


def _unfit(call: Call) -> Gap | None:
    """Return why a call is not counted in this process; None: it can be."""
    error = kernel_replay_error(os.environ, launches_graphs=False)
    if error is not None:
        remedy = "profile the job from outside, and read it with gpuperf.capture"
        return replace(Gap.of(error), remedy=remedy)
    tool = attached_tool(os.environ)
    if tool is None and call.request.iterations is not None and call.is_whole:
        return _FIXED
    return tool


def _names(trace: Trace | None, count: int) -> tuple[str, ...]:
    """
    Return the names of kernels in the order of their launches.

    Args:
        trace: CUPTI's trace of such a call.

        count: The number of counted kernels.

    Returns:
        Empty if they are uncertain: there is no trace, another number was counted, or
        the order of the launches is unknown.
    """
    if trace is None or len(trace.launches) != count:
        return ()
    launches = [
        (call_ns, piece.shapes[place].name)
        for piece in trace.launches.pieces()
        for call_ns, place in zip(piece.call_ns, piece.shape, strict=True)
    ]
    moments = {call_ns for call_ns, _ in launches}
    if 0 in moments or len(moments) < count:
        return ()
    return tuple(name for _, name in sorted(launches))
