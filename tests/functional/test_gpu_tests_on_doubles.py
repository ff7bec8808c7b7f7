"""Tests meant for a GPU, on scripted ones: what needs no work to be counted or computed.

The driver, NVML and torch are doubles. Left out is what needs CUPTI, ncu, values in
arrays, caches or memory, and what a busy machine would fail.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakes import fake_cuda
from fakes.project import HUNG_S, Project

ROOT = Path(__file__).resolve().parents[2]
RUN = ("-q", "-rs", "-p", "no:cacheprovider", "-p", "no:randomly")
TESTS = {
    "test_two_devices.py": ("",),
    "test_events.py": (
        "test_it_agrees_with_torchs_events",
        "test_work_in_another_stream_gives_them_up",
    ),
    "test_nvml.py": (
        "test_what_counts_never_falls",
        "test_no_other_process_is_invented",
        "test_energy_of_a_call_is_power_times_time",
    ),
    "test_doctor.py": (
        "test_there_is_a_gpu",
        "test_each_finding_says_what_it_was_read_from",
        "test_the_command_ends_as_documented",
        "test_the_bandwidth_is_detected",
    ),
}
COUNTS = {
    "test_two_devices.py": 3,
    "test_events.py": 3,
    "test_nvml.py": 3,
    "test_doctor.py": 4,
}


@pytest.fixture(autouse=True)
def scripted(project: Project, tmp_path: Path) -> None:
    """Give processes two GPUs, and a torch that works with them."""
    if sys.platform != "linux":
        pytest.skip("the scripted driver is an ELF library")
    gpus = (fake_cuda.UUID, fake_cuda.OTHER)
    fake_cuda.machine(project, tmp_path / "machine", gpus=gpus)
    fake_cuda.use(project, *gpus)
    fake_cuda.with_torch(project)


def run(file: str, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests of a file in `tests/gpu`."""
    place = ROOT / "tests" / "gpu" / file
    chosen = [f"{place}::{test}".removesuffix("::") for test in tests]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *RUN, *chosen],
        capture_output=True,
        check=False,
        cwd=ROOT,
        encoding="utf-8",
        timeout=HUNG_S,
    )


@pytest.mark.parametrize("file", TESTS)
def test_what_is_meant_for_a_gpu_passes_on_scripted_ones(file: str) -> None:
    """None is skipped, and those for two GPUs are among them."""
    ended = run(file, *TESTS[file])

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{COUNTS[file]} of {COUNTS[file]} GPU tests ran" in ended.stdout


@pytest.mark.parametrize(
    ("file", "test"),
    [
        (
            "test_turns.py",
            "test_two_workers_measure_what_one_process_measures[cupti,events,host,nvml]",
        ),
        ("test_frameworks.py", "test_cupti_times_every_framework[torch]"),
    ],
)
def test_a_refusal_of_cupti_is_a_skip_by_its_reason(file: str, test: str) -> None:
    """The real libcupti refuses a scripted driver, as it does one that is too old."""
    ended = run(file, test)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 skipped" in ended.stdout
    assert "CUPTI: " in ended.stdout or "is not installed" in ended.stdout
