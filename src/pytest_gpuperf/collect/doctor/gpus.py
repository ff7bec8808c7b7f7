"""What NVML says of each GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gpuperf.collect.doctor.machine import Machine
from pytest_gpuperf.model.finding import Finding, Status, Topic
from pytest_gpuperf.model.frozen import Frozen

__all__ = ["Gpu", "Seen", "gpu_findings", "read_gpus"]

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
_VIRTUAL = {0: "none", 1: "passed through", 2: "vGPU"}  # nvml.h; others: of a host
_SLICED = 2  # nvml.h, NVML_GPU_VIRTUALIZATION_MODE_VGPU
_STEP_MHZ = 15  # clocks of a GPU are its multiples
_STEADY = 0.75  # of the highest clock: a load that draws all power keeps that
_FREE = 0.5  # of the highest clock: nobody locks a GPU that low to measure with it
_ROOM = 0.5  # of the memory: what is written is saved between two replays of a kernel


class _Question(Frozen, frozen=True, kw_only=True):
    """
    One thing that is asked of each GPU.

    Attributes:
        says: The reading, as evidence; None: NVML does not say.

        wrong: Whether it is not as it should be; asked only where NVML said it.

        remedy: What is to be done for one GPU.
    """

    topic: Topic
    says: Callable[[Gpu], str | None]
    wrong: Callable[[Gpu], bool]
    status: Status
    cause: str
    good: str
    remedy: Callable[[Gpu], str]


def gpu_findings(seen: Seen) -> tuple[Finding, ...]:
    """Return a finding of each topic that NVML knows of."""
    asked = (_asked(question, seen) for question in _QUESTIONS)
    return (_nvml(seen), *asked, _clocks(seen), _confidential(seen))


def _asked(question: _Question, seen: Seen) -> Finding:
    """Return what all GPUs say to a question."""
    topic = question.topic
    if not seen.gpus:
        return topic.unknown(_nobody(seen))
    said = [(gpu, question.says(gpu)) for gpu in seen.gpus]
    evidence = tuple(_reading(gpu, text) for gpu, text in said)
    wrong = [gpu for gpu, text in said if text is not None and question.wrong(gpu)]
    if wrong:
        remedy = "; ".join(dict.fromkeys(map(question.remedy, wrong)))
        return topic.found(question.status, question.cause, evidence, remedy)
    if silent := [str(gpu.index) for gpu, text in said if text is None]:
        reason = f"NVML does not say it of GPU {', '.join(silent)}"
        return topic.unknown(reason, *evidence)
    return topic.ok(question.good, *evidence)


def _nobody(seen: Seen) -> str:
    """Return why no GPU can be asked."""
    return f"NVML can be asked of no GPU: {seen.reason}"


def _reading(gpu: Gpu, text: str | None) -> str:
    """Return what NVML says of a GPU as evidence."""
    return f"NVML, GPU {gpu.index}: {text or 'does not say'}"


_NVML = Topic(id="nvml", concerns=("energy", "memory"))
_NVML_TORN = Topic(id="nvml", concerns=("timing", "energy", "memory"))


def _nvml(seen: Seen) -> Finding:
    """Return whether NVML answers."""
    if seen.reason is None:
        return _NVML.ok("NVML answers", f"NVML: driver {seen.driver}")
    evidence = f"NVML: {seen.reason}"
    if seen.code == _OTHER_DRIVER:
        return _NVML_TORN.stops(
            "the driver's libraries are of another version than its kernel module, so "
            "neither NVML nor CUDA starts",
            evidence,
            remedy="sudo reboot",
        )
    remedies = {
        _NO_DRIVER: "sudo modprobe nvidia",
        _NO_PERMISSION: "run as a user who may open them: ls -l /dev/nvidia*",
    }
    return _NVML.stops(
        "without NVML there is no energy, power, clock or memory of the GPU, and a "
        "baseline does not know which GPU it belongs to",
        evidence,
        remedy=remedies.get(
            seen.code or 0, "install the NVIDIA driver, and pip install nvidia-ml-py"
        ),
    )


def _power(gpu: Gpu) -> str | None:
    """Return a GPU's power limit."""
    limit, default = gpu.power_limit_watts, gpu.default_power_limit_watts
    known = limit is not None and default is not None
    return f"limit {limit:g} W, default {default:g} W" if known else None


def _slowed(gpu: Gpu) -> list[str]:
    """Return what holds a GPU's clock down now."""
    return [name for bit, name in _SLOWED.items() if (gpu.reasons or 0) & bit]


def _slowdown(gpu: Gpu) -> str | None:
    """Return a GPU's reasons."""
    if gpu.reasons is None:
        return None
    return f"reasons {gpu.reasons:#x}: {', '.join(_slowed(gpu)) or 'no slowdown'}"


def _mode(gpu: Gpu) -> str | None:
    """Return a GPU's compute mode."""
    mode = gpu.compute_mode
    if mode is None:
        return None
    return _COMPUTE_MODES[mode] if mode < len(_COMPUTE_MODES) else f"mode {mode}"


def _shared(gpu: Gpu) -> str | None:
    """Return who else uses a GPU."""
    if gpu.users is None:
        return None
    users = [
        f"pid {pid}" + ("" if held is None else f" ({held / 1e9:.1f} GB)")
        for pid, held in gpu.users
    ]
    return ", ".join(users) or "no other process"


def _free(gpu: Gpu) -> str | None:
    """Return a GPU's free memory."""
    if gpu.free_bytes is None or gpu.memory_bytes is None:
        return None
    return f"{gpu.free_bytes / 1e9:.1f} of {gpu.memory_bytes / 1e9:.1f} GB are free"


def _on(value: bool | None) -> str | None:  # noqa: FBT001 - a fact, not a switch
    """Return a yes or no as text."""
    return None if value is None else ("on" if value else "off")


_QUESTIONS = (
    _Question(
        topic=Topic(id="persistence-mode", concerns=("timing", "energy")),
        says=lambda gpu: _on(gpu.persistent),
        wrong=lambda gpu: not gpu.persistent,
        status=Status.BENDS,
        cause="the driver lets go of the GPU when no process uses it: clocks and power "
        "limits that were set are lost, and the first call starts it anew",
        good="the driver keeps the GPU started",
        remedy=lambda gpu: f"sudo nvidia-smi -i {gpu.index} -pm 1",
    ),
    _Question(
        topic=Topic(id="slowdown", concerns=("timing", "energy")),
        says=_slowdown,
        wrong=lambda gpu: bool(_slowed(gpu)),
        status=Status.BENDS,
        cause="the clock is held down now, by power or by temperature",
        good="nothing holds the clock down now",
        remedy=lambda gpu: f"nvidia-smi -i {gpu.index} -q -d PERFORMANCE,TEMPERATURE",
    ),
    _Question(
        topic=Topic(id="power-limit", concerns=("timing", "energy")),
        says=_power,
        wrong=lambda gpu: (
            (gpu.power_limit_watts or 0) < (gpu.default_power_limit_watts or 0)
        ),
        status=Status.BENDS,
        cause="the power limit is below the board's default, so the clock falls earlier",
        good="the power limit is the board's default or above it",
        remedy=lambda gpu: (
            f"sudo nvidia-smi -i {gpu.index} -pl {gpu.default_power_limit_watts:g}"
        ),
    ),
    _Question(
        topic=Topic(
            id="gpu-processes", concerns=("timing", "counters", "energy", "memory")
        ),
        says=_shared,
        wrong=lambda gpu: bool(gpu.users),
        status=Status.BENDS,
        cause="other processes use the GPU: its time, energy and memory are theirs too "
        "(in a container these are process ids of the host)",
        good="no other process uses the GPU",
        remedy=lambda gpu: f"end them: {_pids(gpu)}, or take another GPU",
    ),
    _Question(
        topic=Topic(id="gpu-memory", concerns=("memory", "counters")),
        says=_free,
        wrong=lambda gpu: (gpu.free_bytes or 0) < _ROOM * (gpu.memory_bytes or 0),
        status=Status.BENDS,
        cause="less than half of the memory is free: a kernel that is replayed for its "
        "counters needs room to save what it writes",
        good="at least half of the memory is free",
        remedy=lambda gpu: f"nvidia-smi -i {gpu.index} -q -d MEMORY,PIDS",
    ),
    _Question(
        topic=Topic(id="compute-mode", concerns=("timing", "counters", "launches")),
        says=_mode,
        wrong=lambda gpu: gpu.compute_mode == _PROHIBITED,
        status=Status.STOPS,
        cause="the compute mode forbids every process to use the GPU",
        good="processes may use the GPU",
        remedy=lambda gpu: f"sudo nvidia-smi -i {gpu.index} -c DEFAULT",
    ),
    _Question(
        topic=Topic(id="mig", concerns=("counters", "energy")),
        says=lambda gpu: _on(gpu.mig),
        wrong=lambda gpu: bool(gpu.mig),
        status=Status.BENDS,
        cause="the GPU is split (MIG): a compute instance that shares its GPU instance "
        "has no counters, one that does not has none of the whole device; energy and "
        "clocks are the board's",
        good="the GPU is not split",
        remedy=lambda gpu: f"sudo nvidia-smi -i {gpu.index} -mig 0",
    ),
    _Question(
        topic=Topic(id="vgpu", concerns=("timing", "counters", "energy")),
        says=lambda gpu: (
            None
            if gpu.virtualization is None
            else _VIRTUAL.get(gpu.virtualization, f"host ({gpu.virtualization})")
        ),
        wrong=lambda gpu: gpu.virtualization == _SLICED,
        status=Status.BENDS,
        cause="this is a vGPU: other guests take turns on it, and counters are there "
        "only where its host enabled profiling, which a guest cannot see",
        good="the GPU is no vGPU",
        remedy=lambda _: (
            "on the host: echo enable_profiling=1 | sudo tee "
            "/sys/bus/mdev/devices/UUID/nvidia/vgpu_params"
        ),
    ),
)


def _pids(gpu: Gpu) -> str:
    """Return the command that ends the other processes."""
    return "kill " + " ".join(str(pid) for pid, _ in gpu.users or ())


_CLOCKS = Topic(id="clocks", concerns=("timing", "energy"))


def _clocks(seen: Seen) -> Finding:
    """Return whether the clocks are held; NVML has no reading of a locked clock."""
    if not seen.gpus:
        return _CLOCKS.unknown(_nobody(seen))
    evidence = [_reading(gpu, _clock(gpu)) for gpu in seen.gpus]
    remedy = "; ".join(
        f"sudo nvidia-smi -i {gpu.index} -lgc {_steady(gpu)}" for gpu in seen.gpus
    )
    free = [gpu for gpu in seen.gpus if _floats(gpu)]
    if free:
        return _CLOCKS.bends(
            "the clock is not locked: it falls when the GPU is idle and follows power "
            "and temperature",
            *evidence,
            remedy=f"{remedy} (undo it with -rgc)",
        )
    if silent := [str(gpu.index) for gpu in seen.gpus if _clock(gpu) is None]:
        reason = f"GPU {', '.join(silent)} does not say its clock"
        return _CLOCKS.unknown(reason, *evidence, remedy=remedy)
    if all((gpu.reasons or 0) & _HELD for gpu in seen.gpus):
        return _CLOCKS.ok("a setting holds the clock", *evidence)
    return _CLOCKS.unknown(
        "NVML does not say whether a clock is locked", *evidence, remedy=remedy
    )


def _clock(gpu: Gpu) -> str | None:
    """Return a GPU's clock and the reasons for it."""
    if gpu.sm_clock_mhz is None or gpu.max_sm_clock_mhz is None:
        return None
    reasons = "not said" if gpu.reasons is None else f"{gpu.reasons:#x}"
    return f"{gpu.sm_clock_mhz} of {gpu.max_sm_clock_mhz} MHz, reasons {reasons}"


def _floats(gpu: Gpu) -> bool:
    """Return whether a clock has fallen because its GPU is idle: a locked one stays."""
    now, most = gpu.sm_clock_mhz, gpu.max_sm_clock_mhz
    idle = bool((gpu.reasons or 0) & _IDLE)
    return idle and now is not None and most is not None and now < _FREE * most


def _steady(gpu: Gpu) -> str:
    """Return a clock that a GPU can keep under load [MHz]."""
    if gpu.max_sm_clock_mhz is None:
        return "MHZ"
    return str(int(_STEADY * gpu.max_sm_clock_mhz) // _STEP_MHZ * _STEP_MHZ)


_CONFIDENTIAL = Topic(id="confidential-computing", concerns=("counters", "launches"))


def _confidential(seen: Seen) -> Finding:
    """Return whether confidential computing keeps profilers out."""
    if seen.confidential is None:
        reason = "NVML does not say it" if seen.gpus else _nobody(seen)
        return _CONFIDENTIAL.unknown(reason)
    evidence = f"NVML: confidential computing {_on(seen.confidential)}"
    if not seen.confidential:
        return _CONFIDENTIAL.ok("confidential computing is off", evidence)
    evidence += f", developer tools {_on(seen.dev_tools)}"
    if seen.dev_tools:
        return _CONFIDENTIAL.ok("confidential computing lets profilers in", evidence)
    return _CONFIDENTIAL.stops(
        "confidential computing is on: the driver refuses counters and tracing",
        evidence,
        remedy="on the host: sudo nvidia_gpu_tools.py --set-cc-mode=devtools "
        "--reset-after-cc-mode-switch",
    )
