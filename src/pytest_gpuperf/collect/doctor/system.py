"""Findings from the operating system: GPU, driver, permissions, host and processes."""

from __future__ import annotations

import re
import sys

from pytest_gpuperf.collect.cupti.subscription import ATTACHED_TOOLS
from pytest_gpuperf.collect.doctor.gpus import NvmlReport
from pytest_gpuperf.collect.doctor.machine import VERSION_FILE, MachineFacts
from pytest_gpuperf.model.gap import Finding, Status, Topic

_PARAMETERS = "/proc/driver/nvidia/params"
_STATUS = "/proc/self/status"
_KERNEL = ("/proc/version", "/proc/sys/kernel/osrelease")
_NODES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu/*")
_VENDOR = "0x10de"  # NVIDIA's number on the PCI bus.
# PCI class code 03: display controllers, which include compute GPUs.
_DISPLAY = "0x03"
_SYS_ADMIN, _PERFMON = 21, 38  # linux/capability.h
# The first driver branch in which CAP_PERFMON gives access to counters (release notes).
_PERFMON_DRIVER = 565
# The first driver branch with counters on WSL (the CUDA on WSL guide).
_WSL_DRIVER = 525
_DRIVER_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# gvisor, pkg/sentry/syscalls/linux. The release of a real kernel names its builder.
_GVISOR_RELEASE = "4.4.0"
_GVISOR_BANNER = "#1 SMP Sun Jan 10 15:06:54 PST 2016"

_GPU = Topic(id="gpu", concerns=("timing", "counters", "launches", "energy", "memory"))
_DRIVER = Topic(id="driver", concerns=("timing", "counters", "launches", "memory"))
_PERMISSION = Topic(id="counter-permission", concerns=("counters",))
_GVISOR = Topic(id="gvisor", concerns=("counters",))
_WSL = Topic(id="wsl", concerns=("counters", "timing", "energy"))
_OLD_WSL = Topic(id="wsl", concerns=("counters",))
_VISIBLE = Topic(id="visible-devices", concerns=("timing", "counters", "launches"))


def system_findings(machine: MachineFacts, report: NvmlReport) -> tuple[Finding, ...]:
    """
    Return a finding for every topic that files and environment variables answer.

    Args:
        machine: The machine to examine.

        report: The NVML report of the machine.
    """
    gpu = _gpu(machine, report)
    return (
        gpu,
        _driver(machine, gpu_present=gpu.status is Status.OK),
        _visible_devices(machine),
        _permission(machine, report),
        _gvisor(machine),
        _wsl(machine, report),
        _governor(machine),
        _smt(machine),
        _quota(machine),
        _load(machine),
    )


def _gpu(machine: MachineFacts, report: NvmlReport) -> Finding:
    nodes = [path for pattern in _NODES for path in machine.paths(pattern)]
    if nodes or report.gpus:
        listed = [f"NVML: {len(report.gpus)} GPU(s)"] if report.gpus else []
        return _GPU.ok(
            "there is a GPU", *(f"{path}: present" for path in nodes), *listed
        )
    # Seen with or without a driver.
    bus = []
    for vendor in machine.paths("/sys/bus/pci/devices/*/vendor"):
        class_path = vendor.replace("/vendor", "/class")
        class_code = machine.line(class_path) or ""
        if machine.line(vendor) == _VENDOR and class_code.startswith(_DISPLAY):
            bus += [f"{vendor}: {_VENDOR}", f"{class_path}: {class_code}"]
    version = machine.line(VERSION_FILE)
    if version is not None:
        return _GPU.stops(
            "the NVIDIA driver is loaded, but this process has no access to a GPU",
            f"{VERSION_FILE}: {version}",
            "/dev/nvidia0: missing",
            *bus,
            remedy="docker run --gpus all …"
            if machine.container()
            else "sudo nvidia-modprobe -c 0 -u",
        )
    if bus:
        return _GPU.stops(
            "an NVIDIA GPU is installed, but its driver is not loaded",
            *bus,
            f"{VERSION_FILE}: missing",
            remedy="install the NVIDIA driver, then: sudo modprobe nvidia",
        )
    return _GPU.stops(
        "there is no NVIDIA GPU: only host time, binaries, captures and recorded runs "
        "are available",
        f"{VERSION_FILE}: missing",
        "/dev/nvidia0: missing",
        remedy="measure on a machine with an NVIDIA GPU, and judge its run here "
        "(--gpuperf-replay)",
    )


def _driver(machine: MachineFacts, *, gpu_present: bool) -> Finding:
    reason = machine.load(_DRIVER_LIBRARY)
    version = machine.line(VERSION_FILE)
    evidence = [f"{VERSION_FILE}: {version}"] if version else []
    if reason is None:
        return _DRIVER.ok("the CUDA driver can be loaded", *evidence)
    if not gpu_present:
        return _DRIVER.unknown("there is no GPU that needs a driver")
    return _DRIVER.stops(
        "this process cannot load the CUDA driver",
        *evidence,
        f"{_DRIVER_LIBRARY}: {reason.removeprefix(f'{_DRIVER_LIBRARY}: ')}",
        remedy="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …"
        if machine.container()
        else "install the NVIDIA driver, or add its folder to LD_LIBRARY_PATH",
    )


def _visible_devices(machine: MachineFacts) -> Finding:
    value = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return _VISIBLE.ok("CUDA shows every GPU", "CUDA_VISIBLE_DEVICES: is not set")
    if value.strip() in {"", "-1", "NoDevFiles"}:
        return _VISIBLE.stops(
            "CUDA_VISIBLE_DEVICES hides every GPU",
            "CUDA_VISIBLE_DEVICES: names no GPU",
            remedy="unset CUDA_VISIBLE_DEVICES",
        )
    return _VISIBLE.ok("CUDA shows the selected GPUs", "CUDA_VISIBLE_DEVICES: is set")


def _permission(machine: MachineFacts, report: NvmlReport) -> Finding:
    admin_only = machine.field(_PARAMETERS, "RmProfilingAdminOnly")
    evidence = f"{_PARAMETERS}: RmProfilingAdminOnly: {admin_only}"
    if admin_only is None and machine.exists("/dev/dxg"):
        return _PERMISSION.unknown(
            "the Windows driver decides who may read counters",
            remedy="NVIDIA Control Panel, Developer, Manage GPU Performance Counters",
        )
    if admin_only is None:
        return _PERMISSION.unknown(
            "the driver's parameters do not say who may read counters",
            f"{_PARAMETERS}: {'not set' if machine.exists(_PARAMETERS) else 'missing'}",
            remedy="try it: ncu --metrics sm__cycles_active.avg PROGRAM",
        )
    if admin_only == "0":
        return _PERMISSION.ok("every user may read counters", evidence)
    held = machine.field(_STATUS, "CapEff")
    if held is None or not re.fullmatch("[0-9a-f]+", held):
        reason = (
            "only administrators may read counters, and the capabilities of this process "
            "are unknown"
        )
        return _PERMISSION.unknown(reason, evidence, f"{_STATUS}: no CapEff")
    status, bits = f"{_STATUS}: CapEff: {held}", int(held, 16)
    capability = "CAP_SYS_ADMIN" if bits >> _SYS_ADMIN & 1 else ""
    if not capability and bits >> _PERFMON & 1:
        has_access = (_driver_branch(machine, report) or 0) >= _PERFMON_DRIVER
        capability = "CAP_PERFMON" if has_access else ""
    if capability:
        cause = "only administrators may read counters, and this process has"
        return _PERMISSION.ok(f"{cause} {capability}", evidence, status)
    return _PERMISSION.stops(
        "only administrators may read counters (ERR_NVGPUCTRPERM), and this process has "
        f"neither CAP_SYS_ADMIN nor, with driver {_PERFMON_DRIVER} or later, CAP_PERFMON",
        evidence,
        status,
        remedy="docker run --cap-add=SYS_ADMIN …"
        if machine.container()
        else "echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 | sudo tee "
        "/etc/modprobe.d/nvidia-counters.conf && sudo update-initramfs -u && sudo reboot",
    )


def _driver_branch(machine: MachineFacts, report: NvmlReport) -> int | None:
    """Return the driver's branch from NVML or the kernel module, as 580, or None if unknown."""
    if report.major is not None:
        return report.major
    match = re.search(r"\s(\d{3})\.\d+", machine.line(VERSION_FILE) or "")
    return int(match[1]) if match else None


def _gvisor(machine: MachineFacts) -> Finding:
    texts = {path: machine.line(path) for path in _KERNEL}
    evidence = [f"{path}: {text}" for path, text in texts.items() if text]
    if not evidence:
        return _GVISOR.unknown(
            "the kernel version cannot be read",
            *(f"{path}: missing" for path in _KERNEL),
        )
    words = " ".join(evidence)
    release = texts["/proc/sys/kernel/osrelease"]
    if (
        "gvisor" in words.lower()
        or _GVISOR_BANNER in words
        or release == _GVISOR_RELEASE
    ):
        return _GVISOR.stops(
            "this is gVisor: it blocks profiling calls unless runsc (mid 2026 or later) "
            "allows them",
            *evidence,
            remedy="runsc --nvproxy-allowed-driver-capabilities=compute,utility,profiling",
        )
    return _GVISOR.ok("this is not gVisor", *evidence)


def _wsl(machine: MachineFacts, report: NvmlReport) -> Finding:
    version = machine.line("/proc/version")
    dxg = machine.exists("/dev/dxg")
    if version is None and not dxg:
        return _WSL.unknown(
            "the kernel version cannot be read", "/proc/version: missing"
        )
    evidence = [f"/proc/version: {version}"] if version else []
    if not dxg and "microsoft" not in (version or "").lower():
        return _WSL.ok("this is not WSL", *evidence)
    evidence.append(f"/dev/dxg: {'present' if dxg else 'missing'}")
    if not dxg:
        return _WSL.stops(
            "this is WSL without a GPU: WSL 1, or a Windows driver without WSL support",
            *evidence,
            remedy="wsl.exe --set-version DISTRIBUTION 2, and wsl.exe --update",
        )
    branch = _driver_branch(machine, report)
    if branch is not None and branch < _WSL_DRIVER:
        return _OLD_WSL.stops(
            f"this is WSL with driver {branch}: counters need {_WSL_DRIVER} or later",
            *evidence,
            remedy="update the NVIDIA driver on Windows",
        )
    return _WSL.distorts(
        "this is WSL: Windows schedules the GPU, NVML lists no processes, and counters "
        "over time are missing",
        *evidence,
        remedy="measure on native Linux",
    )


# ------------------------------------------------------------------------- host timing

_CPU = "/sys/devices/system/cpu"
_GOVERNOR = Topic(id="cpu-governor", concerns=("host",))
_SMT = Topic(id="smt", concerns=("host",))
_QUOTA = Topic(id="cpu-quota", concerns=("host",))
_LOAD = Topic(id="cpu-load", concerns=("host",))


def _governor(machine: MachineFacts) -> Finding:
    paths = machine.paths(f"{_CPU}/cpu[0-9]*/cpufreq/scaling_governor")
    governors = {path: machine.line(path) for path in paths}
    first: dict[str | None, str] = {}
    for path, governor in governors.items():
        first.setdefault(governor, path)
    evidence = [f"{path}: {name or 'cannot be read'}" for name, path in first.items()]
    if not governors or None in first:
        return _GOVERNOR.unknown(
            "the CPU frequency governor cannot be read: a hypervisor may set the clock",
            *(evidence or [f"{_CPU}/cpu0/cpufreq: missing"]),
        )
    if set(first) == {"performance"}:
        return _GOVERNOR.ok("the CPU frequency governor is performance", *evidence)
    return _GOVERNOR.distorts(
        "the CPU clock rises only under load: short host timings vary",
        *evidence,
        remedy="sudo cpupower frequency-set -g performance",
    )


def _smt(machine: MachineFacts) -> Finding:
    path = f"{_CPU}/smt/active"
    active = machine.line(path)
    if active is None:
        return _SMT.unknown("the SMT state cannot be read", f"{path}: missing")
    if active == "0":
        return _SMT.ok("SMT is off", f"{path}: {active}")
    return _SMT.distorts(
        "SMT is on: two threads share a core and slow each other",
        f"{path}: {active}",
        remedy=f"echo off | sudo tee {_CPU}/smt/control",
    )


def _quota(machine: MachineFacts) -> Finding:
    # The line of version 2 is 0::PATH.
    group = machine.field("/proc/self/cgroup", "0:")
    places = (
        *((f"/sys/fs/cgroup{group.rstrip('/')}/cpu.max",) if group else ()),
        "/sys/fs/cgroup/cpu.max",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",  # Version 1.
    )
    limits = {path: text for path in places if (text := machine.line(path)) is not None}
    evidence = [f"{path}: {text}" for path, text in limits.items()]
    if not limits:
        reason = "the CPU quota cannot be read"
        return _QUOTA.unknown(reason, *(f"{path}: missing" for path in places))
    if all(text.split()[0] in {"max", "-1"} for text in limits.values()):
        return _QUOTA.ok("there is no CPU quota", *evidence)
    return _QUOTA.distorts(
        "there is a CPU quota: the process is paused when its share is used up",
        *evidence,
        remedy="docker run without --cpus (and --cpuset-cpus for cores of its own)",
    )


def _load(machine: MachineFacts) -> Finding:
    path = "/proc/loadavg"
    averages = machine.line(path)
    cores = len(machine.paths(f"{_CPU}/cpu[0-9]*"))
    if averages is None or not cores:
        reason = "the CPU load cannot be read"
        return _LOAD.unknown(reason, f"{path}: {averages or 'missing'}")
    evidence = (
        f"{path}: {averages.split()[0]} in the last minute",
        f"{_CPU}: {cores} cpus",
    )
    if float(averages.split()[0]) < cores:
        return _LOAD.ok("the CPU load is below the number of cores", *evidence)
    return _LOAD.distorts(
        "the CPU load is at or above the number of cores: host timings are inflated",
        *evidence,
        remedy="end the busiest processes: ps -eo pcpu,pid,comm --sort=-pcpu | head",
    )


_MPS_PIPE = "/tmp/nvidia-mps/control"  # noqa: S108 - MPS's own default
_DCGM = Topic(id="dcgm", concerns=("counters",))
_PROFILERS = Topic(id="profilers", concerns=("counters", "launches"))
_ATTACHED = Topic(id="attached-tool", concerns=("launches", "counters"))
_KINETO = Topic(id="kineto-daemon", concerns=("launches",))
_DEBUGGER = Topic(id="debugger", concerns=("launches", "host"))
_MPS = Topic(id="mps", concerns=("counters", "launches", "timing"))
_BLOCKING = Topic(id="launch-blocking", concerns=("timing", "launches"))

# Names a library that receives only NVTX ranges.
_NVTX = "NVTX_INJECTION64_PATH"
_CUDA_GDB = "cuda-gdb"
_NCU = ("ncu", "nv-nsight-cu-cli"[:15])
_NSYS = ("nsys", "nsys-launcher")
_EXPORTER, _ENGINE = "dcgm-exporter", "nv-hostengine"
# From Hopper on, DCGM reads GPM and leaves the counters free.
_FREE_COUNTERS = (9, 0)
_MPS_NAME = "nvidia-cuda-mps-control"[:15]


def process_findings(machine: MachineFacts, report: NvmlReport) -> tuple[Finding, ...]:
    """
    Return a finding for every kind of program that can interfere.

    Args:
        machine: The machine to examine.

        report: The NVML report of the machine.
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


def _dcgm(machine: MachineFacts, report: NvmlReport) -> Finding:
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


def _absent(machine: MachineFacts, topic: Topic, cause: str) -> Finding:
    """Return "ok" if no such process runs, or "unknown" if processes are hidden."""
    hidden = machine.hidden()
    if hidden is not None:
        return topic.unknown(hidden, "/proc/*/comm: no such process")
    return topic.ok(cause, "/proc/*/comm: no such process")


def _profilers(machine: MachineFacts) -> Finding:
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
    return _PROFILERS.distorts(
        "Nsight Systems runs: it slows the GPU, and with --gpu-metrics-devices holds the "
        "counters",
        *evidence,
        remedy=f"wait for it, or end it: kill {pids}",
    )


def _attached(machine: MachineFacts) -> Finding:
    variables = machine.variables(ATTACHED_TOOLS)
    if variables:
        tools = ", ".join(dict.fromkeys(ATTACHED_TOOLS[name] for name in variables))
        return _ATTACHED.stops(
            f"{tools} is attached: CUPTI accepts one subscriber per process (39)",
            *(f"{name}: is set" for name in variables),
            remedy=f"start pytest without it, or: unset {' '.join(variables)}",
        )
    if machine.variables((_NVTX,)):
        return _ATTACHED.distorts(
            "an injection library receives every NVTX range, which takes time",
            f"{_NVTX}: is set",
            remedy=f"unset {_NVTX}",
        )
    unset = (f"{name}: is not set" for name in ATTACHED_TOOLS)
    return _ATTACHED.ok("no tool is attached", *unset)


def _kineto(machine: MachineFacts) -> Finding:
    if machine.variables(("KINETO_USE_DAEMON",)):
        return _KINETO.stops(
            "PyTorch subscribes to CUPTI when torch is imported, and CUPTI accepts one "
            "subscriber",
            "KINETO_USE_DAEMON: is set",
            remedy="unset KINETO_USE_DAEMON",
        )
    cause = "PyTorch does not subscribe to CUPTI"
    return _KINETO.ok(cause, "KINETO_USE_DAEMON: is not set")


def _debugger(machine: MachineFacts) -> Finding:
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
    return _DEBUGGER.distorts(
        "a debugger is attached: it slows the host (and cuda-gdb holds CUPTI)",
        *named,
        remedy=detach,
    )


def _mps(machine: MachineFacts) -> Finding:
    evidence = [
        *(f"{n}: is set" for n in machine.variables(("CUDA_MPS_PIPE_DIRECTORY",))),
        *([f"{_MPS_PIPE}: present"] if machine.exists(_MPS_PIPE) else []),
    ]
    running = machine.processes().get(_MPS_NAME, [])
    evidence += [f"/proc/{pid}/comm: {_MPS_NAME}" for pid in running]
    if not evidence:
        return _absent(machine, _MPS, "MPS is off")
    return _MPS.distorts(
        "MPS is on: kernels of several processes share the GPU and its counters, and "
        "CUPTI refuses hardware tracing (47)",
        *evidence,
        remedy="echo quit | nvidia-cuda-mps-control, and unset CUDA_MPS_PIPE_DIRECTORY",
    )


def _launch_blocking(machine: MachineFacts) -> Finding:
    name = "CUDA_LAUNCH_BLOCKING"
    if machine.environment.get(name, "0").strip() in {"", "0"}:
        return _BLOCKING.ok("launches do not wait for their kernels", f"{name}: is off")
    return _BLOCKING.distorts(
        "each launch waits for its kernel: nothing overlaps, and the GPU idles in between",
        f"{name}: is on",
        remedy=f"unset {name}",
    )
