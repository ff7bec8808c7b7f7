"""The devices that a process uses: which library it loaded for them, and what they can do."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cuda_device import DriverFacts
    from pytest_gpuperf.model.environment import Device


class LoadedLibrary:
    """
    A shared library that the tests may load. It is never loaded from here.

    The library is looked up before and after each measurement. A failed look-up takes
    the loader 20 us, so the last answer is cached until another library is loaded.

    Args:
        name: The name on Linux, such as `libcuda.so.1`.

        windows_name: The name on Windows, such as `nvcuda.dll`.
    """

    def __init__(self, name: str, *, windows_name: str) -> None:
        self._name = name
        self._windows_name = windows_name
        # The loader's count of libraries at the last failed look-up.
        self._absent_at: int | None = None

    def __call__(self) -> Any | None:  # noqa: ANN401 - a ctypes library has no type
        """Return the library, or None if not loaded."""
        # *Unverified*: returns a handle, loads nothing.
        if sys.platform == "win32":
            handle = ctypes.windll.kernel32.GetModuleHandleW(self._windows_name)
            return ctypes.WinDLL(self._windows_name, handle=handle) if handle else None
        # The number of libraries ever loaded, or None if not counted by the system.
        count = None
        if _WALK is not None:
            _LOADS[0] = None
            _WALK(_VISIT, None)
            count = _LOADS[0]
        if count is not None and count == self._absent_at:
            return None
        try:
            return ctypes.CDLL(self._name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            self._absent_at = count
            return None


class _Entry(ctypes.Structure):
    """An entry of `dl_iterate_phdr`: the C struct dl_phdr_info."""

    _fields_ = (
        ("dlpi_addr", ctypes.c_void_p),
        ("dlpi_name", ctypes.c_char_p),
        ("dlpi_phdr", ctypes.c_void_p),
        ("dlpi_phnum", ctypes.c_uint16),
        ("dlpi_adds", ctypes.c_ulonglong),
    )


_VISITOR = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Entry), ctypes.c_size_t, ctypes.c_void_p
)
_ENTRY_BYTES = ctypes.sizeof(_Entry)
# Any number but 0 ends the walk. Every entry has the same counter.
_STOP = 1


def _read_counter(entry: Any, size: int, _: object) -> int:  # noqa: ANN401 - a ctypes pointer
    """Store the counter of the first entry. The entries of an old loader have none."""
    if size >= _ENTRY_BYTES:
        _LOADS[0] = entry.contents.dlpi_adds
    return _STOP


_LOADS: list[int | None] = [None]
# A reference, because the loader calls the function by its address.
_VISIT = _VISITOR(_read_counter)
_PROCESS = None if sys.platform == "win32" else ctypes.CDLL(None)
_WALK = getattr(_PROCESS, "dl_iterate_phdr", None)


class DeviceRuntime(Protocol):
    """
    The device operations that a timed sample needs. Tests replace them with a scripted runtime.
    """

    @property
    def vendor(self) -> str:
        """The vendor of the device: "nvidia", "amd", "intel", "apple", or "" if none is in use."""

    def active(self) -> bool:
        """
        Return True if the process uses a device now, and find all devices in use.

        The other functions know the devices that the last call found.
        """

    def synchronize(self) -> None:
        """Wait until all devices in use have finished their work. Do nothing if not active."""

    def flush_l2(self) -> None:
        """Evict the L2 of all devices in use, in the default stream, without waiting."""

    def free_bytes(self) -> int | None:
        """Return the least free memory of a device in use [B], or None if unknown."""

    def device_uuid(self) -> str | None:
        """Return the UUID of the device in use, or None if none is in use."""

    def facts_of(self, uuid: str) -> DriverFacts | None:
        """Return the driver's facts of a device, or None if not in use or not present."""

    def own_device(self) -> Device | None:
        """Return the device in use if only the runtime knows it (torch), or None."""


def wait_for_all(runtime: DeviceRuntime) -> None:
    """
    Wait for all devices, including those that the work has started.

    Raises:
        CollectError: A device reports an error.
    """
    runtime.active()
    runtime.synchronize()


class NoDevice:
    """The runtime of a machine or process without a device."""

    vendor = ""

    def active(self) -> bool:
        """Return False."""
        return False

    def synchronize(self) -> None:
        """Do nothing."""

    def flush_l2(self) -> None:
        """Do nothing."""

    def free_bytes(self) -> int | None:
        """Return None."""
        return None

    def device_uuid(self) -> str | None:
        """Return None."""
        return None

    def facts_of(self, uuid: str) -> DriverFacts | None:  # noqa: ARG002 - of the seam
        """Return None."""
        return None

    def own_device(self) -> Device | None:
        """Return None."""
        return None


class FirstInUse:
    """
    The runtime that this process uses first, out of several.

    The choice is final: a process that works with two vendors' devices at the same time
    is timed on the first.

    Args:
        runtimes: The candidates, most likely first.

        awaited: Functions that return a further candidate, or None while its library is
            not loaded.
    """

    def __init__(
        self,
        *runtimes: DeviceRuntime,
        awaited: Sequence[Callable[[], DeviceRuntime | None]] = (),
    ) -> None:
        self._runtimes = runtimes
        self._awaited = awaited
        self._chosen: DeviceRuntime | None = None

    @property
    def vendor(self) -> str:
        """The vendor of the device, or "" if none is in use."""
        return self._chosen.vendor if self.active() and self._chosen else ""

    def active(self) -> bool:
        """Return True if the process uses a device now, and find all devices in use."""
        if self._chosen is None:
            self._look_for_libraries()
            # Not a generator, because this is called often.
            for runtime in self._runtimes:
                if runtime.active():
                    self._chosen = runtime
                    return True
            return False
        return self._chosen.active()

    def synchronize(self) -> None:
        """Wait until the device has finished all work."""
        if self._chosen is not None or self.active():
            self._used().synchronize()

    def flush_l2(self) -> None:
        """Evict the device's L2."""
        if self.active():
            self._used().flush_l2()

    def free_bytes(self) -> int | None:
        """Return the free memory of the device in use [B], or None if unknown."""
        return self._used().free_bytes() if self.active() else None

    def device_uuid(self) -> str | None:
        """Return the UUID of the device in use, or None if none is in use."""
        return self._used().device_uuid() if self.active() else None

    def facts_of(self, uuid: str) -> DriverFacts | None:
        """Return a driver's facts of a device, or None if unknown to every driver."""
        self._look_for_libraries()
        answers = (runtime.facts_of(uuid) for runtime in self._runtimes)
        return next((facts for facts in answers if facts is not None), None)

    def own_device(self) -> Device | None:
        """Return the device in use if only its runtime knows it, or None."""
        return self._used().own_device() if self.active() else None

    def _look_for_libraries(self) -> None:
        for find in self._awaited:
            runtime = find()
            if runtime is not None:
                self._runtimes += (runtime,)
                self._awaited = [other for other in self._awaited if other is not find]

    def _used(self) -> DeviceRuntime:
        return self._chosen or self._runtimes[0]


def driver_library() -> LoadedLibrary:
    """Return a callable that finds the CUDA driver library once the process has loaded it."""
    return LoadedLibrary("libcuda.so.1", windows_name="nvcuda.dll")


def find_runtime() -> DeviceRuntime:
    """
    Create the runtime of the devices that the process may use.

    On Linux and Windows, the runtime is CUDA's, which checks again each time whether
    the driver library has been loaded, or torch's for a device that is not CUDA's. On
    macOS it is always torch's.
    """
    if sys.platform == "darwin":
        from pytest_gpuperf.collect.torch_device import TorchRuntime

        return TorchRuntime()
    return FirstInUse(awaited=(_Cuda(), _torch))


class _Cuda:
    """Makes the runtime of CUDA once the process has loaded the driver."""

    def __init__(self) -> None:
        self._library = driver_library()

    def __call__(self) -> DeviceRuntime | None:
        """Return the runtime, or None while the driver is not loaded."""
        if self._library() is None:  # The usual case of a run without a device.
            return None
        from pytest_gpuperf.collect.cuda_device import CudaRuntime

        return CudaRuntime(self._library)


def _torch() -> DeviceRuntime | None:
    if "torch" not in sys.modules:
        return None
    from pytest_gpuperf.collect.torch_device import TorchRuntime

    return TorchRuntime()
