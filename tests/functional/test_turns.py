"""Processes that measure on one GPU, and which of several GPUs is measured."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes import fake_cuda, fake_ncu_report, fake_nvtx
from fakes.project import PLUGIN, XDIST, Project

JSON = "--gpuperf-json=run.json"
# a process that NVML lists: it measures, and then works, or is done and waits
FIRST = """
    import os
    import time
    from pathlib import Path
    import gpu

    def test_first(gpuperf):
        with Path(os.environ["FAKE_NVML_SCRIPT"]).open("a") as file:
            file.write(f",0,proc.{os.getpid()},1000\\n")
        gpuperf(gpu.launch)

    def test_plain():
        if os.environ["FIRST"] == "works":
            wait()

    def wait():
        Path("reached").touch()
        while not Path("over").exists():
            time.sleep(0.01)
"""
AT_THE_END = """
    import os
    from test_first import wait

    def pytest_sessionfinish():
        if os.environ["FIRST"] == "waits":
            wait()
"""
# each test writes down when its body began and ended; setup takes its part of the turn.
# Workers that share meet in the body: one of them may have started late
TESTS = """
    import os
    import time
    from pathlib import Path

    import gpu
    import pytest

    @pytest.fixture
    def span(request):
        begun = time.monotonic()
        yield
        line = f"{begun} {time.monotonic()} {request.node.name}\\n"
        with Path(os.environ["SPANS"]).open("a") as file:
            file.write(line)

    def meet():
        folder = Path(os.environ["SPANS"]).parent
        (folder / f"here-{os.environ['PYTEST_XDIST_WORKER']}").touch()
        while len(list(folder.glob("here-*"))) < 2:
            time.sleep(0.01)

    @pytest.mark.gpuperf(iterations=10)
    @pytest.mark.parametrize("n", range(4))
    def test_it(gpuperf, span, n):
        if "MEET" in os.environ:
            meet()
        gpuperf(gpu.launch)
        time.sleep(0.2)
"""

# where this is not so, NVML's process ids are nobody's
FIRST_NAMESPACE = (
    sys.platform == "linux" and str(Path("/proc/self/ns/pid").readlink())
) == "pid:[4026531836]"


@pytest.fixture(name="folder", autouse=True)
def folder_(machine: Path, project: Project, tmp_path: Path) -> Path:
    """Return the folder of the project's GPU, which events time."""
    project.environment.setenv("NSYS_PROFILING_SESSION_ID", "1")  # no CUPTI
    project.environment.setenv("SPANS", str(tmp_path / "spans"))
    return machine


def spans() -> list[tuple[float, float]]:
    """Return when each test began and ended, in order."""
    lines = Path(os.environ["SPANS"]).read_text(encoding="utf-8").splitlines()
    found = [line.split() for line in lines]
    return sorted((float(begun), float(ended)) for begun, ended, _ in found)


def overlap() -> bool:
    """Return whether any two tests ran at the same time."""
    found = spans()
    return any(a[1] > b[0] for a, b in itertools.pairwise(found))


def records(project: Project) -> dict[str, Any]:
    """Return the records of a run, by the name of their test."""
    found = project.report()["records"]
    return {each["key"]["test_id"].partition("::")[2]: each for each in found}


def test_workers_take_turns(project: Project) -> None:
    """By default each test has the GPU alone, and who waits does not share it."""
    project.write(TESTS)
    ended = project.spawn(*XDIST, "-n2", JSON)

    assert ended.returncode == 0, ended.stdout
    assert len(spans()) == 4
    assert not overlap()
    assert [each["void"] for each in records(project).values()] == [None] * 4


def test_workers_that_share_are_void(project: Project) -> None:
    """Without turns they measure beside each other, which is said, and not judged."""
    project.write(TESTS)
    project.environment.setenv("MEET", "1")
    ended = project.spawn(*XDIST, "-n2", "--gpuperf-lock=shared", JSON)
    voids = [each["void"] for each in records(project).values() if each["void"]]

    assert overlap(), ended.stdout
    assert {each["code"] for each in voids} == {"foreign-process"}
    assert {void["remedy"] for void in voids} == {
        "take turns: --gpuperf-lock=exclusive"
    }
    assert all("measured on the same GPU" in void["text"] for void in voids)
    assert "test_it.py::test_it[" in str(voids)


def test_turns_can_be_switched_off(project: Project, folder: Path) -> None:
    """Nothing is waited for, written or said."""
    project.write(TESTS)
    project.environment.setenv("MEET", "1")
    project.spawn(*XDIST, "-n2", "--gpuperf-lock=off", JSON)

    assert overlap()
    assert not (folder / "locks").exists()
    assert [each["void"] for each in records(project).values()] == [None] * 4


@pytest.mark.skipif(not FIRST_NAMESPACE, reason="NVML's process ids are nobody's here")
@pytest.mark.parametrize(
    ("first", "lock", "void"),
    [
        ("waits", "exclusive", False),
        ("waits", "shared", False),
        ("waits", "off", True),
        ("works", "exclusive", True),
    ],
)
def test_who_is_known_to_wait_shares_nothing(
    project: Project, first: str, lock: str, *, void: bool
) -> None:
    """NVML lists every context; whoever runs a test that measures nothing may compute."""
    project.environment.setenv("FIRST", first)
    project.write(FIRST, "test_first.py")
    project.write(AT_THE_END, "conftest.py")
    project.write("import gpu\n\ndef test_it(gpuperf):\n    gpuperf(gpu.launch)\n")
    argv = (sys.executable, "-m", "pytest", *PLUGIN, "test_first.py")
    with subprocess.Popen(argv, cwd=project.path) as process:
        while not (project.path / "reached").exists():
            assert process.poll() is None
            time.sleep(0.01)
        project.environment.setenv("FIRST", "")
        project.spawn(f"--gpuperf-lock={lock}", JSON, "test_it.py")
        (project.path / "over").touch()
    (record,) = records(project).values()

    assert (record["void"] is not None) == void
    if void:
        assert record["void"]["code"] == "foreign-process"
        assert f"process {process.pid} may have computed" in record["void"]["text"]


@contextmanager
def held(project: Project, until: str) -> Iterator[int]:
    """Let another process have the GPU until something happens; yield its id."""
    source = f"""
        import sys
        import time
        from pytest_gpuperf.collect.leases import exclusive
        with exclusive({fake_cuda.UUID!r}, test="test_other.py::test_long"):
            print("held", flush=True)
            {until}
    """
    with subprocess.Popen(
        [sys.executable, project.write(source, "holder.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.communicate("")


def test_a_gpu_that_is_held_leaves_a_test_unmeasured(project: Project) -> None:
    """After the limit, with the process that has it and its test."""
    project.write("[pytest]\ngpuperf_lock_timeout = 1\n", "pytest.ini")
    project.write("import gpu\n\ndef test_it(gpuperf):\n    1 / 0\n")
    with held(project, "sys.stdin.read()") as pid:
        said = project.spawn("-rs").stdout

    assert "1 skipped" in said
    assert f"process {pid} has held {fake_cuda.UUID} for 1 s, now for" in said
    assert "test_other.py::test_long" in said
    assert f"wait until process {pid} has ended, or end it" in said


def test_no_timeout_counts_the_wait(project: Project) -> None:
    """A test that waits for its turn has not begun, for pytest-timeout neither."""
    pytest.importorskip("pytest_timeout")
    project.write(TESTS.replace("range(4)", "range(1)"))
    with held(project, "time.sleep(4)"):
        begun = time.monotonic()
        ended = project.spawn("-p", "pytest_timeout", "--timeout=2", "-q")
        waited_s = time.monotonic() - begun

    assert ended.returncode == 0, ended.stdout
    assert waited_s > 2


def test_where_nothing_can_be_locked_the_header_says_so(
    project: Project, folder: Path
) -> None:
    """The run goes on by default; where turns were asked for by name, it does not."""
    folder.joinpath("locks").touch()
    project.write("import gpu\n\ndef test_it(gpuperf):\n    gpuperf(gpu.launch)\n")
    usual = project.spawn(JSON)
    named = project.spawn("--gpuperf-lock=exclusive")
    said = " ".join(usual.stdout.split())  # where a line breaks is the folder's affair

    assert usual.returncode == 0
    assert "lock: no turns are taken on the GPU:" in said
    assert "set GPUPERF_LOCK_DIR to a folder on a local disk" in said
    assert named.returncode == 1
    assert "--gpuperf-lock=exclusive cannot be used:" in named.stdout


SEEN = """
    import gpu
    import pytest

    @pytest.mark.gpuperf(requires=["gpu"], iterations=10)
    def test_it(gpuperf):
        print("on", gpuperf.device)
        gpuperf(gpu.launch)
"""


@pytest.fixture(name="two")
def two_(project: Project, tmp_path: Path) -> Project:
    """Return a project on a machine with two GPUs."""
    gpus = (fake_cuda.UUID, fake_cuda.OTHER)
    fake_cuda.machine(project, tmp_path / "two", gpus=gpus)
    project.write(SEEN)
    return project


@pytest.mark.parametrize(
    ("how", "asked"), [("line", "1"), ("ini", fake_cuda.OTHER[:8].lower())]
)
def test_the_gpu_that_is_asked_for_is_measured(
    two: Project, asked: str, how: str
) -> None:
    """By index or UUID; records, sensors, the lock and `gpuperf.device` are of it."""
    fake_cuda.use(two, fake_cuda.OTHER)
    if how == "ini":
        two.write(f"[pytest]\ngpuperf_device = {asked}\n", "pytest.ini")
    line = () if how == "ini" else (f"--gpuperf-device={asked}",)
    ended = two.spawn("-s", JSON, *line)
    (record,) = records(two).values()

    assert "on cuda:1" in ended.stdout
    assert record["void"] is None
    assert record["device"]["uuid"] == fake_cuda.OTHER
    assert record["soft_facts"]["gpu_uuid"] == fake_cuda.OTHER
    locks = {path.name for path in Path(os.environ["GPUPERF_LOCK_DIR"]).glob("*.lock")}
    assert locks == {f"gpu-{fake_cuda.OTHER.removeprefix('GPU-')}.lock"}


def test_another_gpu_than_was_asked_for_is_void(two: Project) -> None:
    """A test that chooses by itself is never taken for one on the GPU asked for."""
    two.spawn("--gpuperf-device=1", JSON)
    (record,) = records(two).values()

    assert record["device"]["uuid"] == fake_cuda.UUID
    assert record["void"]["code"] == "other-device"
    assert "put its tensors on gpuperf.device" in record["void"]["remedy"]


def test_a_record_is_of_the_gpu_that_was_used(two: Project) -> None:
    """Where none was asked for, tests may choose."""
    fake_cuda.use(two, fake_cuda.OTHER)
    two.spawn(JSON)
    (record,) = records(two).values()

    assert record["device"]["uuid"] == fake_cuda.OTHER
    assert record["void"] is None


def test_a_hidden_gpu_is_never_replaced(two: Project) -> None:
    """CUDA's own choice is respected, in its order; what it hides cannot be measured."""
    two.environment.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    shown = two.spawn("-s", "--gpuperf-device=0").stdout
    two.environment.setenv("CUDA_VISIBLE_DEVICES", "0")
    hidden = two.spawn("--gpuperf-device=1")
    two.environment.setenv("CUDA_VISIBLE_DEVICES", "")
    none = two.spawn("-rs").stdout

    assert "on cuda:1" in shown
    assert hidden.returncode == pytest.ExitCode.USAGE_ERROR
    assert (
        f"gpuperf: --gpuperf-device=1: GPU 1 ({fake_cuda.OTHER}) is hidden by "
        "CUDA_VISIBLE_DEVICES=0; set CUDA_VISIBLE_DEVICES=1, or leave --gpuperf-device"
        " out"
    ) in hidden.stderr
    assert "there is no GPU: CUDA_VISIBLE_DEVICES= hides every GPU" in none


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_a_gpu_that_is_not_there_is_a_usage_error(
    two: Project, workers: tuple[str, ...]
) -> None:
    """Before a test is collected, with what is there."""
    ended = two.spawn("--gpuperf-device=3", *workers)

    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert (
        f"gpuperf: --gpuperf-device=3: no GPU 3: this machine has 0 ({fake_cuda.UUID}, "
        f"NVIDIA H200), 1 ({fake_cuda.OTHER}, NVIDIA H200); name one of these, or leave"
        " --gpuperf-device out"
    ) in ended.stderr


@pytest.mark.parametrize("asked", ["1", None])
def test_ncu_is_told_of_the_gpu(
    two: Project, tmp_path: Path, asked: str | None
) -> None:
    """By CUDA's number, and only of one that was asked for."""
    starts, site = tmp_path / "starts", fake_nvtx.install(tmp_path / "site")
    fake_ncu_report.install(site)
    environment = two.environment
    environment.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    folder = str(Path(fake_nvtx.__file__).parent)
    environment.setenv("PATH", folder, prepend=os.pathsep)
    environment.setenv("GPUPERF_CACHE_DIR", str(tmp_path / "cache"))
    environment.setenv("FAKE_NCU_STARTS", str(starts))
    environment.setenv("FAKE_NCU_VALUES", '{"dram__bytes.sum": [64.0, "byte"]}')
    two.write(
        """
        import nvtx
        import pytest

        @pytest.mark.gpuperf(counters=["dram__bytes.sum"])
        def test_it(gpuperf):
            gpuperf(nvtx.launch, "gemm", **{"dram__bytes.sum": [64.0, "byte"]})
        """
    )
    line = () if asked is None else (f"--gpuperf-device={asked}",)
    ended = two.spawn("--gpuperf-collectors=host,ncu", "--gpuperf-chip=off", *line)
    (start,) = map(json.loads, starts.read_text(encoding="utf-8").splitlines())
    argv = start["argv"]

    assert ended.returncode == 0, ended.stdout
    assert (argv[argv.index("--devices") + 1] if "--devices" in argv else None) == asked


def test_a_replayed_run_asks_for_no_gpu(two: Project) -> None:
    """It is judged where there is none, with the options that it was recorded with."""
    fake_cuda.use(two, fake_cuda.OTHER)
    two.spawn("--gpuperf-device=1", "--gpuperf-record=kept")
    two.environment.delenv("LD_LIBRARY_PATH")
    two.write("def launch():\n    pass\n", "gpu.py")
    ended = two.spawn("--gpuperf-device=1", "--gpuperf-replay=kept", JSON)
    (record,) = records(two).values()

    assert ended.returncode == 0, ended.stdout
    assert record["device"]["uuid"] == fake_cuda.OTHER
    assert record["void"] is None


@pytest.mark.parametrize("lock", ["exclusive", "off"])
def test_a_run_that_measures_again_is_not_voided_by_its_parent(
    project: Project, lock: str
) -> None:
    """The parent keeps its context, which NVML lists, and waits for its child."""
    project.write(
        """
        import os
        from pathlib import Path

        def pytest_runtest_setup(item):
            if not item.config.pluginmanager.has_plugin("gpuperf-child"):
                with Path(os.environ["FAKE_NVML_SCRIPT"]).open("a") as file:
                    file.write(f",0,proc.{os.getpid()},1000\\n")
        """,
        "conftest.py",
    )
    project.write("import gpu\n\ndef test_it(gpuperf):\n    gpuperf(gpu.launch)\n")
    ended = project.spawn("--gpuperf-runs=2", f"--gpuperf-lock={lock}", JSON)
    first, again = project.report()["records"]

    assert ended.returncode == 0, ended.stdout
    assert (first["process_index"], again["process_index"]) == (0, 1)
    assert first["void"] is None
    known = lock == "exclusive" or not FIRST_NAMESPACE
    assert (again["void"] is None) == known
