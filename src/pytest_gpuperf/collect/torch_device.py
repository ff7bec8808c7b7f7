"""A device of AMD, Intel or Apple, through the torch that the tests have loaded."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.environment import Device

# docs/judging.md section 5: a buffer of twice the L2.
FLUSH_FACTOR = 2
_MIB = 1 << 20
# The caches between a device and its memory, where torch does not report them all.
# NVIDIA, Apple and most of Intel: larger than the 126 MB of a B200, the largest so far.
_UNKNOWN_CACHE_BYTES = 128 * _MIB
# Intel Data Center GPU Max 1550: 408 MB of L2, by Intel's datasheet.
_INTEL_MAX, _INTEL_MAX_BYTES = "Data Center GPU Max", 408 * 10**6
# Behind the L2 of these is the Infinity Cache, of which torch knows nothing. Its largest
# size of any board, by ROCm's table "AMD GPU specifications". 0: there is none.
_INFINITY_CACHE_MIB: Mapping[str, int] = {
    **dict.fromkeys(("gfx906", "gfx908", "gfx90a", "gfx1010", "gfx1012"), 0),
    **dict.fromkeys(("gfx1103", "gfx1150", "gfx1152"), 0),
    **dict.fromkeys(("gfx940", "gfx941", "gfx942", "gfx950"), 256),
    **dict.fromkeys(("gfx1032", "gfx1102", "gfx1151", "gfx1200"), 32),
    **dict.fromkeys(("gfx1101", "gfx1201"), 64),
    **dict.fromkeys(("gfx1031", "gfx1100"), 96),
    "gfx1030": 128,
}
# Each of the eight dies has 4 MiB of L2, and HIP reports one.
_DIES_COUNT = 8
# torch before 2.6 has no torch.accelerator, and each backend is asked.
_BACKENDS = ("cuda", "xpu", "mps")
_VENDORS = {"cuda": "amd", "xpu": "intel", "mps": "apple"}
# What torch raises if a backend lacks a function, or a device does not answer.
_REFUSED = (AttributeError, RuntimeError, AssertionError)


class TorchRuntime:
    """
    The devices that torch supports and CUDA does not: AMD's, Intel's or Apple's.

    Nothing is imported. As long as torch has not started a device, the runtime is not
    active. torch 2.6 reports the device in use. Of an older torch the backends for
    ROCm, Intel and Apple are asked, which have the same functions.

    *Unverified on hardware:* not yet tried on any such device.

    Args:
        modules: The loaded modules by name, or None for those of this interpreter.
    """

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules
        # By the name of the device, kept for the next flush.
        self._buffers: dict[str, Any] = {}
        self._known: dict[str, Device] = {}
        # Other devices in use, by their index, as the last look found them.
        self._others: list[int] = []

    @property
    def vendor(self) -> str:
        """The vendor of the device, or "" if none is in use."""
        kind = self.kind()
        return "" if kind is None else _VENDORS.get(kind, kind)

    def kind(self) -> str | None:
        """
        Return torch's name of the devices, or None if torch has started none or uses CUDA.

        torch for ROCm calls its devices "cuda".
        """
        torch = self._modules.get("torch")
        version = getattr(torch, "version", None)
        # The devices belong to the CUDA driver, or torch is still being imported.
        if version is None or getattr(version, "cuda", None) is not None:
            return None
        accelerator = getattr(torch, "accelerator", None)
        try:
            if accelerator is not None:
                device = accelerator.current_accelerator()
                kinds: tuple[str, ...] = () if device is None else (device.type,)
            else:
                has_hip = getattr(version, "hip", None) is not None
                kinds = _BACKENDS if has_hip else _BACKENDS[1:]
            return next((kind for kind in kinds if _is_started(torch, kind)), None)
        except _REFUSED:
            return None

    def device(self) -> str | None:
        """Return torch's name of the current device, or None if none is in use."""
        kind = self.kind()
        return None if kind is None else self._named(kind, self._index(kind))

    def backend(self) -> Any:  # noqa: ANN401 - an optional library has no types
        """Return torch's module of the devices in use."""
        return getattr(self._modules["torch"], self.kind() or "")

    def active(self) -> bool:
        """Return True if torch has started a device that is not CUDA's, and find all of them."""
        if "torch" not in self._modules:  # Asked several times for each test.
            return False
        kind = self.kind()
        self._others = [] if kind is None else self._others_of(kind)
        return kind is not None

    def synchronize(self) -> None:
        """
        Wait for all devices in use. Do nothing if there is none.

        Raises:
            CollectError: The device reports an error.
        """
        kind = self.kind()
        if kind is None:
            return
        torch: Any = self._modules["torch"]
        has_accelerator = getattr(torch, "accelerator", None) is not None
        own = torch.accelerator if has_accelerator else getattr(torch, kind)
        try:
            own.synchronize()
            for index in self._others:
                getattr(torch, kind).synchronize(index)
        except RuntimeError as error:
            where = "accelerator" if has_accelerator else kind
            raise torch_failure(f"torch.{where}.synchronize", error) from error

    def flush_l2(self) -> None:
        """
        Overwrite a buffer of twice the caches of each device in use.

        Raises:
            CollectError: The device reports an error, for example out of memory.
        """
        kind = self.kind()
        if kind is None:
            return
        torch: Any = self._modules["torch"]
        try:
            for index in (self._index(kind), *self._others):
                name = self._named(kind, index)
                if name not in self._buffers:
                    size_bytes = FLUSH_FACTOR * _cache_bytes(torch, kind, index)
                    self._buffers[name] = torch.empty(
                        size_bytes, dtype=torch.uint8, device=name
                    )
                self._buffers[name].zero_()
        except RuntimeError as error:
            raise torch_failure("torch.Tensor.zero_", error) from error

    def free_bytes(self) -> int | None:
        """Return the device's free memory [B], or None if unknown to torch (Apple)."""
        if self.kind() is None:
            return None
        tell = getattr(self.backend(), "mem_get_info", None)
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

    def own_device(self) -> Device | None:
        """Return the current device with all that torch knows of it, or None if none is in use."""
        kind = self.kind()
        if kind is None:
            return None
        index = self._index(kind)
        name = self._named(kind, index)
        if name not in self._known:
            self._known[name] = _facts(self._modules["torch"], kind, index or 0)
        return self._known[name]

    def _index(self, kind: str) -> int | None:
        tell = getattr(getattr(self._modules["torch"], kind), "current_device", None)
        return None if tell is None else int(tell())

    def _named(self, kind: str, index: int | None) -> str:
        return kind if index is None else f"{kind}:{index}"

    def _others_of(self, kind: str) -> list[int]:
        backend = getattr(self._modules["torch"], kind)
        own = self._index(kind)
        count: Callable[[], int] | None = getattr(backend, "device_count", None)
        held: Callable[[int], int] | None = getattr(backend, "memory_reserved", None)
        if own is None or count is None or held is None:
            return []
        return [i for i in range(count()) if i != own and held(i) > 0]


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
        remedy="run the test alone to find the call that caused it",
    )


def _is_started(torch: Any, kind: str) -> bool:  # noqa: ANN401 - an optional library has no types
    backend = getattr(torch, kind, None)
    if backend is None:  # as of mps in a torch for Linux that is being imported
        return False
    # mps has no such function, and gives no other sign.
    tell = getattr(backend, "is_initialized", None)
    return bool(backend.driver_allocated_memory() > 0 if tell is None else tell())


def _properties(torch: Any, kind: str, index: int | None) -> Any:  # noqa: ANN401 - an optional library has no types
    ask = getattr(getattr(torch, kind), "get_device_properties", None)
    if ask is None:
        return None
    return ask() if index is None else ask(index)


def _architecture(properties: object) -> str | None:
    """Return the name of the instruction set, without ROCm's features (`:xnack-`)."""
    name = getattr(properties, "gcnArchName", None)
    name = getattr(properties, "architecture", None) if name is None else name
    return None if name is None else str(name).partition(":")[0]


def _cache_bytes(torch: Any, kind: str, index: int | None) -> int:  # noqa: ANN401 - an optional library has no types
    """Return the size of all caches before the device's memory [B], or more if unknown."""
    properties = _properties(torch, kind, index)
    l2_bytes = int(getattr(properties, "L2_cache_size", None) or 0)
    if kind == "cuda":
        behind_mib = _INFINITY_CACHE_MIB.get(
            _architecture(properties) or "", max(_INFINITY_CACHE_MIB.values())
        )
        if not behind_mib and l2_bytes:
            return l2_bytes
        return behind_mib * _MIB + _DIES_COUNT * l2_bytes
    if _INTEL_MAX in str(getattr(properties, "name", "")):
        return max(l2_bytes, _INTEL_MAX_BYTES)
    return l2_bytes or _UNKNOWN_CACHE_BYTES


def _facts(torch: Any, kind: str, index: int) -> Device:  # noqa: ANN401 - an optional library has no types
    """Return what torch knows of a device. What it does not know is None."""
    properties = _properties(torch, kind, index)
    name = getattr(properties, "name", None)
    memory_bytes = getattr(properties, "total_memory", None)
    units = getattr(properties, "multi_processor_count", None)
    units = getattr(properties, "gpu_eu_count", None) if units is None else units
    if kind == "mps":
        name, units, memory_bytes = _of_apple(torch)
    runtime = getattr(torch.version, "hip" if kind == "cuda" else kind, None)
    if kind == "mps":
        runtime = platform.mac_ver()[0] or None
    return Device(
        index=index,
        uuid=str(getattr(properties, "uuid", "")),
        name=str(name or f"{_VENDORS.get(kind, kind)} device"),
        memory_bytes=None if memory_bytes is None else int(memory_bytes),
        sm_count=None if units is None else int(units),
        l2_bytes=getattr(properties, "L2_cache_size", None),
        driver_version=getattr(properties, "driver_version", None),
        vendor=_VENDORS.get(kind, kind),
        architecture=_architecture(properties),
        runtime_version=None if runtime is None else str(runtime),
    )


def _of_apple(torch: Any) -> tuple[str | None, int | None, int | None]:  # noqa: ANN401 - an optional library has no types
    """Return name, cores and memory [B] of Apple's GPU, as far as this torch knows them."""
    about = getattr(getattr(torch, "backends", None), "mps", None)
    name = getattr(about, "get_name", None)
    cores = getattr(about, "get_core_count", None)
    memory = getattr(torch.mps, "recommended_max_memory", None)
    return (
        None if name is None else str(name()),
        None if cores is None else int(cores()),
        None if memory is None else int(memory()),
    )
