"""What machine, software and session a measurement belongs to."""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from blake3 import blake3

from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.environment import Device, Environment, Session

__all__ = [
    "HOST_METHOD",
    "environment",
    "known_facts",
    "new_session",
    "not_loaded",
    "read_git",
    "soft_facts",
]

# a number taken another way is another number: raised when host timing changes
HOST_METHOD = "host/1"

# The packages that change speed: the module that says it is in use, and its package.
# An allow-list: what else is installed is nobody's business.
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

_OWN = frozenset({"numpy"})  # of them, what comes with cupti-python

# the users of CUDA's own packages, which have no module to be seen by
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

_CPUINFO_BYTES = 4096  # the first core's entry; a file of 200 cores takes 10 ms
_GIT_TIMEOUT_S = 10.0
_HOST_HASH_LENGTH = 12


def not_loaded() -> frozenset[str]:
    """Return what this plugin may come to load, and nobody has loaded yet."""
    return _OWN - sys.modules.keys()


def environment(
    *, cpuinfo: str = "/proc/cpuinfo", without: frozenset[str] = frozenset()
) -> Environment:
    """
    Return machine and software of this process.

    Packages are those of an allow-list that have been imported by now: ask after the
    tests have run, or beside each record. Nothing is imported to find out.

    Args:
        cpuinfo: The file in which Linux describes the processor.

        without: Packages that are not looked for, for it was not the tests that loaded
            them.
    """
    in_use = frozenset(_PACKAGES.keys() & sys.modules.keys()) - without
    return _environment(in_use, cpuinfo, _core_count())


@functools.lru_cache(maxsize=8)  # asked for beside each record
def _environment(
    in_use: frozenset[str], cpuinfo: str, core_count: int | None
) -> Environment:
    """Return machine and software of this process, with some packages."""
    return Environment(
        cpu_model=_cpu_model(cpuinfo),
        core_count=core_count,
        python_minor=f"{sys.version_info.major}.{sys.version_info.minor}",
        platform=sys.platform,
        versions=_versions(in_use),
    )


def new_session(clock: Clock) -> Session:
    """Return a session that begins now; its commit is read when it is wanted."""
    started_unix_s = clock.unix_s()
    started = datetime.fromtimestamp(started_unix_s, tz=timezone.utc)
    return Session(
        id=f"{started:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}",
        started_unix_s=started_unix_s,
        host=_host_hash(),
    )


def read_git(
    runner: Runner, root: str | os.PathLike[str]
) -> tuple[str | None, bool | None]:
    """
    Return the commit of a folder and whether tracked files differ from it.

    Files that git does not track are not looked at: reports and caches are of that kind.

    Returns:
        (None, None) where there is no repository, no git, or no answer.
    """
    argv = (
        "git",
        "--no-optional-locks",  # a test run must not be in the way of an editor
        *("-c", "core.fsmonitor=false"),  # it may name a program of the repository
        *("status", "--porcelain=v2", "--branch", "--untracked-files=no"),
    )
    try:
        finished = runner.run(argv, timeout_s=_GIT_TIMEOUT_S, cwd=os.fspath(root))
    except CollectError:  # no git, or a repository that takes too long
        return None, None
    if finished.exit_code != 0:
        return None, None
    lines = finished.stdout.decode("utf-8", "replace").splitlines()
    oid = next((line[13:] for line in lines if line.startswith("# branch.oid ")), "")
    if not oid or oid == "(initial)":
        return None, None
    return oid, any(not line.startswith("#") for line in lines)


def known_facts(
    machine: Environment, device: Device | None = None, *, method: str = HOST_METHOD
) -> dict[str, str]:
    """
    Return the hard facts of a process, by the names of model.fingerprint.

    What belongs to one record (`parameters`, `work`, `cache_mode`) is the pipeline's to
    add. A fact that nobody said is left out.

    Args:
        machine: Machine and software.

        device: The GPU; None where none is used.

        method: How the numbers were taken.
    """
    facts: dict[str, object] = {
        "cpu_model": machine.cpu_model,
        "core_count": machine.core_count,
        "python_minor": machine.python_minor,
        "method": method,
    }
    if device is not None:
        facts |= _device_facts(device)
    return {name: str(value) for name, value in facts.items() if value is not None}


def soft_facts(machine: Environment, device: Device | None = None) -> dict[str, str]:
    """Return the facts that are printed beside a change when they moved."""
    facts = {"platform": machine.platform, "python": sys.version.split()[0]}
    facts |= machine.versions
    if device is not None:
        facts["gpu_uuid"] = device.uuid
        if device.driver_version is not None:
            facts["driver"] = device.driver_version
    return facts


def _device_facts(device: Device) -> dict[str, object]:
    """Return the hard facts of a GPU; None where the driver did not say."""
    capability = device.compute_capability
    driver = device.driver_version
    watts = device.power_limit_watts
    return {
        "gpu_name": device.name,
        "gpu_memory_bytes": device.memory_bytes,
        "sm_count": device.sm_count,
        "compute_capability": capability and f"{capability[0]}.{capability[1]}",
        "mig": _word(device.mig),
        "ecc": _word(device.ecc),
        "max_sm_clock_hz": device.max_sm_clock_hz,
        "max_memory_clock_hz": device.max_memory_clock_hz,
        "power_limit_watts": None if watts is None else f"{watts:g}",
        "driver_branch": driver and driver.partition(".")[0],
    }


def _word(value: bool | None) -> str | None:  # noqa: FBT001 - a fact, not a switch
    """Return a yes or no as text."""
    return None if value is None else ("on" if value else "off")


@functools.cache  # it stays what it is, and every record asks
def _cpu_model(cpuinfo: str) -> str | None:
    """Return the processor's name; on Arm, where it has none, its numbers."""
    found: dict[str, str] = {}
    for line in _head(cpuinfo).splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    if found.get("model name"):
        return found["model name"]
    if found.get("CPU part"):
        return f"arm {found.get('CPU implementer', '')}/{found['CPU part']}"
    import platform  # not platform.processor(): it starts a process

    return os.environ.get("PROCESSOR_IDENTIFIER") or platform.machine() or None


def _core_count() -> int | None:
    """Return how many logical cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux and the BSDs have it
    return os.cpu_count() if affinity is None else len(affinity(0))


@functools.cache
def _versions(in_use: frozenset[str]) -> Mapping[str, str]:
    """Return the version of each package whose module is in use."""
    wanted = {_PACKAGES[name][0]: _PACKAGES[name] for name in sorted(in_use)}
    if in_use.intersection(_CUDA_USERS):
        wanted |= _CUDA_PACKAGES
    versions = {label: _version(names) for label, names in wanted.items()}
    return {label: version for label, version in versions.items() if version}


def _version(distributions: tuple[str, ...]) -> str | None:
    """Return the version of the first of these that is installed."""
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _host_hash() -> str:
    """Return a short hash of machine, boot and host name; none of them can be read back."""
    parts = (
        _head("/etc/machine-id").strip(),
        _head("/proc/sys/kernel/random/boot_id").strip(),
        _node_name(),
    )
    return blake3("\0".join(parts).encode()).hexdigest()[:_HOST_HASH_LENGTH]


def _node_name() -> str:
    """Return the host's name."""
    return platform.node()


def _head(path: str) -> str:
    """Return the beginning of a text file; "" where there is none."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_CPUINFO_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
