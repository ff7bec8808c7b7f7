"""`gpuperf.capture` of reports that Nsight Compute made on an NVIDIA H200."""

from __future__ import annotations

import lzma
from importlib.util import find_spec
from pathlib import Path

import pytest

from fakes.project import Project, lines

GOLD = Path(__file__).parents[1] / "gold" / "gpu" / "reports"


@pytest.fixture
def captured(project: Project) -> Project:
    """A project with two of the reports."""
    if find_spec("ncu_report") is None:
        pytest.skip("needs the package ncu-report")
    conftest = project.write("", name="conftest.py")
    for name in ("every_launch", "failed_launch"):
        content = lzma.decompress((GOLD / f"{name}.ncu-rep.xz").read_bytes())
        conftest.with_name(f"{name}.ncu-rep").write_bytes(content)
    return project


def test_launches_of_a_range_are_judged(captured: Project) -> None:
    """Two kernels that read 4 MiB each, and may use no register more than they do."""
    captured.write("""
        import pytest

        @pytest.mark.gpuperf(limits=["registers <= 32", "dram.bytes <= 8.5 MB"])
        def test_good(gpuperf):
            perf = gpuperf.capture("every_launch.ncu-rep", nvtx="outer@step/")
            assert perf.launches.count == 2
            assert perf.dram.bytes == 8_398_848
            assert perf["gpu__time_duration.sum"] == 4032 + 3968

        @pytest.mark.gpuperf(limits=["registers <= 31", "dram.bytes <= 8.3 MB"])
        def test_bad(gpuperf):
            gpuperf.capture("every_launch.ncu-rep", nvtx="outer@step/")
    """)
    ended = captured.run()

    ended.assert_outcomes(passed=1, failed=1)
    assert lines(ended, "registers failed: 32", "limit registers <= 31")
    assert lines(ended, "dram.bytes failed: 8.40 MB", "limit dram.bytes <= 8.3 MB")


def test_a_launch_that_failed_leaves_the_test_unmeasured(captured: Project) -> None:
    """Its numbers are not there, and the launches beside it can be asked for alone."""
    captured.write("""
        import pytest

        @pytest.mark.gpuperf(limits=["registers <= 64"])
        @pytest.mark.parametrize("launches", [None, slice(2)])
        def test_it(gpuperf, launches):
            gpuperf.capture("failed_launch.ncu-rep", launches=launches)
    """)
    ended = captured.run("-rs")

    ended.assert_outcomes(passed=1, skipped=1)
    assert lines(ended, "profiling launch 2 failed", "launches=slice(2)")
