"""The state of each GPU, from NVML."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gpuperf.collect.doctor.machine import VERSION_FILE, MachineFacts
from pytest_gpuperf.collect.nvml.library import gap_of
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Finding, Status, Topic

_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
# nvml.h: the error of a device, and of an older driver.
_NOT_SUPPORTED, _NO_FUNCTION = 3, 13


class Gpu(Frozen, frozen=True, kw_only=True):
    """
    The state of one GPU. A value is None if NVML does not report it.

    Attributes:
        reasons: Bits of the clock event reasons.

        users: Process id and memory [B] of every other process with a context.
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


class NvmlReport(Frozen, frozen=True, kw_only=True):
    """
    The NVML report of a machine.

    Attributes:
        gpus: The GPUs that answer.

        reason: Why NVML does not start or a GPU does not answer, or None without an error.

        code: NVML's error number, or None if there is no error or no number.

        remedy: What to do about a reason without a number. With a number, it is "".

        driver: The driver's version, or None if not reported.

        cuda: Major and minor version of the newest CUDA that the driver runs.

        confidential: True if confidential computing is on, None if not reported.

        dev_tools: True if confidential computing allows profilers.
    """

    gpus: tuple[Gpu, ...] = ()
    reason: str | None = None
    code: int | None = None
    remedy: str = ""
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    confidential: bool | None = None
    dev_tools: bool = False

    @property
    def major(self) -> int | None:
        """The driver's branch, as 580, or None if unknown."""
        head = (self.driver or "").partition(".")[0]
        return int(head) if head.isdigit() else None


def read_gpus(machine: MachineFacts, nvml: ModuleType | None = None) -> NvmlReport:
    """
    Read the GPUs of a machine through NVML.

    Args:
        machine: The machine that loads the library. Its process does not count as a user.

        nvml: The binding, or None to import pynvml if NVML can be loaded.
    """
    if nvml is None:
        if reason := machine.load(_LIBRARY):
            return NvmlReport(
                reason=f"its library cannot be loaded ({reason})",
                remedy="docker run --gpus all …"
                if machine.container() and machine.exists(VERSION_FILE)
                else "install the NVIDIA driver: NVML is part of it",
            )
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            return NvmlReport(
                reason=f"pynvml cannot be imported ({error})",
                remedy="python -m pip install --force-reinstall nvidia-ml-py",
            )
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NvmlReport(reason=f"it does not start: {error}", code=_code(error))
    try:
        return _read_all(nvml, machine.pid)
    except nvml.NVMLError as error:
        return NvmlReport(reason=f"it lists no devices: {error}", code=_code(error))
    finally:
        _ask(nvml, "nvmlShutdown")


def _read_all(nvml: ModuleType, pid: int) -> NvmlReport:
    gpus: list[Gpu] = []
    count = int(nvml.nvmlDeviceGetCount())
    reason, code = None if count else "the driver lists no GPU", None
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            reason, code = f"GPU {index} does not answer: {error}", _code(error)
        else:
            gpus.append(_read(nvml, index, handle, pid))
    version = _ask(nvml, "nvmlSystemGetDriverVersion")
    # 13020 is 13.2 (cuda.h).
    cuda = _ask(nvml, "nvmlSystemGetCudaDriverVersion")
    state = _ask(nvml, "nvmlSystemGetConfComputeState", absent=False)
    return NvmlReport(
        gpus=tuple(gpus),
        reason=reason,
        code=code,
        remedy="" if gpus else "check that its slot has one: lspci -d 10de:",
        driver=version.decode() if isinstance(version, bytes) else version,
        cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
        confidential=state and bool(state.ccFeature),
        dev_tools=bool(state and state.devToolsMode),
    )


def _read(nvml: ModuleType, index: int, handle: object, pid: int) -> Gpu:
    def ask(function: str, *more: object, absent: object = None) -> Any:  # noqa: ANN401 - the library has no types
        return _ask(nvml, function, handle, *more, absent=absent)

    memory = ask("nvmlDeviceGetMemoryInfo")
    persistent = ask("nvmlDeviceGetPersistenceMode")
    mig = ask("nvmlDeviceGetMigMode", absent=(0, 0))
    capability = ask("nvmlDeviceGetCudaComputeCapability")
    compute = ask("nvmlDeviceGetComputeRunningProcesses")
    graphics = ask("nvmlDeviceGetGraphicsRunningProcesses")
    held_bytes = {
        user.pid: user.usedGpuMemory for user in (*(compute or ()), *(graphics or ()))
    }
    users = tuple(sorted(item for item in held_bytes.items() if item[0] != pid))
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
        users=None if compute is None else users,
    )


def _ask(
    nvml: ModuleType, function: str, *arguments: object, absent: object = None
) -> Any:  # noqa: ANN401 - the library has no types
    """
    Call NVML, and return `absent` if GPU or driver do not support the call.

    Any other error gives None.
    """
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        return absent if _code(error) in {_NOT_SUPPORTED, _NO_FUNCTION} else None
    # Older drivers have a different struct layout.
    except nvml.NVMLLibraryMismatchError:
        return None


def _code(error: Any) -> int | None:  # noqa: ANN401 - the library has no types
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


_NO_PERMISSION, _NO_DRIVER, _OTHER_DRIVER = 4, 9, 18  # nvml.h, nvmlReturn_t
_HELD, _IDLE = 0x2, 0x1  # nvml.h: nvmlClocksEventReasonApplicationsClocksSetting, …
_SLOWED = {  # nvml.h, nvmlClocksEventReason…
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
_PROHIBITED = 2  # nvml.h, NVML_COMPUTEMODE_PROHIBITED
# nvml.h. Higher numbers are modes of a host.
_VIRTUAL = {0: "none", 1: "passed through", 2: "vGPU"}
_SLICED = 2  # nvml.h, NVML_GPU_VIRTUALIZATION_MODE_VGPU
_STEP_MHZ = 15  # GPU clocks are multiples of this.
# Share of the highest clock that a GPU holds even at the power limit.
_STEADY = 0.75
# Share of the highest clock. No clock is locked as low as this for measuring.
_FREE = 0.5
# Share of the memory. Kernel replay saves the memory that the kernel writes.
_ROOM = 0.5


class _Check(Frozen, frozen=True, kw_only=True):
    """
    A check that runs on every GPU.

    Attributes:
        reading: The reading as evidence, or None if NVML does not report it.

        faulty: Whether the reading is bad. Called only if there is a reading.

        cause: The finding's text if a GPU is faulty.

        good: The finding's text if no GPU is faulty.

        remedy: The remedy for one GPU.
    """

    topic: Topic
    reading: Callable[[Gpu], str | None]
    faulty: Callable[[Gpu], bool]
    status: Status
    cause: str
    good: str
    remedy: Callable[[Gpu], str]


def gpu_findings(report: NvmlReport) -> tuple[Finding, ...]:
    """Return a finding for every topic that NVML can answer."""
    findings = [_nvml(report)]
    for check in _CHECKS:
        topic = check.topic
        readings = [(gpu, check.reading(gpu)) for gpu in report.gpus]
        evidence = tuple(_reading(gpu, text) for gpu, text in readings)
        faulty = [g for g, text in readings if text is not None and check.faulty(g)]
        silent = [str(gpu.index) for gpu, text in readings if text is None]
        if not readings:
            finding = topic.unknown(_no_gpu(report))
        elif faulty:
            remedy = "; ".join(dict.fromkeys(map(check.remedy, faulty)))
            finding = topic.found(check.status, check.cause, evidence, remedy)
        elif silent:
            reason = f"NVML does not report it for GPU {', '.join(silent)}"
            finding = topic.unknown(reason, *evidence)
        else:
            finding = topic.ok(check.good, *evidence)
        findings.append(finding)
    return (*findings, _clocks(report), _confidential(report))


def _no_gpu(report: NvmlReport) -> str:
    return f"NVML reads no GPU: {report.reason}"


def _reading(gpu: Gpu, text: str | None) -> str:
    return f"NVML, GPU {gpu.index}: {text or 'not reported'}"


_NVML = Topic(id="nvml", concerns=("energy", "memory"))
_NVML_TORN = Topic(id="nvml", concerns=("timing", "energy", "memory"))


def _nvml(report: NvmlReport) -> Finding:
    if report.reason is None:
        return _NVML.ok("NVML answers", f"NVML: driver {report.driver}")
    evidence = f"NVML: {report.reason}"
    if report.code == _OTHER_DRIVER:
        return _NVML_TORN.stops(
            "the driver's libraries do not match its kernel module: neither NVML nor CUDA "
            "starts",
            evidence,
            remedy="sudo reboot",
        )
    remedy = report.remedy
    if report.code is not None:
        commands = {
            _NO_DRIVER: "sudo modprobe nvidia",
            _NO_PERMISSION: "run as a user who may open them: ls -l /dev/nvidia*",
        }
        remedy = commands.get(report.code) or gap_of(report.code).remedy
    what = "does not read every GPU" if report.gpus else "reads no GPU"
    return _NVML.stops(
        f"NVML {what}: energy, power, clocks and memory of the GPU are not measured, and "
        "a baseline cannot name its GPU",
        evidence,
        remedy=remedy,
    )


def _slowed(gpu: Gpu) -> list[str]:
    return [name for bit, name in _SLOWED.items() if (gpu.reasons or 0) & bit]


def _mode(gpu: Gpu) -> str | None:
    mode = gpu.compute_mode
    if mode is None:
        return None
    return _COMPUTE_MODES[mode] if mode < len(_COMPUTE_MODES) else f"mode {mode}"


def _shared(gpu: Gpu) -> str | None:
    if gpu.users is None:
        return None
    users = [
        f"pid {pid}" + ("" if held is None else f" ({held / 1e9:.1f} GB)")
        for pid, held in gpu.users
    ]
    return ", ".join(users) or "no other process"


def _on(value: bool | None) -> str | None:  # noqa: FBT001 - a fact, not a switch
    return None if value is None else ("on" if value else "off")


_CHECKS = (
    _Check(
        topic=Topic(id="persistence-mode", concerns=("timing", "energy")),
        reading=lambda gpu: _on(gpu.persistent),
        faulty=lambda gpu: not gpu.persistent,
        status=Status.DISTORTS,
        cause="persistence mode is off: an unused GPU loses its clock and power settings, "
        "and the first call restarts it",
        good="persistence mode is on",
        remedy=lambda gpu: f"sudo nvidia-smi -i {gpu.index} -pm 1",
    ),
    _Check(
        topic=Topic(id="slowdown", concerns=("timing", "energy")),
        reading=lambda gpu: (
            None
            if gpu.reasons is None
            else f"reasons {gpu.reasons:#x}: {', '.join(_slowed(gpu)) or 'no slowdown'}"
        ),
        faulty=lambda gpu: bool(_slowed(gpu)),
        status=Status.DISTORTS,
        cause="the GPU is throttled now, by power or temperature",
        good="the GPU is not throttled now",
        remedy=lambda gpu: f"nvidia-smi -i {gpu.index} -q -d PERFORMANCE,TEMPERATURE",
    ),
    _Check(
        topic=Topic(id="power-limit", concerns=("timing", "energy")),
        reading=lambda gpu: (
            None
            if gpu.power_limit_watts is None or gpu.default_power_limit_watts is None
            else f"limit {gpu.power_limit_watts:g} W, "
            f"default {gpu.default_power_limit_watts:g} W"
        ),
        faulty=lambda gpu: (
            (gpu.power_limit_watts or 0) < (gpu.default_power_limit_watts or 0)
        ),
        status=Status.DISTORTS,
        cause="the power limit is below the board's default: the GPU throttles earlier",
        good="the power limit is the board's default or above it",
        remedy=lambda gpu: (
            f"sudo nvidia-smi -i {gpu.index} -pl {gpu.default_power_limit_watts:g}"
        ),
    ),
    _Check(
        topic=Topic(
            id="gpu-processes", concerns=("timing", "counters", "energy", "memory")
        ),
        reading=_shared,
        faulty=lambda gpu: bool(gpu.users),
        status=Status.DISTORTS,
        cause="other processes use the GPU and add to its time, energy and memory "
        "(a container sees the host's process ids)",
        good="no other process uses the GPU",
        remedy=lambda gpu: (
            f"end them: kill {' '.join(str(pid) for pid, _ in gpu.users or ())}, or take"
            " another GPU"
        ),
    ),
    _Check(
        topic=Topic(id="gpu-memory", concerns=("memory", "counters")),
        reading=lambda gpu: (
            None
            if gpu.free_bytes is None or gpu.memory_bytes is None
            else f"{gpu.free_bytes / 1e9:.1f} of {gpu.memory_bytes / 1e9:.1f} GB are free"
        ),
        faulty=lambda gpu: (gpu.free_bytes or 0) < _ROOM * (gpu.memory_bytes or 0),
        status=Status.DISTORTS,
        cause="less than half of the memory is free: kernel replay needs room to save "
        "what a kernel writes",
        good="at least half of the memory is free",
        remedy=lambda gpu: f"nvidia-smi -i {gpu.index} -q -d MEMORY,PIDS",
    ),
    _Check(
        topic=Topic(id="compute-mode", concerns=("timing", "counters", "launches")),
        reading=_mode,
        faulty=lambda gpu: gpu.compute_mode == _PROHIBITED,
        status=Status.STOPS,
        cause="the compute mode is prohibited: no process may use the GPU",
        good="the compute mode lets processes use the GPU",
        remedy=lambda gpu: f"sudo nvidia-smi -i {gpu.index} -c DEFAULT",
    ),
    _Check(
        topic=Topic(id="mig", concerns=("counters", "energy")),
        reading=lambda gpu: _on(gpu.mig),
        faulty=lambda gpu: bool(gpu.mig),
        status=Status.DISTORTS,
        cause="the GPU is split (MIG): a shared GPU instance has no counters, an unshared "
        "one has only its own; energy and clocks are those of the whole board",
        good="MIG is off",
        remedy=lambda gpu: f"sudo nvidia-smi -i {gpu.index} -mig 0",
    ),
    _Check(
        topic=Topic(id="vgpu", concerns=("timing", "counters", "energy")),
        reading=lambda gpu: (
            None
            if gpu.virtualization is None
            else _VIRTUAL.get(gpu.virtualization, f"host ({gpu.virtualization})")
        ),
        faulty=lambda gpu: gpu.virtualization == _SLICED,
        status=Status.DISTORTS,
        cause="the GPU is a vGPU: it is shared with other guests, and it has counters "
        "only if its host enabled profiling, which a guest cannot see",
        good="the GPU is not a vGPU",
        remedy=lambda _: (
            "on the host: echo enable_profiling=1 | sudo tee "
            "/sys/bus/mdev/devices/UUID/nvidia/vgpu_params"
        ),
    ),
)


_CLOCKS = Topic(id="clocks", concerns=("timing", "energy"))


def _clocks(report: NvmlReport) -> Finding:
    """Check if the clocks are locked. NVML cannot read a lock, so the clock itself is judged."""
    if not report.gpus:
        return _CLOCKS.unknown(_no_gpu(report))
    evidence = [_reading(gpu, _clock(gpu)) for gpu in report.gpus]
    commands, has_fallen = [], False
    for gpu in report.gpus:
        now, most = gpu.sm_clock_mhz, gpu.max_sm_clock_mhz
        steady = "MHZ" if most is None else int(_STEADY * most) // _STEP_MHZ * _STEP_MHZ
        commands.append(f"sudo nvidia-smi -i {gpu.index} -lgc {steady}")
        # A locked clock does not fall on an idle GPU.
        is_idle = (gpu.reasons or 0) & _IDLE
        if is_idle and now is not None and most is not None and now < _FREE * most:
            has_fallen = True
    remedy = "; ".join(commands)
    if has_fallen:
        return _CLOCKS.distorts(
            "the clock is not locked: it falls when the GPU is idle and follows power "
            "and temperature",
            *evidence,
            remedy=f"{remedy} (undo it with -rgc)",
        )
    if silent := [str(gpu.index) for gpu in report.gpus if _clock(gpu) is None]:
        reason = f"NVML does not report the clock of GPU {', '.join(silent)}"
        return _CLOCKS.unknown(reason, *evidence, remedy=remedy)
    if all((gpu.reasons or 0) & _HELD for gpu in report.gpus):
        return _CLOCKS.ok("the application clock setting fixes the clock", *evidence)
    return _CLOCKS.unknown(
        "NVML cannot read whether a clock is locked", *evidence, remedy=remedy
    )


def _clock(gpu: Gpu) -> str | None:
    if gpu.sm_clock_mhz is None or gpu.max_sm_clock_mhz is None:
        return None
    reasons = "not reported" if gpu.reasons is None else f"{gpu.reasons:#x}"
    return f"{gpu.sm_clock_mhz} of {gpu.max_sm_clock_mhz} MHz, reasons {reasons}"


_CONFIDENTIAL = Topic(
    id="confidential-computing", concerns=("counters", "launches", "timing")
)
_CONFIDENTIAL_TIMES = Topic(id="confidential-computing", concerns=("timing",))


def _confidential(report: NvmlReport) -> Finding:
    if report.confidential is None:
        silence = "NVML does not report confidential computing"
        reason = silence if report.gpus else _no_gpu(report)
        return _CONFIDENTIAL.unknown(reason)
    evidence = f"NVML: confidential computing {_on(report.confidential)}"
    if not report.confidential:
        return _CONFIDENTIAL.ok("confidential computing is off", evidence)
    evidence += f", developer tools {_on(report.dev_tools)}"
    if report.dev_tools:
        return _CONFIDENTIAL_TIMES.distorts(
            "confidential computing is on: CUDA events give wrong times, and are not used",
            evidence,
            remedy="measure with cupti, or switch it off on the host: sudo "
            "nvidia_gpu_tools.py --set-cc-mode=off --reset-after-cc-mode-switch",
        )
    return _CONFIDENTIAL.stops(
        "confidential computing is on: the driver refuses counters and tracing, and "
        "CUDA events give wrong times",
        evidence,
        remedy="on the host: sudo nvidia_gpu_tools.py --set-cc-mode=devtools "
        "--reset-after-cc-mode-switch",
    )
