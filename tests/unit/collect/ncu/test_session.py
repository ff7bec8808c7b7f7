"""collect.ncu.session: ncu is run, and what goes wrong is said."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fakes import fake_ncu, fake_ncu_report
from fakes.clock import FakeClock
from fakes.nvml import FakeGpu, FakeNvml
from fakes.processes import ended
from fakes.runner import Call, FakeRunner, finished
from pytest_gpuperf.collect.ncu.command import Command
from pytest_gpuperf.collect.ncu.launches import read_capture
from pytest_gpuperf.collect.ncu.session import Session
from pytest_gpuperf.collect.runner import Finished, ProcessRunner
from pytest_gpuperf.errors import (
    CollectError,
    CollectorFailedError,
    CollectorTimeoutError,
    CollectorUnavailableError,
    CounterPermissionError,
    CountersBusyError,
    GpuPerfError,
    MeasureError,
    NothingProfiledError,
    RecordError,
    UnknownCounterError,
)
from pytest_gpuperf.model.frozen import replace

AMPLE_S = 60.0
BUSY = (
    "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that "
    "no other tool (like DCGM) is concurrently collecting profiling data.\n"
)
# a program that opens two ranges and launches kernels in them
PROGRAM = """
import json, os, sys
assert "NV_COMPUTE_PROFILER_PERFWORKS_DIR" in os.environ
with open(os.environ["FAKE_NCU_RANGES"], "a") as stream:
    for name in ("first", "second"):
        kernels = [{"name": f"k_{name}", "metrics": {"sm__a.sum": [3, "inst"]}}, "k"]
        line = {"domain": "pytest-gpuperf", "name": name, "kernels": kernels}
        stream.write(json.dumps(line) + "\\n")
print("the program was here")
sys.exit(int(sys.argv[1]))
"""

needs_groups = pytest.mark.skipif(
    not hasattr(os, "killpg"), reason="this system has no process groups"
)


# The first bytes of a report of ncu 2026.3.
ZSTD = b"\x28\xb5\x2f\xfd"


class ScriptedNcu(FakeRunner):
    """Writes a log and a report, one of each for every start."""

    def __init__(self, session: Session, *starts: tuple[int, str, bytes]) -> None:
        super().__init__([finished(code) for code, _, _ in starts])
        self._command = session.command
        self._written = [(log, report) for _, log, report in starts]
        self.found: list[tuple[bytes, bool]] = []

    def answer(self, call: Call) -> Finished:
        log, report = self._command.log, self._command.report
        self.found.append((log.read_bytes(), report.exists()))
        text, content = self._written.pop(0)
        log.write_text(text, encoding="utf-8")
        if content.startswith(ZSTD):
            report = report.with_name(f"{report.name}z")
        if content:
            report.write_bytes(content)
        return super().answer(call)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session with a clock that does not wait."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return Session(
        command=Command(executable="./saxpy", output=tmp_path / "out"),
        lock_folder=tmp_path / "locks",
        clock=FakeClock(),
        jitter=lambda: 0.0,
    )


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: Session) -> Session:
    """One that starts real processes: the double of ncu is first on PATH."""
    fakes = Path(fake_ncu.__file__).parent
    monkeypatch.setenv("PATH", f"{fakes}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_NCU_STARTS", str(tmp_path / "starts"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = replace(session.command, executable=sys.executable, args=(program, "0"))
    return replace(session, command=command)


def scripted(
    session: Session, *starts: tuple[int, str, bytes]
) -> tuple[Session, ScriptedNcu]:
    runner = ScriptedNcu(session, *starts)
    return replace(session, runner=runner), runner


def test_a_compressed_report_is_the_report(session: Session) -> None:
    """ncu 2026.3 appends z to its name; the next run leaves no report of another form."""
    command = session.command
    plain, compressed = command.report, command.report.with_name("out.ncu-repz")
    starts = [(0, "==PROF== ok", ZSTD + b"1"), (0, "==PROF== ok", b"NVR")]
    running, _ = scripted(session, *starts)

    running.run()
    assert command.written() == compressed
    running.run()
    assert command.written() == plain
    assert not compressed.exists()


def written(file: Path) -> None:
    """Return once there is something in a file."""
    deadline = time.monotonic() + AMPLE_S
    while not (file.exists() and file.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def changed(session: Session, **changes: object) -> Session:
    """Return the session with a command that differs."""
    command = replace(session.command, **changes)
    return replace(session, command=command)


class TestAttempts:
    def test_what_was_there_is_gone_before_each(self, session: Session) -> None:
        """A log of an earlier run explains nothing, its report answers nothing."""
        session.command.log.write_text(BUSY, encoding="utf-8")
        session.command.report.write_bytes(b"old")
        session, runner = scripted(session, (9, BUSY, b"half"), (0, "", b"NVR"))

        session.run(retries=2)

        assert runner.found == [(b"", False), (b"", False)]

    def test_a_log_is_not_emptied_through_a_link(
        self, session: Session, tmp_path: Path
    ) -> None:
        """Whoever shares the folder of the output knows the log's name."""
        victim = tmp_path / "victim"
        victim.write_text("precious", encoding="ascii")
        session.command.log.symlink_to(victim)
        session, _ = scripted(session, (0, "", b"NVR"))

        session.run()

        assert victim.read_text("ascii") == "precious"

    def test_a_busy_driver_is_asked_again(self, session: Session) -> None:
        """The waits grow to the last attempt, as documented: 0.6, 1.2, 1.8, 2.4 s."""
        clock = FakeClock()
        session, runner = scripted(session, *[(9, BUSY, b"")] * 4, (0, "", b"NVR"))
        session = replace(session, clock=clock)

        end = session.run(retries=5)

        assert end.exit_code == 0
        assert len(runner.calls) == 5
        assert clock.reading_ns == pytest.approx(6.0e9)

    def test_the_waits_are_jittered(self, session: Session) -> None:
        """By the source that was given, up to half as long again."""
        clock = FakeClock()
        session, _ = scripted(session, (9, BUSY, b""), (0, "", b"NVR"))
        session = replace(session, clock=clock, jitter=lambda: 0.5)

        session.run(retries=2, sleep=lambda left, retries: 10.0 * left + retries)

        assert clock.reading_ns == pytest.approx(12.0e9 * 1.25)

    def test_busy_to_the_end_is_busy(self, session: Session) -> None:
        """DCGM never lets go: the advice is how to pause it."""
        session, runner = scripted(session, *[(9, BUSY, b"")] * 3)

        with pytest.raises(CountersBusyError, match="dcgmi profile --pause"):
            session.run(retries=3)

        assert len(runner.calls) == 3

    def test_nothing_else_is_tried_again(self, session: Session) -> None:
        """An unknown option stays unknown."""
        log = "==ERROR== unrecognised option '--x'. Use --help for further details.\n"
        session, runner = scripted(session, (1, log, b""))

        with pytest.raises(CollectorFailedError, match="no option --x") as caught:
            session.run(retries=5)

        assert len(runner.calls) == 1
        assert caught.value.exit_code == 1
        assert log.strip() in caught.value.log_tail

    @pytest.mark.parametrize("retries", [0, -1, True, 1.5])
    def test_none_at_all_is_refused(self, session: Session, retries: int) -> None:
        """Else nothing would run, and look like success."""
        session, runner = scripted(session)

        with pytest.raises(ValueError, match="not a number of attempts") as caught:
            session.run(retries=retries)

        assert isinstance(caught.value, RecordError)
        assert runner.calls == []


class TestEnds:
    @pytest.mark.parametrize(
        ("start", "words"),
        [
            ((0, "", b""), "wrote no report"),
            ((3, "==ERROR== Something new.\n", b""), "status 3: Something new"),
            ((0, "==ERROR== Something new.\n", b"NVR"), "status 0: Something new"),
            ((3, "", b"NVR"), "it gave no reason"),
            ((-11, "", b"NVR"), "signal 11"),
            ((0, "==ERROR== LaunchFailed\n", b"NVR"), "launched again"),
        ],
    )
    def test_every_bad_end_is_an_error(
        self, session: Session, start: tuple[int, str, bytes], words: str
    ) -> None:
        """A report is trusted only from an ncu that had nothing to complain of."""
        session, _ = scripted(session, start)

        with pytest.raises(CollectorFailedError, match=words) as caught:
            session.run()

        assert caught.value.remedy

    def test_a_child_without_cuda_is_none(self, session: Session) -> None:
        """Programs start compilers; where a report is, somebody else called CUDA."""
        log = (
            "==ERROR== Target process 3 terminated before first instrumented API call\n"
        )
        failed = "==ERROR== The application returned an error code (1).\n"
        session, _ = scripted(
            session,
            (0, log, b"NVR"),
            (1, log + failed, b"NVR"),
            (1, log, b""),
        )

        assert session.run().exit_code == 0
        assert replace(session, program_may_fail=True).run().exit_code == 1
        with pytest.raises(CollectorFailedError, match="before it called CUDA"):
            session.run()

    def test_what_it_prints_counts_where_there_is_no_log(
        self, session: Session
    ) -> None:
        """An ncu that dies over its command line opens none."""
        said = b"==ERROR== unrecognised option '--y'. Use --help.\n"
        runner = FakeRunner([finished(1, stdout=said)])

        with pytest.raises(CollectorFailedError, match="no option --y"):
            replace(session, runner=runner).run()

    def test_a_folder_that_cannot_be_written_is_named(self, session: Session) -> None:
        """Before ncu is started."""
        session.command.report.mkdir()

        with pytest.raises(CollectError, match="no report can be written"):
            replace(session, runner=FakeRunner()).run()


class TestEnvironment:
    def test_the_callers_mapping_is_not_changed(self, session: Session) -> None:
        """The command's variables win, in a copy."""
        session, runner = scripted(
            changed(session, env={"A": "1"}), *[(0, "", b"NVR")] * 2
        )
        env = {"A": "0", "B": "2"}

        session.run(env=env)
        session.run()

        assert env == {"A": "0", "B": "2"}
        assert runner.calls[0].env == {"A": "1", "B": "2"}
        assert runner.calls[1].env == {**os.environ, "A": "1"}

    def test_without_any_it_is_inherited(self, session: Session) -> None:
        """None stays None."""
        session, runner = scripted(session, (0, "", b"NVR"))

        session.run()

        assert runner.calls[0].env is None

    def test_kernel_replay_of_collectives_is_refused(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would hang; any other replay may run, and so may whoever knows better."""
        session, runner = scripted(session, *[(0, "", b"NVR")] * 3)
        monkeypatch.setenv("WORLD_SIZE", "2")

        with pytest.raises(MeasureError, match="WORLD_SIZE is 2"):
            session.run()
        with pytest.raises(MeasureError, match="collectives=True"):
            replace(session, collectives=True).run(env={})
        assert runner.calls == []
        session.run(env={"WORLD_SIZE": "1"})
        replace(session, collectives=False).run()
        changed(session, replay_mode="application").run()
        assert len(runner.calls) == 3


class TestRealProcesses:
    def test_a_report_comes_back(
        self, real: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From the program's ranges to launches with their values."""
        fake_ncu_report.install(tmp_path / "site")
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.setenv("FAKE_NCU_VALUES", '{"gpu__time.sum": 1.5, "sm__a.sum": 1}')
        session = changed(
            real,
            metrics=["gpu__time.sum", "sm__a.sum", "sm__absent.sum"],
            nvtx_includes=["regex:pytest-gpuperf@sec.+"],
        )

        end = session.run()

        assert end.stdout == b"the program was here\n"
        (found,) = read_capture(session.command.report, runner=ProcessRunner()).ranges
        assert len(found.launches) == 2
        assert [each.kernel for each in found.launches] == ["k_second", "k"]
        for each, count in zip(found.launches, (3, 1), strict=True):
            assert each.nvtx == {"pytest-gpuperf": ("second",)}
            assert each.metrics["sm__a.sum"].value == count
            assert each.metrics["gpu__time.sum"].value == 1.5
            assert "sm__absent.sum" not in each.metrics

    def test_relative_places_are_in_the_folder(
        self, real: Session, tmp_path: Path
    ) -> None:
        """Log and report are looked for where ncu puts them."""
        (tmp_path / "there").mkdir()
        session = changed(real, output="deep/out.v1")

        session.run(cwd=tmp_path / "there")

        folder = tmp_path / "there" / "deep"
        assert sorted(path.name for path in folder.iterdir()) == [
            "out.v1.log",
            "out.v1.ncu-rep",
        ]

    @pytest.mark.parametrize(
        ("mode", "kind"),
        [
            ("permission", CounterPermissionError),
            ("busy", CountersBusyError),
            ("library", CollectorUnavailableError),
            ("lock", CollectorUnavailableError),
            ("no-kernels", NothingProfiledError),
            ("unknown-metric", UnknownCounterError),
            ("early-end", CollectorFailedError),
            ("launch-failed", CollectorFailedError),
            ("range-unsupported", CollectorFailedError),
            ("crash-half", CollectorFailedError),
        ],
    )
    def test_each_failure_has_its_error(
        self,
        real: Session,
        monkeypatch: pytest.MonkeyPatch,
        mode: str,
        kind: type[GpuPerfError],
    ) -> None:
        """The class, a cause and a remedy; no bare error of the system."""
        monkeypatch.setenv("FAKE_NCU_MODE", mode)

        with pytest.raises(GpuPerfError) as caught:
            real.run()

        assert type(caught.value) is kind
        assert caught.value.remedy

    def test_an_option_of_ours_that_an_ncu_lacks_is_left_out(
        self, real: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An older one has nothing to switch off; the user wrote none of them."""
        monkeypatch.setenv("FAKE_NCU_LACKS", "--rename-kernels,--config-file")

        real.run()

        assert real.command.report.exists()

    def test_each_node_of_a_graph_needs_no_option(
        self, real: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An ncu without it counts them anyway; the whole graph it cannot count."""
        monkeypatch.setenv("FAKE_NCU_LACKS", "--graph-profiling")
        graph = changed(real, graph_profiling="graph")

        with pytest.raises(CollectorFailedError, match="no option --graph-profiling"):
            graph.run()
        real.run()

        assert real.command.report.exists()

    @pytest.mark.parametrize("option", ["--rename-kernels=on", "--cache-control=none"])
    def test_an_option_of_the_users_is_never_left_out(
        self, real: Session, monkeypatch: pytest.MonkeyPatch, option: str
    ) -> None:
        """Without it other numbers would stand for those that were asked for."""
        name = option.partition("=")[0]
        monkeypatch.setenv("FAKE_NCU_LACKS", name)

        with pytest.raises(CollectorFailedError, match=f"no option {name}") as caught:
            changed(real, opts=(option,)).run()

        assert caught.value.remedy == "install a newer Nsight Compute"

    @pytest.mark.parametrize(
        ("printed", "said"),
        [
            ("unrecognised option '--replay-mod=kernel'", "no option --replay-mod"),
            ("the argument for option '--replay-mode' is invalid", "value of --replay"),
            ("Invalid kernel identifier foo", "255: Invalid kernel identifier foo"),
        ],
    )
    def test_a_refusal_without_a_mark_is_read(
        self, session: Session, printed: str, said: str
    ) -> None:
        """So does ncu 2022.3 refuse its command line, and writes no log."""
        text = f"{printed}\n\nUse --help for further details.\n".encode()
        runner = ScriptedNcu(session, (255, "", b""))
        runner._answers = [Finished(("ncu",), 255, text, b"")]

        with pytest.raises(CollectorFailedError, match=said):
            replace(session, runner=runner).run()

    def test_what_ncu_prints_is_its_log_until_it_has_one(
        self, session: Session
    ) -> None:
        """A driver that cannot be reached is printed; the log has what follows from it."""
        printed = (
            b"==ERROR== Nsight Compute failed to connect to the CUDA driver (stub "
            b"libcuda.so[.1] on path?).\n"
        )
        log = "==ERROR== The application returned an error code (1).\n"
        runner = ScriptedNcu(session, (1, log, b""))
        runner._answers = [Finished(("ncu",), 1, printed, b"")]

        with pytest.raises(CollectorUnavailableError, match="finds no CUDA driver"):
            replace(session, runner=runner).run()

    @pytest.mark.parametrize("report", [b"NVR\0", b""])
    def test_a_range_without_work_costs_its_own_counters(
        self, session: Session, report: bytes
    ) -> None:
        """A report has those of the others; without one nothing was profiled."""
        log = "==ERROR== Skipping invalid capture range (RecordStatusEmpty).\n"
        runner = ScriptedNcu(session, (0, log, report))

        if report:
            assert replace(session, runner=runner).run().exit_code == 0
        else:
            with pytest.raises(NothingProfiledError, match="saw no kernel"):
                replace(session, runner=runner).run()

    def test_busy_twice_and_then_free(
        self, real: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Three starts, and the third one's report."""
        monkeypatch.setenv("FAKE_NCU_MODE", "busy:2")

        real.run(retries=5)

        starts = (tmp_path / "starts").read_text(encoding="utf-8").splitlines()
        assert [json.loads(each)["argv"] for each in starts] == [
            [*real.command.cmd[1:]]
        ] * 3
        assert real.command.report.exists()

    def test_a_program_may_fail(self, real: Session) -> None:
        """A pytest with a failed test has measured the others."""
        args = real.command.args
        assert args is not None
        session = changed(real, args=(args[0], "7"))

        with pytest.raises(CollectorFailedError, match="ended with status 7") as caught:
            session.run()
        end = replace(session, program_may_fail=True).run()

        assert "the program was here" in caught.value.log_tail
        assert end.exit_code == 7

    def test_without_ncu_the_remedy_is_to_install_it(
        self, real: Session, tmp_path: Path
    ) -> None:
        """And a folder that is not there is told apart."""
        with pytest.raises(CollectorUnavailableError, match="install Nsight Compute"):
            changed(real, ncu="/nowhere/ncu").run()
        gone = tmp_path / "a" / "b"
        runner = replace(changed(real, output=tmp_path / "out2"))
        with pytest.raises(CollectorUnavailableError, match="a folder that exists"):
            runner.run(cwd=gone)

    @needs_groups
    def test_a_timeout_leaves_no_process(
        self, real: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither ncu nor the program that it runs."""
        monkeypatch.setenv("FAKE_NCU_MODE", "hang")
        pids = tmp_path / "pids"
        source = f"import os; open({str(pids)!r}, 'w').write(str(os.getpid()))"
        waiting = f"{source}; import time; time.sleep(600)"
        session = replace(
            changed(real, args=("-c", waiting), timeout_s=0.2),
            timeout_why="1 s a start",
            runner=ProcessRunner(lambda: written(pids)),  # then the timeout begins
        )

        with pytest.raises(CollectorTimeoutError, match="wait for one another") as told:
            session.run()
        assert told.value.message.endswith("did not end within 0.2 s (1 s a start)")

        assert ended(int(pids.read_text(encoding="ascii")))
        start = (tmp_path / "starts").read_text(encoding="utf-8")
        assert ended(json.loads(start)["pid"])

    @needs_groups
    def test_ctrl_c_leaves_no_process(
        self, real: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run that is interrupted ends what it started, and gives the GPU back."""
        monkeypatch.setenv("FAKE_NCU_MODE", "hang")
        child = started(real, output=tmp_path / "out")
        starts = tmp_path / "starts"
        written(starts)

        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=AMPLE_S)

        assert "KeyboardInterrupt" in said
        assert ended(json.loads(starts.read_text(encoding="utf-8"))["pid"])
        monkeypatch.delenv("FAKE_NCU_MODE")
        replace(real, lock_timeout_s=5).run()

    def test_two_runs_on_one_gpu_wait_for_each_other(
        self, real: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Never is one started while the other one profiles."""
        monkeypatch.setenv("FAKE_NCU_SLEEP", "0.3")
        children = [started(real, output=tmp_path / f"out{n}") for n in range(3)]

        for child in children:
            _, said = child.communicate(timeout=AMPLE_S)
            assert child.returncode == 0, said

        spans = sorted(
            (log.stat().st_mtime, log.with_suffix(".ncu-rep").stat().st_size)
            for log in tmp_path.glob("out?.log")
        )
        ends = [end for end, _ in spans]
        assert all(size for _, size in spans)
        assert all(later - end >= 0.3 for end, later in itertools.pairwise(ends))


def test_a_gpu_has_one_lock_by_whichever_name(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who names it by its index waits for who names it by its UUID."""
    load = ctypes.CDLL

    def loaded(name: str | None, *how: Any, **more: Any) -> object:
        return object() if name == "libnvidia-ml.so.1" else load(name, *how, **more)

    nvml = FakeNvml(FakeGpu(uuid="GPU-aa00"), FakeGpu(uuid="GPU-bb00"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(ctypes, "CDLL", loaded)
    held: list[set[str]] = []

    class Looking(ScriptedNcu):
        def answer(self, call: Call) -> Finished:
            held.append({each.name for each in folder.iterdir()})
            return super().answer(call)

    for device in ("0", "GPU-aa00", "1"):
        folder = tmp_path / f"locks-{device}"
        runner = Looking(session, (0, "", b"report"))
        replace(session, runner=runner, device=device, lock_folder=folder).run()

    first, same, other = held
    assert first == same
    assert first.isdisjoint(other)


# runs a session in a process of its own: where, with which program
RUN = """
import signal
import sys
from pathlib import Path
from pytest_gpuperf.collect.ncu import Command, Session
# what a shell starts in the background ignores it, and so would this
signal.signal(signal.SIGINT, signal.default_int_handler)
command = Command(executable=sys.executable, output=sys.argv[1], args=(sys.argv[2], "0"))
Session(command=command, lock_folder=Path(sys.argv[3])).run()
"""


def started(real: Session, *, output: Path) -> subprocess.Popen[str]:
    """Start a process that runs a session like that one."""
    assert real.command.args is not None
    program = str(next(iter(real.command.args)))
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(output), program, str(real.lock_folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
