"""The GPUs through the CUDA driver: synchronization, L2 flush and device facts."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from pytest_gpuperf.collect.torch_device import FLUSH_FACTOR
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import Frozen

_T = TypeVar("_T")

_SUCCESS = 0
# The process is exiting, so there is nothing left to wait for.
_DEINITIALIZED = 4
_NOT_SUPPORTED = 801  # CUDA_ERROR_NOT_SUPPORTED
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_CAPTURE = range(900, 909)  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to _WRONG_THREAD
_L2_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
# CU_DEVICE_ATTRIBUTE_*. cuda.h keeps their numbers from version to version.
_CLOCK_KHZ, _SM_COUNT, _INTEGRATED = 13, 16, 18
_MEMORY_CLOCK_KHZ, _MEMORY_BUS_BITS = 36, 37
_HZ_PER_KHZ = 1000
_NAME_LENGTH = 256


class _FlushBuffer(Frozen, frozen=True, kw_only=True):
    """
    Device memory that a flush of the L2 overwrites.

    Attributes:
        address: The start of the buffer.

        size_bytes: The number of bytes that are overwritten [B].

        extent: Start and size of the allocation, as the driver reports them.
    """

    address: int
    size_bytes: int
    extent: tuple[int, int] | None


class DriverFacts(Frozen, frozen=True, kw_only=True):
    """
    Facts of a device that the CUDA driver knows and NVML does not, or None if unknown.

    Attributes:
        name: The device's name. A slice of a GPU has its profile after " MIG ".

        sm_count: Multiprocessors of the device or of the slice.

        rated_clock_hz: The board's rated boost clock [Hz].

        memory_clock_hz: Half the data rate of the memory [Hz].

        memory_bus_bits: Width of the memory bus.

        l2_bytes: Size of the L2 cache [B].

        integrated: Whether the device shares its memory with a CPU.
    """

    name: str
    sm_count: int | None
    rated_clock_hz: int | None
    memory_clock_hz: int | None
    memory_bus_bits: int | None
    l2_bytes: int | None
    integrated: bool | None


class CudaRuntime:
    """
    The CUDA driver that the tests themselves have loaded into this process.

    The runtime loads no library and creates no context. As long as no other code has
    done so, it is not active and waits for nothing.

    The devices in use are those whose primary context exists, whichever thread works in
    it, and the device of the calling thread's context. `active` looks for them, the
    other functions use what it found. A context that another thread made for itself
    (`cuCtxCreate`) is not known to the driver's other callers, so it is not waited for.

    Tested on an H200 (driver 580). *Unverified on hardware:* more than one device in a
    process, and MIG.

    Args:
        library: Returns the driver library, or None while it is not loaded. It is
            called again until the library is loaded.
    """

    vendor = "nvidia"

    def __init__(self, library: Callable[[], Any | None]) -> None:
        self._find = library
        self._driver: Any | None = None
        # By context.
        self._buffers: dict[int, _FlushBuffer] = {}
        # None until the driver is started.
        self._devices_count: int | None = None
        # The primary contexts that exist, by device.
        self._primaries: dict[int, int] = {}

    def active(self) -> bool:
        """Return True if the process uses a device, and find all devices in use."""
        if self._driver is None:
            self._driver = self._find()
            if self._driver is None:  # The usual case of a run without a device.
                return False
        self._primaries = {
            ordinal: self._primary(ordinal)
            for ordinal in range(self._count())
            if self._is_started(ordinal)
        }
        return bool(self._primaries) or self._context() is not None

    def synchronize(self) -> None:
        """
        Wait for all devices in use. Do nothing if there is none.

        Raises:
            CollectError: The driver reports an error, possibly one of an earlier
                kernel.
        """
        self._in_each(lambda _: self._call("cuCtxSynchronize"))

    def flush_l2(self) -> None:
        """
        Overwrite a buffer of twice the L2 of each device in use, and reset the persisting lines.

        The buffer is kept for the next flush. It belongs to the context and ends with
        it. A context that was reset keeps its handle, but has other memory at the
        buffer's address, so the driver is asked each time.

        Raises:
            CollectError: The driver reports an error, for example out of memory.
        """
        self._in_each(self._flush)

    def _flush(self, context: int) -> None:
        buffer = self._buffers.get(context)
        if buffer is None or self._extent(buffer.address) != buffer.extent:
            l2_bytes = ctypes.c_int()
            self._call(
                "cuDeviceGetAttribute",
                ctypes.byref(l2_bytes),
                ctypes.c_int(_L2_CACHE_SIZE),
                self._device(),
            )
            size_bytes = FLUSH_FACTOR * l2_bytes.value
            address = ctypes.c_uint64()
            # One byte more, so that the size differs from that of a test's array at the
            # same address.
            self._call(
                "cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes + 1)
            )
            buffer = self._buffers[context] = _FlushBuffer(
                address=address.value,
                size_bytes=size_bytes,
                extent=self._extent(address.value),
            )
        # Before compute capability 8.0, and on some slices, no line can persist.
        self._call("cuCtxResetPersistingL2Cache", harmless=_NOT_SUPPORTED)
        self._call(
            "cuMemsetD8_v2",
            ctypes.c_uint64(buffer.address),
            ctypes.c_ubyte(0),
            ctypes.c_size_t(buffer.size_bytes),
        )

    def free_bytes(self) -> int | None:
        """
        Return the least free memory of a device in use [B], or None if unknown.
        """
        frees_bytes = self._in_each(self._free_bytes)
        known_bytes = [
            free_bytes for free_bytes in frees_bytes if free_bytes is not None
        ]
        # One device that does not say may be full.
        return min(known_bytes) if known_bytes and None not in frees_bytes else None

    def device_uuid(self) -> str | None:
        """
        Return the UUID of the device of this thread's context, as `GPU-…`, or None.

        Without such a context it is the first device that another thread uses.
        """
        uuids = self._in_each(lambda _: self._uuid(self._device()))
        return f"GPU-{uuids[0]}" if uuids else None

    def facts_of(self, uuid: str) -> DriverFacts | None:
        """
        Return the driver's facts of a device. No context is needed or created.

        Args:
            uuid: The UUID, as NVML writes it. NVML and CUDA order the devices
                differently.

        Returns:
            The facts, or None while no code has started the driver, or if the driver
            lists no such device (CUDA_VISIBLE_DEVICES hides some).
        """
        driver = self._loaded()
        count = ctypes.c_int()
        if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
            return None
        _, _, bare_uuid = uuid.partition("-")
        for ordinal in range(count.value):
            device = ctypes.c_int()
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
            if self._uuid(device) != bare_uuid:
                continue
            name = ctypes.create_string_buffer(_NAME_LENGTH)
            self._call("cuDeviceGetName", name, ctypes.c_int(_NAME_LENGTH), device)
            clock_khz = self._attribute(_CLOCK_KHZ, device)
            memory_clock_khz = self._attribute(_MEMORY_CLOCK_KHZ, device)
            integrated = self._attribute(_INTEGRATED, device, least=0)
            return DriverFacts(
                name=name.value.decode("utf-8", "replace"),
                sm_count=self._attribute(_SM_COUNT, device),
                rated_clock_hz=clock_khz and clock_khz * _HZ_PER_KHZ,
                memory_clock_hz=memory_clock_khz and memory_clock_khz * _HZ_PER_KHZ,
                memory_bus_bits=self._attribute(_MEMORY_BUS_BITS, device),
                l2_bytes=self._attribute(_L2_CACHE_SIZE, device),
                integrated=None if integrated is None else bool(integrated),
            )
        return None

    def own_device(self) -> Device | None:
        """Return None, because NVML knows the device."""
        return None

    def _attribute(
        self, attribute: int, device: ctypes.c_int, *, least: int = 1
    ) -> int | None:
        value = ctypes.c_int()
        status = self._driver.cuDeviceGetAttribute(  # type: ignore[union-attr] # facts_of found it
            ctypes.byref(value), ctypes.c_int(attribute), device
        )
        return value.value if status == _SUCCESS and value.value >= least else None

    def _uuid(self, device: ctypes.c_int) -> str:
        raw = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(raw), device)
        text = bytes(raw).hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return "-".join(parts)

    def _extent(self, address: int) -> tuple[int, int] | None:
        """Return start and size [B] of the allocation at an address, or None if there is none."""
        begin, size_bytes = ctypes.c_uint64(), ctypes.c_size_t()
        status = self._driver.cuMemGetAddressRange_v2(  # type: ignore[union-attr] # _context found it
            ctypes.byref(begin), ctypes.byref(size_bytes), ctypes.c_uint64(address)
        )
        return (begin.value, size_bytes.value) if status == _SUCCESS else None

    def _device(self) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuCtxGetDevice", ctypes.byref(device))
        return device

    def _in_each(self, act: Callable[[int], _T]) -> list[_T]:
        """
        Call a function in each context in use, and return the results.

        The calling thread's own context comes first. Each context is current while the
        act runs, which gets its handle.
        """
        own = self._context()
        results = [] if own is None else [act(own)]
        for ordinal, handle in self._primaries.items():
            # A context may have been reset since it was found.
            if handle == own or not self._is_started(ordinal):
                continue
            self._call("cuCtxPushCurrent_v2", ctypes.c_void_p(handle))
            try:
                results.append(act(handle))
            finally:
                self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        return results

    def _free_bytes(self, _: int) -> int | None:
        free_bytes, total_bytes = ctypes.c_size_t(), ctypes.c_size_t()
        status = self._driver.cuMemGetInfo_v2(  # type: ignore[union-attr] # _in_each found it
            ctypes.byref(free_bytes), ctypes.byref(total_bytes)
        )
        return free_bytes.value if status == _SUCCESS else None

    def _count(self) -> int:
        """Return the number of devices, or 0 if the driver is not started."""
        if self._devices_count is None:
            count = ctypes.c_int()
            status = self._driver.cuDeviceGetCount(ctypes.byref(count))  # type: ignore[union-attr] # active found it
            if status != _SUCCESS:
                return 0
            self._devices_count = count.value
        return self._devices_count

    def _is_started(self, ordinal: int) -> bool:
        flags, exists = ctypes.c_uint(), ctypes.c_int()
        status = self._driver.cuDevicePrimaryCtxGetState(  # type: ignore[union-attr] # active found it
            ctypes.c_int(ordinal), ctypes.byref(flags), ctypes.byref(exists)
        )
        return status == _SUCCESS and bool(exists.value)

    def _primary(self, ordinal: int) -> int:
        """Return the handle of an existing primary context, and leave its owners as they are."""
        handle = ctypes.c_void_p()
        device = ctypes.c_int(ordinal)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), device)
        self._call("cuDevicePrimaryCtxRelease_v2", device)
        return handle.value or 0

    def _context(self) -> int | None:
        driver = self._loaded()
        if driver is None:
            return None
        handle = ctypes.c_void_p()
        status = driver.cuCtxGetCurrent(ctypes.byref(handle))
        return handle.value if status == _SUCCESS else None

    def _loaded(self) -> Any | None:  # noqa: ANN401 - a ctypes library has no type
        if self._driver is None:
            self._driver = self._find()
        return self._driver

    def _call(self, name: str, *args: object, harmless: int = _SUCCESS) -> None:
        driver = self._driver
        status = int(getattr(driver, name)(*args))
        if status not in {_SUCCESS, _DEINITIALIZED, harmless}:
            raise_failure(driver, name, status)


def raise_failure(driver: Any, name: str, status: int) -> None:  # noqa: ANN401 - a ctypes library has no type
    """
    Raise for the error code of a driver function.

    Args:
        driver: The CUDA driver library.

        name: The function that returned the code.

        status: The code, not 0.

    Raises:
        CollectError: Always, with the driver's own name of the code.
    """
    text = ctypes.c_char_p()
    driver.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
    error = (text.value or b"an unknown error").decode("ascii", "replace")
    message = f"{name} failed with {error} ({status})"
    remedy = "run the test with CUDA_LAUNCH_BLOCKING=1 to find the call that caused it"
    if status == _OUT_OF_MEMORY:
        remedy = (
            "leave twice the size of the L2 of the device's memory free for its flush,"
            ' or measure with cache="warm"'
        )
    elif status in _CAPTURE:
        remedy = (
            "measure the replay of a graph, not its capture, which allows no waiting"
        )
    raise CollectError(message, remedy=remedy)


def load_driver() -> Any | None:  # noqa: ANN401 - a ctypes library has no type
    """
    Load and start the CUDA driver library, or return None if missing.

    Only for a process of our own, because a started driver does not survive a fork. No
    context is created.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return None
    return driver if driver.cuInit(0) == _SUCCESS else None
