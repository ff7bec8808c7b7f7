"""A DeviceRuntime that waits on a fake clock, and a CUDA driver with a scripted device."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fakes.clock import FakeClock
from pytest_gpuperf.collect.cuda_device import DriverFacts
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.record import Void


class FakeRuntime:
    """
    A device whose kernels take as long as they were scripted to.

    Attributes:
        in_use: Whether this process uses the device by now.

        uuid: Which device it is; a test may have another take its place.

        pending_ns: What the device still has to do [ns].

        flush_ns: What a flush gives it to do [ns].

        facts: What the driver says of the device.

        own: The device that only the runtime knows.

        memory_bytes: Its free memory [B]; None: not known.

        events: "flush" and "synchronize", in order.
    """

    vendor = "fake"

    def __init__(
        self,
        clock: FakeClock,
        *,
        in_use: bool = True,
        flush_ns: int = 0,
        uuid: str = "GPU-fake",
    ) -> None:
        self.in_use = in_use
        self.uuid = uuid
        self.pending_ns = 0
        self.flush_ns = flush_ns
        self.facts: DriverFacts | None = None
        self.own: Device | None = None
        self.memory_bytes: int | None = 80_000_000_000
        self.events: list[str] = []
        self._clock = clock

    def active(self) -> bool:
        return self.in_use

    def synchronize(self) -> None:
        if self.in_use:
            self.events.append("synchronize")
            self._clock.advance(self.pending_ns)
            self.pending_ns = 0

    def flush_l2(self) -> None:
        self.events.append("flush")
        self.pending_ns += self.flush_ns

    def free_bytes(self) -> int | None:
        return self.memory_bytes if self.in_use else None

    def device_uuid(self) -> str | None:
        return self.uuid if self.in_use else None

    def facts_of(self, uuid: str) -> DriverFacts | None:
        return self.facts if uuid == self.uuid else None

    def own_device(self) -> Device | None:
        return self.own if self.in_use else None


class FakeTimer:
    """
    A DeviceTimer whose samples are scripted, and that sees what is launched.

    Attributes:
        refused: Why no sample of the next set may be used.

        launched: What each sample launches, in order; after the last, None.

        events: "NAME begin" and "NAME end", in order.
    """

    def __init__(self, name: str, *values: float | None) -> None:
        self.name = name
        self.refused: Void | None = None
        self.launched: list[object] = []
        self.events: list[str] = []
        self._values = values
        self._ended_count = 0
        self._asked_count = 0

    def begin(self) -> None:
        self.events.append(f"{self.name} begin")

    def end(self) -> None:
        self.events.append(f"{self.name} end")
        self._ended_count += 1

    def taken(self) -> list[float | None]:
        """Return the scripted values in turn, over and over."""
        asked = range(self._asked_count, self._ended_count)
        self._asked_count = self._ended_count
        return [self._values[number % len(self._values)] for number in asked]

    def refusal(self) -> Void | None:
        return self.refused

    def sequence(self) -> object:
        return self.launched.pop(0) if self.launched else None


class FakeDriver:
    """
    libcuda as ctypes gives it: functions that fill what they are pointed at.

    Its device does what `launch` gives it, each stream in its order and beside the others.
    A waiting call moves the clock to the time when what it waits for is done.

    Attributes:
        clock: The time of the host and the device.

        record_ns: What recording an event takes on the host [ns].

        wait_ns: What waiting takes beyond the device's own time [ns].

        elapsed_ms: What every pair of events is said to be apart [ms]; None: what the
            device took.

        context: Handle of this thread's current context; None: there is none.

        primaries: Handle of each primary context that exists, by device.

        retained: How often each primary context was retained beyond its releases.

        failing: Error code by function.

        calls: Function and plain arguments, in order.

        attributes: Value by attribute of a device; any other is refused.

        uuids: The 16 bytes of each device that is listed.

        name: What every device is called.

        free_bytes: Free memory of every device [B].
    """

    def __init__(
        self,
        *,
        context: int | None = 0x1000,
        l2_bytes: int = 1024,
        clock: FakeClock | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.record_ns = 0
        self.wait_ns = 0
        self.elapsed_ms: float | None = None
        self._busy_until_ns: dict[tuple[int | None, int], int] = {}
        self._reached_ns: dict[int, int] = {}  # by event; one not recorded is not in it
        self._extents: dict[int, int] = {}  # size of each allocation [B], by address
        self._events_count = 0
        self.context = context
        self.primaries: dict[int, int] = {}
        self.retained: Counter[int] = Counter()
        self._below: list[int | None] = []
        self.failing: dict[str, int] = {}
        self.calls: list[tuple[object, ...]] = []
        self.attributes = {38: l2_bytes}
        self.uuids = [list(range(16))] * 4
        self.name = b"NVIDIA H200"
        self.free_bytes = 1 << 30

    def cuCtxGetCurrent(self, handle: Any) -> int:
        handle._obj.value = self.context
        return self.failing.get("cuCtxGetCurrent", 0)

    def launch(
        self, duration_ns: int, stream: int = 0, *, context: int | None = None
    ) -> None:
        """Give a stream of the current context, or of another, work, and go on at once."""
        place = (context or self.context, stream)
        start_ns = max(self.clock.now_ns(), self._busy_until_ns.get(place, 0))
        self._busy_until_ns[place] = start_ns + duration_ns

    def cuDevicePrimaryCtxGetState(self, device: Any, flags: Any, active: Any) -> int:
        flags._obj.value, active._obj.value = 0, device.value in self.primaries
        return self.failing.get("cuDevicePrimaryCtxGetState", 0)

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.retained[device.value] += 1
        context._obj.value = self.primaries[device.value]
        return self.failing.get("cuDevicePrimaryCtxRetain", 0)

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:
        self.retained[device.value] -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        if context.value not in self.primaries.values():
            return 201
        self._below.append(self.context)
        self.context = context.value
        return self._called("cuCtxPushCurrent_v2", context.value)

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        context._obj.value, self.context = self.context, self._below.pop()
        return self._called("cuCtxPopCurrent_v2")

    def cuCtxSynchronize(self) -> int:
        here = (
            busy_until_ns
            for (context, _), busy_until_ns in self._busy_until_ns.items()
            if context == self.context
        )
        self._wait_until(max(here, default=0))
        return self._called("cuCtxSynchronize")

    def cuEventCreate(self, event: Any, flags: Any) -> int:
        self._events_count += 1
        event._obj.value = self._events_count
        return self._called("cuEventCreate", flags.value)

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        name = stream.value or 0
        now_ns = self.clock.now_ns()
        busy_until_ns = self._busy_until_ns.get((self.context, name), 0)
        self._reached_ns[event.value] = max(now_ns, busy_until_ns)
        self.clock.advance(self.record_ns)
        return self._called("cuEventRecord", event.value, name)

    def cuEventSynchronize(self, event: Any) -> int:
        self._wait_until(self._reached_ns.get(event.value, 0))
        return self._called("cuEventSynchronize", event.value)

    def cuEventElapsedTime(self, elapsed_ms: Any, start: Any, end: Any) -> int:
        apart_ns = self._reached_ns[end.value] - self._reached_ns[start.value]
        known_ms = self.elapsed_ms
        elapsed_ms._obj.value = apart_ns / 1e6 if known_ms is None else known_ms
        return self._called("cuEventElapsedTime")

    def _wait_until(self, reading_ns: int) -> None:
        self.clock.advance(max(0, reading_ns - self.clock.now_ns()) + self.wait_ns)

    def cuCtxResetPersistingL2Cache(self) -> int:
        return self._called("cuCtxResetPersistingL2Cache")

    def cuCtxGetDevice(self, device: Any) -> int:
        by_context = {handle: number for number, handle in self.primaries.items()}
        device._obj.value = by_context.get(self.context or 0, 3)
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: Any, device: Any) -> int:
        value._obj.value = self.attributes.get(attribute.value, 0)
        refused = 0 if attribute.value in self.attributes else 1
        return (
            self._called("cuDeviceGetAttribute", attribute.value, device.value)
            or refused
        )

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.uuids)
        return self.failing.get("cuDeviceGetCount", 0)

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:
        device._obj.value = ordinal.value
        return self._called("cuDeviceGet", ordinal.value)

    def cuDeviceGetName(self, name: Any, length: Any, device: Any) -> int:
        name.value = self.name
        return self._called("cuDeviceGetName", device.value)

    def cuDeviceGetUuid_v2(self, uuid: Any, device: Any) -> int:
        uuid._obj[:] = self.uuids[device.value]
        return self._called("cuDeviceGetUuid_v2", device.value)

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        self._extents[0xABC0] = size.value
        address._obj.value = 0xABC0
        return self._called("cuMemAlloc_v2", size.value)

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = self.free_bytes, self.free_bytes * 2
        return self._called("cuMemGetInfo_v2")

    def cuMemGetAddressRange_v2(self, begin: Any, size: Any, address: Any) -> int:
        begin._obj.value = address.value
        size._obj.value = self._extents.get(address.value, 0)
        return 0 if address.value in self._extents else 1

    def reset(self, *, allocated_bytes: int = 0) -> None:
        """Forget all memory, as cudaDeviceReset does; somebody's new array may follow."""
        self._extents = {0xABC0: allocated_bytes} if allocated_bytes else {}

    def cuMemsetD8_v2(self, address: Any, value: Any, size: Any) -> int:
        return self._called("cuMemsetD8_v2", address.value, value.value, size.value)

    def cuGetErrorName(self, status: Any, text: Any) -> int:
        text._obj.value = {2: b"CUDA_ERROR_OUT_OF_MEMORY"}.get(status.value)
        return 0

    def _called(self, name: str, *args: object) -> int:
        self.calls.append((name, *args))
        return self.failing.get(name, 0)
