"""Work on a CUDA device that no change of the tested code can move.

Three kernels in PTX run through the driver that the tests have loaded: arithmetic, a copy
and a chain of dependent reads. Each set loads them, and gives back all that it took, so that
the tests have the device to themselves. *Unverified on hardware:* no GPU has run them; NVIDIA's
assembler accepts them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from pytest_gpuperf.collect.base import GPU_WORKLOADS
from pytest_gpuperf.collect.cuda_device import raise_failure
from pytest_gpuperf.collect.timing.events import CudaEvents
from pytest_gpuperf.errors import CollectError

_SUCCESS = 0
_SM_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_LEGACY_STREAM = 0
# More than the L2 of any GPU but the largest.
_BUFFER_BYTES = 64 << 20
_THREADS, _BLOCKS_PER_SM = 256, 8
_STEPS = 2048  # Four dependent chains, about 0.07 ms (by the clock of an H200).
_READS = 256  # About 0.15 ms.
# Every GPU since 2016 runs it.
_PTX = b"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry gpu_compute(.param .u64 to, .param .u64 from, .param .u32 count)
{
    .reg .pred %p; .reg .b32 %n; .reg .b64 %out; .reg .f32 %a, %b, %c, %d, %s;
    ld.param.u64 %out, [to];
    ld.param.u32 %n, [count];
    cvt.rn.f32.u32 %a, %n;
    add.f32 %b, %a, 0f3F800000;
    add.f32 %c, %a, 0f40000000;
    add.f32 %d, %a, 0f40400000;
again:
    fma.rn.f32 %a, %a, 0f3F000000, 0f3F800000;
    fma.rn.f32 %b, %b, 0f3F000000, 0f3F800000;
    fma.rn.f32 %c, %c, 0f3F000000, 0f3F800000;
    fma.rn.f32 %d, %d, 0f3F000000, 0f3F800000;
    sub.u32 %n, %n, 1;
    setp.ne.u32 %p, %n, 0;
    @%p bra again;
    add.f32 %s, %a, %b;
    add.f32 %s, %s, %c;
    add.f32 %s, %s, %d;
    st.global.f32 [%out], %s;
    ret;
}
.visible .entry gpu_copy(.param .u64 to, .param .u64 from, .param .u32 count)
{
    .reg .pred %p; .reg .b32 %i, %n, %t, %block, %size, %grid, %step, %v<4>;
    .reg .b64 %in, %out, %at, %x, %y;
    ld.param.u64 %out, [to];
    ld.param.u64 %in, [from];
    ld.param.u32 %n, [count];
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %grid, %nctaid.x;
    mov.u32 %t, %tid.x;
    mad.lo.u32 %i, %block, %size, %t;
    mul.lo.u32 %step, %size, %grid;
again:
    setp.ge.u32 %p, %i, %n;
    @%p ret;
    mul.wide.u32 %at, %i, 16;
    add.u64 %x, %in, %at;
    add.u64 %y, %out, %at;
    ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%x];
    st.global.v4.u32 [%y], {%v0, %v1, %v2, %v3};
    add.u32 %i, %i, %step;
    bra again;
}
.visible .entry gpu_latency(.param .u64 to, .param .u64 from, .param .u32 count)
{
    .reg .pred %p; .reg .b32 %n, %at, %v; .reg .b64 %in, %out, %x, %wide;
    ld.param.u64 %out, [to];
    ld.param.u64 %in, [from];
    ld.param.u32 %n, [count];
    mov.u32 %at, 0;
again:
    cvt.u64.u32 %wide, %at;
    add.u64 %x, %in, %wide;
    ld.global.u32 %v, [%x];
    mad.lo.u32 %at, %at, 1664525, 1013904223;
    add.u32 %at, %at, %v;
    and.b32 %at, %at, 67108736;
    sub.u32 %n, %n, 1;
    setp.ne.u32 %p, %n, 0;
    @%p bra again;
    st.global.u32 [%out], %at;
    ret;
}
"""


class GpuSet(Protocol):
    """The workloads of a GPU, ready to run."""

    def time_s(self, name: str) -> float | None:
        """
        Run a workload, and return its time on the device [s], or None if it has none.

        Raises:
            CollectError: The device refuses.
        """


class WorkingGpu(Protocol):
    """A GPU that reference workloads run on. Tests replace it with one of known speed."""

    def ready(self) -> AbstractContextManager[GpuSet | None]:
        """
        Return a context that yields the workloads, or None without a GPU.

        Raises:
            CollectError: The device refuses, for example out of memory.
        """


class CudaWorkloads:
    """
    The workloads on the device of the calling thread's CUDA context (WorkingGpu).

    Args:
        library: Returns the driver library, or None while it is not loaded.
    """

    def __init__(self, library: Callable[[], Any | None]) -> None:
        self._library = library

    @contextmanager
    def ready(self) -> Iterator[GpuSet | None]:
        """Load the kernels and take memory in the current context, for the block."""
        driver, events = self._library(), CudaEvents(self._library, lambda: 0)
        if driver is None or events.place() is None:
            yield None
            return
        with ExitStack() as undo:
            yield _Loaded(driver, events, undo)


class _Loaded:
    def __init__(self, driver: Any, events: CudaEvents, undo: ExitStack) -> None:  # noqa: ANN401 - a ctypes library has no type
        self._driver, self._events = driver, events
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_PTX))
        undo.callback(driver.cuModuleUnload, module)
        self._functions = {name: ctypes.c_void_p() for name in GPU_WORKLOADS}
        for name, function in self._functions.items():
            entry = ctypes.c_char_p(name.replace("-", "_").encode())
            self._call("cuModuleGetFunction", ctypes.byref(function), module, entry)
        self._target, self._source = ctypes.c_uint64(), ctypes.c_uint64()
        size = ctypes.c_size_t(_BUFFER_BYTES)
        for address in (self._target, self._source):
            self._call("cuMemAlloc_v2", ctypes.byref(address), size)
            undo.callback(driver.cuMemFree_v2, address)
            self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), size)
        device, sm_count = ctypes.c_int(), ctypes.c_int()
        self._call("cuCtxGetDevice", ctypes.byref(device))
        number = ctypes.c_int(_SM_COUNT)
        self._call("cuDeviceGetAttribute", ctypes.byref(sm_count), number, device)
        blocks_count = _BLOCKS_PER_SM * sm_count.value
        # Blocks, threads of a block, and the count that the kernel takes.
        self._shapes = {
            "gpu-compute": (blocks_count, _THREADS, _STEPS),
            "gpu-copy": (blocks_count, _THREADS, _BUFFER_BYTES // 16),
            "gpu-latency": (1, 1, _READS),
        }
        self._start, self._end = events.create(), events.create()
        for event in (self._start, self._end):
            undo.callback(driver.cuEventDestroy_v2, event)

    def time_s(self, name: str) -> float | None:
        """
        Return the time of a workload on the device [s].

        The first launch keeps the device busy, so that no launch is between the events.
        """
        stream = ctypes.c_void_p(_LEGACY_STREAM)
        self._launch(name)
        self._events.record(self._start, stream)
        self._launch(name)
        self._events.record(self._end, stream)
        self._events.wait(self._end)
        return self._events.elapsed_s(self._start, self._end)

    def _launch(self, name: str) -> None:
        blocks_count, threads_count, count = self._shapes[name]
        values = (self._target, self._source, ctypes.c_uint(count))
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        grid = (ctypes.c_uint(n) for n in (blocks_count, 1, 1, threads_count, 1, 1))
        stream = ctypes.c_void_p(_LEGACY_STREAM)
        function = self._functions[name]
        self._call(
            "cuLaunchKernel", function, *grid, ctypes.c_uint(0), stream, addresses, None
        )

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self._driver, name, None)
        if function is None:
            message = f"the driver library has no function {name}"
            raise CollectError(message, remedy="update the driver")
        status = int(function(*arguments))
        if status != _SUCCESS:
            raise_failure(self._driver, name, status)
