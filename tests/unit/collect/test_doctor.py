"""collect.doctor: one thing is wrong with a machine, and one finding says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pynvml
import pytest

from fakes.nvml import OLDER_DRIVER, FakeGpu, FakeNvml
from fakes.runner import FakeRunner, finished
from pytest_gpuperf.collect.binary.tools import Tool
from pytest_gpuperf.collect.cupti.subscription import INSTALL, install_older
from pytest_gpuperf.collect.doctor import look
from pytest_gpuperf.collect.doctor.machine import (
    MachineFacts,
    loading_error,
    this_machine,
)
from pytest_gpuperf.collect.runner import Finished
from pytest_gpuperf.errors import CollectorTimeoutError, CollectorUnavailableError
from pytest_gpuperf.model.gap import Finding, Status

STOPS, DISTORTS, UNKNOWN, OK = Status
SITE = "/opt/env/lib/python3.12/site-packages"
LIB = f"{SITE}/nvidia/cu13/lib"
VERSION, PARAMS = "/proc/driver/nvidia/version", "/proc/driver/nvidia/params"
STATUS, MAPS = "/proc/self/status", "/proc/self/maps"
CPU = "/sys/devices/system/cpu"
MPS = "/tmp/nvidia-mps/control"  # noqa: S108 - the daemon's own place
ADMIN, PERFMON = 1 << 21, 1 << 38
NCU_VERSION = (
    b"NVIDIA (R) Nsight Compute Command Line Profiler\n"
    b"Copyright (c) 2018-2025 NVIDIA Corporation\n"
    b"Version 2025.3.1.0 (build 36398880) (public-release)\n"
)
HEALTHY = {
    VERSION: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n"
    "GCC version: 12\n",
    PARAMS: "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n",
    "/dev/nvidia0": "",
    "/proc/version": "Linux version 6.8.0-40-generic (root@build) (gcc 13.2)\n",
    "/proc/sys/kernel/osrelease": "6.8.0-40-generic\n",
    STATUS: "Name:\tpython\nTracerPid:\t0\nCapEff:\t0000000000000000\n",
    "/proc/1/comm": "systemd\n",
    "/proc/4242/comm": "gpuperf\n",
    MAPS: "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libc.so.6\n",
    "/proc/self/cgroup": "0::/user.slice\n",
    "/sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
    "/proc/loadavg": "0.50 0.40 0.30 1/100 4242\n",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/smt/active": "0\n",
    f"{LIB}/libcupti.so.13": "",
    f"{LIB}/libnvperf_host.so": "",
    f"{LIB}/libnvperf_target.so": "",
    "/usr/bin/ncu": "#!/bin/sh\n",
}


@dataclass(kw_only=True)
class Box:
    """A machine on which all is well, to be spoilt in one place."""

    root: Path
    files: dict[str, str] = field(default_factory=lambda: dict(HEALTHY))
    packages: dict[str, str] = field(
        default_factory=lambda: {
            "cupti-python": "13.0.1",
            "nvidia-cuda-cupti": "13.0.85",
        }
    )
    environment: dict[str, str] = field(
        default_factory=lambda: {"HOME": "/home/ada", "PATH": "/usr/bin"}
    )
    namespace: str = "pid:[4026531836]"
    gpus: list[FakeGpu] = field(default_factory=lambda: [FakeGpu(), FakeGpu(uuid="b")])
    driver_version: str = "580.95.05"
    cuda_version: int = 13000
    confidential: tuple[int, int] = (0, 0)
    nvml_errors: dict[str, int] = field(default_factory=dict)
    nvml: bool = True
    libraries: dict[str, str] = field(default_factory=dict)  # why one does not load
    ncu: Finished | Exception = field(
        default_factory=lambda: finished(stdout=NCU_VERSION)
    )
    tools: set[str] = field(default_factory=lambda: {"cuobjdump", "nvdisasm"})

    def drop(self, *paths: str) -> Box:
        for path in paths:
            del self.files[path]
        return self

    def put(self, **facts: object) -> Box:
        for name, value in facts.items():
            setattr(self, name, value)
        return self

    def machine(self) -> MachineFacts:
        for path, text in self.files.items():
            file = self.root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
            file.chmod(0o755)
        for name, version in self.packages.items():
            folder = (
                self.root / f"{SITE[1:]}/{name.replace('-', '_')}-{version}.dist-info"
            )
            folder.mkdir(parents=True)
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            (folder / "METADATA").write_text(text, "utf-8")
        if self.namespace:
            folder = self.root / "proc/self/ns"
            folder.mkdir(parents=True)
            (folder / "pid").symlink_to(self.namespace)
        return MachineFacts(
            root=self.root,
            environment=self.environment,
            search=(SITE,),
            pid=4242,
            load=self.libraries.get,
            runner=FakeRunner([self.ncu]),
            find=self.find,
        )

    def find(self, tool: Tool) -> str:
        return f"/usr/bin/{tool.name}" if tool.name in self.tools else refused(tool)

    def look(self) -> dict[str, Finding]:
        nvml = FakeNvml(
            *self.gpus,
            driver_version=self.driver_version,
            cuda_version=self.cuda_version,
            confidential=self.confidential[0],
            dev_tools=self.confidential[1],
            errors=self.nvml_errors,
        )
        found = look(self.machine(), nvml if self.nvml else None)
        assert len({each.id for each in found}) == len(found)
        return {each.id: each for each in found}


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(root=tmp_path)


def test_on_a_healthy_machine_all_is_well(box: Box) -> None:
    """Nothing is found that is not there, and every ok has its evidence."""
    found = box.look()

    assert {
        each.id: each.cause for each in found.values() if each.status is not OK
    } == {}
    assert all(each.evidence and each.remedy is None for each in found.values())


# the first piece of evidence of each finding, on a machine on which all is well
READ = {
    "gpu": "/dev/nvidia0: present",
    "driver": "/proc/driver/nvidia/version: NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release",
    "visible-devices": "CUDA_VISIBLE_DEVICES: is not set",
    "counter-permission": "/proc/driver/nvidia/params: RmProfilingAdminOnly: 0",
    "gvisor": "/proc/version: Linux version 6.8.0-40-generic (root@build) (gcc 13.2)",
    "wsl": "/proc/version: Linux version 6.8.0-40-generic (root@build) (gcc 13.2)",
    "cpu-governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor: performance",
    "smt": "/sys/devices/system/cpu/smt/active: 0",
    "cpu-quota": "/sys/fs/cgroup/user.slice/cpu.max: max 100000",
    "cpu-load": "/proc/loadavg: 0.50 in the last minute",
    "nvml": "NVML: driver 580.95.05",
    "persistence-mode": "NVML, GPU 0: on",
    "slowdown": "NVML, GPU 0: reasons 0x2: no slowdown",
    "power-limit": "NVML, GPU 0: limit 700 W, default 700 W",
    "gpu-processes": "NVML, GPU 0: no other process",
    "gpu-memory": "NVML, GPU 0: 150.0 of 150.8 GB are free",
    "compute-mode": "NVML, GPU 0: default",
    "mig": "NVML, GPU 0: off",
    "vgpu": "NVML, GPU 0: none",
    "clocks": "NVML, GPU 0: 1485 of 1980 MHz, reasons 0x2",
    "confidential-computing": "NVML: confidential computing off",
    "dcgm": "/proc/*/comm: no such process",
    "profilers": "/proc/*/comm: no such process",
    "attached-tool": "NSYS_PROFILING_SESSION_ID: is not set",
    "kineto-daemon": "KINETO_USE_DAEMON: is not set",
    "debugger": "/proc/self/status: TracerPid: 0",
    "mps": "/proc/*/comm: no such process",
    "launch-blocking": "CUDA_LAUNCH_BLOCKING: is off",
    "ncu": "/usr/bin/ncu: present",
    "ncu-version": "/usr/bin/ncu --version: Version 2025.3",
    "cupti-python": "cupti-python: 13.0.1",
    "cupti-driver": f"{LIB}/libcupti.so.13: for CUDA 13",
    "cupti-copies": f"{LIB}/libcupti.so.13: present",
    "nvperf": f"{LIB}/libnvperf_host.so: present",
    "chip": "NVML, GPU 0: compute capability 9.0",
    "cuobjdump": "/usr/bin/cuobjdump: present",
    "nvdisasm": "/usr/bin/nvdisasm: present",
}


def test_evidence_is_what_was_read(box: Box) -> None:
    """Each place with its text, as it stands there."""
    assert {name: each.evidence[0] for name, each in box.look().items()} == READ


def admin_only(box: Box, effective: int = 0) -> Box:
    box.files[PARAMS] = "RmProfilingAdminOnly: 1\n"
    box.files[STATUS] = f"TracerPid:\t0\nCapEff:\t{effective:016x}\n"
    return box


def older(box: Box, *capability: int) -> Box:
    for gpu in box.gpus:
        gpu.compute_capability = (capability[0], capability[1])
    return box


def runs(box: Box, name: str, pid: int = 77) -> Box:
    box.files[f"/proc/{pid}/comm"] = f"{name}\n"
    return box


def each_gpu(box: Box, **facts: object) -> Box:
    """Spoil the second GPU alone: a look at the first one is not enough."""
    for name, value in facts.items():
        setattr(box.gpus[1], name, value)
    return box


def move(box: Box, old: str, new: str) -> Box:
    box.files[new] = box.files.pop(old)
    return box


def no_gpu(box: Box) -> Box:
    box.drop(VERSION, PARAMS, "/dev/nvidia0")
    box.nvml = False
    box.libraries = dict.fromkeys(
        ("libcuda.so.1", "libnvidia-ml.so.1"), "cannot open shared object file"
    )
    return box


def without_nvml(box: Box) -> Box:
    box.nvml = False
    box.libraries = {"libnvidia-ml.so.1": "cannot open shared object file"}
    return box


def container_without_library(box: Box) -> Box:
    box.files["/.dockerenv"] = ""
    return without_nvml(box)


def on_the_bus(box: Box) -> Box:
    no_gpu(box)
    box.files["/sys/bus/pci/devices/0000:01:00.0/vendor"] = "0x10de\n"
    box.files["/sys/bus/pci/devices/0000:01:00.0/class"] = "0x030200\n"
    return box


def container_without_gpu(box: Box) -> Box:
    no_gpu(box)
    box.files |= {VERSION: HEALTHY[VERSION], "/.dockerenv": ""}
    return box


def attached(variable: str) -> Callable[[Box], object]:
    return lambda box: box.environment.update({variable: "/secret/value"})


def refusing(function: str) -> Callable[[Box], object]:
    return lambda box: box.gpus[1].errors.update({function: 999})


def refused(tool: Tool) -> NoReturn:
    message = f"{tool.name} is not on PATH"
    raise CollectorUnavailableError(message, remedy="install it")


# what is wrong; the finding, its status, and words of its evidence and of its remedy
ROWS: dict[str, tuple[Callable[[Box], object], str, Status, str, str]] = {
    "no GPU": (no_gpu, "gpu", STOPS, "/dev/nvidia0: missing", "--gpuperf-replay"),
    "no driver": (on_the_bus, "gpu", STOPS, "0000:01:00.0/vendor: 0x10de", "modprobe"),
    "no --gpus": (
        container_without_gpu,
        "gpu",
        STOPS,
        "580.95.05",
        "docker run --gpus",
    ),
    "no libcuda": (
        lambda box: box.libraries.update(
            {"libcuda.so.1": "libcuda.so.1: no such file"}
        ),
        *("driver", STOPS, "libcuda.so.1: no such file", "LD_LIBRARY_PATH"),
    ),
    "hidden GPUs": (
        lambda box: box.environment.update(CUDA_VISIBLE_DEVICES="-1"),
        *("visible-devices", STOPS, "names no GPU", "unset CUDA_VISIBLE_DEVICES"),
    ),
    "administrators only": (
        admin_only,
        *("counter-permission", STOPS, "RmProfilingAdminOnly: 1"),
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    "administrators only, in a container": (
        lambda box: (admin_only(box), box.files.update({"/.dockerenv": ""})),
        *(
            "counter-permission",
            STOPS,
            "CapEff: 0000000000000000",
            "--cap-add=SYS_ADMIN",
        ),
    ),
    "CAP_PERFMON under an old driver": (
        lambda box: (
            admin_only(box, PERFMON),
            box.put(driver_version="560.35.03"),
        ),
        *("counter-permission", STOPS, "CapEff: 0000004000000000", "NVreg_"),
    ),
    "gVisor by its name": (
        lambda box: box.files.update({"/proc/version": "Linux version 4.19.0-gvisor"}),
        *("gvisor", STOPS, "4.19.0-gvisor", "driver-capabilities=compute,utility,prof"),
    ),
    "gVisor by its banner": (
        lambda box: box.files.update(
            {"/proc/version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"}
        ),
        *("gvisor", STOPS, "PST 2016", "runsc"),
    ),
    "gVisor by its release": (
        lambda box: box.files.update({"/proc/sys/kernel/osrelease": "4.4.0\n"}),
        *("gvisor", STOPS, "osrelease: 4.4.0", "runsc"),
    ),
    "WSL 2": (
        lambda box: box.files.update({"/dev/dxg": ""}),
        *("wsl", DISTORTS, "/dev/dxg: present", "measure on native Linux"),
    ),
    "WSL 1": (
        lambda box: box.files.update({"/proc/version": "Linux 4.4.0-19041-Microsoft"}),
        *("wsl", STOPS, "/dev/dxg: missing", "--set-version"),
    ),
    "WSL, old driver": (
        lambda box: (
            box.files.update({"/dev/dxg": ""}),
            box.put(driver_version="522.06"),
        ),
        *("wsl", STOPS, "/dev/dxg: present", "driver on Windows"),
    ),
    "governor of one core": (
        lambda box: box.files.update(
            {f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave\n"}
        ),
        *("cpu-governor", DISTORTS, "scaling_governor: powersave", "cpupower"),
    ),
    "SMT": (
        lambda box: box.files.update({f"{CPU}/smt/active": "1\n"}),
        *("smt", DISTORTS, "smt/active: 1", "echo off | sudo tee"),
    ),
    "CPU quota": (
        lambda box: box.files.update(
            {"/sys/fs/cgroup/user.slice/cpu.max": "200000 100000\n"}
        ),
        *("cpu-quota", DISTORTS, "cpu.max: 200000 100000", "--cpus"),
    ),
    "CPU quota, version 1": (
        lambda box: (
            box.drop("/sys/fs/cgroup/user.slice/cpu.max", "/proc/self/cgroup"),
            box.files.update({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n"}),
        ),
        *("cpu-quota", DISTORTS, "cfs_quota_us: 200000", "--cpus"),
    ),
    "load": (
        lambda box: box.files.update({"/proc/loadavg": "2.00 1.0 1.0 1/9 4242\n"}),
        *("cpu-load", DISTORTS, "/proc/loadavg: 2.00", "ps -eo"),
    ),
    "no NVML": (without_nvml, "nvml", STOPS, "cannot open shared", "NVIDIA driver"),
    "a container without NVML": (
        container_without_library,
        *("nvml", STOPS, "cannot open shared", "docker run --gpus all"),
    ),
    "a GPU that is lost": (
        lambda box: box.nvml_errors.update(
            nvmlDeviceGetHandleByIndex=pynvml.NVML_ERROR_GPU_IS_LOST
        ),
        *("nvml", STOPS, "GPU 1 does not answer", "reset the GPU"),
    ),
    "another driver's NVML": (
        lambda box: box.nvml_errors.update(
            nvmlInit=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        ),
        *("nvml", STOPS, "mismatch", "sudo reboot"),
    ),
    "NVML without its driver": (
        lambda box: box.nvml_errors.update(
            nvmlInit=pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        ),
        *("nvml", STOPS, "Driver Not Loaded", "sudo modprobe nvidia"),
    ),
    "NVML that may not be used": (
        lambda box: box.nvml_errors.update(nvmlInit=pynvml.NVML_ERROR_NO_PERMISSION),
        *("nvml", STOPS, "Insufficient Permissions", "ls -l /dev/nvidia*"),
    ),
    "persistence mode off": (
        lambda box: each_gpu(box, persistence=0),
        *("persistence-mode", DISTORTS, "GPU 1: off", "sudo nvidia-smi -i 1 -pm 1"),
    ),
    "slowed down by heat": (
        lambda box: each_gpu(box, reasons=0x42),
        *(
            "slowdown",
            DISTORTS,
            "GPU 1: reasons 0x42: hardware thermal",
            "-i 1 -q -d PERF",
        ),
    ),
    "power limit": (
        lambda box: each_gpu(box, enforced_milliwatts=500_000),
        *("power-limit", DISTORTS, "GPU 1: limit 500 W, default 700 W", "-i 1 -pl 700"),
    ),
    "another process": (
        lambda box: each_gpu(box, users={4242: None, 99: 2_000_000_000}),
        *("gpu-processes", DISTORTS, "GPU 1: pid 99 (2.0 GB)", "kill 99"),
    ),
    "a display": (
        lambda box: each_gpu(box, viewers={98: None}),
        *("gpu-processes", DISTORTS, "GPU 1: pid 98", "kill 98"),
    ),
    "little memory": (
        lambda box: each_gpu(box, free_bytes=70_000_000_000),
        *(
            "gpu-memory",
            DISTORTS,
            "GPU 1: 70.0 of 150.8 GB are free",
            "-i 1 -q -d MEMORY",
        ),
    ),
    "compute mode": (
        lambda box: each_gpu(box, compute_mode=2),
        *("compute-mode", STOPS, "GPU 1: prohibited", "-i 1 -c DEFAULT"),
    ),
    "MIG": (
        lambda box: each_gpu(box, mig=1),
        *("mig", DISTORTS, "GPU 1: on", "-i 1 -mig 0"),
    ),
    "vGPU": (
        lambda box: each_gpu(box, virtualization=2),
        *("vgpu", DISTORTS, "GPU 1: vGPU", "enable_profiling=1"),
    ),
    "clocks that float": (
        lambda box: each_gpu(box, reasons=0x1, sm_clock_mhz=345),
        *("clocks", DISTORTS, "GPU 1: 345 of 1980 MHz, reasons 0x1", "-i 1 -lgc 1485"),
    ),
    "idle, and not slow": (
        lambda box: each_gpu(box, reasons=0x1, sm_clock_mhz=990),
        *("clocks", UNKNOWN, "GPU 1: 990 of 1980 MHz, reasons 0x1", "-i 1 -lgc 1485"),
    ),
    "clocks that may float": (
        lambda box: each_gpu(box, reasons=0x0, sm_clock_mhz=1980),
        *("clocks", UNKNOWN, "GPU 1: 1980 of 1980 MHz, reasons 0x0", "-i 1 -lgc 1485"),
    ),
    "confidential computing": (
        lambda box: box.put(confidential=(1, 0)),
        *("confidential-computing", STOPS, "computing on", "--set-cc-mode=devtools"),
    ),
    "confidential computing with developer tools": (
        lambda box: box.put(confidential=(1, 1)),
        *("confidential-computing", DISTORTS, "tools on", "measure with cupti"),
    ),
    "dcgm-exporter before Hopper": (
        lambda box: (older(box, 8, 0), runs(box, "dcgm-exporter")),
        *("dcgm", STOPS, "/proc/77/comm: dcgm-exporter", "dcgmi profile --pause"),
    ),
    "DCGM before Hopper": (
        lambda box: (older(box, 8, 0), runs(box, "nv-hostengine")),
        *("dcgm", UNKNOWN, "/proc/77/comm: nv-hostengine", "dcgmi profile --pause"),
    ),
    "another ncu": (
        lambda box: runs(box, "ncu"),
        *("profilers", STOPS, "/proc/77/comm: ncu", "kill 77"),
    ),
    "another nsys": (
        lambda box: runs(box, "nsys"),
        *("profilers", DISTORTS, "/proc/77/comm: nsys", "kill 77"),
    ),
    "NVTX injection": (
        lambda box: box.environment.update(NVTX_INJECTION64_PATH="/secret"),
        *("attached-tool", DISTORTS, "NVTX_INJECTION64_PATH: is set", "unset NVTX_INJ"),
    ),
    "kineto": (
        lambda box: box.environment.update(KINETO_USE_DAEMON="1"),
        *("kineto-daemon", STOPS, "KINETO_USE_DAEMON: is set", "unset KINETO"),
    ),
    "cuda-gdb": (
        lambda box: (
            box.files.update({STATUS: "TracerPid:\t88\nCapEff:\t00\n"}),
            runs(box, "cuda-gdb", 88),
        ),
        *("debugger", STOPS, "TracerPid: 88", "kill 88"),
    ),
    "gdb": (
        lambda box: (
            box.files.update({STATUS: "TracerPid:\t88\nCapEff:\t00\n"}),
            runs(box, "gdb", 88),
        ),
        *("debugger", DISTORTS, "/proc/88/comm: gdb", "kill 88"),
    ),
    "MPS by its pipe": (
        lambda box: box.files.update({MPS: ""}),
        *("mps", DISTORTS, f"{MPS}: present", "echo quit"),
    ),
    "MPS by its variable": (
        lambda box: box.environment.update(CUDA_MPS_PIPE_DIRECTORY="/secret"),
        *("mps", DISTORTS, "CUDA_MPS_PIPE_DIRECTORY: is set", "unset CUDA_MPS"),
    ),
    "MPS by its daemon": (
        lambda box: runs(box, "nvidia-cuda-mps"),
        *("mps", DISTORTS, "/proc/77/comm: nvidia-cuda-mps", "echo quit"),
    ),
    "launches that wait": (
        lambda box: box.environment.update(CUDA_LAUNCH_BLOCKING="1"),
        *(
            "launch-blocking",
            DISTORTS,
            "CUDA_LAUNCH_BLOCKING: is on",
            "unset CUDA_LAUNCH",
        ),
    ),
    "no ncu": (
        lambda box: box.drop("/usr/bin/ncu"),
        *(
            "ncu",
            STOPS,
            "not on PATH",
            ", then: sudo apt-get install cuda-nsight-compute",
        ),
    ),
    "ncu beside PATH": (
        lambda box: move(
            box, "/usr/bin/ncu", "/opt/nvidia/nsight-compute/2025.3.1/ncu"
        ),
        *("ncu", STOPS, "2025.3.1/ncu: present"),
        "export PATH=/opt/nvidia/nsight-compute/2025.3.1:$PATH",
    ),
    "ncu older than the GPU": (
        lambda box: (
            older(box, 10, 0),
            box.put(ncu=finished(stdout=b"Version 2024.3.2.0 (build 1)\n")),
        ),
        *("ncu-version", STOPS, "Version 2024.3", "cuda-nsight-compute-12-8"),
    ),
    "no cupti-python": (
        lambda box: box.packages.pop("cupti-python"),
        *(
            "cupti-python",
            STOPS,
            "cupti-python: not installed",
            'pip install "pytest-gpuperf[cupti]"',
        ),
    ),
    "cupti-python newer than the driver": (
        lambda box: (
            box.put(cuda_version=12080),
            box.put(driver_version="570.86.10"),
        ),
        *("cupti-python", STOPS, "driver 570.86.10, CUDA 12.8", "[cupti-cu12]"),
    ),
    "cupti-python for a driver that no CUPTI here serves": (
        lambda box: (
            box.put(cuda_version=11040),
            box.put(driver_version="470.256.02"),
            box.packages.update({"cupti-python": "12.8.0"}),
        ),
        *("cupti-python", STOPS, "driver 470.256.02, CUDA 11.4", "driver to 525"),
    ),
    "cupti-python that is refused": (
        lambda box: box.packages.update({"cupti-python": "13.0.0"}),
        *("cupti-python", STOPS, "cupti-python: 13.0.0", "pytest-gpuperf[cupti]"),
    ),
    "cupti-python newer than libcupti": (
        lambda box: box.packages.update({"cupti-python": "13.4.0"}),
        *(
            "cupti-python",
            DISTORTS,
            "nvidia-cuda-cupti: 13.0.85",
            '"cupti-python<13.1"',
        ),
    ),
    "libcupti newer than the driver": (
        lambda box: box.put(cuda_version=12080),
        *(
            "cupti-driver",
            STOPS,
            "libcupti.so.13: for CUDA 13",
            "pytest-gpuperf[cupti-cu12]",
        ),
    ),
    "two libcupti are loaded": (
        lambda box: box.files.update(
            {
                MAPS: f"7f-80 r-xp 0 0 1 {LIB}/libcupti.so.13\n80-81 r-xp 0 0 2 /x/libcupti.so.12\n"
            }
        ),
        *("cupti-copies", STOPS, "/proc/self/maps: /x/libcupti.so.12", "pip uninstall"),
    ),
    "two libcupti are found": (
        lambda box: box.files.update(
            {
                f"{SITE}/nvidia/cuda_cupti/lib/{name}": ""
                for name in (
                    "libcupti.so.12",
                    "libnvperf_host.so",
                    "libnvperf_target.so",
                )
            }
        ),
        *(
            "cupti-copies",
            DISTORTS,
            "cuda_cupti/lib/libcupti.so.12: present",
            "LD_LIBRARY",
        ),
    ),
    "a second libcupti in LD_LIBRARY_PATH": (
        lambda box: (
            box.environment.update(LD_LIBRARY_PATH="/nothing:/x"),
            box.files.update({"/x/libcupti.so.13": ""}),
        ),
        *("cupti-copies", DISTORTS, "/x/libcupti.so.13: present", "LD_LIBRARY_PATH"),
    ),
    "no libnvperf": (
        lambda box: box.drop(f"{LIB}/libnvperf_target.so"),
        *("nvperf", STOPS, "libnvperf_target.so: missing", "--force-reinstall"),
    ),
    "a GPU newer than libcupti": (
        lambda box: (
            older(box, 10, 3),
            box.packages.update({"nvidia-cuda-cupti": "12.8.57"}),
        ),
        *("chip", STOPS, "compute capability 10.3", "pip install -U nvidia-cuda-cupti"),
    ),
    "a GPU older than CUPTI": (
        lambda box: older(box, 6, 1),
        *("chip", STOPS, "compute capability 6.1", "7.0 or later"),
    ),
    "a GPU that libcupti has forgotten": (
        lambda box: (
            older(box, 7, 0),
            box.packages.update({"nvidia-cuda-cupti": "13.4.92"}),
        ),
        *("chip", STOPS, "nvidia-cuda-cupti: 13.4.92", "<=13.1.999"),
    ),
    "no cuobjdump": (
        lambda box: box.tools.remove("cuobjdump"),
        *(
            "cuobjdump",
            STOPS,
            "cuobjdump is not on",
            "pip install nvidia-cuda-cuobjdump",
        ),
    ),
    "no nvdisasm": (
        lambda box: box.tools.remove("nvdisasm"),
        *("nvdisasm", STOPS, "nvdisasm is not on", "pip install nvidia-cuda-nvdisasm"),
    ),
} | {
    variable: (
        attached(variable),
        *("attached-tool", STOPS, f"{variable}: is set", f"unset {variable}"),
    )
    for variable in (
        "NSYS_PROFILING_SESSION_ID",
        "NV_COMPUTE_PROFILER_PERFWORKS_DIR",
        "NV_NSIGHT_INJECTION_TRANSPORT_TYPE",
        "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN",
        "CUDA_INJECTION64_PATH",
    )
}

# other findings that the same mistake makes, each with its status
ALSO: dict[str, dict[str, Status]] = {
    "no GPU": {"nvml": STOPS},
    "no driver": {"nvml": STOPS},
    "no --gpus": {"nvml": STOPS},
    "cupti-python newer than the driver": {"cupti-driver": STOPS},
    "cupti-python for a driver that no CUPTI here serves": {"cupti-driver": STOPS},
    "libcupti newer than the driver": {"cupti-python": STOPS},
    "a second libcupti in LD_LIBRARY_PATH": {"nvperf": STOPS},
    "a GPU newer than libcupti": {"cupti-python": DISTORTS},
}


@pytest.mark.parametrize("row", ROWS)
def test_what_is_wrong_is_found(row: str, box: Box) -> None:
    """The finding has its status, what it was read from, and what to do."""
    spoil, name, status, evidence, remedy = ROWS[row]
    spoil(box)
    found = box.look()

    assert found[name].status is status
    assert evidence in "\n".join(found[name].evidence)
    assert remedy in (found[name].remedy or "")
    bad = {
        each.id: each.status
        for each in found.values()
        if each.status in {STOPS, DISTORTS}
    }
    bad.pop(name, None)
    assert bad == ALSO.get(row, {})


# what cannot be read; the finding that says so, and words of its reason
UNREADABLE: dict[str, tuple[Callable[[Box], object], str, str]] = {
    "no parameters": (
        lambda box: box.drop(PARAMS),
        *("counter-permission", "do not say who may read counters"),
    ),
    "parameters of another driver": (
        lambda box: box.files.update({PARAMS: "ResmanDebugLevel: 1\n"}),
        *("counter-permission", "do not say who may read counters"),
    ),
    "counters under WSL": (
        lambda box: (box.drop(PARAMS), box.files.update({"/dev/dxg": ""})),
        *("counter-permission", "the Windows driver decides"),
    ),
    "no capabilities": (
        lambda box: (admin_only(box), box.files.update({STATUS: "TracerPid:\t0\n"})),
        *("counter-permission", "capabilities of this process are unknown"),
    ),
    "no libcuda without a GPU": (no_gpu, "driver", "there is no GPU"),
    "a container and DCGM": (
        lambda box: box.put(namespace="pid:[4026532000]"),
        *("dcgm", "this is a container: the host's processes are hidden"),
    ),
    "a container and profilers": (
        lambda box: box.put(namespace="pid:[4026532000]"),
        *("profilers", "this is a container: the host's processes are hidden"),
    ),
    "a container and MPS": (
        lambda box: box.put(namespace="pid:[4026532000]"),
        *("mps", "this is a container: the host's processes are hidden"),
    ),
    "hidden processes": (
        lambda box: box.drop("/proc/1/comm"),
        *("dcgm", "/proc hides the processes of other users"),
    ),
    "no processes": (
        lambda box: box.put(namespace=""),
        *("dcgm", "cannot be listed"),
    ),
    "DCGM and no GPU": (
        lambda box: (no_gpu(box), runs(box, "dcgm-exporter")),
        *("dcgm", "the GPU's compute capability, which"),
    ),
    "no kernel": (
        lambda box: box.drop("/proc/version", "/proc/sys/kernel/osrelease"),
        *("gvisor", "the kernel version cannot be read"),
    ),
    "no kernel, no WSL": (
        lambda box: box.drop("/proc/version"),
        *("wsl", "the kernel version cannot be read"),
    ),
    "no governor": (
        lambda box: box.drop(
            *(f"{CPU}/cpu{number}/cpufreq/scaling_governor" for number in (0, 1))
        ),
        *("cpu-governor", "a hypervisor may"),
    ),
    "half a governor": (
        lambda box: box.files.update({f"{CPU}/cpu1/cpufreq/scaling_governor": "\n"}),
        *("cpu-governor", "a hypervisor may"),
    ),
    "no SMT": (lambda box: box.drop(f"{CPU}/smt/active"), "smt", "SMT state"),
    "no quota": (
        lambda box: box.drop("/sys/fs/cgroup/user.slice/cpu.max"),
        *("cpu-quota", "the CPU quota cannot be read"),
    ),
    "no load": (lambda box: box.drop("/proc/loadavg"), "cpu-load", "cannot be read"),
    "no debugger's field": (
        lambda box: box.files.update({STATUS: "Name:\tpython\n"}),
        *("debugger", "does not say whether a debugger is attached"),
    ),
    "no maps": (lambda box: box.drop(MAPS), "cupti-copies", "loaded libraries"),
    "ncu that hangs": (
        lambda box: box.put(
            ncu=CollectorTimeoutError("ncu did not end", remedy="wait")
        ),
        *("ncu-version", "ncu did not end"),
    ),
    "ncu that says nothing": (
        lambda box: box.put(ncu=finished(1)),
        *("ncu-version", "prints no version"),
    ),
    "ncu and no GPU": (no_gpu, "ncu-version", "no GPU to check against"),
    "ncu that is not there": (
        lambda box: box.drop("/usr/bin/ncu"),
        *("ncu-version", "ncu is not on PATH"),
    ),
    "ncu and a GPU of tomorrow": (
        lambda box: older(box, 14, 0),
        *("ncu-version", "is unknown"),
    ),
    "libcupti and a GPU of tomorrow": (
        lambda box: older(box, 14, 0),
        *("chip", "is unknown"),
    ),
    "libcupti and no GPU": (no_gpu, "chip", "no GPU to check against"),
    "libcupti of a toolkit and the GPU": (
        lambda box: box.packages.clear(),
        *("chip", "not installed as a package"),
    ),
    "libcupti of a toolkit and its binding": (
        lambda box: box.packages.pop("nvidia-cuda-cupti"),
        *("cupti-python", "no installed package has libcupti"),
    ),
    "no driver for cupti-python": (no_gpu, "cupti-python", "no driver to check"),
    "no driver for libcupti": (no_gpu, "cupti-driver", "no driver to check"),
    "no libcupti for the driver": (
        lambda box: box.drop(f"{LIB}/libcupti.so.13"),
        *("cupti-driver", "libcupti was not found"),
    ),
    "no libcupti for libnvperf": (
        lambda box: box.drop(f"{LIB}/libcupti.so.13"),
        *("nvperf", "libcupti was not found"),
    ),
    "libcupti without a number": (
        lambda box: move(box, f"{LIB}/libcupti.so.13", f"{LIB}/libcupti.so"),
        *("cupti-driver", "the CUDA version of a libcupti is unknown"),
    ),
    "processes of an older driver": (
        lambda box: box.nvml_errors.update(
            nvmlDeviceGetComputeRunningProcesses=OLDER_DRIVER
        ),
        *("gpu-processes", "for GPU 0, 1"),
    ),
    "no word on confidential computing": (
        lambda box: box.nvml_errors.update(nvmlSystemGetConfComputeState=999),
        *("confidential-computing", "NVML does not report conf"),
    ),
} | {
    f"NVML refuses {function} for {name}": (
        refusing(function),
        *(name, words),
    )
    for name, function, words in (
        ("persistence-mode", "nvmlDeviceGetPersistenceMode", "for GPU 1"),
        ("slowdown", "nvmlDeviceGetCurrentClocksEventReasons", "for GPU 1"),
        ("power-limit", "nvmlDeviceGetEnforcedPowerLimit", "for GPU 1"),
        ("gpu-processes", "nvmlDeviceGetComputeRunningProcesses", "for GPU 1"),
        ("gpu-memory", "nvmlDeviceGetMemoryInfo", "for GPU 1"),
        ("compute-mode", "nvmlDeviceGetComputeMode", "for GPU 1"),
        ("mig", "nvmlDeviceGetMigMode", "for GPU 1"),
        ("vgpu", "nvmlDeviceGetVirtualizationMode", "for GPU 1"),
        ("clocks", "nvmlDeviceGetCurrentClocksEventReasons", "cannot read whether"),
        ("clocks", "nvmlDeviceGetMaxClockInfo", "does not report the clock of GPU 1"),
        ("chip", "nvmlDeviceGetCudaComputeCapability", "the compute capability of a"),
        ("ncu-version", "nvmlDeviceGetCudaComputeCapability", "the compute capability"),
        ("power-limit", "nvmlDeviceGetPowerManagementDefaultLimit", "for GPU 1"),
    )
}


@pytest.mark.parametrize("row", UNREADABLE)
def test_what_cannot_be_read_is_unknown(row: str, box: Box) -> None:
    """It is never ok, and the reason is told."""
    spoil, name, reason = UNREADABLE[row]
    spoil(box)
    found = box.look()[name]

    assert found.status is UNKNOWN
    assert reason in found.cause


def test_without_a_gpu_nothing_of_a_gpu_is_ok(box: Box) -> None:
    """What is asked of NVML alone is unknown, each with the reason."""
    no_gpu(box)
    found = box.look()

    for name in (
        *("persistence-mode", "slowdown", "power-limit", "gpu-processes", "mig"),
        *("gpu-memory", "compute-mode", "vgpu", "clocks", "confidential-computing"),
    ):
        assert found[name].status is UNKNOWN
        assert "cannot open shared object file" in found[name].cause


def link(box: Box) -> None:
    folder = box.root / LIB[1:]
    folder.mkdir(parents=True)
    (folder / "libcupti.so").symlink_to("libcupti.so.13")


# what looks wrong and is not
FINE: dict[str, tuple[Callable[[Box], object], str, str]] = {
    "CAP_SYS_ADMIN": (
        lambda box: admin_only(box, ADMIN),
        *("counter-permission", "CAP_SYS_ADMIN"),
    ),
    "CAP_PERFMON under a new driver": (
        lambda box: admin_only(box, PERFMON),
        *("counter-permission", "CAP_PERFMON"),
    ),
    "CAP_PERFMON, and the driver told by its module": (
        lambda box: (
            admin_only(box, PERFMON),
            box.nvml_errors.update(nvmlSystemGetDriverVersion=999),
        ),
        *("counter-permission", "CAP_PERFMON"),
    ),
    "DCGM from Hopper on": (
        lambda box: runs(box, "dcgm-exporter"),
        *("dcgm", "through GPM"),
    ),
    "the doctor itself": (
        lambda box: runs(box, "ncu", 4242),
        *("profilers", "no other profiler"),
    ),
    "its own context": (
        lambda box: each_gpu(box, users={4242: None}),
        *("gpu-processes", "no other process"),
    ),
    "a chosen GPU": (
        lambda box: box.environment.update(CUDA_VISIBLE_DEVICES="GPU-secret"),
        *("visible-devices", "selected"),
    ),
    "a GPU of NVML's alone": (
        lambda box: box.drop("/dev/nvidia0"),
        *("gpu", "there is a GPU"),
    ),
    "a GPU without MIG": (
        lambda box: each_gpu(
            box, errors={"nvmlDeviceGetMigMode": pynvml.NVML_ERROR_NOT_SUPPORTED}
        ),
        *("mig", "MIG is off"),
    ),
    "a driver older than confidential computing": (
        lambda box: box.nvml_errors.update(
            nvmlSystemGetConfComputeState=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        ),
        *("confidential-computing", "is off"),
    ),
    "passed through": (
        lambda box: each_gpu(box, virtualization=1),
        *("vgpu", "not a vGPU"),
    ),
    "a link to the same libcupti": (
        link,
        *("cupti-copies", "at most one"),
    ),
    "one libcupti, mapped twice": (
        lambda box: box.files.update(
            {MAPS: f"7f-80 r-xp 0 0 1 {LIB}/libcupti.so.13\n" * 2}
        ),
        *("cupti-copies", "at most one"),
    ),
    "an old GPU that every ncu knows": (
        lambda box: older(box, 7, 5),
        *("ncu-version", "supports the GPUs"),
    ),
    "Volta, and the last libcupti that knows it": (
        lambda box: (
            older(box, 7, 0),
            box.packages.update({"nvidia-cuda-cupti": "13.1.115"}),
        ),
        *("chip", "supports the GPUs"),
    ),
    "Turing, and a libcupti that knows Volta no more": (
        lambda box: (
            older(box, 7, 5),
            box.packages.update({"nvidia-cuda-cupti": "13.4.92"}),
        ),
        *("chip", "supports the GPUs"),
    ),
    "Blackwell, and the first libcupti that knows it": (
        lambda box: (
            older(box, 10, 0),
            box.packages.update({"nvidia-cuda-cupti": "12.8.57"}),
        ),
        *("chip", "supports the GPUs"),
    ),
    "Blackwell, and the first ncu that knows it": (
        lambda box: (
            older(box, 10, 0),
            box.put(ncu=finished(stdout=b"Version 2025.1.0.0 (build 1)\n")),
        ),
        *("ncu-version", "supports the GPUs"),
    ),
    "a driver as new as cupti-python": (
        lambda box: box.put(cuda_version=13020),
        *("cupti-python", "matches"),
    ),
    "a quota on somebody else": (
        lambda box: box.files.update({"/sys/fs/cgroup/cpu.max.burst": "1 1"}),
        *("cpu-quota", "no CPU quota"),
    ),
    "a toolkit's libcupti": (
        lambda box: (
            box.drop(*(path for path in HEALTHY if path.startswith(LIB))),
            box.files.update(
                {
                    f"/usr/local/cuda-13.0/extras/CUPTI/lib64/{name}": ""
                    for name in (
                        *("libcupti.so.13", "libnvperf_host.so"),
                        "libnvperf_target.so",
                    )
                }
            ),
        ),
        *("nvperf", "next to"),
    ),
    "launches that need not wait": (
        lambda box: box.environment.update(CUDA_LAUNCH_BLOCKING="0"),
        *("launch-blocking", "do not wait"),
    ),
    "another vendor on the bus": (
        lambda box: box.files.update(
            {
                "/sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
                "/sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
            }
        ),
        *("gpu", "there is a GPU"),
    ),
}


@pytest.mark.parametrize("row", FINE)
def test_what_looks_wrong_and_is_not_is_ok(row: str, box: Box) -> None:
    """A doctor that cries wolf is not asked again."""
    spoil, name, words = FINE[row]
    spoil(box)
    found = box.look()[name]

    assert found.status is OK
    assert words in found.cause


# from NVIDIA's release notes: the first CUDA, and its Nsight Compute
@pytest.mark.parametrize(
    ("capability", "cuda", "ncu"),
    [
        ((8, 0), (11, 0), (2020, 1)),
        ((8, 6), (11, 1), (2020, 2)),
        ((8, 7), (11, 4), (2021, 2)),
        ((8, 9), (11, 8), (2022, 3)),
        ((9, 0), (11, 8), (2022, 3)),
        ((10, 0), (12, 8), (2025, 1)),
        ((10, 3), (12, 9), (2025, 2)),
        ((11, 0), (13, 0), (2025, 3)),
        ((12, 0), (12, 8), (2025, 1)),
        ((12, 1), (12, 9), (2025, 2)),
    ],
)
@pytest.mark.parametrize("late", [0, 1])
def test_each_chip_has_its_first_tools(
    capability: tuple[int, int],
    cuda: tuple[int, int],
    ncu: tuple[int, int],
    late: int,
    box: Box,
) -> None:
    """The first that know it will do; what was released before will not."""
    older(box, *capability)
    box.packages["nvidia-cuda-cupti"] = f"{cuda[0] - late}.{cuda[1] + 9 * late}.1"
    said = f"Version {ncu[0] - late}.{ncu[1] + 9 * late}.0.0 (build 1)\n"
    box.ncu = finished(stdout=said.encode())
    found = box.look()

    expected = STOPS if late else OK
    assert (found["chip"].status, found["ncu-version"].status) == (expected, expected)
    if late:
        assert f"{cuda[0]}.{cuda[1]} is the first" in found["chip"].cause
        assert f"{ncu[0]}.{ncu[1]} is the first" in found["ncu-version"].cause


@pytest.mark.parametrize(
    ("capability", "version", "status"),
    [
        ((10, 0), "2026.2.0.0", DISTORTS),
        ((10, 0), "2026.1.0.0", OK),
        ((10, 0), "2025.2.1.0", OK),
        ((9, 0), "2026.2.0.0", OK),
    ],
)
def test_a_pair_whose_counters_had_no_value_is_told(
    capability: tuple[int, int], version: str, status: Status, box: Box
) -> None:
    """ncu 2026.2 on a B200: each of the two works with others."""
    older(box, *capability)
    box.ncu = finished(stdout=f"Version {version} (build 1)\n".encode())
    found = box.look()["ncu-version"]

    assert found.status is status
    if status is DISTORTS:
        assert "NaN" in found.cause
        assert "2025.2.1" in (found.remedy or "")


@pytest.mark.parametrize(
    ("cuda_version", "remedy"),
    [
        (11040, f"update the driver to 525 or later: {install_older()}"),
        (12000, install_older()),
        (12090, install_older()),
        (13000, INSTALL),
        (13010, INSTALL),
    ],
)
def test_the_binding_to_install_is_that_of_the_driver(
    cuda_version: int, remedy: str, box: Box
) -> None:
    """cupti-python 13 refuses a driver of CUDA 12, and 12.8 one of CUDA 11."""
    box.packages.pop("cupti-python")
    box.cuda_version = cuda_version
    found = box.look()["cupti-python"]

    assert found.remedy == remedy


def test_a_python_without_that_binding_has_another_remedy() -> None:
    """cupti-python 12.8 has wheels up to Python 3.12: pip would install nothing."""
    assert install_older((3, 12)) == 'pip install "pytest-gpuperf[cupti-cu12]"'
    assert install_older((3, 13)).startswith("update the driver to 580, or, with")


def test_a_gpu_that_does_not_answer_is_told(box: Box) -> None:
    """The others are asked all the same."""
    box.nvml_errors["nvmlDeviceGetHandleByIndex"] = pynvml.NVML_ERROR_GPU_IS_LOST
    found = box.look()

    assert found["nvml"].status is STOPS
    assert "GPU 1 does not answer" in found["nvml"].evidence[0]
    assert found["mig"].status is UNKNOWN


def test_a_damaged_binding_is_installed_again(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a requirement of this package: what is not there was removed, or is broken."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    box.nvml = False
    found = box.look()["nvml"]

    assert "pynvml cannot be imported" in found.evidence[0]
    assert found.remedy == "python -m pip install --force-reinstall nvidia-ml-py"


def test_nvml_is_let_go(box: Box) -> None:
    """It is started once and shut down once, whatever it refuses."""
    nvml = FakeNvml(FakeGpu(), errors={"nvmlDeviceGetCount": 999})
    found = {each.id: each for each in look(box.machine(), nvml)}

    assert nvml.open_count == 0
    assert found["nvml"].status is STOPS


def test_no_value_of_the_environment_leaks(box: Box) -> None:
    """Names of variables are told, what is in them is not, and home is ~."""
    secrets = (
        *("CUDA_INJECTION64_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"),
        *("NVTX_INJECTION64_PATH", "KINETO_USE_DAEMON", "NSYS_PROFILING_SESSION_ID"),
    )
    box.environment.update(dict.fromkeys(secrets, "/hidden/s3cret"))
    home = "/home/ada/cuda/lib"
    box.environment["LD_LIBRARY_PATH"] = home
    box.files |= {f"{home}/libcupti.so.13": "", f"{home}a/libcupti.so.13": ""}
    box.libraries = {"libcuda.so.1": "/home/ada/x: not found"}
    found = box.look()
    said = repr(sorted(found.values(), key=lambda each: each.id))

    assert "s3cret" not in said
    assert "/home/ada" not in said
    assert "~/cuda/lib/libcupti.so.13: present" in found["cupti-copies"].evidence
    assert str(box.root) not in said


def test_a_home_of_another_user_stays(box: Box) -> None:
    """Only whole folders are masked: /home/adam is not ~m."""
    box.libraries = {"libcuda.so.1": "/home/adam/x"}

    assert "libcuda.so.1: /home/adam/x" in box.look()["driver"].evidence


def test_every_finding_can_be_acted_on(box: Box) -> None:
    """What stops or bends has a remedy and evidence, whatever the machine."""
    for spoil, name, status, *_ in ROWS.values():
        assert status in {STOPS, DISTORTS} or name in {"dcgm", "clocks"}, spoil
    no_gpu(box)
    box.tools.clear()
    box.drop("/usr/bin/ncu", *[f for f in HEALTHY if LIB in f])
    box.packages.clear()
    for each in box.look().values():
        acted = each.status in {STOPS, DISTORTS}
        assert not acted or (each.remedy and each.evidence), each
        assert each.concerns


def test_a_machine_without_anything_is_examined(tmp_path: Path) -> None:
    """No /proc, no /sys, no PATH: every topic is told, and none that reads is ok."""
    machine = MachineFacts(
        root=tmp_path,
        environment={},
        search=(),
        pid=1,
        load=lambda name: f"{name} is not there",
        runner=FakeRunner(),
        find=refused,
    )
    ok = {each.id for each in look(machine) if each.status is OK}

    assert ok == {
        "visible-devices",
        "attached-tool",
        "kineto-daemon",
        "launch-blocking",
    }


def test_a_folder_of_path_that_cannot_be_entered_is_passed_over(tmp_path: Path) -> None:
    """It is like one without the program: of another user, or with too long a name."""
    box = Box(root=tmp_path)
    before = box.environment["PATH"]
    box.environment["PATH"] = f"/{'x' * 300}:{before}"

    assert box.machine().program("ncu") == f"{before}/ncu"


def test_this_machine_can_be_examined() -> None:
    """The same topics, on the machine that runs the test."""
    box = this_machine()
    found = look(box)

    assert len(found) == len({each.id for each in found}) >= 30
    assert box.pid == os.getpid()


def test_a_library_that_is_not_there_says_why() -> None:
    """And one that is there has nothing to say."""
    assert "libnothing.so.99" in (loading_error("libnothing.so.99") or "")
    assert loading_error("libc.so.6") is None
