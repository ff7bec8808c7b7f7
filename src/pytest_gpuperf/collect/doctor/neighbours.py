"""Other programs that interfere: daemons, profilers, debuggers, attached tools."""

from __future__ import annotations

from pytest_gpuperf.collect.cupti.presence import ATTACHED_TOOLS
from pytest_gpuperf.collect.doctor.gpus import NvmlReport
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

_NVTX = "NVTX_INJECTION64_PATH"  # a library that receives NVTX ranges only
_CUDA_GDB = "cuda-gdb"
_NCU = ("ncu", "nv-nsight-cu-cli"[:15])
_NSYS = ("nsys", "nsys-launcher")
_EXPORTER, _ENGINE = "dcgm-exporter", "nv-hostengine"
_FREE_COUNTERS = (9, 0)  # from Hopper on DCGM reads through GPM, not the counters
_MPS_NAME = "nvidia-cuda-mps-control"[:15]


def neighbour_findings(machine: Machine, report: NvmlReport) -> tuple[Finding, ...]:
    """
    Return one finding per kind of program that can interfere.

    Args:
        machine: Where to look.

        report: What NVML reports.
    """
    return (
        _dcgm(machine, report),
        _profilers(machine),
        _attached(machine),
        _kineto(machine),
        _debugger(machine),
        _mps(machine),
        _launch_blocking(machine),
    )


def _dcgm(machine: Machine, report: NvmlReport) -> Finding:
    """Return whether DCGM holds the counters."""
    running = machine.processes()
    daemons = [name for name in (_EXPORTER, _ENGINE) if name in running]
    evidence = [f"/proc/{running[name][0]}/comm: {name}" for name in daemons]
    pause = "dcgmi profile --pause (and afterwards --resume)"
    if not daemons:
        return _absent(machine, _DCGM, "DCGM does not run")
    capabilities = [gpu.capability for gpu in report.gpus]
    if capabilities and all(
        capability is not None and capability >= _FREE_COUNTERS
        for capability in capabilities
    ):
        return _DCGM.ok(
            "DCGM runs, but reads these GPUs through GPM, not through the counters",
            *evidence,
        )
    if not capabilities or None in capabilities:
        return _DCGM.unknown(
            "DCGM runs, and the GPU's compute capability, which decides whether it holds "
            "the counters, is unknown",
            *evidence,
            remedy=pause,
        )
    if _EXPORTER in daemons:
        return _DCGM.stops(
            "dcgm-exporter runs: no other profiler can read the counters of a GPU before "
            "Hopper",
            *evidence,
            remedy=pause,
        )
    return _DCGM.unknown(
        "DCGM runs: it holds the counters while it watches profiling fields",
        *evidence,
        remedy=pause,
    )


def _absent(machine: Machine, topic: Topic, cause: str) -> Finding:
    """Return that no such process runs, or that processes are hidden."""
    hidden = machine.hidden()
    if hidden is not None:
        return topic.unknown(hidden, "/proc/*/comm: no such process")
    return topic.ok(cause, "/proc/*/comm: no such process")


def _profilers(machine: Machine) -> Finding:
    """Return whether other profilers run."""
    running = machine.processes()
    compute = [name for name in _NCU if name in running]
    systems = [name for name in _NSYS if name in running]
    profilers = [*compute, *systems]
    evidence = [f"/proc/{running[name][0]}/comm: {name}" for name in profilers]
    if not profilers:
        return _absent(machine, _PROFILERS, "no other profiler runs")
    pids = " ".join(str(pid) for name in profilers for pid in running[name])
    if compute:
        return _PROFILERS.stops(
            "Nsight Compute runs: it holds the counters of its GPU until it ends",
            *evidence,
            remedy=f"wait for it, or end it: kill {pids}",
        )
    return _PROFILERS.bends(
        "Nsight Systems runs: it slows the GPU, and with --gpu-metrics-devices holds the "
        "counters",
        *evidence,
        remedy=f"wait for it, or end it: kill {pids}",
    )


def _attached(machine: Machine) -> Finding:
    """Return whether a tool or an injection library is attached to this process."""
    variables = machine.variables(ATTACHED_TOOLS)
    if variables:
        tools = ", ".join(dict.fromkeys(ATTACHED_TOOLS[name] for name in variables))
        return _ATTACHED.stops(
            f"{tools} is attached: CUPTI accepts one subscriber per process (39)",
            *(f"{name}: is set" for name in variables),
            remedy=f"start pytest without it, or: unset {' '.join(variables)}",
        )
    if machine.variables((_NVTX,)):
        return _ATTACHED.bends(
            "an injection library receives every NVTX range, which takes time",
            f"{_NVTX}: is set",
            remedy=f"unset {_NVTX}",
        )
    unset = (f"{name}: is not set" for name in ATTACHED_TOOLS)
    return _ATTACHED.ok("no tool is attached", *unset)


def _kineto(machine: Machine) -> Finding:
    """Return whether PyTorch's profiler holds CUPTI for its daemon."""
    if machine.variables(("KINETO_USE_DAEMON",)):
        return _KINETO.stops(
            "PyTorch subscribes to CUPTI when torch is imported, and CUPTI accepts one "
            "subscriber",
            "KINETO_USE_DAEMON: is set",
            remedy="unset KINETO_USE_DAEMON",
        )
    cause = "PyTorch does not subscribe to CUPTI"
    return _KINETO.ok(cause, "KINETO_USE_DAEMON: is not set")


def _debugger(machine: Machine) -> Finding:
    """Return whether a debugger is attached."""
    tracer = machine.field(_STATUS, "TracerPid")
    evidence = f"{_STATUS}: TracerPid: {tracer}"
    if tracer is None:
        return _DEBUGGER.unknown(
            "the system does not say whether a debugger is attached",
            f"{_STATUS}: no TracerPid",
        )
    if tracer == "0":
        return _DEBUGGER.ok("no debugger is attached", evidence)
    name = machine.line(f"/proc/{tracer}/comm")
    named = (evidence, f"/proc/{tracer}/comm: {name or 'cannot be read'}")
    detach = f"detach it, or: kill {tracer}"
    if name == _CUDA_GDB:
        cause = "cuda-gdb is attached: CUPTI accepts one client per process"
        return _DEBUGGER.stops(cause, *named, remedy=detach)
    return _DEBUGGER.bends(
        "a debugger is attached: it slows the host (and cuda-gdb holds CUPTI)",
        *named,
        remedy=detach,
    )


def _mps(machine: Machine) -> Finding:
    """Return whether the Multi-Process Service is on."""
    evidence = [
        *(f"{n}: is set" for n in machine.variables(("CUDA_MPS_PIPE_DIRECTORY",))),
        *([f"{_MPS_PIPE}: present"] if machine.exists(_MPS_PIPE) else []),
    ]
    running = machine.processes().get(_MPS_NAME, [])
    evidence += [f"/proc/{pid}/comm: {_MPS_NAME}" for pid in running]
    if not evidence:
        return _absent(machine, _MPS, "MPS is off")
    return _MPS.bends(
        "MPS is on: kernels of several processes share the GPU and its counters, and "
        "CUPTI refuses hardware tracing (47)",
        *evidence,
        remedy="echo quit | nvidia-cuda-mps-control, and unset CUDA_MPS_PIPE_DIRECTORY",
    )


def _launch_blocking(machine: Machine) -> Finding:
    """Return whether each launch waits for its kernel."""
    name = "CUDA_LAUNCH_BLOCKING"
    if machine.environment.get(name, "0").strip() in {"", "0"}:
        return _BLOCKING.ok("launches do not wait for their kernels", f"{name}: is off")
    return _BLOCKING.bends(
        "each launch waits for its kernel: nothing overlaps, and the GPU idles in between",
        f"{name}: is on",
        remedy=f"unset {name}",
    )
