"""Which tools and libraries are installed, and whether they fit together."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, NVDISASM, Tool
from pytest_gpuperf.collect.doctor.gpus import Seen
from pytest_gpuperf.collect.doctor.machine import Machine, cupti_libraries
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.finding import Finding, Topic

__all__ = ["software_findings"]

_NCU = Topic(id="ncu", concerns=("counters",))
_NCU_AGE = Topic(id="ncu-version", concerns=("counters",))
_BINDING = Topic(id="cupti-python", concerns=("launches",))
_FIT = Topic(id="cupti-driver", concerns=("launches", "counters"))
_COPIES = Topic(id="cupti-copies", concerns=("launches", "counters"))
_NVPERF = Topic(id="nvperf", concerns=("counters",))
_CHIP = Topic(id="chip", concerns=("counters", "launches"))
_CUOBJDUMP = Topic(id="cuobjdump", concerns=("binary",))
_NVDISASM = Topic(id="nvdisasm", concerns=("sass",))

_VERSION_S = 30.0  # ncu starts in 0.3 s, on a network's disk in some more
_VERSION = re.compile(r"^Version (\d+)\.(\d+)", re.MULTILINE)
_NCU_PLACES = ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu")
_MAPPED = re.compile(r"(/\S*/libcupti\.so[.\d]*)\s*$", re.MULTILINE)
_LIBRARY_WHEELS = {"13": "nvidia-cuda-cupti", "12": "nvidia-cuda-cupti-cu12"}
_NVPERF_FILES = ("libnvperf_host.so", "libnvperf_target.so")

# the first CUDA toolkit that compiles for a GPU (nvcc's release notes), and the Nsight
# Compute that came with it
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
_NEWEST = max(cuda for cuda, _ in _FIRST.values())
_OLDEST = (7, 0)  # of a GPU whose counters CUPTI's profiling interfaces of today read
_LAST_VOLTA = (13, 1)  # libnvperf_host 13.2 lists no GV100 any more


def software_findings(machine: Machine, seen: Seen) -> tuple[Finding, ...]:
    """
    Return a finding of each tool and library.

    Args:
        machine: Where to look.

        seen: What NVML says of driver and GPUs.
    """
    libraries = cupti_libraries(machine)
    return (
        *_ncu(machine, seen),
        _binding(machine, seen),
        _fit(seen, libraries),
        _copies(machine, libraries),
        _nvperf(machine, libraries),
        _chip(machine, seen),
        _reader(
            machine,
            *(_CUOBJDUMP, CUOBJDUMP),
            lost="no registers, stack or shared memory of a binary are read",
        ),
        _reader(
            machine,
            *(_NVDISASM, NVDISASM),
            lost="the instructions of a binary (SASS) are not read",
        ),
    )


# ------------------------------------------------------------------- Nsight Compute


def _ncu(machine: Machine, seen: Seen) -> tuple[Finding, Finding]:
    """Return whether ncu is installed, and whether it is new enough."""
    on_path = machine.program("ncu")
    if on_path is not None:
        found = _NCU.ok("ncu is on PATH", f"{on_path}: is there")
        return found, _ncu_age(machine, seen, on_path)
    elsewhere = [path for pattern in _NCU_PLACES for path in machine.paths(pattern)]
    age = _NCU_AGE.unknown("ncu is not on PATH")
    if elsewhere:
        folder = PurePosixPath(elsewhere[-1]).parent
        found = _NCU.stops(
            "ncu is installed, and not on PATH",
            *(f"{path}: is there" for path in elsewhere),
            remedy=f"export PATH={folder}:$PATH",
        )
        return found, age
    found = _NCU.stops(
        "Nsight Compute is not installed: it reads the counters of kernels",
        "ncu: not on PATH, nor in /opt/nvidia/nsight-compute or /usr/local/cuda",
        remedy=_install_ncu(seen.cuda or _NEWEST),
    )
    return found, age


def _install_ncu(cuda: tuple[int, int]) -> str:
    """Return the command that installs the ncu of a CUDA toolkit, from NVIDIA's sources."""
    return f"sudo apt-get install cuda-nsight-compute-{cuda[0]}-{cuda[1]}"


def _ncu_age(machine: Machine, seen: Seen, path: str) -> Finding:
    """Return whether an ncu knows the GPUs."""
    try:
        argv = (str(machine.at(path)), "--version")
        done = machine.runner.run(argv, timeout_s=_VERSION_S)
    except CollectError as error:
        return _NCU_AGE.unknown(error.message, f"{path}: is there", remedy=error.remedy)
    text = done.stdout.decode("utf-8", "replace")
    said = _VERSION.search(text)
    if said is None:
        last = done.log_tail.splitlines()[-1:] or [f"exit status {done.exit_code}"]
        reason = "ncu does not say its version"
        return _NCU_AGE.unknown(reason, f"{path} --version: {last[0]}")
    version = (int(said[1]), int(said[2]))
    evidence = f"{path} --version: {said[0]}"
    kinds = _kinds(seen)
    if not kinds or len(kinds) < len(seen.gpus):
        return _NCU_AGE.unknown(_nameless(seen), evidence)
    if not all(kind < min(_FIRST) or kind in _FIRST for kind in kinds):
        reason = "which ncu is the first that knows this GPU is not known here"
        return _NCU_AGE.unknown(reason, evidence, *_capabilities(seen))
    needed = max((_FIRST[kind][1] for kind in kinds if kind in _FIRST), default=version)
    if needed > version:
        return _NCU_AGE.stops(
            f"ncu is older than the GPU: {_dotted(needed)} is the first that knows it",
            evidence,
            *_capabilities(seen),
            remedy=_install_ncu(
                max(_FIRST[kind][0] for kind in kinds if kind in _FIRST)
            ),
        )
    return _NCU_AGE.ok("ncu knows the GPUs", evidence, *_capabilities(seen))


# ---------------------------------------------------------------------------- CUPTI


def _binding(machine: Machine, seen: Seen) -> Finding:
    """Return whether CUPTI's Python binding fits driver and library."""
    version = machine.package("cupti-python")
    if version is None:
        return _BINDING.stops(
            "cupti-python is not installed: it records launches and copies",
            "cupti-python: not among the installed packages",
            remedy='pip install "pytest-gpuperf[cupti]"',
        )
    evidence = [f"cupti-python: {version}"]
    binding, driver = _numbers(version), seen.cuda
    if driver is not None and binding[0] > driver[0]:
        return _BINDING.stops(
            f"cupti-python {binding[0]} refuses a driver of CUDA {driver[0]}",
            *(*evidence, f"NVML: {_driver_said(seen)}"),
            remedy=f'update the driver, or: pip install "cupti-python<{driver[0] + 1}"',
        )
    library = _library_version(machine, binding[0])
    if library is None:
        reason = "which libcupti it loads is not known: none is installed as a package"
        return _BINDING.unknown(reason, *evidence)
    evidence.append(f"{_LIBRARY_WHEELS[str(binding[0])]}: {library}")
    if _numbers(library) < binding:
        return _BINDING.bends(
            "cupti-python is newer than its libcupti: functions that the library lacks "
            "are refused when they are called",
            *evidence,
            remedy=f'pip install "cupti-python=={_dotted(_numbers(library))}.*"',
        )
    if driver is None:
        reason = "whether the driver runs its CUDA is not known: no driver is there"
        return _BINDING.unknown(reason, *evidence)
    return _BINDING.ok("cupti-python fits its libcupti and the driver", *evidence)


def _fit(seen: Seen, libraries: dict[str, str | None]) -> Finding:
    """Return whether the driver is new enough for each libcupti."""
    driver = seen.cuda
    said = [f"{path}: of CUDA {major or '?'}" for path, major in libraries.items()]
    if not libraries:
        return _no_library(_FIT)
    if driver is None:
        return _FIT.unknown("there is no driver that it must fit", *said)
    said.append(f"NVML: {_driver_said(seen)}")
    if any(
        major is not None and int(major) > driver[0] for major in libraries.values()
    ):
        return _FIT.stops(
            f"a libcupti is newer than the driver, which runs CUDA {_dotted(driver)} "
            "(CUPTI 15)",
            *said,
            remedy=f"update the driver, or install the CUPTI of CUDA {driver[0]}: "
            f"pip install nvidia-cuda-cupti-cu{driver[0]}",
        )
    if None in libraries.values():
        return _FIT.unknown("a libcupti does not say of which CUDA it is", *said)
    return _FIT.ok("the driver is new enough for libcupti", *said)


def _copies(machine: Machine, libraries: dict[str, str | None]) -> Finding:
    """Return whether one program may come to load two libcupti."""
    maps = machine.text("/proc/self/maps")
    loaded = sorted(set(_MAPPED.findall(maps or "")))
    if len(loaded) > 1:
        return _COPIES.stops(
            "two libcupti are loaded: each knows half of what is done",
            *(f"/proc/self/maps: {path}" for path in loaded),
            remedy="keep one of them: pip uninstall the package of the other",
        )
    if len(libraries) > 1:
        return _COPIES.bends(
            "there are several libcupti: which one is loaded depends on what is imported "
            "first",
            *(f"{path}: is there" for path in libraries),
            remedy="keep one of them: pip uninstall the others' packages, or take their "
            "folders out of LD_LIBRARY_PATH",
        )
    if maps is None:
        reason = "the system does not say which libraries are loaded"
        return _COPIES.unknown(reason, "/proc/self/maps: is not there")
    said = [f"{path}: is there" for path in libraries] or ["libcupti: is nowhere"]
    return _COPIES.ok("there are no two libcupti", *said)


def _nvperf(machine: Machine, libraries: dict[str, str | None]) -> Finding:
    """Return whether the libraries that know the counters lie beside libcupti."""
    if not libraries:
        return _no_library(_NVPERF)
    said, missing = [], []
    for path, major in libraries.items():
        folder = PurePosixPath(path).parent
        for name in _NVPERF_FILES:
            there = machine.exists(f"{folder}/{name}")
            said.append(f"{folder}/{name}: {'is there' if there else 'is not there'}")
            wheel = _LIBRARY_WHEELS.get(major or "", _LIBRARY_WHEELS["13"])
            missing += [] if there else [wheel]
    if missing:
        return _NVPERF.stops(
            "libnvperf is not beside libcupti, which then knows no counter (CUPTI 15)",
            *said,
            remedy=f"pip install --force-reinstall {' '.join(dict.fromkeys(missing))}",
        )
    return _NVPERF.ok("libnvperf is beside libcupti", *said)


def _chip(machine: Machine, seen: Seen) -> Finding:
    """Return whether libcupti knows the GPUs."""
    kinds = _kinds(seen)
    if not kinds or len(kinds) < len(seen.gpus):
        return _CHIP.unknown(_nameless(seen))
    said = _capabilities(seen)
    if min(kinds) < _OLDEST:
        return _CHIP.stops(
            "the GPU is older than all whose counters CUPTI reads",
            *said,
            remedy=f"measure on a GPU of compute capability {_dotted(_OLDEST)} or later",
        )
    packages = ((name, machine.package(name)) for name in _LIBRARY_WHEELS.values())
    name, text = next((each for each in packages if each[1]), ("", None))
    if text is None:
        return _CHIP.unknown("libcupti is not installed as a package", *said)
    return _chip_of(kinds, name, _numbers(text), (*said, f"{name}: {text}"))


def _chip_of(
    kinds: list[tuple[int, int]],
    package: str,
    version: tuple[int, int],
    said: tuple[str, ...],
) -> Finding:
    """Return whether the libcupti of a CUDA toolkit knows GPUs that are not too old."""
    if min(kinds) < (7, 5) and version > _LAST_VOLTA:  # below Turing: Volta
        return _CHIP.stops(
            f"libcupti after {_dotted(_LAST_VOLTA)} knows this GPU no more",
            *said,
            remedy=f'pip install "nvidia-cuda-cupti<={_dotted(_LAST_VOLTA)}.999"',
        )
    if not all(kind < min(_FIRST) or kind in _FIRST for kind in kinds):
        return _CHIP.unknown("which libcupti knows this GPU is not known here", *said)
    needed = max((_FIRST[kind][0] for kind in kinds if kind in _FIRST), default=version)
    if needed > version:
        return _CHIP.stops(
            f"libcupti is older than the GPU: {_dotted(needed)} is the first that knows "
            "it (CUPTI 46)",
            *said,
            remedy=f"pip install -U {package}",
        )
    return _CHIP.ok("libcupti knows the GPUs", *said)


def _no_library(topic: Topic) -> Finding:
    """Return the finding about a libcupti that is not there."""
    return topic.unknown(
        "no libcupti was found, in packages or in a CUDA toolkit",
        remedy='pip install "pytest-gpuperf[cupti]"',
    )


def _library_version(machine: Machine, major: int) -> str | None:
    """Return the version of the package that holds the libcupti of a CUDA."""
    wheel = _LIBRARY_WHEELS.get(str(major))
    return wheel and machine.package(wheel)


# ----------------------------------------------------------- tools that read binaries


def _reader(machine: Machine, topic: Topic, tool: Tool, lost: str) -> Finding:
    """Return whether a tool that reads binaries is there."""
    try:
        path = machine.find(tool)
    except CollectError as error:
        cause = f"without {tool.name} {lost}"
        return topic.stops(cause, error.message, remedy=f"pip install {tool.wheel}")
    return topic.ok(f"{tool.name} is there", f"{path}: is there")


# -------------------------------------------------------------------------- versions


def _kinds(seen: Seen) -> list[tuple[int, int]]:
    """Return the compute capabilities of the GPUs, as far as NVML says them."""
    return [gpu.capability for gpu in seen.gpus if gpu.capability is not None]


def _nameless(seen: Seen) -> str:
    """Return why it is not known which GPUs a tool must know."""
    if not seen.gpus:
        return "there is no GPU that it must know"
    return "NVML does not say the compute capability of a GPU"


def _capabilities(seen: Seen) -> list[str]:
    """Return the compute capabilities as evidence."""
    return [
        f"NVML, GPU {gpu.index}: compute capability {_dotted(gpu.capability)}"
        for gpu in seen.gpus
        if gpu.capability is not None
    ]


def _driver_said(seen: Seen) -> str:
    """Return driver and CUDA as evidence."""
    return f"driver {seen.driver}, CUDA {_dotted(seen.cuda or (0, 0))}"


def _numbers(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version; what has none is version 0."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return (numbers[0] if numbers else 0, numbers[1] if len(numbers) > 1 else 0)


def _dotted(version: tuple[int, int]) -> str:
    """Return two numbers as a version."""
    return f"{version[0]}.{version[1]}"
