"""The machine and the software of a measurement."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_gpuperf.model.environment import (
    DEVICE_METHOD,
    Device,
    Environment,
)

# Raise the number when host timing changes, because values are then not comparable any
# more. Version 2 leaves out interrupted samples.
_HOST_METHOD = "host/2"

# Packages that affect speed: the module that shows the use, and its distributions. This
# is an allow-list, for privacy: no other package is recorded.
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

# Packages that cupti-python imports.
_CUPTI_DEPENDENCIES = frozenset({"numpy"})

# The users of CUDA's packages, which have no module of their own.
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

# Variables in which launchers publish the number of ranks, according to their
# documentation: torchrun, Open MPI, MPICH and Intel MPI, MVAPICH, srun.
_RANK_COUNTS = (
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
)

# Variables in which users limit the threads of libraries. numpy reads the first three.
_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
# The first core's entry. Reading the file of 200 cores takes 10 ms.
_CPUINFO_BYTES = 4096


def installed(module: str) -> ModuleSpec | None:
    """
    Return where a module would be imported from, without importing it, or None if nowhere.

    Finders and stand-ins of the tests are asked, too. One that raises an error refuses the
    import.
    """
    try:
        return find_spec(module)
    except Exception:  # noqa: BLE001 - a finder of the tests may raise anything
        return None


def not_loaded() -> frozenset[str]:
    """Return the packages that the plugin may import and that are not imported yet."""
    return _CUPTI_DEPENDENCIES - sys.modules.keys()


def environment(
    *, cpuinfo: str = "/proc/cpuinfo", without: frozenset[str] = frozenset()
) -> Environment:
    """
    Return machine and software of the process.

    Only packages of an allow-list that have already been imported are listed. Call this
    after the tests have run, or with each record. Nothing is imported.

    Args:
        cpuinfo: The file in which Linux describes the processor.

        without: Packages to leave out, because the tests did not import them.
    """
    in_use = frozenset(_PACKAGES.keys() & sys.modules.keys()) - without
    return _environment(in_use, cpuinfo, core_count())


# Called for each record.
@functools.lru_cache(maxsize=8)
def _environment(
    in_use: frozenset[str], cpuinfo: str, cores: int | None
) -> Environment:
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

        device: The GPU, or None if none is used.

        method: The method and version of the timing by the host's clock.

        conditions: Conditions that change the speed of all code, as
            `instrumentation.conditions` returns them.
    """
    facts: dict[str, object] = {
        "cpu_model": machine.cpu_model,
        "core_count": machine.core_count,
        "python_minor": machine.python_minor,
        "method": method,
        **conditions,
    }
    if device is not None:
        capability = device.compute_capability
        driver, runtime = device.driver_version, device.runtime_version
        default, enforced = device.power_limit_watts, device.enforced_power_limit_watts
        facts |= {
            "gpu_name": device.name,
            "gpu_memory_bytes": device.memory_bytes,
            "sm_count": device.sm_count,
            "compute_capability": capability and f"{capability[0]}.{capability[1]}",
            "mig": _on_or_off(device.mig),
            "ecc": _on_or_off(device.ecc),
            "max_sm_clock_hz": device.max_sm_clock_hz,
            "max_memory_clock_hz": device.max_memory_clock_hz,
            "power_limit_watts": None if default is None else f"{default:g}",
            # Limits that differ by less than a watt differ by rounding.
            "enforced_power_limit_watts": (
                None if enforced is None else f"{enforced:.0f}"
            ),
            "application_sm_clock_hz": device.application_sm_clock_hz,
            "application_memory_clock_hz": device.application_memory_clock_hz,
            "driver_branch": driver and driver.partition(".")[0],
            "gpu_architecture": device.architecture,
            "gpu_runtime": runtime and ".".join(runtime.split(".")[:2]),
            "device_method": DEVICE_METHOD,
        }
    return {name: str(value) for name, value in facts.items() if value is not None}


def workers_count(variables: Mapping[str, str] = os.environ) -> int:
    """Return the number of xdist workers that share the run's tests, or 1 without xdist."""
    in_worker = "PYTEST_XDIST_WORKER" in variables
    text = variables.get("PYTEST_XDIST_WORKER_COUNT", "") if in_worker else ""
    return int(text) if text.isdecimal() else 1


def has_several_ranks(
    variables: Mapping[str, str] = os.environ, modules: Mapping[str, Any] = sys.modules
) -> bool:
    """
    Return True if a launcher or torch reports other ranks.

    Args:
        variables: The environment.

        modules: The loaded modules by name.
    """
    counts = [variables.get(name, "") for name in _RANK_COUNTS]
    if any(text.isdecimal() and int(text) > 1 for text in counts):
        return True
    group = modules.get("torch.distributed")
    if group is None:
        return False
    try:
        return bool(group.is_initialized()) and group.get_world_size() > 1
    except (AttributeError, RuntimeError, ValueError):
        # torch was built without torch.distributed.
        return False


# Libraries read the variables only once, and each record has them.
@functools.cache
def thread_limits() -> dict[str, str]:
    """Return the variables that limit the threads of libraries, if set."""
    return {name: os.environ[name] for name in _THREAD_LIMITS if os.environ.get(name)}


def soft_facts(
    machine: Environment, device: Device | None = None, *, workers_count: int = 1
) -> dict[str, str]:
    """
    Return the facts that are printed with a change if they differ.

    Args:
        machine: Machine and software.

        device: The GPU, or None if none is used.

        workers_count: The number of processes of the run that measure at the same time.
    """
    facts = {
        "platform": machine.platform,
        "python": sys.version.split()[0],
        "xdist_workers": str(workers_count),
    }
    facts |= {**thread_limits(), **machine.versions}
    if device is not None:
        if device.uuid:
            facts["gpu_uuid"] = device.uuid
        if device.runtime_version is not None:
            facts["runtime"] = device.runtime_version
        if device.driver_version is not None:
            facts["driver"] = device.driver_version
    return facts


def _on_or_off(value: bool | None) -> str | None:  # noqa: FBT001 - a fact, not a switch
    return None if value is None else ("on" if value else "off")


# Constant, and read for every record.
@functools.cache
def cpu_model(cpuinfo: str = "/proc/cpuinfo") -> str | None:
    """Return the processor's name, or vendor and part number on Arm, or None."""
    fields: dict[str, str] = {}
    for line in read_head(cpuinfo).splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if fields.get("model name"):
        return fields["model name"]
    if fields.get("CPU part"):
        return f"arm {fields.get('CPU implementer', '')}/{fields['CPU part']}"
    # Not platform.processor(), which starts a process.
    return os.environ.get("PROCESSOR_IDENTIFIER") or platform.machine() or None


def python_minor() -> str:
    """Return major and minor version, with a "t" for a free-threaded build."""
    threads = "t" if "free-threading" in sys.version else ""
    return f"{sys.version_info.major}.{sys.version_info.minor}{threads}"


def core_count() -> int | None:
    """Return the number of logical cores that the process may use."""
    # Only Linux and the BSDs have this function.
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() if affinity is None else len(affinity(0))


@functools.cache
def versions_of(in_use: frozenset[str]) -> Mapping[str, str]:
    """Return the versions of the packages in use."""
    packages = {_PACKAGES[name][0]: _PACKAGES[name] for name in sorted(in_use)}
    if in_use.intersection(_CUDA_USERS):
        packages |= _CUDA_PACKAGES
    versions = {}
    for label, distributions in packages.items():
        for distribution in distributions:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[label] = metadata.version(distribution)
                break
    return {label: version for label, version in versions.items() if version}


def read_head(path: str | os.PathLike[str]) -> str:
    """Return the beginning of a text file, or "" if the file cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_CPUINFO_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
