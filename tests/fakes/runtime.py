"""A DeviceRuntime that waits on a fake clock, and a CUDA driver that does nothing."""

from __future__ import annotations

from typing import Any

from fakes.clock import FakeClock
from pytest_gpuperf.collect.runtime import DriverFacts


class FakeRuntime:
    """
    A device whose kernels take as long as they were scripted to.

    Attributes:
        in_use: Whether this process uses the device by now.

        pending_ns: What the device still has to do [ns].

        flush_ns: What a flush gives it to do [ns].

        facts: What the driver says of the device.

        events: "flush" and "synchronize", in order.
    """

    vendor = "fake"

    def __init__(
        self, clock: FakeClock, *, in_use: bool = True, flush_ns: int = 0
    ) -> None:
        self.in_use = in_use
        self.pending_ns = 0
        self.flush_ns = flush_ns
        self.facts: DriverFacts | None = None
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

    def device_uuid(self) -> str | None:
        return "GPU-fake" if self.in_use else None

    def facts_of(self, uuid: str) -> DriverFacts | None:
        return self.facts if uuid == "GPU-fake" else None


class FakeDriver:
    """
    libcuda as ctypes gives it: functions that fill what they are pointed at.

    Attributes:
        context: Handle of the current context; None: there is none.

        failing: Error code by function.

        calls: Function and plain arguments, in order.

        attributes: Value by attribute of a device; any other is refused.

        uuids: The 16 bytes of each device that is listed.

        name: What every device is called.
    """

    def __init__(self, *, context: int | None = 0x1000, l2_bytes: int = 1024) -> None:
        self.context = context
        self.failing: dict[str, int] = {}
        self.calls: list[tuple[object, ...]] = []
        self.attributes = {38: l2_bytes}
        self.uuids = [list(range(16))] * 4
        self.name = b"NVIDIA H200"

    def cuCtxGetCurrent(self, handle: Any) -> int:
        handle._obj.value = self.context
        return self.failing.get("cuCtxGetCurrent", 0)

    def cuCtxSynchronize(self) -> int:
        return self._called("cuCtxSynchronize")

    def cuCtxResetPersistingL2Cache(self) -> int:
        return self._called("cuCtxResetPersistingL2Cache")

    def cuCtxGetDevice(self, device: Any) -> int:
        device._obj.value = 3
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
        return self._called("cuDeviceGetCount")

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
        address._obj.value = 0xABC0
        return self._called("cuMemAlloc_v2", size.value)

    def cuMemsetD8_v2(self, address: Any, value: Any, size: Any) -> int:
        return self._called("cuMemsetD8_v2", address.value, value.value, size.value)

    def cuGetErrorName(self, status: Any, text: Any) -> int:
        text._obj.value = {2: b"CUDA_ERROR_OUT_OF_MEMORY"}.get(status.value)
        return 0

    def _called(self, name: str, *args: object) -> int:
        self.calls.append((name, *args))
        return self.failing.get(name, 0)
