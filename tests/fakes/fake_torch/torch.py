"""A torch whose kernels are work of the scripted driver, for tests meant for a GPU.

It has what tests of streams, devices and times use. A kernel takes the time that its
cycles take at 1.5 GHz, or that its bytes take at 4 TB/s. The folder of this file goes on
the path of a process that has `FAKE_CUDA`, the path of the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

_driver = ctypes.CDLL(os.environ["FAKE_CUDA"])
_driver.fake_cuda_launch.argtypes = [ctypes.c_int64, ctypes.c_int]
_GHZ, _BYTES_PER_NS = 1.5, 4000
_PRODUCT_NS = 200_000
_STREAMS = 16  # of the driver; 0 is the default stream

__version__ = "2.11.0"
version = SimpleNamespace(cuda="13.0", hip=None)
bfloat16, float32, uint8 = (SimpleNamespace(itemsize=n) for n in (2, 4, 1))
_stream, _device, _made = [0], [0], [0]


def _launch(time_ns: float) -> None:
    _driver.fake_cuda_set_device(_device[-1])
    _driver.fake_cuda_launch(round(time_ns), _stream[-1])
    _driver.fake_cuda_set_device(0)


class Array:
    """A number of bytes, which the plugin does not take for a tensor."""

    def __init__(self, count: int, dtype: SimpleNamespace = float32) -> None:
        self.nbytes = count * dtype.itemsize


def ones(*shape: int, device: str = "cuda", dtype: SimpleNamespace = float32) -> Array:
    """Return a tensor; a kernel fills it."""
    count = 1
    for size in shape:
        count *= size
    made = Array(count, dtype)
    _launch(made.nbytes / _BYTES_PER_NS)
    return made


zeros = randn = ones


def empty_like(other: Array) -> Array:
    """Return a tensor that nothing fills."""
    return other


def add(x: Array, number: int, *, out: Array) -> Array:
    """Read and write each byte."""
    _launch(2 * x.nbytes / _BYTES_PER_NS)
    return out


def matmul(a: Array, b: Array, *, out: Array) -> Array:
    """Compute for a fixed time."""
    _launch(_PRODUCT_NS)
    return out


class _Stream:
    def __init__(self, number: int | None = None) -> None:
        _made[0] = _made[0] % (_STREAMS - 1) + 1
        self.cuda_stream = _made[0] if number is None else number


class _Event:
    def __init__(self, *, enable_timing: bool = False) -> None:
        self._handle = ctypes.c_void_p()
        _driver.cuEventCreate(ctypes.byref(self._handle), 0)

    def record(self) -> None:
        _driver.cuEventRecord(self._handle, ctypes.c_void_p(_stream[-1]))

    def elapsed_time(self, other: _Event) -> float:
        taken_ms = ctypes.c_float()
        _driver.cuEventElapsedTime(ctypes.byref(taken_ms), self._handle, other._handle)
        return taken_ms.value


@contextlib.contextmanager
def _current(stack: list[int], number: int) -> Iterator[None]:
    stack.append(number)
    try:
        yield
    finally:
        stack.pop()


def _device_count() -> int:
    count = ctypes.c_int()
    _driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value


cuda = ModuleType("torch.cuda")
sys.modules["torch.cuda"] = cuda
vars(cuda).update(
    Event=_Event,
    Stream=_Stream,
    is_available=lambda: True,
    is_initialized=lambda: True,
    device_count=_device_count,
    current_device=lambda: _device[-1],
    current_stream=lambda *_: _Stream(_stream[-1]),
    device=lambda name: _current(_device, int(str(name).rpartition(":")[2])),
    stream=lambda stream: _current(_stream, stream.cuda_stream),
    synchronize=_driver.cuCtxSynchronize,
    _sleep=lambda cycles: _launch(cycles / _GHZ),
)
