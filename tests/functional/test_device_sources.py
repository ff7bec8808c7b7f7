"""A scripted GPU gives `time` by every source there is; the header says which, and why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fakes import fake_cuda
from fakes.project import XDIST, Project

JSON = "--gpuperf-json=run.json"
TESTS = """
    import gpu
    import pytest

    @pytest.mark.gpuperf(limits=["time <= 1 s"], iterations=30)
    def test_call(gpuperf):
        perf = gpuperf.measure(gpu.launch)
        assert perf.time > 150e-6
        assert perf.time.wall > perf.time.host

    @pytest.mark.gpuperf(limits=["launches.count <= 9"])
    def test_whole():
        gpu.launch()
"""


@pytest.fixture(autouse=True)
def tests(machine: Path, project: Project) -> None:
    """Give the project tests that use its GPU."""
    project.write(TESTS)


def run(project: Project, *arguments: str) -> str:
    """Run pytest in a process of its own; return what it said."""
    ended = project.spawn(*arguments, JSON, "-rs")
    return ended.stdout + ended.stderr


def records(project: Project, name: str = "run.json") -> dict[str, Any]:
    """Return the records of a run, by the name of their test."""
    found = project.report(name)["records"]
    return {each["key"]["test_id"].partition("::")[2]: each for each in found}


def times(record: dict[str, Any]) -> dict[str, float]:
    """Return `time` by source, in the record's order."""
    return {
        each["source"]: each["value"]
        for each in record["estimates"]
        if each["metric"] == "time"
    }


def test_events_time_a_device_whose_cupti_is_held(project: Project) -> None:
    """The best source that is free; the header says who holds the better one."""
    project.environment.setenv("NSYS_PROFILING_SESSION_ID", "1")
    said = run(project)
    found = times(records(project)["test_call"])

    assert "gpuperf: NVIDIA H200, driver 580.95.05, events, host, nvml" in said
    assert "cupti: Nsight Systems is attached" in said
    before, *_ = said.partition("test_it.py")
    assert "gpuperf: NVIDIA H200, driver 580.95.05, events, host" in before
    assert "gpuperf: cupti: Nsight Systems is attached" in before
    assert list(found) == ["events", "host"]
    assert found["events"] == pytest.approx(220e-6, rel=0.5)
    assert found["events"] <= found["host"]


def test_host_alone_is_asked_for_by_name(project: Project) -> None:
    """Then nothing else runs, and the header has no other source."""
    said = run(project, "--gpuperf-collectors=host")
    record = records(project)["test_call"]

    assert list(times(record)) == ["host"]
    assert record["bound_class"] == "host"
    assert "NVIDIA H200" in said
    assert ", events" not in said


SLOWER = """
    import os

    import gpu
    import pytest

    @pytest.mark.gpuperf(max_regression={"time": "10 %"})
    @pytest.mark.parametrize("number", range(4))
    def test_call(gpuperf, number):
        slower = int(os.environ.get("SLOWER", "0")) if number == 1 else 0
        gpuperf.measure(gpu.launch, 2_000_000 + slower)
"""


@pytest.mark.parametrize(
    ("stored_by", "now_by"), [("events,host", "host"), ("host", "events,host")]
)
def test_a_run_that_lost_its_events_is_judged_by_the_host(
    project: Project, stored_by: str, now_by: str
) -> None:
    """A call that uses a device is kept with the GPU's sessions, whoever timed it."""
    project.write(SLOWER)
    for _ in range(4):
        run(project, f"--gpuperf-collectors={stored_by}", "--gpuperf-update=all")
    project.environment.setenv("SLOWER", "2000000")
    said = run(project, f"--gpuperf-collectors={now_by}", "--gpuperf-baseline=.gpuperf")

    outcomes = dict(project.outcomes())

    assert (project.path / ".gpuperf" / "nvidia-h200").is_dir()
    # on a busy machine twice the time may not be significant
    assert outcomes["test_call[1]"] in {"regressed", "inconclusive"}, said
    # nor do the others keep their time there, but all are compared
    compared = {"regressed", "unchanged", "blind", "inconclusive", "improved"}
    assert {*outcomes.values()} <= compared, said
    assert {
        verdict["estimate"]["source"]
        for verdict in project.report()["verdicts"]
        if verdict["metric"] == "time"
    } == {"host"}


def test_a_host_time_of_another_gpu_is_incomparable(project: Project) -> None:
    """Two machines with one processor and two GPUs do not share a baseline."""
    project.write(SLOWER)
    host = "--gpuperf-collectors=host"
    run(project, host, "--gpuperf-update=all")
    script = Path(os.environ["FAKE_NVML_SCRIPT"])
    script.write_text(script.read_text("utf-8").replace("H200", "H100 PCIe"), "utf-8")
    said = run(project, host, "--gpuperf-baseline=.gpuperf")

    # A busy machine can make a value too noisy to be stored, and its test stays new.
    outcomes = {outcome for _, outcome in project.outcomes()} - {"new"}
    assert outcomes == {"incomparable"}, said


def test_a_source_that_cannot_be_used_is_an_error_by_name(project: Project) -> None:
    """Asked for by name there is no falling back; the remedy is beside the reason."""
    project.environment.setenv("NSYS_PROFILING_SESSION_ID", "1")
    said = run(project, "--gpuperf-collectors=cupti,events,host")

    assert (
        "--gpuperf-collectors: collector cupti cannot be used: Nsight Systems" in said
    )
    assert "unset NSYS_PROFILING_SESSION_ID" in said


def test_cupti_times_what_ran_and_counts_it(project: Project) -> None:
    """The best source gives `time`; the others stand beside it, in their order."""
    fake_cuda.with_cupti(project)
    said = run(project)
    record, whole = (records(project)[name] for name in ("test_call", "test_whole"))
    found = times(record)
    values = {(e["metric"], e["source"]): e["value"] for e in record["estimates"]}
    counts = {e["metric"]: e["value"] for e in whole["estimates"]}

    assert "gpuperf: NVIDIA H200, driver 580.95.05, cupti, events, host, nvml" in said
    assert list(found) == ["cupti", "events", "host"]
    assert found["cupti"] == pytest.approx(200e-6)  # the events' have 20 us more
    assert found["cupti"] < found["events"] <= found["host"]
    assert values["launches.count", "cupti"] == 1
    assert values["time.busy", "cupti"] == pytest.approx(200e-6)
    assert values["time.idle_fraction", "cupti"] == 0
    assert record["choice"] == whole["choice"]
    assert counts["launches.count"] == 1
    assert ("test_whole", "passed") in project.outcomes()


def test_cupti_that_is_held_is_named_by_its_holder(project: Project) -> None:
    """Who subscribed first keeps it; events stand in, and the run goes on."""
    fake_cuda.with_cupti(project, holder="Proton")
    said = run(project)

    assert "cupti: Proton is another user of CUPTI in this process (CUPTI 39)" in said
    assert list(times(records(project)["test_call"])) == ["events", "host"]


def test_workers_say_who_holds_cupti(project: Project) -> None:
    """The controller has no CUPTI of its own: its header has what they found."""
    fake_cuda.with_cupti(project, holder="Proton")
    said = run(project, *XDIST, "-n2")

    assert "cupti: Proton is another user of CUPTI in this process (CUPTI 39)" in said
    assert list(times(records(project)["test_call"])) == ["events", "host"]


def test_what_holds_cupti_that_was_asked_for_by_name_is_an_error(
    project: Project,
) -> None:
    """No other source stands in, and no run without a value ends well."""
    fake_cuda.with_cupti(project, holder="Proton")
    said = run(project, "--gpuperf-collectors=cupti,events,host")

    assert "collector cupti cannot be used: Proton is another user" in said
    assert "leave cupti out of --gpuperf-collectors" in said
    assert "skipped" not in said
    assert "passed" not in said


@pytest.mark.parametrize("requires", ["events", "nvml", "cupti"])
def test_what_a_test_requires_is_answered_truthfully(
    project: Project, requires: str
) -> None:
    """It runs where the collector works, and is unmeasured with the reason elsewhere."""
    project.environment.setenv("NSYS_PROFILING_SESSION_ID", "1")
    project.write(
        f"""
        import gpu
        import pytest

        @pytest.mark.gpuperf(requires=["{requires}"], iterations=10)
        def test_it(gpuperf):
            gpuperf(gpu.launch)
        """
    )
    said = run(project)

    held = requires == "cupti"
    assert ("1 skipped" in said) == held
    assert ("1 passed" in said) == (not held)
    assert ("unmeasured: requires: Nsight Systems is attached" in said) == held


def test_workers_say_what_they_lost(project: Project) -> None:
    """Who holds CUPTI shows in the processes that measure; the header has it still."""
    project.environment.setenv("NSYS_PROFILING_SESSION_ID", "1")
    said = run(project, *XDIST, "-n2")

    assert "cupti: Nsight Systems is attached" in said
    assert list(times(records(project)["test_call"])) == ["events", "host"]


def test_a_block_has_the_boards_sensors(project: Project) -> None:
    """Energy is there where the block is long enough, and a reason where it is not."""
    project.write(
        """
        import gpu

        def test_long(gpuperf):
            with gpuperf.range("long") as perf:
                gpu.launch(700_000_000)
            assert perf.energy > 100  # more where the host was busy
            assert 300 < perf.power < 400

        def test_short(gpuperf):
            with gpuperf.range("short") as perf:
                gpu.launch()
            assert not perf.has("energy")
        """
    )
    assert "2 passed" in run(project)
    short = records(project)["test_short"]
    reasons = {each["metric"]: each["reason"] for each in short["unmeasured"]}

    assert reasons["energy"].endswith("s are too short for the board's counter")
    assert "NVML sees the whole device alone" in reasons["memory.peak_bytes"]
    assert short["soft_facts"]["sm_clock"] == "1980 MHz"
    assert short["soft_facts"]["gpu_uuid"] == fake_cuda.UUID


def test_energy_of_a_call_is_measured_where_it_is_asked_for(project: Project) -> None:
    """A limit on it is enough; without one there is no second pass."""
    project.write(
        """
        import gpu
        import pytest

        @pytest.mark.gpuperf(limits=["energy <= 9 J"])
        def test_it(gpuperf):
            gpuperf(gpu.launch)

        @pytest.mark.gpuperf(limits=["energy <= 1 J"], iterations=10)
        def test_fixed(gpuperf):
            gpuperf(gpu.launch)
        """
    )
    said = run(project)
    assert "1 passed, 1 skipped" in said
    assert "the test fixes how often it is called; leave iterations out" in said
    found = {e["metric"]: e for e in records(project)["test_it"]["estimates"]}

    # 350 W for 200 us, and what the host adds between two calls: of one of hundreds
    assert 0.05 < found["energy"]["value"] < 5
    assert found["power"]["value"] == pytest.approx(350, rel=0.05)


@pytest.mark.parametrize("seen", [False, True], ids=["events", "cupti"])
def test_a_replayed_run_is_judged_identically(project: Project, *, seen: bool) -> None:
    """Sources, values, gaps and verdicts are the recorded ones, with no GPU."""
    if seen:
        fake_cuda.with_cupti(project)
    run(project, "--gpuperf-record=kept")
    first = project.report()
    (project.path / "gpu.py").write_text("def launch(): pass\n", "utf-8")
    for name in ("LD_LIBRARY_PATH", "FAKE_CUDA", "FAKE_NVML_SCRIPT"):
        project.environment.delenv(name, raising=False)
    run(project, "--gpuperf-replay=kept")
    second = project.report()

    def judged(report: dict[str, Any]) -> list[str]:
        return sorted(
            json.dumps(each, sort_keys=True)
            for key in ("verdicts", "records")
            for each in report[key]
        )

    assert judged(first) == judged(second)


def test_work_on_a_second_gpu_is_waited_for(machine: Path, project: Project) -> None:
    """A kernel on cuda:1 while cuda:0 is current takes its time, and not a launch's."""
    fake_cuda.machine(project, machine, gpus=(fake_cuda.UUID, fake_cuda.OTHER))
    fake_cuda.use(project, fake_cuda.UUID, fake_cuda.OTHER)
    project.write(
        """
        import gpu
        import pytest

        @pytest.mark.gpuperf(iterations=20)
        def test_call(gpuperf):
            gpuperf.measure(gpu.launch, 5_000_000, device=1)

        @pytest.mark.gpuperf(limits=["time <= 1 s"])
        def test_block(gpuperf):
            with gpuperf.range("block"):
                gpu.launch(5_000_000, device=1)
        """
    )
    run(project, "--gpuperf-collectors=events,host")
    found = records(project)

    assert len(found) == 2
    for record in found.values():
        assert list(times(record)) == ["host"]
        # a launch takes microseconds; on a loaded machine waiting takes longer
        assert times(record)["host"] > 4e-3
        assert "outlives-events" in {note["code"] for note in record["notes"]}


def test_the_kernels_of_a_call_are_a_fact(project: Project) -> None:
    """Another number of launches of the same kernel fails; what was stored passes."""
    fake_cuda.with_cupti(project)
    project.write("""
        import os

        import gpu
        import pytest

        @pytest.mark.gpuperf(max_regression={"launches.kernels": "0 %"})
        def test_call():
            for _ in range(int(os.environ.get("LAUNCHES", "1"))):
                gpu.launch()
    """)
    gate = ("--gpuperf-baseline=.gpuperf",)
    run(project, "--gpuperf-update=all")
    same = run(project, *gate)
    project.environment.setenv("LAUNCHES", "2")
    other = run(project, *gate)
    accepted = run(project, *gate, "--gpuperf-update=all")
    again = run(project, *gate)

    assert "judged 1 of 1: 1 unchanged" in same
    assert "launches.kernels regressed: 1, as before, limit 0 %" in other
    assert "the kernels are not those of the baseline" in other
    assert "1 failed" in other
    assert "axpy(float*), 400 us, was 200 us (+200 us); launches 1 -> 2" in other
    assert "remedy" not in other
    assert "accepted test_it.py::test_call: 1 session dropped" in accepted
    assert "judged 1 of 1: 1 unchanged" in again


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ({"LAUNCHES": "1"}, "launches 2 -> 1"),
        ({"KERNEL": "saxpy"}, "saxpy"),
        ({"KERNEL": "saxpy", "LAUNCHES": "3"}, "saxpy"),
    ],
)
def test_fewer_or_other_kernels_fail_too(
    project: Project, variable: dict[str, str], said: str
) -> None:
    """A call that runs less, or something else in as many launches, does other work."""
    fake_cuda.with_cupti(project)
    project.write(
        """
        import os

        import seen_by_cupti

        double = seen_by_cupti.double
        name = os.environ.get("KERNEL", "axpy")
        seen_by_cupti.launched = lambda ns: double.launch(name, ns)
        """,
        "conftest.py",
    )
    project.write("""
        import os

        import gpu
        import pytest

        @pytest.mark.gpuperf(max_regression={"launches.kernels": "0 %"})
        def test_call():
            for _ in range(int(os.environ.get("LAUNCHES", "2"))):
                gpu.launch()
    """)
    run(project, "--gpuperf-update=all")
    same = run(project, "--gpuperf-baseline=.gpuperf")
    for name, value in variable.items():
        project.environment.setenv(name, value)
    other = run(project, "--gpuperf-baseline=.gpuperf")

    assert "judged 1 of 1: 1 unchanged" in same
    assert "1 failed" in other
    assert "the kernels are not those of the baseline" in other
    assert said in other
