"""Metrics that are made of the counters of a captured report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fakes import fake_ncu_report
from fakes.project import Project, lines

FLOAT = 4
HOPPER = {
    "device__attribute_compute_capability_major": (FLOAT, 9.0, ""),
    "device__attribute_compute_capability_minor": (FLOAT, 0.0, ""),
    "launch__grid_size": (FLOAT, 8.0, ""),
}


@pytest.fixture
def captured(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project with a report of two launches, and a package that reads it."""
    package = tmp_path / "site" / "ncu_report"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "libnvperf_host.so").touch()
    shutil.copy(fake_ncu_report.__file__, package / "_ncu_report.py")
    monkeypatch.syspath_prepend(package.parent)
    launches = [
        {
            "kernel": kernel,
            "demangled": f"{kernel}()",
            "metrics": {
                **HOPPER,
                "gpu__time_duration.sum": (FLOAT, time, "ns"),
                "dram__bytes_read.sum": (FLOAT, 600.0, "Mbyte"),
                "dram__bytes_write.sum": (FLOAT, 100.0, "Mbyte"),
                "lts__t_sector_hit_rate.pct": (FLOAT, hits, "%"),
            },
        }
        for kernel, time, hits in (("gemm", 3000.0, 40.0), ("relu", 1000.0, 80.0))
    ]
    content = b"NVR\0" + json.dumps({"ranges": [launches]}).encode()
    project.write("", name="conftest.py").with_name("some.ncu-rep").write_bytes(content)
    return project


def test_a_test_asserts_on_what_the_counters_mean(captured: Project) -> None:
    """In the catalogue's units, over all launches and of each kernel."""
    captured.write("""
        import pytest

        @pytest.mark.gpuperf
        def test_it(gpuperf):
            perf = gpuperf.capture("some.ncu-rep")
            assert perf["dram.bytes"] == perf.dram.bytes == 1.4e9
            assert perf.dram.bytes["relu"] == 7e8
            assert perf.l2.hit_fraction == pytest.approx(0.5)
            assert not perf.has("tensor.fraction")
    """)

    captured.run().assert_outcomes(passed=1)


def test_a_limit_is_decided_by_what_the_counters_mean(captured: Project) -> None:
    """`GB` and `%` are read as a person means them."""
    captured.write("""
        import pytest
        from pytest_gpuperf import Work

        @pytest.mark.gpuperf(
            limits=["dram.bytes <= 1.4 GB", "l2.hit_fraction >= 50 %",
                    "dram.excess_ratio <= 1.4"],
            work=Work(bytes=1e9),
        )
        def test_good(gpuperf):
            gpuperf.capture("some.ncu-rep")

        @pytest.mark.gpuperf(limits=["dram.bytes <= 1 GB"])
        def test_bad(gpuperf):
            gpuperf.capture("some.ncu-rep")
    """)
    ended = captured.run()

    ended.assert_outcomes(passed=1, failed=1)
    assert lines(ended, "dram.bytes failed: 1.4 GB", "limit dram.bytes <= 1 GB")


def test_a_counter_that_was_not_collected_is_named(captured: Project) -> None:
    """The test is unmeasured, and its reason is a command."""
    captured.write("""
        import pytest

        @pytest.mark.gpuperf(limits=["instructions.count <= 5"])
        def test_it(gpuperf):
            gpuperf.capture("some.ncu-rep")
    """)
    ended = captured.run("-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "ncu --metrics smsp__inst_executed.sum")
