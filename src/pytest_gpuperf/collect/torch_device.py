"""Devices that are not CUDA's, through a torch that is already there.

AMD's (ROCm), Intel's (XPU) and Apple's (MPS). Nothing is imported or started to find out.

*Unverified on hardware.*
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from types import ModuleType
from typing import Any

from pytest_gpuperf.errors import CollectError

__all__ = ["TorchEvents", "TorchRuntime"]

_FLUSH_FACTOR = 2  # docs/judging.md section 5: a buffer of twice the L2
_UNKNOWN_L2_BYTES = 128 << 20  # above the 126 MB of a B200, the largest there is
_S_PER_MS = 1e-3


class TorchRuntime:
    """
    A device that torch works with and CUDA does not: AMD's, Intel's or Apple's.

    Nothing is imported: as long as torch has not started its device, it is not active.

    *Unverified on hardware.*

    Args:
        modules: The loaded modules by name; None: those of this interpreter.
    """

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules
        self._buffers: dict[str, Any] = {}  # by device, kept for the next flush

    @property
    def vendor(self) -> str:
        """Whose device it is; "": none is in use."""
        device = self.device()
        if device is None:
            return ""
        if device.type == "cuda":  # what ROCm's torch calls its devices
            return "amd"
        return {"xpu": "intel", "mps": "apple"}.get(device.type, str(device.type))

    def device(self) -> Any | None:  # noqa: ANN401 - an optional library has no types
        """Return torch's device; None: it has started none, or it is CUDA's."""
        torch: Any = self._modules.get("torch")
        if torch is None:
            return None
        try:
            if torch.version.cuda is not None:  # its devices are the CUDA driver's
                return None
            device = torch.accelerator.current_accelerator()
            if device is None or not _started(torch, device.type):
                return None
        except (
            AttributeError,
            RuntimeError,
        ):  # older than 2.6, or still being imported
            return None
        return device

    def active(self) -> bool:
        """Return whether torch has started a device that is not CUDA's."""
        return self.device() is not None

    def synchronize(self) -> None:
        """
        Wait for the current device; nothing if there is none.

        Raises:
            CollectError: The device reports an error.
        """
        if self.device() is None:
            return
        torch: Any = self._modules["torch"]
        try:
            torch.accelerator.synchronize()
        except RuntimeError as error:
            raise _failed("torch.accelerator.synchronize", error) from error

    def flush_l2(self) -> None:
        """
        Overwrite a buffer of twice the L2, or of 256 MiB where torch does not know it.

        Raises:
            CollectError: The device reports an error, out of memory among others.
        """
        device = self.device()
        if device is None:
            return
        torch: Any = self._modules["torch"]
        try:
            if str(device) not in self._buffers:
                size_bytes = _FLUSH_FACTOR * _l2_bytes(torch, device.type)
                self._buffers[str(device)] = torch.empty(
                    size_bytes, dtype=torch.uint8, device=device
                )
            self._buffers[str(device)].zero_()
        except RuntimeError as error:
            raise _failed("torch.Tensor.zero_", error) from error

    def device_uuid(self) -> str | None:
        """Return None: no tool that is asked here knows the device by a name of torch's."""
        return None

    def facts_of(self, uuid: str) -> None:  # noqa: ARG002 - of the seam
        """Return None: the CUDA driver does not know the device."""
        return


class TorchEvents:
    """
    Events of torch's own, on the device's current stream (collect.events.Events).

    *Unverified on hardware.*

    Args:
        runtime: Knows the device.

        modules: The loaded modules by name; None: those of this interpreter.
    """

    def __init__(
        self, runtime: TorchRuntime, modules: Mapping[str, ModuleType] | None = None
    ) -> None:
        self._runtime = runtime
        self._modules = sys.modules if modules is None else modules

    def place(self) -> Hashable | None:
        """Return the device in use; None: there is none."""
        device = self._runtime.device()
        return None if device is None else str(device)

    def stream(self) -> object:
        """Return the stream that torch would launch into now."""
        torch: Any = self._modules["torch"]
        try:
            return torch.accelerator.current_stream()
        except (AttributeError, RuntimeError) as error:
            raise _failed("torch.accelerator.current_stream", error) from error

    def create(self) -> object:
        """Return a new event."""
        torch: Any = self._modules["torch"]
        try:
            return torch.Event(device=self._runtime.device(), enable_timing=True)
        except (AttributeError, RuntimeError, TypeError) as error:
            raise _failed("torch.Event", error) from error

    def record(self, event: Any, stream: object) -> None:  # noqa: ANN401 - an optional library has no types
        """Put an event behind what a stream was given so far."""
        try:
            event.record(stream)
        except RuntimeError as error:
            raise _failed("torch.Event.record", error) from error

    def wait(self, event: Any) -> None:  # noqa: ANN401 - an optional library has no types
        """Wait until the device has come to an event."""
        try:
            event.synchronize()
        except RuntimeError as error:
            raise _failed("torch.Event.synchronize", error) from error

    def elapsed_s(self, start: Any, end: Any) -> float | None:  # noqa: ANN401 - an optional library has no types
        """Return the time between two events [s]."""
        try:
            return float(start.elapsed_time(end)) * _S_PER_MS
        except RuntimeError as error:
            raise _failed("torch.Event.elapsed_time", error) from error


def _started(torch: Any, kind: str) -> bool:  # noqa: ANN401 - an optional library has no types
    """Return whether torch has work, or memory, on a kind of device."""
    backend = getattr(torch, kind)
    begun = getattr(backend, "is_initialized", None)
    if begun is not None:
        return bool(begun())
    return bool(backend.driver_allocated_memory() > 0)  # mps has no other sign


def _l2_bytes(torch: Any, kind: str) -> int:  # noqa: ANN401 - an optional library has no types
    """Return the size of a device's L2 as torch knows it, or of the largest there is."""
    properties = getattr(getattr(torch, kind), "get_device_properties", None)
    size = None if properties is None else getattr(properties(), "L2_cache_size", None)
    return int(size or _UNKNOWN_L2_BYTES)


def _failed(name: str, error: Exception) -> CollectError:
    """Return the error for one of torch's, of which the first line says what it is."""
    first, *_ = str(error).splitlines() or ["an unknown error"]
    return CollectError(
        f"{name} failed: {first}",
        remedy="run the test alone to find the call behind it",
    )
