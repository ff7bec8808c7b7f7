"""Counters of a scripted GPU, counted in the process of the tests: no ncu is there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes import cupti_counting, fake_cuda, fake_ncu_report, fake_nvtx
from fakes.cupti_counting import BYTES
from fakes.project import XDIST, Project

JSON = "--gpuperf-json=run.json"
ALONE = "--gpuperf-confirm=0"  # in fresh processes, which are a matter of one test here
NO_NCU = "there is no ncu on PATH"
TESTS = """
    import counted_gpu
    import pytest

    @pytest.mark.gpuperf(counters=["dram__bytes.sum"], iterations=10)
    def test_read(gpuperf):
        perf = gpuperf.measure(counted_gpu.launch)
        assert perf["dram__bytes.sum"] == 64
        assert perf.time > 0

    @pytest.mark.gpuperf(limits=["dram__bytes.sum <= 70 B"], iterations=10)
    def test_within(gpuperf):
        gpuperf(counted_gpu.launch)

    @pytest.mark.gpuperf(limits=["dram__bytes.sum <= 70 B"], iterations=10)
    def test_beyond(gpuperf):
        gpuperf(counted_gpu.launch, 96.0)
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the scripted driver is an ELF library"
)


@pytest.fixture(autouse=True)
def machine(project: Project, tmp_path: Path) -> None:
    """Give the project a GPU, and a libcupti that its tests load."""
    fake_cuda.machine(project, tmp_path / "machine")
    cupti_counting.install(project, tmp_path / "cupti")
    project.environment.setenv("GPUPERF_CACHE_DIR", str(tmp_path / "cache"))
    project.write(TESTS)


def run(project: Project, *arguments: str) -> str:
    """Run pytest in a process of its own; return what it said, in one line."""
    ended = project.spawn(*arguments, JSON, "-rs", "-o", "gpuperf_chip=off")
    return " ".join((ended.stdout + ended.stderr).split())


def records(project: Project) -> dict[str, dict[str, Any]]:
    """Return the records of a run, by the name of their test and of the measurement."""
    return {
        f"{each['key']['test_id'].partition('::')[2]} {each['key']['name']}".strip(): each
        for each in project.report()["records"]
    }


def counters(record: dict[str, Any], metric: str = BYTES) -> dict[Any, Any]:
    """Return the values of a counter by kernel; None: of the whole call."""
    found = [each for each in record["estimates"] if each["metric"] == metric]
    assert {each["source"] for each in found} <= {"cupti"}
    return {each["kernel"]: each["value"] for each in found}


def gap(record: dict[str, Any], metric: str = BYTES) -> str:
    """Return why a measurement has no value of a metric, and what to do about it."""
    assert not counters(record, metric)
    found = [u for u in record["unmeasured"] if u["metric"] == metric]
    return f"{found[0]['reason']}; {found[0]['remedy']}"


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_declared_counters_are_counted_here(
    project: Project, workers: tuple[str, ...]
) -> None:
    """They are read, limited and reported like those of ncu; who counted is said."""
    said = run(project, ALONE, *workers)

    assert "1 failed, 2 passed" in said
    assert "dram__bytes.sum <= 70 B" in said
    sentence = f"cupti: counters come from cupti 13.5 in this process: {NO_NCU}"
    assert sentence in said
    assert project.report()["header"]["sentences"].count(sentence) == 1
    assert project.outcomes() >= {("test_within", "passed"), ("test_beyond", "failed")}
    record = records(project)["test_read"]
    assert counters(record) == {None: 64.0}
    assert record["facts"]["counter"]["tool_version"] == "cupti 13.5"
    assert record["facts"]["counter"]["replay_mode"] == "kernel"
    assert record["facts"]["counter"]["cache_control"] == "all"
    assert "counted-in-process" in {note["code"] for note in record["notes"]}


def test_a_doubtful_limit_is_counted_again_in_fresh_processes(
    project: Project,
) -> None:
    """They count by themselves: nothing of this process is taken for known."""
    project.write(TESTS.replace("96.0", "71.0"))
    run(project, "-k", "beyond", "--gpuperf-confirm=2")
    repeated = [r for r in project.report()["records"] if r["process_index"]]

    assert project.outcomes() == {("test_beyond", "inconclusive")}
    assert [counters(each) for each in repeated] == [{None: 71.0}] * 2
    facts = [each["facts"]["counter"]["tool_version"] for each in repeated]
    assert facts == ["cupti 13.5"] * 2


def test_kernels_are_known_by_name_where_launches_are_seen(project: Project) -> None:
    """CUPTI's records of a like call say which kernel was launched when."""
    fake_cuda.with_cupti(project)
    project.write("""
        import counted_gpu
        import pytest

        def two():
            counted_gpu.launch(64.0, "_Z4gemmPf")
            counted_gpu.launch(8.0, "_Z4axpyPf")

        @pytest.mark.gpuperf(
            counters=["lts__t_sector_hit_rate.pct"],
            limits=[
                'dram__bytes.sum["gemm*"] <= 70 B',
                'dram__bytes.sum["axpy*"] >= 70 B',
                "launches.count == 2",
                "dram.bytes <= 80 B",
            ],
        )
        def test_two(gpuperf):
            perf = gpuperf.measure(two)
            assert perf.time > 0

        def test_after(gpuperf):
            assert gpuperf.measure(two).launches.count == 2
    """)
    said = run(project, ALONE)
    record = records(project)["test_two"]

    assert "1 failed, 1 passed" in said
    assert "cupti, events, host, nvml" in said  # which still times
    assert counters(record) == {None: 72.0, "gemm": 64.0, "axpy": 8.0}
    assert counters(record, "lts__t_sector_hit_rate.pct")[None] == 50.0
    assert counters(record, "dram.bytes")[None] == 72.0
    verdicts = {v["limit"]["text"]: v["outcome"] for v in project.report()["verdicts"]}
    assert verdicts == {
        'dram__bytes.sum["gemm*"] <= 70 B': "passed",
        'dram__bytes.sum["axpy*"] >= 70 B': "failed",
        "launches.count == 2": "passed",
        "dram.bytes <= 80 B": "passed",
    }
    assert [each["kernel"] for each in record["analyses"]] == ["gemm", "axpy"]


def test_a_graph_is_counted_as_a_whole(project: Project) -> None:
    """Its kernels cannot be told apart, so the call is made once a pass."""
    fake_cuda.with_cupti(project)
    cupti_counting.told(project, passes=3)
    project.write("""
        import counted_gpu
        import pytest

        def fresh():
            counted_gpu.launch(1000.0)  # is not counted
            return 32.0

        def graph(size):
            counted_gpu.launch(size, nodes=2)
            counted_gpu.launch(size)

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
        def test_graph(gpuperf):
            gpuperf.measure(graph, setup=fresh)

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"], iterations=10)
        def test_fixed(gpuperf):
            gpuperf.measure(graph, 32.0)
    """)
    said = run(project)
    found = records(project)

    assert "1 passed, 1 skipped" in said
    assert counters(found["test_graph"]) == {None: 64.0}
    assert found["test_graph"]["facts"]["counter"]["replay_mode"] == "user"
    assert found["test_graph"]["analyses"] == []
    assert "leave iterations out, or install Nsight Compute" in gap(found["test_fixed"])


REFUSED = """
    import os

    import counted_gpu
    import pytest

    pytestmark = pytest.mark.gpuperf(counters=["dram__bytes.sum"], iterations=10)
    double = counted_gpu.double

    @pytest.fixture(autouse=True)
    def well(monkeypatch):
        yield
        double.status_of.clear()
        double.passes = 1
        double.clock = [1]

    @pytest.mark.parametrize("status", [3, 8, 26, 35, 39, 999])
    def test_status(gpuperf, status):
        double.status_of["cuptiRangeProfilerEnable"] = status
        gpuperf(counted_gpu.launch)

    def test_begun(gpuperf):
        double.status_of["cuptiRangeProfilerStart"] = 9
        gpuperf(counted_gpu.launch)

    def test_passes(gpuperf):
        double.passes = 10**9
        gpuperf(counted_gpu.launch)

    def test_block(gpuperf):
        with gpuperf.range("block"):
            counted_gpu.launch()

    def test_inside(gpuperf):
        with gpuperf.range("outer"):
            gpuperf.measure(counted_gpu.launch)

    def test_loop(gpuperf):
        with gpuperf.steps() as steps:
            for _ in range(3):
                with steps.step():
                    counted_gpu.launch()

    def test_in_loop(gpuperf):
        with gpuperf.steps() as steps:
            for _ in range(3):
                with steps.step():
                    counted_gpu.launch()
            gpuperf.measure(counted_gpu.launch, name="inner")

    def test_nothing(gpuperf):
        gpuperf(lambda: None)

    @pytest.mark.gpuperf(counters=["launch__grid_size", "smsp__pcsamp_sample_count"])
    def test_ncus_own(gpuperf):
        gpuperf(counted_gpu.launch)

    @pytest.mark.gpuperf(counters=["dram__bites.sum", "lts__t_bites.sum"])
    def test_unknown(gpuperf):
        gpuperf(counted_gpu.launch)

    def test_attached(gpuperf, monkeypatch):
        monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
        gpuperf(counted_gpu.launch)

    def test_rank(gpuperf, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "8")
        gpuperf(counted_gpu.launch)

    def test_raises(gpuperf):
        def raising():
            if double.configured and double._counting:
                raise ZeroDivisionError("in the pass")
            counted_gpu.launch()

        gpuperf(raising)

    def test_no_room(gpuperf):
        class OutOfMemoryError(RuntimeError):
            pass

        def raising():
            if double.configured and double._counting:
                raise OutOfMemoryError("in the pass")
            counted_gpu.launch()

        gpuperf(raising)

    def test_good(gpuperf):
        gpuperf(counted_gpu.launch)
        assert double.open_count == 0
"""
WHY = {
    "test_status[3]": "the CUDA context was destroyed, or belongs to another process",
    "test_status[8]": "CUPTI is out of memory",
    "test_status[26]": "another program holds the GPU's counters",
    "test_status[35]": "the driver lets only administrators profile the GPU",
    "test_status[39]": "another tool uses CUPTI in this process",
    "test_status[999]": "CUPTI gives no reason",
    "test_begun": "the GPU's profiling hardware reports an error",
    "test_passes": "its 1000000000 passes take",
    "test_block block": "counting in this process needs another call",
    "test_inside": "it is inside of what is being timed",
    "test_in_loop inner": "it is inside of what is being timed",
    "test_loop": "counting in this process needs another call",
    "test_nothing": "nothing was counted: the body launched no kernel",
    "test_unknown": "unknown metrics 'dram__bites.sum', 'lts__t_bites.sum' of GH100",
    "test_attached": "Nsight Systems is attached",
    "test_rank": "kernel replay would hang in kernels that wait for other ranks",
    "test_no_room": "the GPU has too little memory for the call",
}


def test_what_cannot_be_counted_is_unmeasured_with_its_reason(project: Project) -> None:
    """Times stand, both ways to count say why not; what a body raises is its own."""
    project.write(REFUSED)
    said = run(project)
    found = records(project)

    assert "1 failed, 1 passed, 18 skipped" in said
    assert "ZeroDivisionError: in the pass" in said
    for name, why in WHY.items():
        told = gap(found[name])
        assert told.startswith(why), name
        assert f", and ncu does not count it: {NO_NCU}; " in told, name
        assert "or install Nsight Compute and put the folder of ncu on PATH" in told
    assert counters(found["test_good"]) == {None: 64.0}
    own = found["test_ncus_own"]
    assert counters(own) == {None: 64.0}
    for name in ("launch__grid_size", "smsp__pcsamp_sample_count"):
        assert gap(own, name).startswith(f"it needs ncu, which alone makes {name}: ")


def test_who_takes_cupti_meanwhile_keeps_it(project: Project) -> None:
    """It is given back while this process counts; what records next is the next best."""
    fake_cuda.with_cupti(project)
    project.write("""
        import counted_gpu
        import pytest
        import seen_by_cupti

        def call():
            if counted_gpu.double._counting:
                assert seen_by_cupti.double.holder is None
                seen_by_cupti.double.holder = "Proton"
            counted_gpu.launch()

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
        def test_counted(gpuperf):
            gpuperf(call)

        def test_after(gpuperf):
            gpuperf(counted_gpu.launch)
    """)
    said = run(project, ALONE)
    found = records(project)
    sources = [e["source"] for e in found["test_after"]["estimates"]]

    assert "2 passed" in said
    assert counters(found["test_counted"])[None] == 64.0
    assert "cupti: Proton is another user of CUPTI in this process (CUPTI 39)" in said
    assert "cupti" not in sources


def ncu_too(project: Project, folder: Path) -> Path:
    """Give the machine an ncu; return the file that tells of its starts."""
    fakes = Path(fake_nvtx.__file__).parent
    site = fake_nvtx.install(folder / "site")
    fake_ncu_report.install(site)
    starts = folder / "starts"
    environment = project.environment
    environment.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    environment.setenv("PATH", str(fakes), prepend=os.pathsep)
    environment.setenv("FAKE_NCU_STARTS", str(starts))
    environment.setenv("FAKE_NCU_VALUES", json.dumps({BYTES: [64.0, "byte"]}))
    return starts


@pytest.mark.parametrize(
    ("asked", "by_ncu", "here", "told"),
    [
        ("auto", True, False, ""),
        ("host,events,ncu", True, False, ""),
        ("host,cupti,ncu", True, False, ""),
        ("host,cupti", False, True, "--gpuperf-collectors leaves ncu out"),
        ("host,events", False, False, "--gpuperf-collectors leaves ncu out"),
    ],
)
def test_what_counts_is_chosen_by_name(
    project: Project,
    tmp_path: Path,
    asked: str,
    by_ncu: bool,
    here: bool,
    told: str,
) -> None:
    """Ncu where it is there and not left out; else this process, where CUPTI is not."""
    fake_cuda.with_cupti(project)
    starts = ncu_too(project, tmp_path / "ncu")
    said = run(project, "-k", "read", ALONE, f"--gpuperf-collectors={asked}")
    record = records(project)["test_read"]

    assert starts.exists() == by_ncu
    assert bool(counters(record)) == here
    assert told in said
    assert ("1 passed" in said) == here


def test_a_replayed_run_is_judged_identically(project: Project) -> None:
    """Counters are the recorded ones: nothing is counted, with no GPU and no libcupti."""
    run(project, ALONE, "--gpuperf-record=kept")
    first = project.report()
    project.write("def launch(size=64.0): pass\n", "counted_gpu.py")
    for name in ("LD_LIBRARY_PATH", "FAKE_CUDA", "FAKE_NVML_SCRIPT", "FAKE_LIBCUPTI"):
        project.environment.delenv(name)
    run(project, ALONE, "--gpuperf-replay=kept")
    second = project.report()

    assert counters(records(project)["test_read"]) == {None: 64.0}
    for part in ("verdicts", "records"):
        one, other = (
            # the commands to reproduce a replayed run replay it
            sorted(json.dumps({**item, "commands": None}) for item in report[part])
            for report in (first, second)
        )
        assert one == other


def test_counters_of_ncu_are_no_baseline_of_these(project: Project) -> None:
    """Another tool is another experiment: nothing is compared, and it is said."""
    text = TESTS.replace(
        'limits=["dram__bytes.sum <= 70 B"]',
        'counters=["dram__bytes.sum"], max_regression={"dram__bytes.sum": "1 %"}',
    )
    project.write(text)
    for _ in range(3):
        run(project, "-k", "within", "--gpuperf-update=all")
    project.write(text.replace("counted_gpu.launch)", "counted_gpu.launch, 96.0)"))
    judging = ("-k", "within", ALONE, "--gpuperf-baseline=.gpuperf")
    alike = run(project, *judging)
    compared = project.outcomes()
    project.edit_store('"cupti"', '"ncu"')
    said = run(project, *judging)

    assert compared == {("test_within", "inconclusive")}  # nobody has confirmed it
    assert "+50.0 %" in alike
    assert project.outcomes() == {("test_within", "incomparable")}
    assert "the baseline was measured by another collector" in said
    assert "stored: ncu" in said


def test_without_a_libcupti_the_reason_is_its_own(project: Project) -> None:
    """None is loaded for the tests: whatever is installed has no GPU to count on."""
    project.write("""
        import gpu
        import pytest

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
        def test_it(gpuperf):
            gpuperf(gpu.launch)
    """)
    said = run(project)
    told = gap(records(project)["test_it"])

    assert "1 skipped" in said
    assert f", and ncu does not count it: {NO_NCU}; " in told
