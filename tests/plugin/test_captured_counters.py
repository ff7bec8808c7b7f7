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


def told(ended: pytest.RunResult) -> str:
    """Return all that was printed, whatever the lines."""
    return " ".join(ended.stdout.str().split())


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

        @pytest.mark.gpuperf(limits=["dram.bytes <= 1 GB", "time <= 1 ms"])
        def test_bad(gpuperf):
            gpuperf.capture("some.ncu-rep")
    """)
    ended = captured.run()

    ended.assert_outcomes(passed=1, failed=1)
    assert lines(ended, "dram.bytes failed: 1.4 GB", "limit dram.bytes <= 1 GB")
    # what could not be judged beside it is told as well
    assert lines(ended, "unmeasured: time: ")
    assert "by its own name, as gpu__time_duration.sum" in told(ended)


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


def reads_of(captured: Project, *tests: str) -> int:
    """Return how often the report was read by a run of some tests."""
    log = captured.path / "some.ncu-rep.reads"
    log.write_text("")
    captured.write("\n\n".join(["import pytest", *tests]))
    captured.run().assert_outcomes(passed=len(tests))
    return len(log.read_text())


def test_a_report_is_read_once_for_every_metric_of_the_catalogue(
    captured: Project,
) -> None:
    """Whatever the tests of a process ask, declared or not, and what limits its kernels."""
    asked = (
        "dram.bytes", "dram.fraction", "l2.hit_fraction", "registers", "waves",
        "shared_bytes", "tensor.fraction", "instructions.count", "occupancy.achieved",
    )  # fmt: skip
    tests = [
        f"""def test_{number}(gpuperf):
    perf = gpuperf.capture("some.ncu-rep")
    perf.has({metric!r}) or perf.has("limiter")"""
        for number, metric in enumerate(asked)
    ]

    assert reads_of(captured, *tests) == 1


def test_a_counter_by_its_own_name_costs_one_reading_more(captured: Project) -> None:
    """For all of them together; one that the report lacks costs none."""
    absent = """def test_absent(gpuperf):
    perf = gpuperf.capture("some.ncu-rep")
    assert not perf.has("dram__no_such.sum") and not perf.has("lts__neither.sum")"""
    several = """def test_several(gpuperf):
    perf = gpuperf.capture("some.ncu-rep")
    assert perf["sm__one.sum"] == 7 and perf["sm__two.sum"] == 14
    assert gpuperf.capture("some.ncu-rep", name="b")["sm__one.sum"] == 7"""
    report = captured.path / "some.ncu-rep"
    content = json.loads(report.read_bytes()[4:])
    for place, launch in enumerate(content["ranges"][0]):
        launch["metrics"]["sm__one.sum"] = (FLOAT, 3.0 + place, "")
        launch["metrics"]["sm__two.sum"] = (FLOAT, 6.0 + 2 * place, "")
    report.write_bytes(b"NVR\0" + json.dumps(content).encode())

    assert reads_of(captured, absent) == 1
    assert reads_of(captured, absent, several) == 2


def test_a_report_that_is_written_again_is_read_again(captured: Project) -> None:
    """A test may make the report that it reads."""
    captured.write("""
        from pathlib import Path

        def test_it(gpuperf):
            report = Path("some.ncu-rep")
            before = gpuperf.capture(report).dram.bytes
            report.write_bytes(report.read_bytes().replace(b"600.0", b"1600.0"))
            assert gpuperf.capture(report, name="after").dram.bytes == before + 2e9
    """)

    captured.run().assert_outcomes(passed=1)


@pytest.fixture
def ranged(captured: Project) -> Project:
    """The same, of launches in NVTX ranges: gemm in step/forward, relu in step."""
    report = captured.path / "some.ncu-rep"
    content = json.loads(report.read_bytes()[4:])
    for launch, stack in zip(
        content["ranges"][0], (["step", "forward"], ["step"]), strict=True
    ):
        launch["nvtx"] = [["<default domain>", stack, []]]
    report.write_bytes(b"NVR\0" + json.dumps(content).encode())
    return captured


@pytest.mark.parametrize(
    ("choice", "l2_hits"),
    [
        ('nvtx="forward/"', 0.4),
        ('nvtx=["step/"], exclude="step/forward"', 0.8),
        ('exclude=["forward/"]', 0.8),
        ("launches=1", 0.8),
        ("launches=[0]", 0.4),
        ("launches=slice(0, -1)", 0.4),
        ('kernel="*", launches=range(2), nvtx="forward/"', 0.4),
    ],
)
def test_launches_are_chosen_as_ncu_does(
    ranged: Project, choice: str, l2_hits: float
) -> None:
    """By their NVTX ranges and by their numbers in the report."""
    ranged.write(f"""
        import pytest

        def test_it(gpuperf):
            perf = gpuperf.capture("some.ncu-rep", {choice})
            assert perf.l2.hit_fraction == pytest.approx({l2_hits})
            assert perf.launches.count == 1
    """)

    ranged.run().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ('nvtx="backward/"', ["none of its 2 launches", "NVTX ranges forward, step"]),
        ('kernel="conv*"', ["none of its 2 launches", "choose from gemm, relu"]),
        ("launches=[7]", ["none of its 2 launches", "indices are from 0 to 1"]),
        ('nvtx="//"', ["'//'", "no name between its slashes"]),
        ("launches=[True]", ["launches: [True] are not indices"]),
        ("launches=-1", ["launches: -1 are not indices", "slice(3, 6)"]),
        ('launches="3"', ["launches: '3' are not indices"]),
        ("nvtx=5", ["nvtx: 5 is not a list of strings"]),
    ],
)
def test_a_choice_of_nothing_is_told(
    ranged: Project, choice: str, words: list[str]
) -> None:
    """With what there is to choose from; a mistake of an argument by its name."""
    ranged.write(f"""
        def test_it(gpuperf):
            gpuperf.capture("some.ncu-rep", {choice})
    """)
    text = "\n".join(ranged.run("-rA").outlines)

    for word in words:
        assert word in text


def test_a_launch_that_failed_can_be_left_out(captured: Project) -> None:
    """The message says how: ncu ends with it, so it is the last one."""
    report = captured.path / "some.ncu-rep"
    content = json.loads(report.read_bytes()[4:])
    for name in [n for n in content["ranges"][0][1]["metrics"] if "launch__" in n]:
        del content["ranges"][0][1]["metrics"][name]
    report.write_bytes(b"NVR\0" + json.dumps(content).encode())
    captured.write("""
        def test_all(gpuperf):
            gpuperf.capture("some.ncu-rep")

        def test_measured(gpuperf):
            perf = gpuperf.capture("some.ncu-rep", launches=slice(1))
            assert perf.launches.count == 1
    """)
    ended = captured.run("-rs")

    ended.assert_outcomes(passed=1, skipped=1)
    assert lines(ended, "profiling launch 1 failed", "launches=slice(1)")


def test_the_advice_is_about_the_kernel_that_failed(captured: Project) -> None:
    """Not about the longest; its value and what limits it come first."""
    report = captured.path / "some.ncu-rep"
    content = json.loads(report.read_bytes()[4:])
    busy = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
    for launch, registers, share in zip(
        content["ranges"][0], (16.0, 32.0), (12.0, 91.0), strict=True
    ):
        launch["metrics"]["launch__registers_per_thread"] = (FLOAT, registers, "")
        launch["metrics"][busy] = (FLOAT, share, "%")
        launch["rules"].append(
            rule("not impacted by any block limit", 0.0) | {"speedup_estimation": None}
        )
    report.write_bytes(b"NVR\0" + json.dumps(content).encode())
    captured.write("""
        import pytest

        @pytest.mark.gpuperf(limits=["registers <= 12"])
        def test_limit(gpuperf):
            gpuperf.capture("some.ncu-rep")

        def test_assert(gpuperf):
            assert 0.5 <= gpuperf.capture("some.ncu-rep").l2.hit_fraction["gemm"]
    """)
    text = captured.run().outlines
    advice = [line.strip(" E") for line in text if "(launch " in line]

    assert advice[0] == (
        "relu (launch 1): registers 32; closest roof 91.0 % DRAM (memory); "
        "limiter DRAM (DRAM 91.0 %)"
    )
    assert advice[1].startswith("relu (launch 1): Stalls: relu waits for memory")
    assert "gemm (launch 0): l2.hit_fraction 40.0 %" in "\n".join(text)
    assert "not impacted" not in "\n".join(text)


def test_a_total_over_other_launches_says_so(
    captured: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two launches move more bytes than one, whatever their kernels do."""
    pytest.importorskip("jinja2")
    monkeypatch.setenv("LAUNCHES", "1")
    captured.store(
        """
        import os
        import pytest

        BYTES = ("dram.bytes", "dram__bytes_read.sum")
        SHARE = "l2.hit_fraction"

        @pytest.mark.gpuperf(max_regression=dict.fromkeys((*BYTES, SHARE), "5 %"))
        def test_it(gpuperf):
            count = int(os.environ["LAUNCHES"])
            gpuperf.capture("some.ncu-rep", launches=slice(count))
    """,
        sessions=2,
    )
    monkeypatch.setenv("LAUNCHES", "2")
    ended = captured.run(STORE, "--gpuperf-json=run.json", "--gpuperf-html=run.html")

    more = "+100 %, launches 1 -> 2, limit 5 %"
    assert f"dram.bytes regressed: 1.4 GB, was 700 MB: {more}" in told(ended)
    assert f"dram__bytes_read.sum regressed: 1.2 GB, was 600 MB: {more}" in told(ended)
    page = (captured.path / "run.html").read_text("utf-8")
    assert ", launches 1 → 2, limit" in page
    evidence = {v["metric"]: v.get("evidence") for v in captured.report()["verdicts"]}
    assert evidence["dram.bytes"]["launches"] == [1.0, 2.0]
    # A share does not grow with the number of launches.
    assert "launches" not in (evidence["l2.hit_fraction"] or {})


def test_a_report_of_another_name_has_its_advice(captured: Project) -> None:
    """Nsight Compute of 2019 called its reports .nsight-cuprof-report."""
    report = captured.path / "some.ncu-rep"
    report.rename(report.with_suffix(".nsight-cuprof-report"))
    captured.write("""
        def test_it(gpuperf):
            perf = gpuperf.capture("some.nsight-cuprof-report")
            assert perf.l2.hit_fraction >= 0.6
    """)
    ended = captured.run()

    ended.assert_outcomes(failed=1)
    assert "gemm waits for memory" in told(ended)
    assert "cannot be read" not in told(ended)
