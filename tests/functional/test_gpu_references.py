"""Reference workloads on a scripted GPU: a slow board is told from slow code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes import fake_cuda
from fakes.project import Project

TESTS = """
    import os

    import gpu
    import pytest

    @pytest.mark.gpuperf(max_regression={"time": "5 %"}, iterations=20)
    @pytest.mark.parametrize("number", range(3))
    def test_call(gpuperf, number):
        gpuperf.measure(gpu.launch, int(2_000_000 * float(os.environ.get("SLOWER", 1))))
"""
WORKLOADS = ["gpu-compute", "gpu-copy", "gpu-latency"]
SLOWER = "1.1"


@pytest.fixture(autouse=True)
def tests(machine: Path, project: Project) -> None:
    """Give the project tests that use its GPU, timed by events."""
    project.write(TESTS)


def run(project: Project, *arguments: str) -> str:
    """Run pytest in a process of its own; return what it said."""
    ended = project.spawn(
        "--gpuperf-collectors=events,host", "--gpuperf-json=run.json", *arguments
    )
    return ended.stdout + ended.stderr


def of_gpu(project: Project) -> list[dict[str, Any]]:
    """Return the records of the GPU's workloads."""
    every = project.report("run.json")["references"]
    return [each for each in every if each["bound_class"] == "gpu"]


def test_each_process_times_the_gpu(project: Project) -> None:
    """By events, with the GPU's facts, as a record of each workload and process."""
    run(project, "--gpuperf-runs=2")
    found = of_gpu(project)

    assert sorted(each["key"]["name"] for each in found) == sorted(2 * WORKLOADS)
    assert {each["role"] for each in found} == {"main", "repeat"}
    for record in found:
        (estimate,) = record["estimates"]
        assert estimate["source"] == "events"
        assert estimate["value"] == pytest.approx(100e-6, rel=0.02)
        assert record["facts"]["device-time"]["gpu_name"] == "NVIDIA H200"


@pytest.mark.parametrize(
    "function", ["cuModuleLoadData", "cuLaunchKernel", "cuMemAlloc_v2"]
)
def test_a_gpu_that_refuses_has_none_and_the_reason(
    project: Project, function: str
) -> None:
    """No test fails for it."""
    project.environment.setenv("FAKE_CUDA_FAIL", f"{function}:2")
    said = run(project, "--gpuperf-json=run.json", "-k", "test_call and 0")

    for record in of_gpu(project):
        (gap,) = record["unmeasured"]
        assert f"{function} failed with CUDA_ERROR_SCRIPTED (2)" in gap["reason"], said


@pytest.mark.parametrize(
    ("board", "code", "outcome"),
    [
        (SLOWER, "1", "blind or unchanged or inconclusive"),
        ("1", SLOWER, "regressed"),
    ],
)
def test_a_slow_board_is_told_from_slow_code(
    project: Project, board: str, code: str, outcome: str
) -> None:
    """All tests take 10 % longer either way, and the plugin's kernels on a slow board alone."""
    for _ in range(4):
        run(project, "--gpuperf-update=all")
    project.environment.setenv("FAKE_CUDA_SLOWER", board)
    project.environment.setenv("SLOWER", code)
    said = run(project, "--gpuperf-baseline=.gpuperf")
    outcomes = set(dict(project.outcomes()).values())

    assert outcomes <= set(outcome.split(" or ")), said
    assert "another GPU" not in said  # It is the same one.


@pytest.mark.parametrize("slower", [SLOWER, "1.5"])
def test_a_slower_board_is_named_with_the_one_that_was_stored(
    machine: Path, project: Project, slower: str
) -> None:
    """
    Both GPUs and their machines are named, and by how much they differ, whether the
    change is undecided or taken out.
    """
    project.environment.setenv("GPUPERF_MACHINE", "h200-03")
    for _ in range(4):
        run(project, "--gpuperf-update=all")
    script = machine / "nvml.csv"
    script.write_text(
        script.read_text("utf-8").replace(fake_cuda.UUID, fake_cuda.OTHER), "utf-8"
    )
    fake_cuda.use(project, fake_cuda.OTHER)
    project.environment.setenv("FAKE_CUDA_SLOWER", slower)
    project.environment.setenv("GPUPERF_MACHINE", "h200-07")
    said = " ".join(run(project, "--gpuperf-baseline=.gpuperf").split())

    boards = "GPU-10111213 of h200-07, not GPU-00010203 of h200-03"
    named = f"another GPU than in the baseline ({boards}):"
    assert f"{named} other tests and reference workloads are slower on it" in said
    if "inconclusive" in said:
        assert f"cause: machine: {named}" in said
