"""Rules of collect.environment."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path

import pytest

from pytest_gpuperf.collect.environment import (
    environment,
    known_facts,
    not_loaded,
    soft_facts,
    thread_limits,
    versions_of,
    workers_count,
)
from pytest_gpuperf.model.environment import HARD_FACTS, Device, Environment

MACHINE = Environment(
    cpu_model="Fast 1",
    core_count=8,
    python_minor="3.12",
    platform="linux",
    versions={"torch": "2.11.0"},
)
DEVICE = Device(
    index=0,
    uuid="GPU-1",
    name="NVIDIA H200",
    memory_bytes=150_754_820_096,
    sm_count=132,
    compute_capability=(9, 0),
    mig=False,
    ecc=True,
    max_sm_clock_hz=1_980_000_000,
    max_memory_clock_hz=3_201_000_000,
    power_limit_watts=700.0,
    driver_version="580.95.05",
)


@pytest.fixture(autouse=True)
def _no_known_versions() -> None:
    """Let no test see what another has looked up."""
    versions_of.cache_clear()


def test_the_machine_is_described() -> None:
    """Cores, Python and platform are those of this process."""
    machine = environment()

    assert machine.core_count is not None
    assert machine.core_count >= 1
    assert machine.python_minor == "{}.{}".format(*sys.version_info[:2])
    assert machine.platform == sys.platform
    assert machine.cpu_model


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: Fast 1\n\nmodel name\t: Slow 2\n", "Fast 1"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "arm 0x41/0xd4f"),
    ],
)
def test_the_processor_has_a_name(tmp_path: Path, text: str, model: str) -> None:
    """The first core's name counts; Arm has numbers for names."""
    path = tmp_path / "cpuinfo"
    path.write_text(text)

    assert environment(cpuinfo=str(path)).cpu_model == model


def test_a_system_that_does_not_describe_its_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without such a file, the architecture stands for the name."""
    monkeypatch.delenv("PROCESSOR_IDENTIFIER", raising=False)
    machine = environment(cpuinfo=str(tmp_path / "none"))

    assert machine.cpu_model == platform.machine()


def test_only_packages_in_use_have_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed and was not imported did not change any speed."""
    import numpy as np

    assert environment().versions["numpy"] == np.__version__

    for module in ("numpy", "scipy", "torch", "cupy", "jax", "tensorflow"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    assert "numpy" not in environment().versions


def test_what_we_load_is_in_use_only_if_it_was_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fact that moved because we looked would be blamed for a change."""
    assert not_loaded() == frozenset()  # this module's tests have loaded numpy

    loaded = sys.modules.pop("numpy")
    try:
        own = not_loaded()
    finally:
        sys.modules["numpy"] = loaded

    assert own == {"numpy"}
    assert "numpy" in environment().versions
    assert "numpy" not in environment(without=own).versions


def test_what_is_in_use_and_not_installed_has_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module without a package, as a checkout on the path, is left out."""
    monkeypatch.setitem(sys.modules, "vllm", object())

    assert "vllm" not in environment().versions


def test_users_of_cuda_bring_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch in use, the CUDA libraries that are installed are named too."""
    installed = {"torch": "2.11.0", "nvidia-cublas-cu12": "12.9", "nvidia-cublas": ""}

    def version(distribution: str) -> str:
        if not installed.get(distribution):
            raise metadata.PackageNotFoundError(distribution)
        return installed[distribution]

    for module in ("numpy", "scipy"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "torch", object())
    monkeypatch.setattr(metadata, "version", version)

    assert environment().versions == {"torch": "2.11.0", "cublas": "12.9"}


def test_facts_have_the_names_of_the_fingerprint() -> None:
    """Every fact is one of a family; those of a record are the pipeline's to add."""
    every = {name for names in HARD_FACTS.values() for name in names}
    facts = known_facts(MACHINE, DEVICE)

    assert facts.keys() <= every
    assert facts["gpu_name"] == "NVIDIA H200"
    assert facts["compute_capability"] == "9.0"
    assert facts["driver_branch"] == "580"
    assert facts["mig"] == "off"
    assert facts["ecc"] == "on"
    assert facts["power_limit_watts"] == "700"


def test_facts_of_a_machine_without_a_gpu() -> None:
    """Without a device, the facts are the host's alone."""
    assert known_facts(MACHINE) == {
        "cpu_model": "Fast 1",
        "core_count": "8",
        "python_minor": "3.12",
        "method": "host/2",
    }


def test_what_nobody_said_is_no_fact() -> None:
    """A fact that is not known is left out, never "None"."""
    machine = Environment(
        cpu_model=None, core_count=None, python_minor="3.12", platform="linux"
    )
    device = Device(index=0, uuid="GPU-1", name="NVIDIA H200")

    assert known_facts(machine, device) == {
        "python_minor": "3.12",
        "method": "host/2",
        "gpu_name": "NVIDIA H200",
        "device_method": "device/1",
    }


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 1),
        ({"PYTEST_XDIST_WORKER": "gw0", "PYTEST_XDIST_WORKER_COUNT": "3"}, 3),
        ({"PYTEST_XDIST_WORKER": "gw0", "PYTEST_XDIST_WORKER_COUNT": "x"}, 1),
        ({"PYTEST_XDIST_WORKER_COUNT": "3"}, 1),  # of a run that started this one
    ],
)
def test_workers_are_counted_as_xdist_says(
    variables: dict[str, str], count: int
) -> None:
    """Its own variable of a worker; whoever measures alone is one."""
    assert workers_count(variables) == count


def test_soft_facts_are_what_an_upgrade_moves() -> None:
    """Versions, driver and the board itself are printed beside a change."""
    facts = soft_facts(MACHINE, DEVICE, workers_count=4)

    assert facts["torch"] == "2.11.0"
    assert facts["gpu_uuid"] == "GPU-1"
    assert facts["driver"] == "580.95.05"
    assert facts["xdist_workers"] == "4"
    assert soft_facts(MACHINE)["xdist_workers"] == "1"
    assert "gpu_uuid" not in soft_facts(MACHINE)
    assert "driver" not in soft_facts(
        MACHINE, Device(index=0, uuid="GPU-1", name="NVIDIA H200")
    )


def test_tracer_is_a_hard_fact_where_there_is_one() -> None:
    """Its work is part of the time; nothing is said of a process without."""
    assert (
        known_facts(MACHINE, conditions={"tracer": "coverage"})["tracer"] == "coverage"
    )
    assert "tracer" not in known_facts(MACHINE)


@pytest.mark.parametrize(
    ("build", "threads"),
    [
        ("3.13.1 (main, Dec  3 2024) [GCC 13.2.0]", ""),
        ("3.13.1 experimental free-threading build (main) [GCC 13.2.0]", "t"),
        ("3.14.0 free-threading build (main) [Clang 20]", "t"),
    ],
)
def test_free_threaded_python_is_another_python(
    monkeypatch: pytest.MonkeyPatch, build: str, threads: str
) -> None:
    """Its times are not those of the build with the lock, whose number it has."""
    monkeypatch.setattr(sys, "version", build)
    surroundings = environment(cpuinfo=f"/nowhere{threads}{len(build)}")

    number = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert surroundings.python_minor == number + threads


def test_limits_of_threads_are_soft_facts_where_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They change how long a call in several threads takes, and nothing else shows it."""
    for name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("MKL_NUM_THREADS", "")
    thread_limits.cache_clear()
    facts = soft_facts(MACHINE)
    thread_limits.cache_clear()

    assert facts["OMP_NUM_THREADS"] == "4"
    assert "MKL_NUM_THREADS" not in facts
