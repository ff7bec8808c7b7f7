"""A scripted GPU is sampled while tests run: each record has its part of the time line."""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from fakes import fake_cuda
from fakes.project import XDIST, Project

JSON = "--gpuperf-json=run.json"
# a GPU that computes all the time, and whose hardware counts what it does
BUSY = """
,*,gpm,1
0,*,gpm.1,100
0,*,gpm.2,92
0,*,gpm.5,0
0,*,gpm.10,30
"""
TESTS = """
    import gpu

    def test_block(gpuperf):
        with gpuperf.range("block"):
            gpu.launch(600_000_000)
"""
SHOWN = "utilization "
PATIENCE_S = 20.0  # it looks for users twice a second, on a busy machine more rarely


@pytest.fixture(name="script")
def script_(machine: Path, project: Project, tmp_path: Path) -> Path:
    """Return the script of the project's GPU, which tests may add to."""
    project.environment.setenv("NSYS_PROFILING_SESSION_ID", "1")  # no CUPTI
    project.environment.setenv("GPUPERF_LOCK_DIR", str(tmp_path / "locks"))
    project.write(TESTS)
    script = machine / "nvml.csv"
    _add(script, BUSY)
    return script


def _add(script: Path, text: str) -> None:
    """Append rows to a script."""
    script.write_text(script.read_text("utf-8") + text, "utf-8")


def run(project: Project, *arguments: str) -> str:
    """Run pytest in a process of its own; return what it said."""
    ended = project.spawn(*arguments, JSON)
    assert " passed" in ended.stdout, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def records(project: Project) -> list[dict[str, Any]]:
    """Return what a run measured."""
    found: list[dict[str, Any]] = project.report()["records"]
    return found


def notes(record: dict[str, Any]) -> dict[str, str]:
    """Return a record's notes by their codes."""
    return {each["code"]: each["text"] for each in record["notes"]}


@pytest.mark.usefixtures("script")
def test_a_measurement_has_its_part_of_the_time_line(project: Project) -> None:
    """Its seconds add up, what the GPU did is named, and the terminal says it."""
    said = run(project, "--gpuperf-telemetry=50")
    (record,) = records(project)
    (window,) = record["utilization"]

    assert window["gpu_uuid"] == fake_cuda.UUID
    assert window["duration_s"] > 0.3  # of 0.6 s, and longer where the host was busy
    parts = (*window["class_s"].values(), window["incomplete_s"])
    assert sum(parts) + window["unobserved_s"] == pytest.approx(window["duration_s"])
    assert window["average_class"] == "compute-heavy"
    # 0.35 of the SMs' 92, 0.2 of DRAM's 30, 0.1 of the 100 of graphics
    assert window["real_util"] == pytest.approx(48.2, abs=0.1)
    assert f"{SHOWN}48 of 100 (p50 48, p95 48): " in said
    assert "% compute-heavy" in said
    assert notes(record).keys().isdisjoint({"telemetry-rate", "utilization-shared"})


LIMITED = """
    import gpu
    import pytest

    @pytest.mark.gpuperf(limits=[
        "utilization.score >= 40",
        "utilization.compute_fraction >= 90 %",
        "utilization.unhealthy_fraction <= 10 %",
        "utilization.idle_fraction >= 50 %",
    ])
    def test_block(gpuperf):
        with gpuperf.range("block"):
            gpu.launch(600_000_000)
"""


def test_what_a_gpu_was_busy_with_is_limited(project: Project, script: Path) -> None:
    """Score, shares of the time by class, and health have verdicts of their own."""
    project.write(LIMITED)
    _add(script, "0,*,temp.gpu,60\n")
    ended = project.spawn("--gpuperf-telemetry=50", JSON)
    outcomes = [v["outcome"] for v in project.report()["verdicts"]]

    assert sorted(outcomes) == ["failed", "passed", "passed", "passed"], ended.stdout
    assert "utilization.idle_fraction failed: 0 %" in ended.stdout


@pytest.mark.parametrize(
    ("gpm", "option", "reason"),
    [
        ("1", "off", "no GPU telemetry was recorded during the measurement"),
        ("0", "50", "the activity of SMs, tensor cores and DRAM was not sampled"),
        ("1", "50", "the GPU's temperature was not sampled"),
    ],
)
def test_a_limit_of_what_was_not_sampled_is_unmeasured(
    project: Project, script: Path, gpm: str, option: str, reason: str
) -> None:
    """With the reason, which is another one where a sensor is silent."""
    project.write(LIMITED)
    for function in ("GetTemperature", "GetTemperatureV"):
        _add(script, f"0,*,error.nvmlDevice{function},3\n")
    script.write_text(script.read_text("utf-8").replace(",*,gpm,1", f",*,gpm,{gpm}"))
    ended = project.spawn(f"--gpuperf-telemetry={option}", JSON)
    unmeasured = {
        v["metric"]: v["evidence"]["gap"]["reason"]
        for v in project.report()["verdicts"]
        if v["outcome"] == "unmeasured"
    }

    assert "utilization.unhealthy_fraction" in unmeasured, ended.stdout
    assert any(reason in text for text in unmeasured.values())


@pytest.mark.usefixtures("script")
def test_nobody_samples_where_nobody_asked(project: Project) -> None:
    """The option is off by default: no window, no line, and no process is started."""
    project.write(
        """
        import subprocess
        import sys

        started = []
        popen = subprocess.Popen.__init__

        def counted(self, *args, **kwargs):
            started.append(str(args))
            return popen(self, *args, **kwargs)

        subprocess.Popen.__init__ = counted

        def pytest_unconfigure(config):
            print("STARTED", sum("nvml/child" in each for each in started))
            print("LOADED", [n for n in sys.modules if n.endswith("compute.timeline")])
            print("SAMPLER", [n for n in sys.modules if "sampler" in n])
        """,
        "conftest.py",
    )
    quiet = run(project, "-s")
    (record,) = records(project)
    asked = run(project, "-s", "--gpuperf-telemetry=50")

    assert record["utilization"] == []
    assert SHOWN not in quiet
    assert "STARTED 0\nLOADED []\nSAMPLER []\n" in quiet
    assert "STARTED 1\nLOADED ['pytest_gpuperf.compute.timeline']\n" in asked


@pytest.mark.usefixtures("script")
def test_the_ini_value_alone_works(project: Project) -> None:
    """And the command line turns it off."""
    project.write("[pytest]\ngpuperf_telemetry = 50\n", "pytest.ini")

    assert SHOWN in run(project)
    assert SHOWN not in run(project, "--gpuperf-telemetry=off")


@pytest.mark.usefixtures("script")
def test_a_replayed_run_has_the_same_time_line(project: Project) -> None:
    """Windows, notes and verdicts are the recorded ones, with no GPU."""
    project.write(
        """
        import gpu
        import pytest

        @pytest.mark.gpuperf(limits=["time <= 1 s"], iterations=30)
        def test_call(gpuperf):
            gpuperf(gpu.launch)
        """
    )
    run(project, "--gpuperf-telemetry=50", "--gpuperf-record=kept")
    first = project.report()
    (project.path / "gpu.py").write_text("def launch(): pass\n", "utf-8")
    for name in ("LD_LIBRARY_PATH", "FAKE_CUDA", "FAKE_NVML_SCRIPT"):
        project.environment.delenv(name, raising=False)
    said = run(project, "--gpuperf-telemetry=50", "--gpuperf-replay=kept")
    second = project.report()

    assert SHOWN in said
    assert first["records"][0]["utilization"]
    for key in ("records", "verdicts"):
        assert json.dumps(first[key]) == json.dumps(second[key])


def test_a_gpu_without_averages_says_why_it_has_no_class(
    project: Project, script: Path
) -> None:
    """Before Hopper NVML does not know SM activity: the time is incomplete, not idle."""
    script.write_text(script.read_text("utf-8").replace(",*,gpm,1", ",*,gpm,0"))
    said = run(project, "--gpuperf-telemetry=50", "-v")
    (record,) = records(project)
    (window,) = record["utilization"]

    assert window["class_s"] == {}
    assert window["average_class"] is None
    assert f"{SHOWN}n/a: " in said
    assert (
        "SMs, tensor cores and DRAM was not sampled"
        in (notes(record)["utilization-incomplete"])
    )


def test_a_gpu_with_other_users_has_no_part_of_its_own(
    project: Project, script: Path
) -> None:
    """What another process did on the GPU is in the window, and its note says so."""
    _add(script, ",*,proc.1,100\n")
    run(project, "--gpuperf-telemetry=50")
    (record,) = records(project)
    known = "company-unknown" not in notes(record)  # a container hides who they are

    assert record["utilization"]
    assert ("utilization-shared" in notes(record)) == known
    if known:
        assert "process 1 computed too" in notes(record)["utilization-shared"]


@pytest.mark.usefixtures("script")
def test_a_sampler_that_cannot_start_fails_no_test(
    project: Project, tmp_path: Path
) -> None:
    """It is lost by name: the header says why and what to do, once."""
    ring = f"sampler-{zlib.crc32(fake_cuda.UUID.encode()):08x}.ring"
    (tmp_path / "locks" / ring).mkdir(parents=True)  # where its file should be
    said = run(project, "--gpuperf-telemetry=50")
    (record,) = records(project)

    assert record["utilization"] == []
    assert said.count("telemetry: the sampler cannot start in ") == 1
    assert "set GPUPERF_LOCK_DIR to a folder on a local disk" in said


@pytest.mark.usefixtures("script")
def test_without_nvml_there_is_no_time_line(project: Project) -> None:
    """Collectors that were named leave it out: the header says what to add."""
    said = run(project, "--gpuperf-telemetry=50", "--gpuperf-collectors=events,host")

    assert "telemetry: the nvml collector is not among those asked for" in said
    assert records(project)[0]["utilization"] == []


@pytest.mark.usefixtures("script")
def test_workers_share_a_sampler(project: Project, tmp_path: Path) -> None:
    """One of them starts it, the others join it, and it ends with the last of them."""
    project.write(TESTS.replace("test_block", "test_other"), "test_other.py")
    run(project, "--gpuperf-telemetry=50", *XDIST, "-n2")
    found = records(project)

    assert len(found) == 2
    assert all(record["utilization"][0]["reading_count"] for record in found)
    assert all("utilization-unread" not in notes(record) for record in found)
    assert _ended(fake_cuda.UUID)
    left = {path.suffix for path in (tmp_path / "locks").glob("sampler-*")}
    assert left <= {".lock"}  # which some releases of filelock remove


@pytest.mark.usefixtures("script")
def test_a_pair_has_the_time_line_of_both(project: Project) -> None:
    """Calls of two functions alternate: the time is not a side's own."""
    project.write(
        """
        import gpu
        import pytest

        @pytest.mark.gpuperf(iterations=20)
        def test_pair(gpuperf):
            gpuperf.compare(lambda: gpu.launch(9_000_000), lambda: gpu.launch(9_000_000))
        """
    )
    run(project, "--gpuperf-telemetry=50")
    found = {each["kind"]: each["utilization"] for each in records(project)}

    assert len(found["compare"]) == 1
    assert found["measure"] == []


def _ended(uuid: str) -> bool:
    """Return whether nobody samples a GPU any more, which may take a moment."""
    deadline_s = time.monotonic() + PATIENCE_S
    while _samplers(uuid):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def _samplers(uuid: str) -> list[int]:
    """Return the processes that sample a GPU now."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = place.read_bytes()
        except OSError:
            continue  # ended
        if b"nvml/child" in command and uuid.encode() in command:
            found.append(int(place.parent.name))
    return found
