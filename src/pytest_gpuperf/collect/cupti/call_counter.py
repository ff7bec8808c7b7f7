"""Counters of one more call of the timed function, kernel by kernel.

Each kernel of the call is replayed once for each pass. Kernels of a CUDA graph cannot be
distinguished, so that such a call is counted as a whole and repeated for each pass.

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

# Limit of the passes of a call, equal to the time limit of a test under ncu.
_LONGEST_S = 60.0
# Used if the number of kernels is unknown.
_MAX_RANGES = 1024
# Ranges beyond the recorded launches, because the driver may launch its own kernels.
_SPARE = 64
# Limit of kernels that are counted separately. A kernel takes some KiB for every counter.
_MOST_KERNELS = 4096
# The name of the range of a whole call.
_WHOLE = "call"

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

        time_s: The duration of the call [s].

        trace: CUPTI's trace of such a call, or None if not recorded.
    """

    request: TimedCall
    time_s: float
    trace: Trace | None = None

    @property
    def is_whole(self) -> bool:
        """True if the call is counted as a whole, because kernels cannot be counted separately."""
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

        names: The mangled name of each range's kernel. Empty if unknown.
    """

    counted: Counted
    names: tuple[str, ...] = ()


class CallCounter:
    """
    Counts calls in this process.

    Args:
        runtime: The device of the calls.

        library: The libcupti to use, or None for the libcupti of this process.
    """

    def __init__(
        self, runtime: DeviceRuntime, *, library: Libcupti | None = None
    ) -> None:
        self._runtime = runtime
        self._library = library

    def count(self, call: Call, counters: Sequence[str]) -> CountedCall | Gap:
        """
        Count the call again, in this process.

        Args:
            call: The call. Caches are treated as in the timed samples of the call.

            counters: CUPTI's own names, at least one.

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
            # The timed calls had enough memory, so torch or cupy ran out of it now.
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
        """Count the call, or return a gap if the passes would take more than 60 s."""
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
            with test_code.runs():
                one_call = calls(call.request)()
            self._flush(call.request)

            def body() -> None:
                with test_code.runs():
                    settle(one_call())

            return profiler.count_kernels(body)

    def _count_whole(
        self, profiler: RangeProfiler, request: TimedCall, test_code: _TestCode
    ) -> Counted:
        # Every pass must do the same work.
        if request.inputs is not None:
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
        if request.cache == CacheMode.COLD:
            self._runtime.flush_l2()


class _TestCode:
    """Distinguishes errors of the test's code from those of CUPTI."""

    raised: BaseException | None = None

    @contextlib.contextmanager
    def runs(self) -> Iterator[None]:
        """Run code of the test, and remember the error if there is one."""
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise


@contextlib.contextmanager
def _closed(profiler: RangeProfiler) -> Iterator[None]:
    """Close a profiler at the end. An error of closing does not hide an earlier error."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(GpuPerfError):
            profiler.close()
        raise
    profiler.close()


def _unfit(call: Call) -> Gap | None:
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
    Return the names of kernels in the order of launch.

    Args:
        trace: CUPTI's trace of such a call.

        count: The number of counted kernels.

    Returns:
        Empty if the names are uncertain, because there is no trace, the number of counted
        kernels differs, or the order of the launches is unknown.
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
