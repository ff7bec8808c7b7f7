"""The machine and the software of a measurement."""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_gpuperf.model.environment import (
    DEVICE_METHOD,
    Device,
    Environment,
)

__all__ = [
    "core_count",
    "cpu_model",
    "environment",
    "has_several_ranks",
    "known_facts",
    "not_loaded",
    "python_minor",
    "read_head",
    "soft_facts",
    "thread_limits",
    "versions_of",
    "workers_count",
]

# raised when host timing changes: its values are then not comparable any more
_HOST_METHOD = "host/2"  # without interrupted samples

# The packages that change speed: the module that shows the use, and its distributions.
# An allow-list, for privacy: no other package is recorded.
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "cupy": ("cupy", "cupy-cuda12x", "cupy-cuda13x"),
    "flash_attn": ("flash-attn",),
    "jax": ("jax",),
    "jaxlib": ("jaxlib",),
    "numba": ("numba",),
    "numba_cuda": ("numba-cuda",),
    "numpy": ("numpy",),
    "scipy": ("scipy",),
    "tensorflow": ("tensorflow",),
    "torch": ("torch",),
    "transformer_engine": ("transformer-engine",),
    "transformers": ("transformers",),
    "triton": ("triton",),
    "vllm": ("vllm",),
}

_CUPTI_DEPENDENCIES = frozenset({"numpy"})  # packages that cupti-python imports

# the users of CUDA's packages, which have no module of their own
_CUDA_USERS = ("torch", "jax", "cupy", "tensorflow")
_CUDA_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "cublas": ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
    "cuda-runtime": (
        "nvidia-cuda-runtime",
        "nvidia-cuda-runtime-cu13",
        "nvidia-cuda-runtime-cu12",
    ),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}

# how launchers tell the number of ranks, by their own documentation: torchrun, Open MPI,
# MPICH and Intel MPI, MVAPICH, srun
_RANK_COUNTS = (
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
)

# where users say how many threads libraries may start; numpy reads the first three
_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_CPUINFO_BYTES = 4096  # the first core's entry; a file of 200 cores takes 10 ms


def not_loaded() -> frozenset[str]:
    """Return the packages that this plugin may import and that are not imported yet."""
    return _CUPTI_DEPENDENCIES - sys.modules.keys()


def environment(
    *, cpuinfo: str = "/proc/cpuinfo", without: frozenset[str] = frozenset()
) -> Environment:
    """
    Return machine and software of this process.

    Only packages of an allow-list that are imported by now are listed: call this after
    the tests have run, or with each record. Nothing is imported.

    Args:
        cpuinfo: The file in which Linux describes the processor.

        without: Packages to leave out, because the tests did not import them.
    """
    in_use = frozenset(_PACKAGES.keys() & sys.modules.keys()) - without
    return _environment(in_use, cpuinfo, core_count())


@functools.lru_cache(maxsize=8)  # called with each record
def _environment(
    in_use: frozenset[str], cpuinfo: str, cores: int | None
) -> Environment:
    """Return machine, software and the versions of the packages in use."""
    return Environment(
        cpu_model=cpu_model(cpuinfo),
        core_count=cores,
        python_minor=python_minor(),
        platform=sys.platform,
        versions=versions_of(in_use),
    )


def known_facts(
    machine: Environment,
    device: Device | None = None,
    *,
    method: str = _HOST_METHOD,
    conditions: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """
    Return the hard facts of a process, by the names of model.environment.

    The facts of one record (`parameters`, `work`, `cache_mode`) are added later. A fact
    without a source is left out.

    Args:
        machine: Machine and software.

        device: The GPU; None where none is used.

        method: The method and version of the timing by the host's clock.

        conditions: What changes how fast all code runs, as `instrumentation.conditions`.
    """
    facts: dict[str, object] = {
        "cpu_model": machine.cpu_model,
        "core_count": machine.core_count,
        "python_minor": machine.python_minor,
        "method": method,
        **conditions,
    }
    if device is not None:
        facts |= _device_facts(device) | {"device_method": DEVICE_METHOD}
    return {name: str(value) for name, value in facts.items() if value is not None}


def workers_count(variables: Mapping[str, str] = os.environ) -> int:
    """Return how many xdist workers share this run's tests; 1: there are none."""
    in_worker = "PYTEST_XDIST_WORKER" in variables
    text = variables.get("PYTEST_XDIST_WORKER_COUNT", "") if in_worker else ""
    return int(text) if text.isdecimal() else 1


def has_several_ranks(
    variables: Mapping[str, str] = os.environ, modules: Mapping[str, Any] = sys.modules
) -> bool:
    """
    Return whether a launcher or torch says that this process has other ranks beside it.

    Args:
        variables: The environment.

        modules: The loaded modules by name.
    """
    if any(_rank_count(variables.get(name, "")) > 1 for name in _RANK_COUNTS):
        return True
    group = modules.get("torch.distributed")
    if group is None:
        return False
    try:
        return bool(group.is_initialized()) and group.get_world_size() > 1
    except (AttributeError, RuntimeError, ValueError):  # torch was built without it
        return False


@functools.cache  # libraries read them once, and each record has them
def thread_limits() -> dict[str, str]:
    """Return the variables that limit the threads of libraries, where they are set."""
    return {name: os.environ[name] for name in _THREAD_LIMITS if os.environ.get(name)}


def _rank_count(text: str) -> int:
    """Return a number of ranks; 0 where a variable holds none."""
    return int(text) if text.isdecimal() else 0


def soft_facts(
    machine: Environment, device: Device | None = None, *, workers_count: int = 1
) -> dict[str, str]:
    """
    Return the facts that are printed with a change when they differ.

    Args:
        machine: Machine and software.

        device: The GPU; None where none is used.

        workers_count: How many processes of the run measure side by side.
    """
    facts = {
        "platform": machine.platform,
        "python": sys.version.split()[0],
        "xdist_workers": str(workers_count),
    }
    facts |= {**thread_limits(), **machine.versions}
    if device is not None:
        facts["gpu_uuid"] = device.uuid
        if device.driver_version is not None:
            facts["driver"] = device.driver_version
    return facts


def _device_facts(device: Device) -> dict[str, object]:
    """Return the hard facts of a GPU; None where the driver does not report one."""
    capability = device.compute_capability
    driver = device.driver_version
    default, enforced = device.power_limit_watts, device.enforced_power_limit_watts
    return {
        "gpu_name": device.name,
        "gpu_memory_bytes": device.memory_bytes,
        "sm_count": device.sm_count,
        "compute_capability": capability and f"{capability[0]}.{capability[1]}",
        "mig": _on_or_off(device.mig),
        "ecc": _on_or_off(device.ecc),
        "max_sm_clock_hz": device.max_sm_clock_hz,
        "max_memory_clock_hz": device.max_memory_clock_hz,
        "power_limit_watts": None if default is None else f"{default:g}",
        # a limit that differs by less than a watt is a rounded one
        "enforced_power_limit_watts": None if enforced is None else f"{enforced:.0f}",
        "application_sm_clock_hz": device.application_sm_clock_hz,
        "application_memory_clock_hz": device.application_memory_clock_hz,
        "driver_branch": driver and driver.partition(".")[0],
    }


def _on_or_off(value: bool | None) -> str | None:  # noqa: FBT001 - a fact, not a switch
    """Return a flag as text."""
    return None if value is None else ("on" if value else "off")


@functools.cache  # constant, and read for every record
def cpu_model(cpuinfo: str = "/proc/cpuinfo") -> str | None:
    """Return the processor's name; on Arm, where it has none, its numbers."""
    fields: dict[str, str] = {}
    for line in read_head(cpuinfo).splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if fields.get("model name"):
        return fields["model name"]
    if fields.get("CPU part"):
        return f"arm {fields.get('CPU implementer', '')}/{fields['CPU part']}"
    # not platform.processor(): it starts a process
    return os.environ.get("PROCESSOR_IDENTIFIER") or platform.machine() or None


def python_minor() -> str:
    """Return the version without its last part; a free-threaded build is another one."""
    threads = "t" if "free-threading" in sys.version else ""
    return f"{sys.version_info.major}.{sys.version_info.minor}{threads}"


def core_count() -> int | None:
    """Return the number of logical cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux and the BSDs have it
    return os.cpu_count() if affinity is None else len(affinity(0))


@functools.cache
def versions_of(in_use: frozenset[str]) -> Mapping[str, str]:
    """Return the version of each package whose module is in use."""
    packages = {_PACKAGES[name][0]: _PACKAGES[name] for name in sorted(in_use)}
    if in_use.intersection(_CUDA_USERS):
        packages |= _CUDA_PACKAGES
    versions = {label: _version(names) for label, names in packages.items()}
    return {label: version for label, version in versions.items() if version}


def _version(distributions: tuple[str, ...]) -> str | None:
    """Return the version of the first distribution that is installed."""
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def read_head(path: str | os.PathLike[str]) -> str:
    """Return the beginning of a text file; "" where there is none."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_CPUINFO_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
