"""A GPU that a test never used is not its roof, whoever else used it in its process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fakes import fake_cuda
from fakes.project import Project

TESTS = """
    import gpu
    import pytest
    from pytest_gpuperf import Work

    MANY = Work(bytes=1e9)  # no L2 holds them: the roof is that of DRAM

    def waited():
        gpu.launch(30_000)
        gpu._driver.cuCtxSynchronize()

    def test_host(gpuperf):
        gpuperf.measure(sum, range(1000), work=MANY)

    def test_launches(gpuperf):
        gpuperf.measure(gpu.launch, work=MANY)

    def test_waits(gpuperf):
        gpuperf.measure(waited, work=MANY)

    class Array:
        def __dlpack_device__(self):
            return 2, 0  # kDLCUDA

    def returned():
        waited()
        return Array()

    @pytest.mark.gpuperf(work=MANY)
    def test_sides(gpuperf):
        gpuperf.compare(returned, returned)

    @pytest.mark.gpuperf(requires="gpu")
    def test_says_so(gpuperf):
        gpuperf.measure(waited, work=MANY)

    @pytest.mark.gpuperf(counters=["launch__grid_size"])
    def test_counts(gpuperf):
        gpuperf.measure(waited, work=MANY)

    @pytest.mark.gpuperf(work=MANY)
    def test_block():
        gpu.launch()

    @pytest.mark.gpuperf(work=MANY)
    def test_block_of_the_host():
        sum(range(1000))
"""
# CUPTI records our own waits, of which its double hears nothing in other processes
WAITS = """
    from seen_by_cupti import double

    hand_over = double.activity_flush_all

    def flush_all(flag):
        double.wait(4)
        hand_over(flag)

    double.activity_flush_all = flush_all
"""
PEAKS = "[pytest]\ngpuperf_peaks = cpu: dram 20 GB/s\n"
GPU, CPU = "dram 4800 GB/s (datasheet)", "dram 20 GB/s (declared)"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the scripted driver is an ELF library"
)


@pytest.fixture(name="machine", autouse=True)
def machine_(project: Project, tmp_path: Path) -> None:
    """Give the project a GPU, and the CPU a roof."""
    fake_cuda.machine(project, tmp_path / "machine")
    project.write(TESTS)
    project.write(PEAKS, "pytest.ini")


def roofs(project: Project) -> dict[str, str]:
    """Return by test what it was held against, or why it was not."""
    ended = project.spawn("--gpuperf-json=run.json")
    assert ended.returncode == 0, ended.stdout
    found: dict[str, str] = {}
    for record in project.report()["records"]:
        name = record["key"]["test_id"].partition("::test_")[2]
        peaks = (facts.get("peak") for facts in record["facts"].values())
        why = (_reason(each) for each in record["unmeasured"])
        found[name] = next(filter(None, (*peaks, *why)), "")
    return found


def _reason(gap: dict[str, Any]) -> str:
    """Return why there is no share of a roof; "": it is about something else."""
    if gap["metric"] != "roofline.fraction":
        return ""
    assert "requires=" in gap["remedy"]
    assert "pytest-gpuperf[cupti]" in gap["remedy"]
    return str(gap["reason"])


def test_without_cupti_a_roof_needs_a_sign_of_use(project: Project) -> None:
    """A device that goes on after the call is one, and so is what a test asks for."""
    project.environment.setenv("NSYS_PROFILING_SESSION_ID", "1")
    found = roofs(project)
    if found["block_of_the_host"] == GPU:  # its one wait was interrupted: once more
        found = roofs(project)

    assert {name for name, roof in found.items() if roof == GPU} == {
        *("launches", "sides", "says_so", "counts", "block")
    }
    for name in ("host", "waits", "block_of_the_host"):
        assert found[name].startswith("whether it used the GPU is not known")


def test_cupti_sees_which_test_used_the_gpu(project: Project) -> None:
    """Then each has its roof, and none needs to say anything."""
    fake_cuda.with_cupti(project)
    project.write(WAITS, "conftest.py")
    found = roofs(project)

    assert {name for name, roof in found.items() if roof == CPU} == {
        *("host", "block_of_the_host")
    }
    assert {name for name, roof in found.items() if roof == GPU} == {
        *("launches", "waits", "sides", "says_so", "counts", "block")
    }
