"""Rules of reading a `.ncu-rep`."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fakes import fake_ncu_report
from fakes.runner import FakeRunner, finished
from pytest_gpuperf.collect.ncu import extract, forms, reading
from pytest_gpuperf.collect.ncu.launches import read_capture, read_report
from pytest_gpuperf.collect.ncu.text import capture_text
from pytest_gpuperf.collect.runner import Finished, ProcessRunner
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectorFailedError,
    CollectorTimeoutError,
    CollectorUnavailableError,
)
from pytest_gpuperf.model.launch import CapturedValue

ANSWER = b'{"ranges":[{"launches":[{"index":0,"kernel":"k"}]}]}\n'
DURATION = "gpu__time_duration.sum"
FLOAT, TEXT, INTEGER = 4, 2, 6
EVERY_KIND = {
    "launch__grid_size": (FLOAT, 8.0, ""),
    "a": (INTEGER, 2**64 - 1, "inst"),
    "b": (FLOAT, 0.1, "ns"),
    "c": (FLOAT, math.nan, "%"),
    "d": (FLOAT, -math.inf, "%"),
    "e": (TEXT, "H200", ""),
    "f": (TEXT, None, ""),
    "g": (0, 3, ""),
}
WITHOUT_CAPTURES = "needs real reports: name their folder in GPUPERF_CAPTURES"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ncu-report wheel with NVIDIA's classes replaced by our double."""
    module = fake_ncu_report.install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return module


@pytest.fixture
def some_file(tmp_path: Path) -> Path:
    """A file that starts as a report does."""
    return write(tmp_path)


def captures() -> list[Path | None]:
    """Return the real reports; None where there is no folder of them."""
    folder = os.environ.get("GPUPERF_CAPTURES")
    return [*sorted(Path(folder).glob("*.ncu-rep"))] if folder else [None]


@pytest.fixture(params=captures(), ids=lambda path: path and path.stem)
def real(request: pytest.FixtureRequest) -> Path:
    """Each real report in turn."""
    if request.param is None:
        pytest.skip(WITHOUT_CAPTURES)
    if find_spec("ncu_report") is None:
        pytest.skip("needs the package ncu-report")
    return Path(request.param)


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The double instead of a real ncu_report that another test has imported."""
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    yield
    sys.modules.pop("ncu_report", None)


def action(**changes: object) -> dict[str, object]:
    """Return one launch as the double reads it."""
    metrics = {"launch__grid_size": (FLOAT, 8.0, ""), DURATION: (FLOAT, 512.0, "ns")}
    return {"kernel": "k", "demangled": "k(int)", "metrics": metrics} | changes


def write(folder: Path, *ranges: list[dict[str, object]]) -> Path:
    """Write a report that the double reads."""
    path = folder / "some.ncu-rep"
    path.write_bytes(b"NVR\0" + json.dumps({"ranges": ranges}).encode())
    return path


def extracted(
    site: str | Path, path: Path, processes: int, *selection: str
) -> Finished:
    """Run the child side as `text` does, on so many processes."""
    form, *names = selection or (forms.ALL_VALUES,)
    argv = (
        sys.executable,
        *reading._OPTIONS,
        reading._START,
        reading._PACKAGES,
        str(site),
    )
    return ProcessRunner().run(
        (*argv, form, str(path), str(processes), *names), timeout_s=60
    )


class TestBeforeAProcessIsStarted:
    @pytest.mark.parametrize("content", [b"", b"a text", b"NV", b"NVR1", b"PK\3\4"])
    def test_refuses_what_does_not_start_like_a_report(
        self, tmp_path: Path, content: bytes
    ) -> None:
        """NVIDIA's reader would call such a file a report of nothing."""
        path = tmp_path / "x.ncu-rep"
        path.write_bytes(content)
        runner = FakeRunner()

        with pytest.raises(CaptureFormatError) as caught:
            capture_text(path, runner=runner)

        assert caught.value.path == str(path)
        assert caught.value.remedy
        assert runner.calls == []

    def test_refuses_a_path_without_a_file(self, tmp_path: Path) -> None:
        """A missing file and a folder are told apart from a damaged report."""
        with pytest.raises(CaptureFormatError, match="No such file"):
            capture_text(tmp_path / "none.ncu-rep", runner=FakeRunner())
        with pytest.raises(CaptureFormatError, match="a folder"):
            capture_text(tmp_path, runner=FakeRunner())

    def test_refuses_a_name_that_is_no_text(self, tmp_path: Path) -> None:
        """NVIDIA's reader takes UTF-8 alone, and its crash says nothing of the name."""
        path = write(tmp_path)
        try:
            named = path.rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.ncu-rep"))
        except OSError:
            pytest.skip("a file system whose names are text")

        with pytest.raises(CaptureFormatError, match="its name is not UTF-8"):
            capture_text(named, runner=FakeRunner())

    def test_does_not_wait_for_a_pipe(self, tmp_path: Path) -> None:
        """Opening a named pipe would hang for ever."""
        os.mkfifo(tmp_path / "pipe.ncu-rep")

        with pytest.raises(CaptureFormatError, match="not a file"):
            capture_text(tmp_path / "pipe.ncu-rep", runner=FakeRunner())

    def test_says_how_to_get_the_package(
        self, some_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without ncu-report the answer is the command that installs it."""
        monkeypatch.setattr(sys, "path", [])

        with pytest.raises(CollectorUnavailableError) as caught:
            capture_text(some_file, runner=FakeRunner())

        assert caught.value.remedy == 'pip install "pytest-gpuperf[ncu]"'

    def test_importing_it_costs_no_heavy_module(self) -> None:
        """NVIDIA's module stays out of a process that only may read a report."""
        code = (
            "import sys, pytest_gpuperf.collect.ncu.launches\n"
            "print({'ncu_report', 'numpy', 'tempfile', 'threading'} & {*sys.modules})"
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            text=True,
            env=environment,
        )

        assert done.stdout.strip() in {"set()", "{'threading'}"}  # of subprocess


@pytest.mark.usefixtures("installed")
class TestTheProcess:
    def test_answers_what_it_wrote(self, some_file: Path) -> None:
        """The text goes through unparsed."""
        runner = FakeRunner([finished(stdout=ANSWER)])

        assert capture_text(some_file, runner=runner) == ANSWER

    def test_is_asked_for_some_metrics_or_all(self, some_file: Path) -> None:
        """None are not all."""
        runner = FakeRunner([finished(stdout=ANSWER)] * 2)

        capture_text(some_file, runner=runner, metrics=[])
        capture_text(some_file, runner=runner)

        assert runner.calls[0].argv[-3:] == (forms.VALUES, str(some_file), "0")
        assert runner.calls[1].argv[-3:] == (forms.ALL_VALUES, str(some_file), "0")

    def test_gets_no_more_of_the_environment_than_it_needs(
        self, some_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a report says depends on the report alone."""
        monkeypatch.setenv("LD_LIBRARY_PATH", "/lib")
        monkeypatch.setenv("SECRET", "x")
        monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=1")
        runner = FakeRunner([finished(stdout=ANSWER)])

        capture_text(some_file, runner=runner)

        (call,) = runner.calls
        assert call.env is not None
        assert call.env["LD_LIBRARY_PATH"] == "/lib"
        assert not {"SECRET", "PYTHONPATH", "PATH", "GLIBC_TUNABLES"} & {*call.env}
        assert (call.argv[0], call.timeout_s) == (sys.executable, 120.0)

    def test_that_refuses_the_file_is_a_format_error(self, some_file: Path) -> None:
        """Its reason and the path reach the reader."""
        end = finished(forms.NOT_A_REPORT, stdout=b"it holds no launch")

        with pytest.raises(CaptureFormatError, match="it holds no launch") as caught:
            capture_text(some_file, runner=FakeRunner([end]))

        assert caught.value.path == str(some_file)

    def test_that_cannot_load_the_package_is_unavailable(self, some_file: Path) -> None:
        """A wheel for another machine is installed and of no use."""
        end = finished(forms.NO_INTERFACE, stdout=b"wrong ELF class")

        with pytest.raises(CollectorUnavailableError, match="wrong ELF class"):
            capture_text(some_file, runner=FakeRunner([end]))

    @pytest.mark.parametrize(
        "end",
        [
            finished(-6, stdout=ANSWER),
            finished(1, stderr=b"Traceback"),
            finished(0, stdout=b""),
            finished(0, stdout=ANSWER[:-5]),
        ],
        ids=["aborted", "failed", "silent", "half"],
    )
    def test_that_crashes_never_looks_like_a_report(
        self, some_file: Path, end: Finished
    ) -> None:
        """Only a whole answer of a process that ended well is an answer."""
        with pytest.raises(CollectorFailedError, match=r"some\.ncu-rep") as caught:
            capture_text(some_file, runner=FakeRunner([end]))

        assert caught.value.exit_code == end.exit_code

    def test_that_hangs_is_a_timeout(self, some_file: Path) -> None:
        """The runner's own error passes."""
        timeout = CollectorTimeoutError("too long", remedy="wait")

        with pytest.raises(CollectorTimeoutError):
            capture_text(some_file, runner=FakeRunner([timeout]))


@pytest.mark.usefixtures("installed")
class TestWhatIsRead:
    def test_keeps_the_numbers_and_units_of_the_report(self, tmp_path: Path) -> None:
        """Integers stay exact beyond 2**53; what is not a number is None."""
        path = write(tmp_path, [action(metrics=EVERY_KIND)])

        read = read_capture(path, runner=ProcessRunner())

        assert read.ranges[0].launches[0].metrics == {
            "launch__grid_size": CapturedValue(value=8.0, unit=""),
            "a": CapturedValue(value=2**64 - 1, unit="inst"),
            "b": CapturedValue(value=0.1, unit="ns"),
            "c": CapturedValue(value=None, unit="%"),
            "d": CapturedValue(value=None, unit="%"),
            "e": CapturedValue(value="H200", unit=""),
            "f": CapturedValue(value=None, unit=""),
            "g": CapturedValue(value=None, unit=""),
        }

    def test_says_what_is_absent(self, tmp_path: Path) -> None:
        """A metric that was asked for is in the answer once, in the order asked."""
        path = write(tmp_path, [action()])

        read = read_capture(
            path, runner=ProcessRunner(), metrics=["no__such", DURATION, "no__such"]
        )

        assert list(read.ranges[0].launches[0].metrics.items()) == [
            ("no__such", CapturedValue(value=None, unit=None)),
            (DURATION, CapturedValue(value=512.0, unit="ns")),
        ]

    def test_survives_any_name(self, tmp_path: Path) -> None:
        """Names come from other people's programs."""
        name = 'k<"\\\n\x1b[31m\x00é\U0001f600>'
        path = write(tmp_path, [action(kernel=name, demangled="k\udcff")])

        text = capture_text(path, runner=ProcessRunner())
        (launch,) = read_capture(path, runner=ProcessRunner()).ranges[0].launches

        assert text.isascii()
        assert b"\x1b" not in text
        assert launch.kernel == name
        assert launch.demangled == "k\ufffd"

    def test_keeps_ranges_and_nvtx_apart(self, tmp_path: Path) -> None:
        """An index counts within its range; a stack belongs to its domain."""
        nvtx = [["a", ["outer", "inner"], []], ["b", [], ["started"]], ["a", ["x"], []]]
        path = write(tmp_path, [action(), action(nvtx=nvtx)], [action(kernel="last")])

        first, second = read_capture(path, runner=ProcessRunner()).ranges

        assert [each.index for each in first.launches] == [0, 1]
        assert [each.kernel for each in second.launches] == ["last"]
        assert first.launches[0].nvtx == {}
        assert first.launches[1].nvtx == {
            "a": ("outer", "inner", "x"),
            "b": ("started",),
        }

    def test_tells_a_failed_launch(self, tmp_path: Path) -> None:
        """A kernel without any launch metric was not measured; a range has none."""
        attributes = {"device__attribute_x": (INTEGER, 1, "")}
        path = write(
            tmp_path,
            [
                action(metrics=attributes),
                action(metrics=attributes, workload=1),
                action(metrics=attributes | {"launch__block_size": (FLOAT, 1, "")}),
                action(),
            ],
        )

        (found,) = read_capture(path, runner=ProcessRunner(), metrics=[]).ranges

        assert [each.measured for each in found.launches] == [False, True, True, True]

    @pytest.mark.parametrize(
        ("ranges", "reason"),
        [
            ([], "no launch"),
            ([[]], "no launch"),
            ([[action()], []], "no launch"),
            ([[action(), action(metrics={})]], "launch 1 has no metric"),
        ],
    )
    def test_refuses_a_report_that_is_cut_off(
        self, tmp_path: Path, ranges: list[list[dict[str, object]]], reason: str
    ) -> None:
        """These are what NVIDIA's reader makes of a cut file."""
        with pytest.raises(CaptureFormatError, match=reason):
            capture_text(write(tmp_path, *ranges), runner=ProcessRunner())

    def test_survives_an_abort_of_the_reader(self, tmp_path: Path) -> None:
        """SIGABRT ends the child, and the parent names the file."""
        path = write(tmp_path, [action(abort=True)])

        with pytest.raises(CollectorFailedError, match="signal 6") as caught:
            capture_text(path, runner=ProcessRunner())

        assert str(path) in str(caught.value)

    def test_names_a_package_that_cannot_be_loaded(
        self, tmp_path: Path, installed: Path
    ) -> None:
        """An import that fails in the child is not a damaged file."""
        installed.write_text("raise ImportError('ELF')")

        with pytest.raises(CollectorUnavailableError, match="ELF"):
            capture_text(write(tmp_path, [action()]), runner=ProcessRunner())


class TestSharingTheWork:
    def test_changes_nothing(self, tmp_path: Path, installed: Path) -> None:
        """However many processes read it, the text is the same."""
        ranges = [[action(kernel=f"k{i}") for i in range(n)] for n in (3, 1, 4)]
        path = write(tmp_path, *ranges)

        texts = [
            extracted(installed.parents[1], path, n).stdout for n in (1, 2, 3, 8, 50)
        ]

        assert len(set(texts)) == 1
        assert len(json.loads(texts[0])["ranges"][2]["launches"]) == 4

    def test_keeps_the_reason_of_a_refusal(
        self, tmp_path: Path, installed: Path
    ) -> None:
        """The last launch, where a cut shows, is read by the last process."""
        path = write(tmp_path, [action(), action(), action(metrics={})])

        end = extracted(installed.parents[1], path, 3)

        assert end.exit_code == forms.NOT_A_REPORT
        assert b"launch 2" in end.stdout

    def test_fails_with_each_of_its_processes(
        self, tmp_path: Path, installed: Path
    ) -> None:
        """One that aborts spoils the whole answer."""
        path = write(tmp_path, [action(), action(abort=True)])

        end = extracted(installed.parents[1], path, 2)

        assert end.exit_code == -6
        assert end.stdout == b""

    def test_leaves_out_a_total_that_the_report_lacks(
        self, installed: Path, tmp_path: Path
    ) -> None:
        """A metric sampled over time has values and no total, which reads as 0."""
        metrics = {
            "launch__grid_size": (FLOAT, 0.0, ""),
            "pmsampling:a": (FLOAT, None, "%"),
        }
        path = write(tmp_path, [action(metrics=metrics)])
        end = extracted(installed.parents[1], path, 1)
        (launch,) = json.loads(end.stdout)["ranges"][0]["launches"]

        assert launch["metrics"]["launch__grid_size"]["value"] == 0.0
        assert launch["metrics"]["pmsampling:a"]["value"] is None

    def test_writes_where_its_process_writes(
        self, tmp_path: Path, installed: Path
    ) -> None:
        """Not even a library that prints gets between the text's lines."""
        path = write(tmp_path, [action(), action()], [action()])

        end = extracted(installed.parents[1], path, 2, forms.VALUES, DURATION)

        assert end.exit_code == 0
        assert len(json.loads(end.stdout)["ranges"]) == 2
        assert b"may print what it likes" in end.stderr

    @pytest.mark.usefixtures("undisturbed")
    @pytest.mark.parametrize(
        "ranges",
        [
            [[action(kernel="é"), action(metrics={"a": (INTEGER, 1, "")})], [action()]],
            [[action(nvtx=[["a", ["x"], ["y"]]], metrics=EVERY_KIND)]],
            [[action(metrics={"a": (INTEGER, 1, "")}, workload=1)]],
            [[action(), action(metrics={})]],
            [],
        ],
    )
    @pytest.mark.parametrize(
        "selection",
        [
            (forms.ALL_VALUES,),
            (forms.VALUES, DURATION, "no__such"),
            (forms.LAUNCHES, "*", DURATION, "no__such"),
        ],
    )
    def test_is_not_needed(
        self,
        tmp_path: Path,
        installed: Path,
        ranges: list[list[dict[str, object]]],
        selection: tuple[str, ...],
    ) -> None:
        """Where no process can be forked, this one reads the same."""
        path = write(tmp_path, *ranges)

        form, *names = selection
        status, answer = extract.answer(form, str(path), names, processes=1)

        end = extracted(installed.parents[1], path, 2, *selection)
        assert (end.exit_code, end.stdout.decode()) == (status, answer)


class TestRealReports:
    def test_are_the_same_in_one_process_and_in_several(self, real: Path) -> None:
        """Sharing the work is only a matter of speed."""
        spec = find_spec("ncu_report")
        assert spec is not None
        assert spec.origin is not None
        site = Path(spec.origin).parents[1]

        one, two = (extracted(site, real, n) for n in (1, 2))

        assert one.exit_code == 0
        assert one.stdout == two.stdout
        assert one.stderr == two.stderr == b""

    def test_say_what_a_plain_loop_says(self, real: Path) -> None:
        """Every value, unit, name and NVTX stack of NVIDIA's documented interface.

        But for units that the interface guesses, which are of our table.
        """
        done = subprocess.run(
            [sys.executable, "-c", PLAIN_LOOP, real], capture_output=True, check=True
        )
        expected = json.loads(done.stdout)
        launches = (
            launch for part in expected["ranges"] for launch in part["launches"]
        )
        metrics = [pair for launch in launches for pair in launch["metrics"].items()]
        for name, metric in metrics:
            metric["unit"] = extract.own_unit(name) or metric["unit"]

        found = json.loads(capture_text(real, runner=ProcessRunner()))

        assert found == expected

    @pytest.mark.parametrize("percent", [2, 35, 50, 65, 80, 95, 99])
    def test_cut_anywhere_are_refused(
        self, real: Path, tmp_path: Path, percent: int
    ) -> None:
        """A file cut within a launch never looks like a shorter report."""
        whole = real.read_bytes()
        path = tmp_path / "cut.ncu-rep"
        path.write_bytes(whole[: len(whole) * percent // 100])

        with pytest.raises((CaptureFormatError, CollectorFailedError)):
            capture_text(path, runner=ProcessRunner(), metrics=[DURATION])

    def test_tell_the_launch_that_failed(self, real: Path) -> None:
        """In the reports named so it is the last one, and no other."""
        (found,) = read_capture(real, runner=ProcessRunner(), metrics=[]).ranges

        measured = [launch.measured for launch in found.launches]

        assert all(measured[:-1])
        assert measured[-1] == ("_incomplete_" not in real.stem)

    def test_are_read_by_an_installed_nsight_compute_too(
        self, real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There the module lies in extras/python and its library elsewhere."""
        wheel = Path(sysconfig.get_path("platlib"), "ncu_report")
        python = tmp_path / "extras" / "python"
        library = tmp_path / "target" / "linux-desktop-x64"
        for folder in (python, library):
            folder.mkdir(parents=True)
        (python / "ncu_report.py").symlink_to(wheel / "__init__.py")
        (python / "_ncu_report.so").symlink_to(wheel / "_ncu_report.so")
        (library / "libnvperf_host.so").symlink_to(wheel / "libnvperf_host.so")
        usual = capture_text(real, runner=ProcessRunner(), metrics=[DURATION])
        monkeypatch.syspath_prepend(python)

        text = capture_text(real, runner=ProcessRunner(), metrics=[DURATION])

        assert text == usual


PLAIN_LOOP = """
import json, math, sys
import ncu_report

def number(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value

# Values by time or address alone have no total, which reads as 0.
def whole(metric):
    return number(metric.value()) if metric.has_value() else None

def launch(index, action):
    state = action.nvtx_state()
    return {
        "index": index,
        "kernel": action.name(),
        "demangled": action.name(action.NameBase_DEMANGLED),
        "nvtx": {} if state is None else {
            state[i].name(): [*state[i].push_pop_ranges(), *state[i].start_end_ranges()]
            for i in state
        },
        "measured": any(name.startswith("launch__") for name in action),
        "metrics": {
            name: {"value": whole(action[name]), "unit": action[name].unit()}
            for name in action
        },
    }

report = ncu_report.load_report(sys.argv[1])
print(json.dumps({"ranges": [
    {"launches": [launch(i, action) for i, action in enumerate(each)]}
    for each in report
]}))
"""


def test_a_unit_is_one_whatever_was_asked_before(real: Path) -> None:
    """NVIDIA's reader guesses some units by what it met before them in its process."""
    names = sorted(read_report(real, (), runner=ProcessRunner()).names)
    units: dict[str, set[str | None]] = {}
    for seed in range(4):
        random.Random(seed).shuffle(names)
        report = read_report(real, names[seed % 2 :: 2], runner=ProcessRunner())
        for placed in report.launches:
            for name, metric in placed.metrics.items():
                units.setdefault(name, set()).add(metric.unit)

    assert {name: found for name, found in units.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("derived__memory_l2_theoretical_sectors_global_excessive", "sector"),
        ("memory_l2_theoretical_sectors_local", "sector"),
        ("derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2", "inst"),
        ("smsp__pcsamp_warps_issue_stalled_membar_not_issued", "warp"),
        ("smsp__sass_inst_executed_op_memory_8b.sum", "inst"),
        ("breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
        ("dram__bytes.sum", "bogus"),
    ],
)
def test_a_unit_that_the_reader_guesses_is_ours(
    installed: Path, tmp_path: Path, name: str, unit: str
) -> None:
    """Of the few names for which it guesses, and of no other."""
    assert installed.exists()
    metrics = {"launch__grid_size": (FLOAT, 8.0, ""), name: (FLOAT, 1.0, "bogus")}
    report = write(tmp_path, [{"kernel": "k", "metrics": metrics}])
    (range_read,) = read_capture(report, runner=ProcessRunner()).ranges
    placed = read_report(report, None, runner=ProcessRunner()).launches[0]

    assert range_read.launches[0].metrics[name].unit == unit
    assert placed.metrics[name].unit == unit
