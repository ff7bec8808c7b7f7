"""Installed tools and libraries, and mismatches of their versions."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, NVDISASM, Tool
from pytest_gpuperf.collect.cupti.subscription import (
    INSTALL,
    install_older,
    unsupported,
)
from pytest_gpuperf.collect.doctor.gpus import NvmlReport
from pytest_gpuperf.collect.doctor.machine import MachineFacts, cupti_libraries
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.gap import Finding, Topic

_NCU = Topic(id="ncu", concerns=("counters",))
_NCU_AGE = Topic(id="ncu-version", concerns=("counters",))
_BINDING = Topic(id="cupti-python", concerns=("launches",))
_FIT = Topic(id="cupti-driver", concerns=("launches", "counters"))
_COPIES = Topic(id="cupti-copies", concerns=("launches", "counters"))
_NVPERF = Topic(id="nvperf", concerns=("counters",))
_CHIP = Topic(id="chip", concerns=("counters", "launches"))
_CUOBJDUMP = Topic(id="cuobjdump", concerns=("binary",))
_NVDISASM = Topic(id="nvdisasm", concerns=("sass",))

# ncu starts in 0.3 s, and takes somewhat longer on a network disk.
_VERSION_S = 30.0
_VERSION = re.compile(r"^Version (\d+)\.(\d+)", re.MULTILINE)
_NCU_PLACES = ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu")
_MAPPED = re.compile(r"(/\S*/libcupti\.so[.\d]*)\s*$", re.MULTILINE)
_LIBRARY_WHEELS = {"13": "nvidia-cuda-cupti", "12": "nvidia-cuda-cupti-cu12"}
# The driver's CUDA from which on the extra cupti works.
_NEWER_CUPTI = (13, 0)
# The oldest CUDA that the extra cupti-cu12 works with, and its first driver.
_OLDER_CUPTI, _OLDER_DRIVER = (12, 0), 525
_NVPERF_FILES = ("libnvperf_host.so", "libnvperf_target.so")

# The first CUDA toolkit that compiles for a GPU (nvcc's release notes), and the Nsight
# Compute of that toolkit.
_FIRST = {
    (8, 0): ((11, 0), (2020, 1)),
    (8, 6): ((11, 1), (2020, 2)),
    (8, 7): ((11, 4), (2021, 2)),
    (8, 9): ((11, 8), (2022, 3)),
    (9, 0): ((11, 8), (2022, 3)),
    (10, 0): ((12, 8), (2025, 1)),
    (12, 0): ((12, 8), (2025, 1)),
    (10, 3): ((12, 9), (2025, 2)),
    (12, 1): ((12, 9), (2025, 2)),
    (11, 0): ((13, 0), (2025, 3)),
}
# Pairs of ncu and GPU whose counters were NaN: reported of a B200, with CUDA 13.3.
_WITHOUT_VALUES = {(2026, 2): frozenset({(10, 0)})}
_NEWEST = max(cuda for cuda, _ in _FIRST.values())
_REPOSITORY = "add NVIDIA's repository (developer.nvidia.com/cuda-downloads)"
# The oldest GPU that CUPTI's current profiling interfaces support.
_OLDEST = (7, 0)
# libnvperf_host 13.2 no longer lists GV100.
_LAST_VOLTA = (13, 1)


def software_findings(machine: MachineFacts, report: NvmlReport) -> tuple[Finding, ...]:
    """
    Return a finding for every tool and library.

    Args:
        machine: The machine to examine.

        report: The NVML report about driver and GPUs.
    """
    libraries = cupti_libraries(machine)
    return (
        *_ncu(machine, report),
        _binding(machine, report),
        _fit(report, libraries),
        _copies(machine, libraries),
        _nvperf(machine, libraries),
        _chip(machine, report),
        _reader(
            machine,
            _CUOBJDUMP,
            CUOBJDUMP,
            lost="registers, stack and shared memory of binaries are not read",
        ),
        _reader(
            machine,
            _NVDISASM,
            NVDISASM,
            lost="the instructions of binaries (SASS) are not read",
        ),
    )


# ------------------------------------------------------------------- Nsight Compute


def _ncu(machine: MachineFacts, report: NvmlReport) -> tuple[Finding, Finding]:
    on_path = machine.program("ncu")
    if on_path is not None:
        finding = _NCU.ok("ncu is on PATH", f"{on_path}: present")
        return finding, _ncu_age(machine, report, on_path)
    elsewhere = [path for pattern in _NCU_PLACES for path in machine.paths(pattern)]
    age = _NCU_AGE.unknown("ncu is not on PATH")
    if elsewhere:
        folder = PurePosixPath(elsewhere[-1]).parent
        finding = _NCU.stops(
            "ncu is installed, but not on PATH",
            *(f"{path}: present" for path in elsewhere),
            remedy=f"export PATH={folder}:$PATH",
        )
        return finding, age
    finding = _NCU.stops(
        "Nsight Compute is not installed: kernels have no hardware counters",
        "ncu: not on PATH, in /opt/nvidia/nsight-compute or in /usr/local/cuda",
        remedy=_install_ncu(report.cuda or _NEWEST),
    )
    return finding, age


def _install_ncu(cuda: tuple[int, int]) -> str:
    # Debian and Ubuntu have no package of that name themselves.
    package = f"cuda-nsight-compute-{cuda[0]}-{cuda[1]}"
    return f"{_REPOSITORY}, then: sudo apt-get install {package}"


def _ncu_age(machine: MachineFacts, report: NvmlReport, path: str) -> Finding:
    try:
        argv = (str(machine.at(path)), "--version")
        done = machine.runner.run(argv, timeout_s=_VERSION_S)
    except CollectError as error:
        return _NCU_AGE.unknown(error.message, f"{path}: present", remedy=error.remedy)
    text = done.stdout.decode("utf-8", "replace")
    match = _VERSION.search(text)
    if match is None:
        last = done.log_tail.splitlines()[-1:] or [f"exit status {done.exit_code}"]
        reason = "ncu --version prints no version"
        return _NCU_AGE.unknown(reason, f"{path} --version: {last[0]}")
    version = (int(match[1]), int(match[2]))
    evidence = f"{path} --version: {match[0]}"
    capabilities = _capabilities(report)
    if not capabilities or len(capabilities) < len(report.gpus):
        return _NCU_AGE.unknown(_no_capability(report), evidence)
    return _ncu_support(version, capabilities, evidence, *_capability_evidence(report))


def _ncu_support(
    version: tuple[int, int], capabilities: list[tuple[int, int]], *evidence: str
) -> Finding:
    support = _first_support(capabilities)
    if support is None:
        reason = "the first ncu that supports this GPU is unknown"
        return _NCU_AGE.unknown(reason, *evidence)
    cuda, first = support
    if first > version:
        return _NCU_AGE.stops(
            f"ncu is older than the GPU: {_dotted(first)} is the first that supports it",
            *evidence,
            remedy=_install_ncu(cuda),
        )
    if not _WITHOUT_VALUES.get(version, frozenset()).isdisjoint(capabilities):
        return _NCU_AGE.distorts(
            f"ncu {_dotted(version)} gave counters without a value (NaN) on this GPU",
            *evidence,
            remedy="use another version of ncu: 2025.2.1 gave values",
        )
    return _NCU_AGE.ok("ncu supports the GPUs", *evidence)


# ---------------------------------------------------------------------------- CUPTI


def _binding(machine: MachineFacts, report: NvmlReport) -> Finding:
    version, driver = machine.package("cupti-python"), report.cuda
    if version is None:
        return _BINDING.stops(
            "cupti-python is not installed: launches and copies are not recorded",
            "cupti-python: not installed",
            remedy=_install_cupti(driver),
        )
    evidence = [f"cupti-python: {version}"]
    binding, gap = _numbers(version), unsupported(version)
    if driver is not None and binding[0] > driver[0]:
        cause = f"cupti-python {binding[0]} does not work with a driver for CUDA {driver[0]}"
        evidence.append(f"NVML: {_driver_text(report)}")
    else:
        cause = "" if gap is None else gap.reason
    if cause:
        return _BINDING.stops(cause, *evidence, remedy=_install_cupti(driver))
    wheel = _LIBRARY_WHEELS.get(str(binding[0]))
    library = None if wheel is None else machine.package(wheel)
    if library is None:
        reason = "no installed package has libcupti: the version loaded is unknown"
        return _BINDING.unknown(reason, *evidence)
    evidence.append(f"{wheel}: {library}")
    major, minor = _numbers(library)
    if (major, minor) < binding:
        return _BINDING.distorts(
            "cupti-python is newer than its libcupti: calls that the library lacks fail",
            *evidence,
            remedy=f'pip install "cupti-python<{major}.{minor + 1}"',
        )
    if driver is None:
        reason = "there is no driver to check cupti-python against"
        return _BINDING.unknown(reason, *evidence)
    return _BINDING.ok("cupti-python matches its libcupti and the driver", *evidence)


def _install_cupti(driver: tuple[int, int] | None) -> str:
    """Return how to get a CUPTI that works with the driver of a CUDA, None if unknown."""
    if driver is None or driver >= _NEWER_CUPTI:
        return INSTALL
    if driver >= _OLDER_CUPTI:
        return install_older()
    return f"update the driver to {_OLDER_DRIVER} or later: {install_older()}"


def _fit(report: NvmlReport, libraries: dict[str, str | None]) -> Finding:
    driver = report.cuda
    evidence = [f"{path}: for CUDA {major or '?'}" for path, major in libraries.items()]
    if not libraries:
        return _no_library(_FIT)
    if driver is None:
        return _FIT.unknown("there is no driver to check libcupti against", *evidence)
    evidence.append(f"NVML: {_driver_text(report)}")
    if any(
        major is not None and int(major) > driver[0] for major in libraries.values()
    ):
        return _FIT.stops(
            f"a libcupti is newer than the driver, which runs CUDA {_dotted(driver)} "
            "(CUPTI 15)",
            *evidence,
            remedy=f"update the driver, or: {_install_cupti(driver)}",
        )
    if None in libraries.values():
        return _FIT.unknown("the CUDA version of a libcupti is unknown", *evidence)
    return _FIT.ok("the driver is new enough for libcupti", *evidence)


def _copies(machine: MachineFacts, libraries: dict[str, str | None]) -> Finding:
    maps = machine.text("/proc/self/maps")
    loaded = sorted(set(_MAPPED.findall(maps or "")))
    if len(loaded) > 1:
        return _COPIES.stops(
            "two copies of libcupti are loaded: each records a part of the launches",
            *(f"/proc/self/maps: {path}" for path in loaded),
            remedy="keep one of them: pip uninstall the package of the other",
        )
    if len(libraries) > 1:
        return _COPIES.distorts(
            "several copies of libcupti are installed: the order of imports decides which "
            "is loaded",
            *(f"{path}: present" for path in libraries),
            remedy="keep one of them: pip uninstall the packages of the others, or remove "
            "their folders from LD_LIBRARY_PATH",
        )
    if maps is None:
        reason = "the loaded libraries cannot be listed"
        return _COPIES.unknown(reason, "/proc/self/maps: missing")
    evidence = [f"{path}: present" for path in libraries] or ["libcupti: not found"]
    return _COPIES.ok("there is at most one libcupti", *evidence)


def _nvperf(machine: MachineFacts, libraries: dict[str, str | None]) -> Finding:
    if not libraries:
        return _no_library(_NVPERF)
    evidence, missing = [], []
    for path, major in libraries.items():
        folder = PurePosixPath(path).parent
        for name in _NVPERF_FILES:
            present = machine.exists(f"{folder}/{name}")
            evidence.append(f"{folder}/{name}: {'present' if present else 'missing'}")
            wheel = _LIBRARY_WHEELS.get(major or "", _LIBRARY_WHEELS["13"])
            missing += [] if present else [wheel]
    if missing:
        return _NVPERF.stops(
            "libnvperf is missing next to libcupti: counters cannot be read (CUPTI 15)",
            *evidence,
            remedy=f"pip install --force-reinstall {' '.join(dict.fromkeys(missing))}",
        )
    return _NVPERF.ok("libnvperf is next to libcupti", *evidence)


def _chip(machine: MachineFacts, report: NvmlReport) -> Finding:
    capabilities = _capabilities(report)
    if not capabilities or len(capabilities) < len(report.gpus):
        return _CHIP.unknown(_no_capability(report))
    evidence = _capability_evidence(report)
    if min(capabilities) < _OLDEST:
        return _CHIP.stops(
            "the GPU is too old: CUPTI does not read its counters",
            *evidence,
            remedy=f"measure on a GPU of compute capability {_dotted(_OLDEST)} or later",
        )
    packages = ((name, machine.package(name)) for name in _LIBRARY_WHEELS.values())
    name, text = next((package for package in packages if package[1]), ("", None))
    if text is None:
        return _CHIP.unknown("libcupti is not installed as a package", *evidence)
    return _chip_of(capabilities, name, _numbers(text), (*evidence, f"{name}: {text}"))


def _chip_of(
    capabilities: list[tuple[int, int]],
    package: str,
    version: tuple[int, int],
    evidence: tuple[str, ...],
) -> Finding:
    # GPUs before Turing are Volta.
    if min(capabilities) < (7, 5) and version > _LAST_VOLTA:
        return _CHIP.stops(
            f"libcupti after {_dotted(_LAST_VOLTA)} no longer supports this GPU",
            *evidence,
            remedy=f'pip install "nvidia-cuda-cupti<={_dotted(_LAST_VOLTA)}.999"',
        )
    support = _first_support(capabilities)
    if support is None:
        return _CHIP.unknown(
            "the first libcupti that supports this GPU is unknown", *evidence
        )
    first, _ = support
    if first > version:
        return _CHIP.stops(
            f"libcupti is older than the GPU: {_dotted(first)} is the first that "
            "supports it (CUPTI 46)",
            *evidence,
            remedy=f"pip install -U {package}",
        )
    return _CHIP.ok("libcupti supports the GPUs", *evidence)


def _no_library(topic: Topic) -> Finding:
    return topic.unknown(
        "libcupti was not found in packages or in a CUDA toolkit",
        remedy=INSTALL,
    )


# ----------------------------------------------------------- tools that read binaries


def _reader(machine: MachineFacts, topic: Topic, tool: Tool, lost: str) -> Finding:
    try:
        path = machine.find(tool)
    except CollectError as error:
        cause = f"{tool.name} is not installed: {lost}"
        return topic.stops(cause, error.message, remedy=f"pip install {tool.wheel}")
    return topic.ok(f"{tool.name} is installed", f"{path}: present")


# -------------------------------------------------------------------------- versions


def _capabilities(report: NvmlReport) -> list[tuple[int, int]]:
    return [gpu.capability for gpu in report.gpus if gpu.capability is not None]


def _first_support(
    capabilities: list[tuple[int, int]],
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the first toolkit and ncu that support all GPUs, or None if unknown."""
    oldest = min(_FIRST)  # Older GPUs were always supported.
    newer = [capability for capability in capabilities if capability >= oldest]
    if not _FIRST.keys() >= set(newer):
        return None
    return max((_FIRST[capability] for capability in newer), default=((0, 0), (0, 0)))


def _no_capability(report: NvmlReport) -> str:
    if not report.gpus:
        return "there is no GPU to check against"
    return "NVML does not report the compute capability of a GPU"


def _capability_evidence(report: NvmlReport) -> list[str]:
    return [
        f"NVML, GPU {gpu.index}: compute capability {_dotted(gpu.capability)}"
        for gpu in report.gpus
        if gpu.capability is not None
    ]


def _driver_text(report: NvmlReport) -> str:
    return f"driver {report.driver}, CUDA {_dotted(report.cuda or (0, 0))}"


def _numbers(version: str) -> tuple[int, int]:
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return (numbers[0] if numbers else 0, numbers[1] if len(numbers) > 1 else 0)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
