"""Tests with hardware counters: one process under ncu counts for all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes import fake_ncu_report, fake_nvtx
from fakes.processes import ended as has_ended
from fakes.project import PLUGIN, XDIST, Project, lines

FAKES = Path(fake_nvtx.__file__).parent
NCU = "--gpuperf-collectors=host,ncu"
JSON = "--gpuperf-json=run.json"
VALUES = {
    "dram__bytes.sum": [64.0, "byte"],
    "gpu__time_duration.sum": [1000.0, "ns"],
    "lts__t_bytes.sum": [32.0, "byte"],
}
# how long the pauses before ncu is started again are is proven beside their code
HURRIED = """
import time
import pytest

def pytest_configure(config):
    sleep, patch = time.sleep, pytest.MonkeyPatch()
    patch.setattr(time, "sleep", lambda duration_s: sleep(min(duration_s, 0.05)))
    config.add_cleanup(patch.undo)
"""
SIMPLE = """
    import nvtx
    import pytest

    def kernel(factor=1.0):
        nvtx.launch("gemm", **{"dram__bytes.sum": [64.0 * factor, "byte"]})

    @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
    def test_it(gpuperf):
        perf = gpuperf.measure(kernel)
        assert perf["dram__bytes.sum"] == 64
        assert perf.time > 0
"""


class Machine:
    """A project on a machine that has an ncu."""

    def __init__(self, project: Project, folder: Path) -> None:
        self.project = project
        self.starts_file = folder / "starts"
        environment = project.environment
        site = fake_nvtx.install(folder / "site")
        fake_ncu_report.install(site)
        (site / "hurried.py").write_text(HURRIED, encoding="utf-8")
        environment.syspath_prepend(str(site))
        environment.delitem(sys.modules, "nvtx", raising=False)
        environment.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
        environment.setenv("PATH", str(FAKES), prepend=os.pathsep)
        environment.setenv("GPUPERF_CACHE_DIR", str(folder / "cache"))
        environment.setenv("GPUPERF_LOCK_DIR", str(folder / "locks"))
        environment.setenv("FAKE_NCU_STARTS", str(self.starts_file))
        environment.setenv("FAKE_NCU_VALUES", json.dumps(VALUES))

    @property
    def starts(self) -> list[list[str]]:
        """The command lines with which ncu was started to profile."""
        if not self.starts_file.exists():
            return []
        found = self.starts_file.read_text().splitlines()
        return [json.loads(line)["argv"] for line in found]

    def fail(self, mode: str) -> None:
        """Let ncu fail from now on."""
        self.project.environment.setenv("FAKE_NCU_MODE", mode)
        if mode.startswith("busy"):  # ncu is started again, after a pause
            self.project.environment.setenv("PYTEST_PLUGINS", "hurried")


@pytest.fixture
def machine(project: Project, tmp_path: Path) -> Machine:
    """A machine with an ncu, and no GPU that anybody looks for."""
    return Machine(project, tmp_path / "machine")


def test_a_declared_counter_is_read_in_the_body(
    machine: Machine, project: Project
) -> None:
    """Its value is that of one call, and the time is not ncu's."""
    project.write(SIMPLE)
    ended = project.run(NCU, JSON)

    ended.assert_outcomes(passed=1)
    assert len(machine.starts) == 1
    (record,) = project.report()["records"]
    found = {(e["metric"], e["source"]): e["value"] for e in record["estimates"]}
    assert found["dram__bytes.sum", "ncu"] == 64
    assert found["launches.count", "ncu"] == 1
    assert {source for name, source in found if name.startswith("time")} == {"host"}


def test_the_second_run_starts_nothing(machine: Machine, project: Project) -> None:
    """What was counted is found again, also by a run of one test in another folder."""
    project.write(SIMPLE, "tests/test_it.py")
    project.write("[pytest]\n", "pytest.ini")
    project.run(NCU).assert_outcomes(passed=1)
    project.run(NCU).assert_outcomes(passed=1)
    project.environment.chdir(project.path / "tests")
    project.run(NCU, "test_it.py", "-k", "it", "--tb", "short").assert_outcomes(
        passed=1
    )

    assert len(machine.starts) == 1


@pytest.mark.parametrize(
    "mark",
    ["skip", "skipif(True, reason='x')", "xfail(run=False)"],
    ids=["skip", "skipif", "xfail"],
)
def test_a_test_that_never_runs_is_not_counted(
    machine: Machine, project: Project, mark: str
) -> None:
    """Its marks say so before the first test: nobody waits for its counters."""
    project.write(
        SIMPLE.replace("def test_it", f"@pytest.mark.{mark}\n    def test_it")
    )
    project.run(NCU)

    assert machine.starts == []


def test_a_plan_of_the_setup_starts_nothing(machine: Machine, project: Project) -> None:
    """--setup-plan runs no test."""
    project.write(SIMPLE)
    project.run(NCU, "--setup-plan")

    assert machine.starts == []


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_a_session_that_is_stored_has_counted_itself(
    machine: Machine, project: Project, workers: tuple[str, ...]
) -> None:
    """What an earlier session counted is not evidence of another one."""
    project.write(SIMPLE)
    for count in (1, 2):
        ended = project.spawn(NCU, "--gpuperf-update=new", *workers)
        assert "1 passed" in ended.stdout
        assert len(machine.starts) == count
    assert "1 passed" in project.spawn(NCU, *workers).stdout

    assert len(machine.starts) == 2


def test_an_option_of_the_projects_own_is_counted_again(
    machine: Machine, project: Project
) -> None:
    """It may change what a test does; one that shows or chooses tests does not."""
    project.write(
        "def pytest_addoption(parser):\n    parser.addoption('--size')\n", "conftest.py"
    )
    project.write(SIMPLE)
    project.run(NCU, "--size", "1").assert_outcomes(passed=1)
    project.run(NCU, "--size", "1", "-v", "--maxfail", "3").assert_outcomes(passed=1)
    project.run(NCU, "--size", "1", "--", "test_it.py").assert_outcomes(passed=1)
    assert len(machine.starts) == 1

    project.run(NCU, "--size", "2").assert_outcomes(passed=1)
    assert len(machine.starts) == 2


MANY = """
    import nvtx
    import pytest

    @pytest.mark.gpuperf(counters=["dram__bytes.sum"], iterations=3)
    @pytest.mark.parametrize("factor", range(200))
    def test_it(gpuperf, factor):
        perf = gpuperf.measure(
            lambda: nvtx.launch("gemm", **{"dram__bytes.sum": [2.0 * factor, "byte"]})
        )
        assert perf["dram__bytes.sum"] == 2 * factor
"""


def test_two_hundred_tests_start_one_process(
    machine: Machine, project: Project
) -> None:
    """Each of them gets its own value: by the name of its range, not by its place."""
    project.write(MANY)
    project.run(NCU).assert_outcomes(passed=200)

    assert len(machine.starts) == 1


def test_workers_share_one_process(machine: Machine, project: Project) -> None:
    """One of them counts, whatever tests it is going to run; the others wait for it."""
    project.write(MANY.replace("200", "8"))
    ended = project.spawn(*XDIST, "-n2", "--dist=loadgroup", NCU)

    assert "8 passed" in ended.stdout
    assert len(machine.starts) == 1


def test_workers_share_what_was_refused(machine: Machine, project: Project) -> None:
    """What one of them was refused, the other does not ask for again."""
    machine.fail("permission")
    project.write(MANY.replace("200", "4"))
    ended = project.spawn(*XDIST, "-n2", NCU)

    assert "4 skipped" in ended.stdout
    assert len(machine.starts) == 1
    project.spawn(NCU)
    assert len(machine.starts) == 2  # another run tries anew


def test_every_kind_of_measurement_is_counted(
    machine: Machine, project: Project
) -> None:
    """Calls, blocks, loops, comparisons and tests without the fixture."""
    project.write("""
        import threading
        import nvtx
        import pytest

        def kernel(bytes=64.0):
            nvtx.launch("gemm", **{"dram__bytes.sum": [bytes, "byte"]})

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
        def test_all(gpuperf):
            assert gpuperf(lambda: 5) == 5
            with gpuperf.range("block") as block:
                kernel()
                thread = threading.Thread(target=kernel)
                thread.start()
                thread.join()
            assert block["dram__bytes.sum"] == 128
            assert block.launches.count == 2
            with gpuperf.steps(name="loop") as steps:
                for _ in range(5):
                    with steps.step():
                        kernel()
            assert steps["dram__bytes.sum"] == 320
            assert steps.throughput > 0
            pair = gpuperf.compare(
                kernel, lambda size: kernel(size / 2), name="two", setup=lambda: 64.0
            )
            assert pair.a["dram__bytes.sum"] == 64
            assert pair.b["dram__bytes.sum"] == 32
            assert pair.speedup.low > 1e-9

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"], limits=["launches.count == 1"])
        def test_alone():
            kernel()
    """)
    ended = project.run(NCU, JSON, "-rs")

    # the call that launches nothing has no counter, so that test lacks a value
    ended.assert_outcomes(passed=1, skipped=1)
    assert lines(ended, "no kernel was launched in the measurement")
    named = {
        (r["key"]["name"], e["value"])
        for r in project.report()["records"]
        for e in r["estimates"]
        if e["metric"] == "dram__bytes.sum" and e["kernel"] is None
    }
    found = {("block", 128), ("loop", 320), ("two.a", 64), ("two.b", 32), ("", 64)}
    assert named == found


def test_caches_are_paired_with_the_measurement(
    machine: Machine, project: Project
) -> None:
    """Cold calls are counted with flushed caches, blocks as they come: two processes."""
    project.write("""
        import nvtx
        import pytest

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
        def test_it(gpuperf):
            gpuperf.measure(nvtx.launch)
            with gpuperf.range("block"):
                nvtx.launch()
            gpuperf.measure(nvtx.launch, name="warm", cache="warm")
    """)
    ended = project.run(NCU, JSON)

    ended.assert_outcomes(passed=1)
    modes = [next(a for a in s if "--cache-control" in a) for s in machine.starts]
    assert modes == ["--cache-control=all", "--cache-control=none"]
    facts = {
        r["key"]["name"]: r["facts"]["counter"] for r in project.report()["records"]
    }
    assert {name: each["cache_control"] for name, each in facts.items()} == {
        "": "all",
        "block": "none",
        "warm": "none",
    }
    assert facts[""]["tool_version"] == "2025.3.1.0"
    assert facts[""]["replay_mode"] == "kernel"
    assert facts[""]["clock_control"] == "none"


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_a_cache_that_cannot_be_written_is_told_once(
    machine: Machine, project: Project, workers: tuple[str, ...]
) -> None:
    """It costs a count in each run: the run says so, with what to do, and goes on."""
    project.write("", "file")
    project.environment.setenv(
        "GPUPERF_CACHE_DIR", str(project.path / "file" / "cache")
    )
    project.write(MANY.replace("200", "4"))
    project.run(NCU).assert_outcomes(passed=4)
    once = len(machine.starts)
    ended = project.spawn(NCU, JSON, *workers)
    assert "4 passed" in ended.stdout
    assert len(machine.starts) > once

    (told,) = [s for s in project.report()["header"]["sentences"] if "ncu's" in s]
    assert told.startswith("ncu's cache: ")
    assert told.endswith("make room, or set GPUPERF_CACHE_DIR to another folder")
    said = " ".join(ended.stdout.split())  # in lines as wide as the terminal
    assert said.count("the cache cannot be written") == 1


def test_entries_that_cannot_be_read_are_told_together(
    machine: Machine, project: Project
) -> None:
    """Damage of many entries is one sentence and a number."""
    project.write(MANY.replace("200", "9"))
    project.run(NCU).assert_outcomes(passed=9)
    for file in Path(os.environ["GPUPERF_CACHE_DIR"]).rglob("counted.json"):
        file.write_bytes(b"damaged")
    project.run(NCU, JSON).assert_outcomes(passed=9)

    told = [s for s in project.report()["header"]["sentences"] if "ncu's" in s]
    assert len(told) == 2
    assert told[0].endswith("it was damaged and is removed")
    assert told[1] == "ncu's cache: and 8 more entries"


def test_a_machine_that_cannot_count_again_fails_no_test(
    machine: Machine, project: Project
) -> None:
    """Another program took the counters while a suspect was confirmed: nobody knows.

    Neither of a test that reads its counter, nor of one that does not.
    """
    text = """
        import nvtx
        import pytest

        @pytest.mark.gpuperf(
            counters=["dram__bytes.sum"], max_regression={"dram__bytes.sum": "5 %"}
        )
        @pytest.mark.parametrize("reads", [False, True])
        def test_it(gpuperf, reads):
            kernel = {"dram__bytes.sum": [64.0, "byte"]}
            perf = gpuperf.measure(lambda: nvtx.launch("gemm", **kernel))
            if reads:
                assert perf["dram__bytes.sum"] > 0
    """
    project.write(text)
    for _ in range(3):
        project.run(NCU, "--gpuperf-update=all").assert_outcomes(passed=2)
    project.write(text.replace("64.0", "80.0"))
    machine.fail(f"busy:{len(machine.starts) + 2}+")
    ended = project.run(NCU, "--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=1", JSON)

    ended.assert_outcomes(passed=2)
    assert project.outcomes() == {
        ("test_it[False]", "inconclusive"),
        ("test_it[True]", "inconclusive"),
    }
    assert lines(ended, "dram__bytes.sum was not measured again: ", "counters")


def test_a_process_of_runs_that_cannot_count_is_told(
    machine: Machine, project: Project
) -> None:
    """A value of fewer processes than were asked for is not a failure, and not hidden."""
    machine.fail("busy:2+")
    project.write(SIMPLE)
    ended = project.run(NCU, "--gpuperf-runs=2")

    ended.assert_outcomes(passed=1)
    said = " ".join(ended.stdout.str().split())
    assert "gpuperf: 1 test not measured again for --gpuperf-runs (dram__byt" in said


TWICE = """
    import nvtx
    import pytest

    @pytest.mark.gpuperf(counters=["dram__bytes.sum"], limits=["launches.count == 2"])
    def test_it(gpuperf):
        def call():
            for _ in range(2):
                nvtx.launch("gemm", **{"dram__bytes.sum": [64.0, "byte"]})
        perf = gpuperf.measure(call)
        assert perf["dram__bytes.sum"] == 128
"""


@pytest.mark.parametrize(
    ("told", "replay", "clocks"),
    [
        ((), "kernel", "none"),
        (
            ("--gpuperf-ncu-replay=application", "--gpuperf-ncu-clocks=base"),
            "application",
            "base",
        ),
        (("-o", "gpuperf_ncu_replay=application"), "application", "none"),
    ],
    ids=["default", "options", "ini"],
)
def test_replay_and_clocks_are_what_was_asked_for(
    machine: Machine,
    project: Project,
    told: tuple[str, ...],
    replay: str,
    clocks: str,
) -> None:
    """ncu is told so, and each value says how it was counted."""
    project.write(TWICE)
    project.run(NCU, JSON, *told).assert_outcomes(passed=1)

    (start,) = machine.starts
    assert f"--replay-mode={replay}" in start
    assert f"--clock-control={clocks}" in start
    (record,) = project.report()["records"]
    facts = record["facts"]["counter"]
    assert (facts["replay_mode"], facts["clock_control"]) == (replay, clocks)


def test_a_whole_range_has_no_launches(machine: Machine, project: Project) -> None:
    """Range replay counts what a range does, and does not tell its kernels apart."""
    project.write(TWICE)
    ended = project.run(NCU, JSON, "-rs", "--gpuperf-ncu-replay=range")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "launches.count: ncu counts a whole range as one")
    (record,) = project.report()["records"]
    counted = [e for e in record["estimates"] if e["source"] == "ncu"]
    assert {e["metric"]: e["value"] for e in counted}["dram__bytes.sum"] == 128
    assert {e["kernel"] for e in counted} == {None}


def test_other_conditions_are_counted_anew_and_never_compared(
    machine: Machine, project: Project
) -> None:
    """What one replay mode counted is neither found nor judged for another."""
    mark = "counters=['dram__bytes.sum'], max_regression={'dram__bytes.sum': '5 %'}"
    text = TWICE.replace(
        'counters=["dram__bytes.sum"], limits=["launches.count == 2"]', mark
    )
    project.write(text)
    for _ in range(3):
        project.run(NCU, "--gpuperf-update=all").assert_outcomes(passed=1)
    judged = (NCU, "--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=0", JSON)
    project.run(*judged)
    assert ("test_it", "unchanged") in project.outcomes()
    starts = len(machine.starts)

    ended = project.run(*judged, "--gpuperf-ncu-replay=application")
    assert len(machine.starts) == starts + 1
    assert ("test_it", "incomparable") in project.outcomes()
    assert lines(ended, "replay_mode: kernel -> application")


def test_a_limit_names_its_counter(machine: Machine, project: Project) -> None:
    """It needs no declaration beside it, also where it is of one kernel."""
    project.write("""
        import nvtx
        import pytest

        @pytest.mark.gpuperf(limits=["dram__bytes.sum <= 100"])
        def test_holds(gpuperf):
            gpuperf.measure(nvtx.launch, "gemm")

        @pytest.mark.gpuperf(limits=["dram__bytes.sum <= 10"])
        def test_fails(gpuperf):
            gpuperf.measure(nvtx.launch, "gemm")

        @pytest.mark.gpuperf(limits=['lts__t_bytes.sum["gemm"] >= 16 B'])
        def test_of_a_kernel(gpuperf):
            gpuperf.measure(nvtx.launch, "gemm")
    """)
    project.run(NCU, "--gpuperf-confirm=0", JSON).assert_outcomes(passed=2, failed=1)

    assert len(machine.starts) == 1
    assert project.outcomes() == {
        ("test_holds", "passed"),
        ("test_fails", "failed"),
        ("test_of_a_kernel", "passed"),
    }


def test_what_counters_become_is_counted_where_ncu_was_asked_for(
    machine: Machine, project: Project
) -> None:
    """A metric of the catalogue alone starts nothing by itself."""
    project.write("""
        import nvtx
        import pytest

        @pytest.mark.gpuperf(limits=["dram.bytes <= 100 B"])
        def test_it(gpuperf):
            gpuperf.measure(nvtx.launch)
    """)
    project.run().assert_outcomes(skipped=1)
    assert machine.starts == []

    project.run(NCU).assert_outcomes(passed=1)
    assert any("--metrics=dram__bytes.sum," in arg for arg in machine.starts[0])


CRASHING = """
    import os
    import nvtx
    import pytest

    @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
    @pytest.mark.parametrize("name", ["a", "b", "c"])
    def test_it(gpuperf, name):
        def call():
            nvtx.launch()
            if name == "b" and "FAKE_NCU_RANGES" in os.environ:
                CRASH
        gpuperf.measure(call)
"""


def test_a_test_that_ends_its_process_is_isolated(
    machine: Machine, project: Project
) -> None:
    """It is tried alone, and the others are counted without it."""
    project.write(
        CRASHING.replace("CRASH", "print('last words', flush=True), os._exit(7)")
    )
    ended = project.run(NCU, "-rs", "-s")

    ended.assert_outcomes(passed=2, skipped=1)
    assert lines(ended, "dram__bytes.sum: its process ended under ncu", "last words")
    assert len(machine.starts) == 3
    project.run(NCU)
    # "c" is cached; "a" is not, for the process that counted it did not say what it
    # had loaded: "a" and "b" are tried together, then "b" alone
    assert len(machine.starts) == 5


def test_a_test_that_hangs_is_left_out(machine: Machine, project: Project) -> None:
    """The time that counting may take is over, and the others are counted after it."""
    project.write(CRASHING.replace("CRASH", "__import__('time').sleep(600)"))
    ended = project.run(NCU, "-rs", "-o", "gpuperf_ncu_timeout=10")

    ended.assert_outcomes(passed=2, skipped=1)
    assert lines(ended, "its process did not end under ncu", "within 10 s")
    assert lines(ended, "the ini option gpuperf_ncu_timeout")
    assert len(machine.starts) == 2


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_leaves_no_ncu(
    machine: Machine, project: Project, number: signal.Signals
) -> None:
    """ncu and its program end with pytest, whatever ends that; the GPU is free again."""
    machine.fail("hang")
    project.write(SIMPLE)
    command = [sys.executable, "-m", "pytest", *PLUGIN, NCU]
    with subprocess.Popen(command, cwd=project.path, stdout=subprocess.DEVNULL) as run:
        while not machine.starts:
            time.sleep(0.05)
            assert run.poll() is None
        run.send_signal(number)
    line = machine.starts_file.read_text().splitlines()[0]

    assert has_ended(json.loads(line)["pid"])


def test_an_unknown_counter_costs_its_own_tests_alone(
    machine: Machine, project: Project
) -> None:
    """ncu refuses them all for one name; the others are counted without it."""
    machine.fail("unknown-metric:1")
    project.write("""
        import nvtx
        import pytest

        @pytest.mark.gpuperf(counters=["dram__bites.sum"])
        def test_wrong(gpuperf):
            gpuperf.measure(nvtx.launch)

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
        def test_right(gpuperf):
            gpuperf.measure(nvtx.launch)
    """)
    ended = project.run(NCU, "-rs")

    ended.assert_outcomes(passed=1, skipped=1)
    assert lines(ended, "ncu has no metric dram__bites.sum")


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("busy", "dcgmi profile --pause"),
        ("no-kernels", "no kernel was launched"),
        ("crash-half", "ncu was ended by signal 11"),
    ],
)
def test_what_keeps_ncu_from_counting_is_the_reason(
    machine: Machine, project: Project, mode: str, told: str
) -> None:
    """The test is unmeasured, and says what to do."""
    machine.fail(mode)
    project.write(SIMPLE)
    ended = project.run(NCU, "-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "unmeasured", told)
    assert not lines(ended, "SKIPPED", "  ")  # the words of a process are one line


def test_a_counter_without_an_ending_is_told_to_have_one(
    machine: Machine, project: Project
) -> None:
    """ncu takes such a name, and gives values under other names."""
    project.write(SIMPLE.replace('["dram__bytes.sum"]', '["dram__bytes"]'))
    ended = project.run(NCU, "-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "unmeasured: dram__bytes:", "write an ending behind it")
    assert machine.starts


COUNTED = """
import os
import nvtx
import pytest

@pytest.mark.gpuperf(counters=["dram__bytes.sum"])
def test_it(gpuperf):"""
FAILS_UNDER_NCU = """
    perf = gpuperf.measure(nvtx.launch)
    assert perf["dram__bytes.sum"] == 64
    assert "FAKE_NCU_RANGES" not in os.environ, "not under ncu"
    gpuperf.measure(nvtx.launch, name="second")
"""
NOT_REACHED = """
    if "FAKE_NCU_RANGES" not in os.environ:
        with gpuperf.range("only here"):
            nvtx.launch()
"""
UNDECLARED = """
    perf = gpuperf.measure(nvtx.launch)
    assert perf["lts__t_bytes.sum"] > 0
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (FAILS_UNDER_NCU, ["dram__bytes.sum: the test does not pass under ncu"]),
        (NOT_REACHED, ["the range 'only here' was not reached under ncu"]),
        (
            UNDECLARED,
            [
                "lts__t_bytes.sum: a counter is read only where",
                '@pytest.mark.gpuperf(counters=["dram__bytes.sum", "lts__t_bytes.sum"])',
            ],
        ),
    ],
    ids=["fails", "not reached", "undeclared"],
)
def test_a_test_without_its_counters_says_why(
    machine: Machine, project: Project, body: str, words: list[str]
) -> None:
    """It failed under ncu, took another branch there, or must declare it: as it reads."""
    project.write(COUNTED + body)
    ended = project.run(NCU, "-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, *words)


def test_without_ncu_a_declared_counter_is_never_a_pass(project: Project) -> None:
    """The body passes and asks for nothing; what it declares is missing all the same."""
    project.environment.setenv("PATH", str(project.path))
    project.write("""
        import pytest

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
        def test_it(gpuperf):
            gpuperf.measure(int)

        @pytest.mark.gpuperf(requires=["ncu"])
        def test_requires(gpuperf):
            gpuperf.measure(int)
    """)
    ended = project.run("-rs")

    ended.assert_outcomes(skipped=2)
    assert lines(ended, "dram__bytes.sum: there is no ncu on PATH", "install")
    assert lines(ended, "requires: there is no ncu on PATH", "install")


def test_an_ncu_that_is_asked_for_must_be_there(project: Project) -> None:
    """It is a wrong option, told before anything is collected."""
    project.environment.setenv("PATH", str(project.path))
    ended = project.run(NCU)

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, "collector ncu cannot be used: there is no ncu on PATH")


def test_by_itself_nothing_is_counted_without_a_gpu(
    machine: Machine, project: Project
) -> None:
    """An image may hold ncu on a machine that has nothing to count."""
    project.write(SIMPLE)
    ended = project.run("-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "there is nothing to count")
    assert "there is nothing to count" in project.spawn(*XDIST, "-n1", "-rs").stdout
    assert machine.starts == []


def test_a_rank_of_several_is_not_started_again(
    machine: Machine, project: Project
) -> None:
    """Its kernels wait for those of the others."""
    project.environment.setenv("WORLD_SIZE", "2")
    project.write(SIMPLE)
    ended = project.run(NCU, "-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "a job of 2 ranks", "gpuperf.capture")
    assert machine.starts == []


@pytest.mark.parametrize("option", ["--gpuperf-disable", "--collect-only"])
def test_a_run_that_measures_nothing_starts_nothing(
    machine: Machine, project: Project, option: str
) -> None:
    """Neither disabled nor collected tests are counted."""
    project.write(SIMPLE)
    project.run(NCU, option)

    assert machine.starts == []


def test_counters_are_part_of_a_recording(machine: Machine, project: Project) -> None:
    """A kept run is judged again where there is no ncu."""
    project.write(SIMPLE)
    project.run(NCU, "--gpuperf-record=kept").assert_outcomes(passed=1)
    machine.fail("permission")
    project.environment.setenv("GPUPERF_CACHE_DIR", str(project.path / "empty"))
    project.run("--gpuperf-replay=kept").assert_outcomes(passed=1)

    assert len(machine.starts) == 1


def test_who_confirms_counts_anew(machine: Machine, project: Project) -> None:
    """A limit that is straddled is confirmed by processes that take nothing for known."""
    project.write("""
        import nvtx
        import pytest

        @pytest.mark.gpuperf(limits=["dram__bytes.sum <= 64.1"])
        def test_it(gpuperf):
            gpuperf.measure(nvtx.launch)
    """)
    project.run(NCU, "--gpuperf-confirm=2", JSON)

    assert len(machine.starts) == 3
    records = project.report()["records"]
    assert [r["role"] for r in records] == ["main", "confirm", "confirm"]
    assert all(r["facts"] == records[0]["facts"] for r in records)


def test_under_ncu_every_comparison_holds(machine: Machine, project: Project) -> None:
    """A slow, serialised process must come to the end of every test."""
    project.write("""
        import os
        import nvtx
        import pytest
        import numpy as np

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"], limits=["time <= 1 s"])
        def test_it(gpuperf):
            perf = gpuperf.measure(nvtx.launch)
            if "FAKE_NCU_RANGES" in os.environ:
                time = perf.time
                assert time < 0 and time > 1e9 and 0 > time and time == -5 and time != time
                assert 2 * time + 1 <= -1 and -time >= 3 and abs(time) / 0 > 5
                assert time.p95 < -1 and time["k*"] < -1 and time.low < -1
                assert np.float64(-3) > time and time <= np.float64(-3)
                assert perf["lts__t_bytes.sum"] == pytest.approx(12)
                assert perf.energy < -1 and perf.roofline.fraction > 9
                assert gpuperf.record("mine", 3.0) < -1
            with gpuperf.range("after all"):
                nvtx.launch()
            assert perf.has("dram__bytes.sum")
    """)
    ended = project.run(NCU, "-rs")

    ended.assert_outcomes(passed=1)


def test_a_process_that_does_not_come_to_its_tests_says_why(
    machine: Machine, project: Project
) -> None:
    """Its last lines are the reason, and it is started once."""
    project.write(SIMPLE)
    project.write(
        "import os\nassert 'FAKE_NCU_RANGES' not in os.environ, 'not here'\n",
        "conftest.py",
    )
    ended = project.run(NCU, "-rs")

    ended.assert_outcomes(skipped=1)
    assert lines(ended, "the program ended with status 4", "AssertionError: not here")
    assert len(machine.starts) == 1


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("-p", "pytest_randomly"), id="shuffled"),
        pytest.param(
            ("-p", "no:cacheprovider", "-k", "1 or 2", "--", "test_it.py"),
            id="selected",
        ),
    ],
)
def test_however_pytest_is_started_the_same_tests_are_counted(
    machine: Machine, project: Project, options: tuple[str, ...]
) -> None:
    """The process under ncu gets the same command line and exact ids."""
    if "pytest_randomly" in options:
        pytest.importorskip("pytest_randomly")
    project.write(MANY.replace("200", "3"))
    for _ in range(2):
        assert " passed" in project.spawn(NCU, *options).stdout

    assert len(machine.starts) == 1


def test_a_slow_process_is_not_stopped_by_a_timeout_of_tests(
    machine: Machine, project: Project
) -> None:
    """Under ncu each call is replayed for each pass."""
    pytest.importorskip("pytest_timeout")
    project.write(
        SIMPLE.replace(
            "def test_it(gpuperf):",
            "def test_it(gpuperf):\n"
            "        import os, time\n"
            "        time.sleep(4.4 * ('FAKE_NCU_RANGES' in os.environ))",
        )
    )
    ended = project.spawn("-p", "pytest_timeout", "--timeout=4", NCU)

    assert "1 passed" in ended.stdout


def test_a_counter_of_a_given_report_needs_no_ncu(
    machine: Machine, project: Project
) -> None:
    """A test that declares counters may read them from a file."""
    made = {"dram__bytes.sum": [4, 64.0, "byte"], "launch__grid_size": [4, 8.0, ""]}
    launch = {"kernel": "gemm", "demangled": "gemm()", "metrics": made}
    content = b"NVR\0" + json.dumps({"ranges": [[launch]]}).encode()
    (project.path / "some.ncu-rep").write_bytes(content)
    machine.fail("permission")
    project.write("""
        import pytest

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
        def test_it(gpuperf):
            perf = gpuperf.capture("some.ncu-rep")
            assert perf["dram__bytes.sum"] == 64
    """)
    project.run(f"{NCU},ncu-report").assert_outcomes(passed=1)
