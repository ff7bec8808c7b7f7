"""What files, environment and processes say of a measurement."""

from __future__ import annotations

import re
import sys

from pytest_gpuperf.collect.doctor.gpus import Seen
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


def system_findings(machine: Machine, seen: Seen) -> tuple[Finding, ...]:
    """
    Return a finding of each topic that files and environment tell of.

    Args:
        machine: Where to look.

        seen: What NVML says.
    """
    gpu = _gpu(machine, seen)
    there = gpu.status is Status.OK
    return (
        gpu,
        _driver(machine, there=there),
        _visible_devices(machine),
        _permission(machine, seen),
        _gvisor(machine),
        _wsl(machine, seen),
        _governor(machine),
        _smt(machine),
        _quota(machine),
        _load(machine),
    )


def _gpu(machine: Machine, seen: Seen) -> Finding:
    """Return whether there is a GPU that this process may open."""
    nodes = [path for pattern in _NODES for path in machine.paths(pattern)]
    if nodes or seen.gpus:
        listed = [f"NVML: {len(seen.gpus)} GPU(s)"] if seen.gpus else []
        return _GPU.ok(
            "there is a GPU", *(f"{path}: is there" for path in nodes), *listed
        )
    bus = _on_the_bus(machine)
    version = machine.line(_VERSION)
    if version is not None:
        return _GPU.stops(
            "the NVIDIA driver runs, but this process sees no GPU of it",
            f"{_VERSION}: {version}",
            "/dev/nvidia0: is not there",
            *bus,
            remedy="docker run --gpus all …"
            if machine.container()
            else "sudo nvidia-modprobe -c 0 -u",
        )
    if bus:
        return _GPU.stops(
            "there is an NVIDIA GPU, and its driver does not run",
            *bus,
            f"{_VERSION}: is not there",
            remedy="install the NVIDIA driver, then: sudo modprobe nvidia",
        )
    return _GPU.stops(
        "there is no NVIDIA GPU: what remains is host time, binaries, captures and "
        "replayed runs",
        f"{_VERSION}: is not there",
        "/dev/nvidia0: is not there",
        remedy="measure on a machine with an NVIDIA GPU, and judge its run here "
        "(--gpuperf-replay)",
    )


def _on_the_bus(machine: Machine) -> list[str]:
    """Return the GPUs on the PCI bus, whoever drives them."""
    found = []
    for vendor in machine.paths("/sys/bus/pci/devices/*/vendor"):
        kind = vendor.replace("/vendor", "/class")
        said = machine.line(kind) or ""
        if machine.line(vendor) == _VENDOR and said.startswith(_DISPLAY):
            found += [f"{vendor}: {_VENDOR}", f"{kind}: {said}"]
    return found


def _driver(machine: Machine, *, there: bool) -> Finding:
    """Return whether the CUDA driver can be loaded."""
    reason = machine.load(_DRIVER_LIBRARY)
    version = machine.line(_VERSION)
    evidence = [f"{_VERSION}: {version}"] if version else []
    if reason is None:
        return _DRIVER.ok("the CUDA driver can be loaded", *evidence)
    if not there:
        return _DRIVER.unknown("there is no GPU that a driver could drive")
    return _DRIVER.stops(
        "there is a GPU, and no CUDA driver that this process could load",
        *evidence,
        f"{_DRIVER_LIBRARY}: {reason.removeprefix(f'{_DRIVER_LIBRARY}: ')}",
        remedy="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …"
        if machine.container()
        else "install the NVIDIA driver, or add its folder to LD_LIBRARY_PATH",
    )


def _visible_devices(machine: Machine) -> Finding:
    """Return whether CUDA is told to hide the GPUs."""
    value = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return _VISIBLE.ok("CUDA shows every GPU", "CUDA_VISIBLE_DEVICES: is not set")
    if value.strip() in {"", "-1", "NoDevFiles"}:
        return _VISIBLE.stops(
            "CUDA is told to show no GPU",
            "CUDA_VISIBLE_DEVICES: names none",
            remedy="unset CUDA_VISIBLE_DEVICES",
        )
    return _VISIBLE.ok(
        "CUDA shows GPUs that were chosen", "CUDA_VISIBLE_DEVICES: is set"
    )


def _permission(machine: Machine, seen: Seen) -> Finding:
    """Return whether the driver lets this process read counters."""
    said = machine.field(_PARAMETERS, "RmProfilingAdminOnly")
    evidence = f"{_PARAMETERS}: RmProfilingAdminOnly: {said}"
    if said is None and machine.exists("/dev/dxg"):
        return _PERMISSION.unknown(
            "under WSL the driver of Windows decides it",
            remedy="NVIDIA Control Panel, Developer, Manage GPU Performance Counters",
        )
    if said is None:
        return _PERMISSION.unknown(
            "the driver's parameters do not say who may read counters",
            f"{_PARAMETERS}: {'does not say' if machine.exists(_PARAMETERS) else 'is not there'}",
            remedy="try it: ncu --metrics sm__cycles_active.avg PROGRAM",
        )
    if said == "0":
        return _PERMISSION.ok("every user may read counters", evidence)
    return _with_capabilities(machine, seen, evidence)


def _with_capabilities(machine: Machine, seen: Seen, evidence: str) -> Finding:
    """Return whether this process counts as an administrator."""
    held = machine.field(_STATUS, "CapEff")
    if held is None or not re.fullmatch("[0-9a-f]+", held):
        reason = (
            "only administrators may read counters; whether this is one is not told"
        )
        return _PERMISSION.unknown(reason, evidence, f"{_STATUS}: has no CapEff")
    status = f"{_STATUS}: CapEff: {held}"
    bits = int(held, 16)
    if bits >> _SYS_ADMIN & 1:
        return _PERMISSION.ok(
            "only administrators may read counters, and this process has CAP_SYS_ADMIN",
            *(evidence, status),
        )
    if bits >> _PERFMON & 1 and (_driver_branch(machine, seen) or 0) >= _PERFMON_DRIVER:
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


def _driver_branch(machine: Machine, seen: Seen) -> int | None:
    """Return the driver's branch, as 580, from NVML or from the kernel module."""
    if seen.major is not None:
        return seen.major
    found = re.search(r"\s(\d{3})\.\d+", machine.line(_VERSION) or "")
    return int(found[1]) if found else None


def _gvisor(machine: Machine) -> Finding:
    """Return whether this is gVisor, which passes no profiling on unless told to."""
    texts = {path: machine.line(path) for path in _KERNEL}
    said = [f"{path}: {text}" for path, text in texts.items() if text]
    if not said:
        return _GVISOR.unknown(
            "the kernel does not say what it is",
            *(f"{p}: is not there" for p in _KERNEL),
        )
    words = " ".join(said)
    release = texts["/proc/sys/kernel/osrelease"]
    if (
        "gvisor" in words.lower()
        or _GVISOR_BANNER in words
        or release == _GVISOR_RELEASE
    ):
        return _GVISOR.stops(
            "this is gVisor, which passes no profiling call to the driver unless runsc "
            "(of mid 2026 or later) was told to",
            *said,
            remedy="runsc --nvproxy-allowed-driver-capabilities=compute,utility,profiling",
        )
    return _GVISOR.ok("this is not gVisor", *said)


def _wsl(machine: Machine, seen: Seen) -> Finding:
    """Return whether this is WSL, whose driver is that of Windows."""
    version = machine.line("/proc/version")
    dxg = machine.exists("/dev/dxg")
    if version is None and not dxg:
        return _WSL.unknown(
            "the kernel does not say what it is", "/proc/version: is not there"
        )
    said = [f"/proc/version: {version}"] if version else []
    if not dxg and "microsoft" not in (version or "").lower():
        return _WSL.ok("this is not WSL", *said)
    said.append(f"/dev/dxg: {'is there' if dxg else 'is not there'}")
    if not dxg:
        return _WSL.stops(
            "this is WSL without a GPU: version 1, or a Windows driver without one",
            *said,
            remedy="wsl.exe --set-version DISTRIBUTION 2, and wsl.exe --update",
        )
    branch = _driver_branch(machine, seen)
    if branch is not None and branch < _WSL_DRIVER:
        return _OLD_WSL.stops(
            f"this is WSL with driver {branch}: counters need {_WSL_DRIVER} or later",
            *said,
            remedy="update the NVIDIA driver of Windows",
        )
    return _WSL.bends(
        "this is WSL: the scheduler of Windows stands between, NVML lists no processes, "
        "and counters over time are missing",
        *said,
        remedy="measure on Linux itself",
    )


# ------------------------------------------------------------------ the host's own time

_CPU = "/sys/devices/system/cpu"
_GOVERNOR = Topic(id="cpu-governor", concerns=("host",))
_SMT = Topic(id="smt", concerns=("host",))
_QUOTA = Topic(id="cpu-quota", concerns=("host",))
_LOAD = Topic(id="cpu-load", concerns=("host",))


def _governor(machine: Machine) -> Finding:
    """Return whether the processor's clock waits for load."""
    paths = machine.paths(f"{_CPU}/cpu[0-9]*/cpufreq/scaling_governor")
    said = {path: machine.line(path) for path in paths}
    first: dict[str | None, str] = {}
    for path, governor in said.items():
        first.setdefault(governor, path)
    evidence = [f"{path}: {name or 'cannot be read'}" for name, path in first.items()]
    if not said or None in first:
        return _GOVERNOR.unknown(
            "the system does not say what drives the processor's clock: a hypervisor may",
            *(evidence or [f"{_CPU}/cpu0/cpufreq: is not there"]),
        )
    if set(first) == {"performance"}:
        return _GOVERNOR.ok("the processor's clock does not wait for load", *evidence)
    return _GOVERNOR.bends(
        "the processor's clock rises only under load: short host times vary",
        *evidence,
        remedy="sudo cpupower frequency-set -g performance",
    )


def _smt(machine: Machine) -> Finding:
    """Return whether two threads share a core."""
    path = f"{_CPU}/smt/active"
    said = machine.line(path)
    if said is None:
        reason = "the system does not say whether threads share a core"
        return _SMT.unknown(reason, f"{path}: is not there")
    if said == "0":
        return _SMT.ok("no two threads share a core", f"{path}: {said}")
    return _SMT.bends(
        "two threads share a core: host time depends on what the other one does",
        f"{path}: {said}",
        remedy=f"echo off | sudo tee {_CPU}/smt/control",
    )


def _quota(machine: Machine) -> Finding:
    """Return whether the kernel stops this process when its share is used up."""
    own = machine.field("/proc/self/cgroup", "0:")  # the line of version 2 is 0::PATH
    places = (
        *((f"/sys/fs/cgroup{own.rstrip('/')}/cpu.max",) if own else ()),
        "/sys/fs/cgroup/cpu.max",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",  # of version 1
    )
    said = {path: text for path in places if (text := machine.line(path)) is not None}
    evidence = [f"{path}: {text}" for path, text in said.items()]
    if not said:
        reason = "the system does not say how much processor time there is"
        return _QUOTA.unknown(reason, *(f"{path}: is not there" for path in places))
    if all(text.split()[0] in {"max", "-1"} for text in said.values()):
        return _QUOTA.ok("processor time is not rationed", *evidence)
    return _QUOTA.bends(
        "processor time is rationed: the process is stopped when its share is used up",
        *evidence,
        remedy="docker run without --cpus (and --cpuset-cpus for cores of its own)",
    )


def _load(machine: Machine) -> Finding:
    """Return whether more wants to run than there are processors."""
    path = "/proc/loadavg"
    said = machine.line(path)
    cores = len(machine.paths(f"{_CPU}/cpu[0-9]*"))
    if said is None or not cores:
        reason = "the system does not say how busy its processors are"
        return _LOAD.unknown(reason, f"{path}: {said or 'is not there'}")
    evidence = (
        f"{path}: {said.split()[0]} in the last minute",
        f"{_CPU}: {cores} cpus",
    )
    if float(said.split()[0]) < cores:
        return _LOAD.ok("there are processors for all that wants to run", *evidence)
    return _LOAD.bends(
        "as much wants to run as there are processors, or more: host times are longer",
        *evidence,
        remedy="find out what runs: ps -eo pcpu,pid,comm --sort=-pcpu | head",
    )
