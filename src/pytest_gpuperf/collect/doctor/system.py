"""GPU, driver, permissions and host, from files and environment."""

from __future__ import annotations

import re
import sys

from pytest_gpuperf.collect.doctor.gpus import NvmlReport
from pytest_gpuperf.collect.doctor.machine import Machine
from pytest_gpuperf.model.finding import Finding, Status, Topic

__all__ = ["system_findings"]

_VERSION = "/proc/driver/nvidia/version"  # written by the kernel module
_PARAMETERS = "/proc/driver/nvidia/params"
_STATUS = "/proc/self/status"
_KERNEL = ("/proc/version", "/proc/sys/kernel/osrelease")
_NODES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu/*")
_VENDOR = "0x10de"  # NVIDIA's number on the PCI bus
_DISPLAY = "0x03"  # PCI class code 03: display controllers, computing ones too
_SYS_ADMIN, _PERFMON = 21, 38  # linux/capability.h
_PERFMON_DRIVER = 565  # release notes: from there on CAP_PERFMON opens the counters
_WSL_DRIVER = 525  # the CUDA on WSL guide: from there on there are counters
_DRIVER_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_GVISOR_RELEASE = "4.4.0"  # the same; another kernel's release says who built it
_GVISOR_BANNER = (
    "#1 SMP Sun Jan 10 15:06:54 PST 2016"  # gvisor, pkg/sentry/syscalls/linux
)

_GPU = Topic(id="gpu", concerns=("timing", "counters", "launches", "energy", "memory"))
_DRIVER = Topic(id="driver", concerns=("timing", "counters", "launches", "memory"))
_PERMISSION = Topic(id="counter-permission", concerns=("counters",))
_GVISOR = Topic(id="gvisor", concerns=("counters",))
_WSL = Topic(id="wsl", concerns=("counters", "timing", "energy"))
_OLD_WSL = Topic(id="wsl", concerns=("counters",))
_VISIBLE = Topic(id="visible-devices", concerns=("timing", "counters", "launches"))


def system_findings(machine: Machine, report: NvmlReport) -> tuple[Finding, ...]:
    """
    Return one finding per topic that files and environment variables answer.

    Args:
        machine: Where to look.

        report: What NVML reports.
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


def _gpu(machine: Machine, report: NvmlReport) -> Finding:
    """Return whether this process can open a GPU."""
    nodes = [path for pattern in _NODES for path in machine.paths(pattern)]
    if nodes or report.gpus:
        listed = [f"NVML: {len(report.gpus)} GPU(s)"] if report.gpus else []
        return _GPU.ok(
            "there is a GPU", *(f"{path}: present" for path in nodes), *listed
        )
    bus = _on_the_bus(machine)
    version = machine.line(_VERSION)
    if version is not None:
        return _GPU.stops(
            "the NVIDIA driver is loaded, but this process has no access to a GPU",
            f"{_VERSION}: {version}",
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
            f"{_VERSION}: missing",
            remedy="install the NVIDIA driver, then: sudo modprobe nvidia",
        )
    return _GPU.stops(
        "there is no NVIDIA GPU: only host time, binaries, captures and recorded runs "
        "are available",
        f"{_VERSION}: missing",
        "/dev/nvidia0: missing",
        remedy="measure on a machine with an NVIDIA GPU, and judge its run here "
        "(--gpuperf-replay)",
    )


def _on_the_bus(machine: Machine) -> list[str]:
    """Return the GPUs on the PCI bus as evidence, with or without a driver."""
    evidence = []
    for vendor in machine.paths("/sys/bus/pci/devices/*/vendor"):
        class_path = vendor.replace("/vendor", "/class")
        class_code = machine.line(class_path) or ""
        if machine.line(vendor) == _VENDOR and class_code.startswith(_DISPLAY):
            evidence += [f"{vendor}: {_VENDOR}", f"{class_path}: {class_code}"]
    return evidence


def _driver(machine: Machine, *, gpu_present: bool) -> Finding:
    """Return whether the CUDA driver can be loaded."""
    reason = machine.load(_DRIVER_LIBRARY)
    version = machine.line(_VERSION)
    evidence = [f"{_VERSION}: {version}"] if version else []
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


def _visible_devices(machine: Machine) -> Finding:
    """Return whether CUDA_VISIBLE_DEVICES hides the GPUs."""
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


def _permission(machine: Machine, report: NvmlReport) -> Finding:
    """Return whether the driver lets this process read counters."""
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
    return _with_capabilities(machine, report, evidence)


def _with_capabilities(machine: Machine, report: NvmlReport, evidence: str) -> Finding:
    """Return whether this process has an administrator's capabilities."""
    held = machine.field(_STATUS, "CapEff")
    if held is None or not re.fullmatch("[0-9a-f]+", held):
        reason = (
            "only administrators may read counters, and the capabilities of this process "
            "are unknown"
        )
        return _PERMISSION.unknown(reason, evidence, f"{_STATUS}: no CapEff")
    status = f"{_STATUS}: CapEff: {held}"
    bits = int(held, 16)
    if bits >> _SYS_ADMIN & 1:
        return _PERMISSION.ok(
            "only administrators may read counters, and this process has CAP_SYS_ADMIN",
            *(evidence, status),
        )
    if (
        bits >> _PERFMON & 1
        and (_driver_branch(machine, report) or 0) >= _PERFMON_DRIVER
    ):
        return _PERMISSION.ok(
            "only administrators may read counters, and this process has CAP_PERFMON",
            *(evidence, status),
        )
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


def _driver_branch(machine: Machine, report: NvmlReport) -> int | None:
    """Return the driver's branch, as 580, from NVML or from the kernel module."""
    if report.major is not None:
        return report.major
    match = re.search(r"\s(\d{3})\.\d+", machine.line(_VERSION) or "")
    return int(match[1]) if match else None


def _gvisor(machine: Machine) -> Finding:
    """Return whether this is gVisor, which blocks profiling by default."""
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


def _wsl(machine: Machine, report: NvmlReport) -> Finding:
    """Return whether this is WSL, which uses the Windows driver."""
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
    return _WSL.bends(
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


def _governor(machine: Machine) -> Finding:
    """Return whether the CPU clock rises only under load."""
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
    return _GOVERNOR.bends(
        "the CPU clock rises only under load: short host timings vary",
        *evidence,
        remedy="sudo cpupower frequency-set -g performance",
    )


def _smt(machine: Machine) -> Finding:
    """Return whether two threads share a core."""
    path = f"{_CPU}/smt/active"
    active = machine.line(path)
    if active is None:
        return _SMT.unknown("the SMT state cannot be read", f"{path}: missing")
    if active == "0":
        return _SMT.ok("SMT is off", f"{path}: {active}")
    return _SMT.bends(
        "SMT is on: two threads share a core and slow each other",
        f"{path}: {active}",
        remedy=f"echo off | sudo tee {_CPU}/smt/control",
    )


def _quota(machine: Machine) -> Finding:
    """Return whether a CPU quota pauses this process."""
    group = machine.field("/proc/self/cgroup", "0:")  # the line of version 2 is 0::PATH
    places = (
        *((f"/sys/fs/cgroup{group.rstrip('/')}/cpu.max",) if group else ()),
        "/sys/fs/cgroup/cpu.max",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",  # of version 1
    )
    limits = {path: text for path in places if (text := machine.line(path)) is not None}
    evidence = [f"{path}: {text}" for path, text in limits.items()]
    if not limits:
        reason = "the CPU quota cannot be read"
        return _QUOTA.unknown(reason, *(f"{path}: missing" for path in places))
    if all(text.split()[0] in {"max", "-1"} for text in limits.values()):
        return _QUOTA.ok("there is no CPU quota", *evidence)
    return _QUOTA.bends(
        "there is a CPU quota: the process is paused when its share is used up",
        *evidence,
        remedy="docker run without --cpus (and --cpuset-cpus for cores of its own)",
    )


def _load(machine: Machine) -> Finding:
    """Return whether the CPU load reaches the number of cores."""
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
    return _LOAD.bends(
        "the CPU load is at or above the number of cores: host timings are inflated",
        *evidence,
        remedy="end the busiest processes: ps -eo pcpu,pid,comm --sort=-pcpu | head",
    )
