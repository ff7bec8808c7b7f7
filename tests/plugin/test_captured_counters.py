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


GATED = """
    import pytest

    @pytest.mark.gpuperf(max_regression={"dram.bytes": "5 %", "registers": "0 %"})
    def test_it(gpuperf):
        gpuperf.capture("some.ncu-rep")
"""
STORE = "--gpuperf-baseline=.gpuperf"


def test_a_gate_reads_its_metrics_from_the_report(captured: Project) -> None:
    """No limit needs to name them; what a report lacks leaves the others judged."""
    captured.store(GATED, sessions=1)
    captured.run(STORE, "--gpuperf-json=run.json")

    verdicts = {v["metric"]: v["outcome"] for v in captured.report()["verdicts"]}
    assert verdicts["dram.bytes"] == "unchanged"
    assert verdicts["registers"] == "unmeasured"


def test_a_report_that_got_worse_regresses_at_once(captured: Project) -> None:
    """A file says the same in every process: one stored session, no confirmation."""
    captured.store(GATED, sessions=1)
    report = captured.path / "some.ncu-rep"
    content = report.read_bytes()
    report.write_bytes(content.replace(b"600.0", b"900.0"))
    ended = captured.run(STORE)

    ended.assert_outcomes(failed=1)
    assert lines(ended, "FAILED", "dram.bytes regressed: 2 GB")
    assert not lines(ended, "confirmed in")


def test_the_second_of_two_reports_is_judged_alone(captured: Project) -> None:
    """A metric that one measurement has is not missing from the other."""
    captured.store(
        """
        import pytest

        @pytest.mark.gpuperf(max_regression={"dram.bytes": "5 %"})
        def test_it(gpuperf):
            gpuperf.measure(int)
            gpuperf.capture("some.ncu-rep", name="report")
    """,
        sessions=1,
    )
    captured.run(STORE, "--gpuperf-json=run.json")

    (verdict,) = captured.report()["verdicts"]
    assert (verdict["key"]["name"], verdict["outcome"]) == ("report", "unchanged")


def test_a_metric_that_is_new_hides_no_verdict(captured: Project) -> None:
    """What is stored is judged; what is not is counted beside it."""
    captured.store(GATED.replace('"registers": "0 %"', ""), sessions=1)
    captured.write(GATED.replace("registers", "l2.hit_fraction"))
    ended = captured.run(STORE)

    assert lines(ended, "test_it", "unchanged, 1 new")
    assert lines(ended, "judged 1 of 1: 1 unchanged")
