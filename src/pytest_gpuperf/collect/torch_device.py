"""A device of AMD, Intel or Apple, through the torch that the tests have loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pytest_gpuperf.errors import CollectError

# docs/judging.md section 5: a buffer of twice the L2.
FLUSH_FACTOR = 2
# Larger than the 126 MB of a B200, the largest L2 so far.
_UNKNOWN_L2_BYTES = 128 << 20


class TorchRuntime:
    """
    A device that torch supports and CUDA does not: AMD's, Intel's or Apple's.

    Nothing is imported. As long as torch has not started a device, the runtime is not
    active.

    *Unverified on hardware:* not yet tried on any such device.

    Args:
        modules: The loaded modules by name, or None for those of this interpreter.
    """

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules
        # By device, kept for the next flush.
        self._buffers: dict[str, Any] = {}

    @property
    def vendor(self) -> str:
        """The vendor of the device, or "" if none is in use."""
        device = self.device()
        if device is None:
            return ""
        # torch for ROCm calls its devices "cuda".
        if device.type == "cuda":
            return "amd"
        return {"xpu": "intel", "mps": "apple"}.get(device.type, str(device.type))

    def device(self) -> Any | None:  # noqa: ANN401 - an optional library has no types
        """Return torch's device, or None if torch has started none or uses CUDA."""
        torch: Any = self._modules.get("torch")
        if torch is None:
            return None
        try:
            # The devices belong to the CUDA driver.
            if torch.version.cuda is not None:
                return None
            device = torch.accelerator.current_accelerator()
            if device is None:
                return None
            backend = getattr(torch, device.type)
            # mps has no such function, and gives no other sign.
            tell = getattr(backend, "is_initialized", None)
            begun = backend.driver_allocated_memory() > 0 if tell is None else tell()
            if not begun:
                return None
        except (AttributeError, RuntimeError):
            # torch is older than 2.6, or is still being imported.
            return None
        return device

    def active(self) -> bool:
        """Return True if torch has started a device that is not CUDA's."""
        return self.device() is not None

    def synchronize(self) -> None:
        """
        Wait for the current device. Do nothing if there is none.

        Raises:
            CollectError: The device reports an error.
        """
        if self.device() is None:
            return
        torch: Any = self._modules["torch"]
        try:
            torch.accelerator.synchronize()
        except RuntimeError as error:
            raise torch_failure("torch.accelerator.synchronize", error) from error

    def flush_l2(self) -> None:
        """
        Overwrite a buffer of twice the L2, or of 256 MiB if torch does not know the L2's size.

        Raises:
            CollectError: The device reports an error, for example out of memory.
        """
        device = self.device()
        if device is None:
            return
        torch: Any = self._modules["torch"]
        try:
            if str(device) not in self._buffers:
                backend = getattr(torch, device.type)
                properties = getattr(backend, "get_device_properties", None)
                l2_bytes = properties and getattr(properties(), "L2_cache_size", None)
                size_bytes = FLUSH_FACTOR * int(l2_bytes or _UNKNOWN_L2_BYTES)
                self._buffers[str(device)] = torch.empty(
                    size_bytes, dtype=torch.uint8, device=device
                )
            self._buffers[str(device)].zero_()
        except RuntimeError as error:
            raise torch_failure("torch.Tensor.zero_", error) from error

    def free_bytes(self) -> int | None:
        """Return the device's free memory [B], or None if unknown to torch (Apple)."""
        device = self.device()
        if device is None:
            return None
        torch: Any = self._modules["torch"]
        tell = getattr(getattr(torch, device.type), "mem_get_info", None)
        try:
            return None if tell is None else int(tell()[0])
        except RuntimeError:
            # Some Intel drivers do not report the free memory.
            return None

    def device_uuid(self) -> str | None:
        """Return None, because no tool used here knows the device by torch's name."""
        return None

    def facts_of(self, uuid: str) -> None:  # noqa: ARG002 - of the seam
        """Return None, because the CUDA driver does not know the device."""
        return


def torch_failure(name: str, error: Exception) -> CollectError:
    """
    Return the error for an error of torch. Only the first line of the message is kept.

    Args:
        name: The function of torch that raised the error.

        error: The error raised by torch.
    """
    first, *_ = str(error).splitlines() or ["an unknown error"]
    return CollectError(
        f"{name} failed: {first}",
        remedy="run the test alone to find the call behind it",
    )
