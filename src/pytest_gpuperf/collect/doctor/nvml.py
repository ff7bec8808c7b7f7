"""What NVML says of the GPUs, read once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gpuperf.collect.doctor.machine import Machine
from pytest_gpuperf.model.frozen import Frozen

__all__ = ["Gpu", "Seen", "read_gpus"]

_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_NOT_SUPPORTED, _NO_FUNCTION = 3, 13  # nvml.h: of the device; of an older driver


class Gpu(Frozen, frozen=True, kw_only=True):
    """
    What NVML says of one GPU; None: it does not say.

    Attributes:
        reasons: Why the clock is what it is, a bit each.

        users: Process id and bytes held of each process with a context.
    """

    index: int
    capability: tuple[int, int] | None
    persistent: bool | None
    compute_mode: int | None
    mig: bool | None
    virtualization: int | None
    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    reasons: int | None
    power_limit_watts: float | None
    default_power_limit_watts: float | None
    free_bytes: int | None
    memory_bytes: int | None
    users: tuple[tuple[int, int | None], ...] | None


class Seen(Frozen, frozen=True, kw_only=True):
    """
    What NVML says of a machine.

    Attributes:
        gpus: Those that answer.

        reason: Why NVML does not start or a GPU does not answer; None: all is well.

        code: The error that it gave; None: it gave none.

        driver: The driver's version; None: not known.

        cuda: Major and minor number of the newest CUDA that the driver runs.

        confidential: Whether confidential computing is on; None: not known.

        dev_tools: Whether it lets profilers in all the same.
    """

    gpus: tuple[Gpu, ...] = ()
    reason: str | None = None
    code: int | None = None
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    confidential: bool | None = None
    dev_tools: bool = False

    @property
    def major(self) -> int | None:
        """The driver's branch, as 580."""
        head = (self.driver or "").partition(".")[0]
        return int(head) if head.isdigit() else None


def read_gpus(machine: Machine, nvml: ModuleType | None = None) -> Seen:
    """
    Return what NVML says of the GPUs of a machine.

    Args:
        machine: Which can load the library or not; its own process is no other's.

        nvml: The binding to ask; None: pynvml, imported where NVML can be loaded.
    """
    if nvml is None:
        if reason := machine.load(_LIBRARY):
            return Seen(reason=f"its library cannot be loaded ({reason})")
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            return Seen(reason=f"pynvml cannot be imported ({error})")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Seen(reason=f"it does not start: {error}", code=_code(error))
    try:
        return _read_all(nvml, machine.pid)
    except nvml.NVMLError as error:
        return Seen(reason=f"it lists no devices: {error}", code=_code(error))
    finally:
        _ask(nvml, "nvmlShutdown")


def _read_all(nvml: ModuleType, pid: int) -> Seen:
    """Return every GPU that answers, and why another does not."""
    gpus: list[Gpu] = []
    count = int(nvml.nvmlDeviceGetCount())
    reason, code = None if count else "the driver knows no GPU", None
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            reason, code = f"GPU {index} does not answer: {error}", _code(error)
        else:
            gpus.append(_read(nvml, index, handle, pid))
    version = _ask(nvml, "nvmlSystemGetDriverVersion")
    cuda = _ask(nvml, "nvmlSystemGetCudaDriverVersion")  # 13020 is 13.2, cuda.h
    state = _ask(nvml, "nvmlSystemGetConfComputeState", absent=False)
    return Seen(
        gpus=tuple(gpus),
        reason=reason,
        code=code,
        driver=version.decode() if isinstance(version, bytes) else version,
        cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
        confidential=state and bool(state.ccFeature),
        dev_tools=bool(state and state.devToolsMode),
    )


def _read(nvml: ModuleType, index: int, handle: object, pid: int) -> Gpu:
    """Return one GPU."""

    def ask(function: str, *more: object, absent: object = None) -> Any:  # noqa: ANN401 - the library has no types
        return _ask(nvml, function, handle, *more, absent=absent)

    memory = ask("nvmlDeviceGetMemoryInfo")
    persistent = ask("nvmlDeviceGetPersistenceMode")
    mig = ask("nvmlDeviceGetMigMode", absent=(0, 0))
    capability = ask("nvmlDeviceGetCudaComputeCapability")
    return Gpu(
        index=index,
        capability=capability and (int(capability[0]), int(capability[1])),
        persistent=None if persistent is None else bool(persistent),
        compute_mode=ask("nvmlDeviceGetComputeMode"),
        mig=None if mig is None else bool(mig[0]),
        virtualization=ask("nvmlDeviceGetVirtualizationMode", absent=0),
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        max_sm_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        reasons=ask("nvmlDeviceGetCurrentClocksEventReasons"),
        power_limit_watts=_watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
        default_power_limit_watts=_watts(
            ask("nvmlDeviceGetPowerManagementDefaultLimit")
        ),
        free_bytes=memory and int(memory.free),
        memory_bytes=memory and int(memory.total),
        users=_users(ask, pid),
    )


def _users(
    ask: Callable[[str], Any], pid: int
) -> tuple[tuple[int, int | None], ...] | None:
    """Return the other processes with a context, each once."""
    lists = [
        ask("nvmlDeviceGetComputeRunningProcesses"),
        ask("nvmlDeviceGetGraphicsRunningProcesses"),
    ]
    if lists[0] is None:
        return None
    found = {each.pid: each.usedGpuMemory for kind in lists for each in kind or ()}
    return tuple(sorted((each, held) for each, held in found.items() if each != pid))


def _ask(
    nvml: ModuleType, function: str, *arguments: object, absent: object = None
) -> Any:  # noqa: ANN401 - the library has no types
    """Return what NVML says; `absent` where GPU or driver have no such thing."""
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        return absent if _code(error) in {_NOT_SUPPORTED, _NO_FUNCTION} else None
    except nvml.NVMLLibraryMismatchError:  # a record that an older driver lays out else
        return None


def _code(error: Any) -> int | None:  # noqa: ANN401 - the library has no types
    """Return the number of an error of NVML."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def _watts(milliwatts: int | None) -> float | None:
    """Return a power in watts."""
    return None if milliwatts is None else milliwatts / 1000
