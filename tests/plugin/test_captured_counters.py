"""Metrics that are made of the counters of a captured report."""

from __future__ import annotations

import json
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


def rule(message: str, speedup_percent: float) -> dict[str, object]:
    """What one of ncu's rules found."""
    return {
        "rule_identifier": "Stall",
        "name": "Stall",
        "section_identifier": "WarpState",
        "rule_message": {"title": "Stalls", "message": message, "type": 2},
        "speedup_estimation": {"type": 2, "speedup": speedup_percent},
    }


@pytest.fixture
def captured(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project with a report of two launches, and a package that reads it."""
    fake_ncu_report.install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    launches: list[dict[str, object]] = [
        {
            "kernel": kernel,
            "demangled": f"{kernel}()",
            "rules": [rule(f"{kernel} waits for memory", gain) for gain in (5.0, 30.0)],
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


def test_what_limits_a_kernel_is_asserted(captured: Project) -> None:
    """As text, with the evidence in the failure; without counters it is unmeasured."""
    report = captured.write("", name="conftest.py").with_name("some.ncu-rep")
    found = json.loads(report.read_bytes()[4:])
    busy = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
    found["ranges"][0][0]["metrics"][busy] = (FLOAT, 91.0, "%")
    report.write_bytes(b"NVR\0" + json.dumps(found).encode())
    captured.write("""
        import pytest

        @pytest.mark.gpuperf
        def test_good(gpuperf):
            perf = gpuperf.capture("some.ncu-rep")
            assert perf.limiter == perf.limiter["gemm"] == "dram"
            assert perf.bound == "memory"

        @pytest.mark.gpuperf
        def test_bad(gpuperf):
            assert gpuperf.capture("some.ncu-rep").limiter == "latency"

        @pytest.mark.gpuperf
        def test_unmeasured(gpuperf):
            assert gpuperf.capture("some.ncu-rep").limiter["relu"] != "latency"
    """)
    ended = captured.run("-rs")

    ended.assert_outcomes(passed=1, failed=1, skipped=1)
    assert lines(ended, "dram 91.0 %, of gemm()")
    assert lines(ended, "limiter: no counter of its", "ncu --metrics")


@pytest.mark.parametrize("how", ["limit", "assert"])
def test_a_failure_says_what_ncu_found(captured: Project, how: str) -> None:
    """The advice with most to gain about the longest launch, after the numbers."""
    captured.write(f"""
        import pytest

        @pytest.mark.gpuperf(limits={["dram.bytes <= 1 GB"] if how == "limit" else []})
        def test_bad(gpuperf):
            perf = gpuperf.capture("some.ncu-rep")
            assert {how == "limit"} or perf.dram.bytes <= 1e9
    """)
    ended = captured.run()

    ended.assert_outcomes(failed=1)
    assert lines(ended, "dram.bytes", "1.4 GB", "1 GB")
    first, second, *_ = lines(ended, "gemm (launch 0): Stalls: gemm waits for memory")
    assert "(ncu estimates 30.0 % to gain)" in first
    assert "(ncu estimates 5.00 % to gain)" in second


def test_advice_that_cannot_be_read_hides_no_failure(captured: Project) -> None:
    """A report that is gone by then costs the advice alone."""
    captured.write("""
        import os
        import pytest

        @pytest.mark.gpuperf(limits=["dram.bytes <= 1 GB"])
        def test_bad(gpuperf):
            gpuperf.capture("some.ncu-rep")
            os.remove("some.ncu-rep")
    """)
    ended = captured.run()

    ended.assert_outcomes(failed=1)
    assert lines(ended, "dram.bytes failed: 1.4 GB")
    assert lines(ended, "advice of the report", "some.ncu-rep: it cannot be read")


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


def test_a_mistyped_counter_gets_the_names_that_the_report_has(
    captured: Project,
) -> None:
    """A report knows its names: asked for in the test or by a limit, both say which."""
    captured.write("""
        import pytest

        def test_asked(gpuperf):
            perf = gpuperf.capture("some.ncu-rep")
            assert perf["dram__bytes_raed.sum"] < 1

        @pytest.mark.gpuperf(limits=["dram__bytes_wirte.sum <= 1"])
        def test_limited(gpuperf):
            gpuperf.capture("some.ncu-rep")

        def test_other(gpuperf):
            perf = gpuperf.capture("some.ncu-rep")
            assert perf["sm__cycles_elapsed.max"] < 1
        """)
    ended = captured.run("-rs")

    assert lines(ended, "no launch", "did you mean dram__bytes_read.sum")
    assert lines(ended, "no launch", "did you mean dram__bytes_write.sum")
    assert lines(ended, "it; collect it: ncu --metrics sm__cycles_elapsed.max")
