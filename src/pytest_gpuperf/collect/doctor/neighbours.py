"""Who else is there: daemons, profilers, debuggers, tools that are attached."""

from __future__ import annotations

from pytest_gpuperf.collect.cupti.presence import ATTACHED_TOOLS
from pytest_gpuperf.collect.doctor.gpus import Seen
from pytest_gpuperf.collect.doctor.machine import Machine
from pytest_gpuperf.model.finding import Finding, Topic

__all__ = ["neighbour_findings"]

_STATUS = "/proc/self/status"
_MPS_PIPE = "/tmp/nvidia-mps/control"  # noqa: S108 - MPS's own default
_DCGM = Topic(id="dcgm", concerns=("counters",))
_PROFILERS = Topic(id="profilers", concerns=("counters", "launches"))
_ATTACHED = Topic(id="attached-tool", concerns=("launches", "counters"))
_KINETO = Topic(id="kineto-daemon", concerns=("launches",))
_DEBUGGER = Topic(id="debugger", concerns=("launches", "host"))
_MPS = Topic(id="mps", concerns=("counters", "launches", "timing"))
_BLOCKING = Topic(id="launch-blocking", concerns=("timing", "launches"))

_NVTX = "NVTX_INJECTION64_PATH"  # a library that hears of NVTX ranges alone
_CUDA_GDB = "cuda-gdb"
_NCU = ("ncu", "nv-nsight-cu-cli"[:15])
_NSYS = ("nsys", "nsys-launcher")
_EXPORTER, _ENGINE = "dcgm-exporter", "nv-hostengine"
_FREE_COUNTERS = (9, 0)  # from Hopper on DCGM reads through GPM, not the counters
_MPS_NAME = "nvidia-cuda-mps-control"[:15]


def neighbour_findings(machine: Machine, seen: Seen) -> tuple[Finding, ...]:
    """
    Return a finding of each topic that others beside this process are cause of.

    Args:
        machine: Where to look.

        seen: What NVML says.
    """
    return (
        _dcgm(machine, seen),
        _profilers(machine),
        _attached(machine),
        _kineto(machine),
        _debugger(machine),
        _mps(machine),
        _launch_blocking(machine),
    )


def _dcgm(machine: Machine, seen: Seen) -> Finding:
    """Return whether DCGM holds the counters."""
    running = machine.processes()
    found = [name for name in (_EXPORTER, _ENGINE) if name in running]
    evidence = [f"/proc/{running[name][0]}/comm: {name}" for name in found]
    pause = "dcgmi profile --pause (and afterwards --resume)"
    if not found:
        return _absent(machine, _DCGM, "DCGM does not run")
    kinds = [gpu.capability for gpu in seen.gpus]
    if kinds and all(kind is not None and kind >= _FREE_COUNTERS for kind in kinds):
        return _DCGM.ok(
            "DCGM runs, and leaves the counters of these GPUs alone: it reads GPM",
            *evidence,
        )
    if not kinds or None in kinds:
        return _DCGM.unknown(
            "DCGM runs; whether it holds counters depends on a GPU that is not known",
            *evidence,
            remedy=pause,
        )
    if _EXPORTER in found:
        return _DCGM.stops(
            "dcgm-exporter holds the counters of a GPU before Hopper: a driver resource "
            "is unavailable to others",
            *evidence,
            remedy=pause,
        )
    return _DCGM.unknown(
        "DCGM runs; whether it watches profiling fields, and so holds the counters, is "
        "not seen from here",
        *evidence,
        remedy=pause,
    )


def _absent(machine: Machine, topic: Topic, cause: str) -> Finding:
    """Return that no such process was found, where all can be seen."""
    hidden = machine.hidden()
    if hidden is not None:
        return topic.unknown(hidden, "/proc/*/comm: names none that is looked for")
    return topic.ok(cause, "/proc/*/comm: names none that is looked for")


def _profilers(machine: Machine) -> Finding:
    """Return whether other profilers run."""
    running = machine.processes()
    compute = [name for name in _NCU if name in running]
    systems = [name for name in _NSYS if name in running]
    found = [*compute, *systems]
    evidence = [f"/proc/{running[name][0]}/comm: {name}" for name in found]
    if not found:
        return _absent(machine, _PROFILERS, "no other profiler runs")
    pids = " ".join(str(pid) for name in found for pid in running[name])
    if compute:
        return _PROFILERS.stops(
            "Nsight Compute runs: it holds the counters of its GPU until it ends",
            *evidence,
            remedy=f"wait for it, or end it: kill {pids}",
        )
    return _PROFILERS.bends(
        "Nsight Systems runs: it slows the GPU's work, and with --gpu-metrics-devices "
        "holds the counters",
        *evidence,
        remedy=f"wait for it, or end it: kill {pids}",
    )


def _attached(machine: Machine) -> Finding:
    """Return whether a tool has started this process, or a library listens in it."""
    found = machine.variables(ATTACHED_TOOLS)
    if found:
        tools = ", ".join(dict.fromkeys(ATTACHED_TOOLS[name] for name in found))
        return _ATTACHED.stops(
            f"{tools} is attached, and a process has one subscriber of CUPTI (39)",
            *(f"{name}: is set" for name in found),
            remedy=f"start pytest without it, or: unset {' '.join(found)}",
        )
    if machine.variables((_NVTX,)):
        return _ATTACHED.bends(
            "an injection library hears of every NVTX range, which takes time",
            f"{_NVTX}: is set",
            remedy=f"unset {_NVTX}",
        )
    unset = (f"{name}: is not set" for name in ATTACHED_TOOLS)
    return _ATTACHED.ok("no tool is attached", *unset)


def _kineto(machine: Machine) -> Finding:
    """Return whether PyTorch's profiler waits for a daemon, and so holds CUPTI."""
    if machine.variables(("KINETO_USE_DAEMON",)):
        return _KINETO.stops(
            "PyTorch subscribes CUPTI as soon as torch is imported, and there is one "
            "subscriber",
            "KINETO_USE_DAEMON: is set",
            remedy="unset KINETO_USE_DAEMON",
        )
    return _KINETO.ok("PyTorch leaves CUPTI alone", "KINETO_USE_DAEMON: is not set")


def _debugger(machine: Machine) -> Finding:
    """Return whether a debugger is attached."""
    tracer = machine.field(_STATUS, "TracerPid")
    evidence = f"{_STATUS}: TracerPid: {tracer}"
    if tracer is None:
        return _DEBUGGER.unknown(
            "the system does not say whether a debugger is attached",
            f"{_STATUS}: has no TracerPid",
        )
    if tracer == "0":
        return _DEBUGGER.ok("no debugger is attached", evidence)
    name = machine.line(f"/proc/{tracer}/comm")
    named = (evidence, f"/proc/{tracer}/comm: {name or 'cannot be read'}")
    detach = f"detach it, or: kill {tracer}"
    if name == _CUDA_GDB:
        cause = "cuda-gdb is attached, and a process has one user of CUPTI"
        return _DEBUGGER.stops(cause, *named, remedy=detach)
    return _DEBUGGER.bends(
        "a debugger is attached: it slows the host (and cuda-gdb holds CUPTI)",
        *named,
        remedy=detach,
    )


def _mps(machine: Machine) -> Finding:
    """Return whether the Multi-Process Service stands between."""
    found = [
        *(f"{n}: is set" for n in machine.variables(("CUDA_MPS_PIPE_DIRECTORY",))),
        *([f"{_MPS_PIPE}: is there"] if machine.exists(_MPS_PIPE) else []),
    ]
    running = machine.processes().get(_MPS_NAME, [])
    found += [f"/proc/{pid}/comm: {_MPS_NAME}" for pid in running]
    if not found:
        return _absent(machine, _MPS, "MPS is off")
    return _MPS.bends(
        "MPS is on: kernels of several processes share the GPU, counters see all of "
        "them, and CUPTI refuses hardware tracing (47)",
        *found,
        remedy="echo quit | nvidia-cuda-mps-control, and unset CUDA_MPS_PIPE_DIRECTORY",
    )


def _launch_blocking(machine: Machine) -> Finding:
    """Return whether each launch waits for its kernel."""
    name = "CUDA_LAUNCH_BLOCKING"
    if machine.environment.get(name, "0").strip() in {"", "0"}:
        return _BLOCKING.ok("launches do not wait for their kernels", f"{name}: is off")
    return _BLOCKING.bends(
        "each launch waits for its kernel: nothing overlaps, and gaps are added",
        f"{name}: is on",
        remedy=f"unset {name}",
    )
