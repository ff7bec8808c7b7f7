"""The `gpuperf` command, as a shell starts it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import fake_ncu_report, runs
from fakes.project import HUNG_S, command
from pytest_gpuperf import cli
from pytest_gpuperf.model.codec import decode_run, encode_run
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.run import HeaderNote, Run
from pytest_gpuperf.model.sample import Estimate, Source
from pytest_gpuperf.report.lines import SCHEMAS

HEAVY = {"msgspec", "numpy", "pytest", "pytest_gpuperf.model.codec", "scipy"}


def gpuperf(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pytest_gpuperf", *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, "COLUMNS": "100", **environment},
        timeout=HUNG_S,
    )


def written(folder: Path, name: str, run: Run) -> str:
    """Write a run and return its path."""
    path = folder / name
    path.write_bytes(encode_run(run))
    return str(path)


def run_of(session_id: str, *estimates: Estimate) -> Run:
    """Return a run of one test."""
    return runs.run((runs.record("test_a", *estimates),), session_id=session_id)


@pytest.fixture
def stored(tmp_path: Path) -> str:
    """Return the path of a run with one of everything."""
    return written(tmp_path, "run.json", runs.gpu_run())


def test_a_run_is_shown_as_its_test_session_showed_it(stored: str) -> None:
    """Text: title, table, explanations and the count, without commands to type."""
    done = gpuperf("show", stored)
    text = done.stdout.decode()
    first, *_ = text.splitlines()
    *_, last = text.split("\njudged ")

    assert (done.returncode, done.stderr) == (0, b"")
    assert first == "gpuperf: NVIDIA H200, driver 580.159, events, host"
    assert last.startswith("3 of 7: 1 failed, 1 regressed, 1 unchanged")
    assert b"reproduce:" not in done.stdout


def test_a_run_is_shown_in_every_form(stored: str) -> None:
    """JSON is the run itself; Markdown is a table."""
    as_json = gpuperf("show", stored, "--format=json")
    as_markdown = gpuperf("show", stored, "--format=markdown")

    assert decode_run(as_json.stdout) == runs.gpu_run()
    assert b"\n| `test_gemm[4096]` | 183 us |" in as_markdown.stdout


def test_only_some_metrics_are_shown(stored: str) -> None:
    """--metrics takes names with commas and blanks between them."""
    done = gpuperf("show", stored, "--metrics=registers, stack_bytes")

    assert b"registers 72, stack 0 B" in done.stdout
    assert b"41.2 us" not in done.stdout


def test_a_name_that_a_run_does_not_have_is_said(stored: str) -> None:
    """With near names, on standard error: JSON stays JSON."""
    done = gpuperf("show", stored, "--metrics=registesr,time", "--format=json")

    assert done.returncode == 0
    assert decode_run(done.stdout).records
    assert done.stderr == (
        b"gpuperf: not in this run: registesr; did you mean registers?\n"
    )


def test_a_counter_that_a_capture_does_not_have_is_said(tmp_path: Path) -> None:
    """As JSON it is null, which alone would not tell a mistyped name."""
    fake_ncu_report.install(tmp_path / "site")
    launch = {"kernel": "k", "demangled": "k()", "metrics": {"a__b.sum": (4, 8.0, "")}}
    path = tmp_path / "some.ncu-rep"
    path.write_bytes(b"NVR\0" + json.dumps({"ranges": [[launch]]}).encode())
    places = [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]
    done = gpuperf(
        *("show", str(path), "--format=json", "--metrics=a__b.sum,a__bb.sum"),
        PYTHONPATH=os.pathsep.join(filter(None, places)),
    )

    assert done.returncode == 0
    assert b'"a__bb.sum":{"value":null,' in done.stdout
    assert done.stderr == (
        b"gpuperf: not in this capture: a__bb.sum; did you mean a__b.sum? if not, "
        b"collect it: ncu --metrics a__bb.sum\n"
    )


def test_metrics_of_which_none_is_known_are_an_error(stored: str) -> None:
    """As a kernel that is not there: the option chooses nothing."""
    mistyped = gpuperf("show", stored, "--metrics=registesr")
    unknown = gpuperf("show", stored, "--metrics=zzz,yyy", "--format=json")
    lacking = gpuperf("show", stored, "--metrics=l2.hit_fraction")

    assert (mistyped.returncode, mistyped.stdout) == (2, b"")
    assert b"remedy: did you mean registers, scalar_registers?" in mistyped.stderr
    assert (unknown.returncode, unknown.stdout) == (2, b"")
    assert b"error: not in this run: zzz, yyy\n" in unknown.stderr
    assert lacking.returncode == 0


@pytest.fixture
def capture(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Return the path of a capture of two launches, and what lets it be read."""
    fake_ncu_report.install(tmp_path / "site")
    ranges = [
        [
            {
                "kernel": kernel,
                "demangled": f"void {kernel}<int>(int)",
                "nvtx": [["<default domain>", stack, []]],
                "metrics": {
                    "launch__grid_size": (4, 8.0, ""),
                    "a__b.sum": (4, 8.0, ""),
                },
            }
            for kernel, stack in (("gemm", ["step", "forward"]), ("relu", ["step"]))
        ]
    ]
    path = tmp_path / "some.ncu-rep"
    path.write_bytes(b"NVR\0" + json.dumps({"ranges": ranges}).encode())
    places = [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]
    return str(path), {"PYTHONPATH": os.pathsep.join(filter(None, places))}


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        (("--nvtx=forward/",), ["gemm"]),
        (("--nvtx=step/", "--exclude=forward/"), ["relu"]),
        (("--kernel=re*",), ["relu"]),
        (("--launches=0-1", "--kernel=void gemm*"), ["gemm"]),
    ],
)
def test_some_launches_of_a_capture_are_shown(
    capture: tuple[str, dict[str, str]], options: tuple[str, ...], kernels: list[str]
) -> None:
    """Chosen as in a test, in every form."""
    path, environment = capture
    as_json = gpuperf("show", path, *options, "--format=json", **environment)
    as_text = gpuperf("show", path, "--metrics=a__b.sum", *options, **environment)

    (part,) = json.loads(as_json.stdout)["ranges"]
    assert [launch["kernel"] for launch in part["launches"]] == kernels
    assert all(launch["analysis"]["limiter"] for launch in part["launches"])
    for kernel in ("gemm", "relu"):
        assert (kernel.encode() in as_text.stdout) == (kernel in kernels)
    assert as_text.stdout.endswith(b"1 launch\n")


def test_a_capture_as_json_has_what_its_counters_say(
    capture: tuple[str, dict[str, str]],
) -> None:
    """With its schema; metrics of the catalogue are asked for by name."""
    path, environment = capture
    named = ("--metrics=registers,a__b.sum", "--format=json")
    whole = json.loads(gpuperf("show", path, "--format=json", **environment).stdout)
    done = gpuperf("show", path, *named, **environment)
    some = json.loads(done.stdout)

    assert whole["schema"] == some["schema"] == SCHEMAS["show FILE.ncu-rep"]
    launch = whole["ranges"][0]["launches"][0]
    assert launch["analysis"]["limiter"]["type"] == "unknown"
    assert launch["metrics"]["a__b.sum"] == {"value": 8.0, "unit": ""}
    launch = some["ranges"][0]["launches"][0]
    assert launch["metrics"] == {"a__b.sum": {"value": 8.0, "unit": ""}}
    assert launch["derived"] == {"registers": {"value": None, "unit": None}}
    assert b"registers n/a" in done.stderr


def test_a_choice_of_no_launch_is_an_error(
    capture: tuple[str, dict[str, str]], stored: str
) -> None:
    """With what there is; a run has no launches to choose from."""
    path, environment = capture
    nothing = gpuperf("show", path, "--nvtx=backward/", **environment)
    of_a_run = gpuperf("show", stored, "--kernel=gemm")
    no_numbers = gpuperf("show", "--launches", path)

    assert nothing.returncode == 2
    assert b"none of its 2 launches is chosen" in nothing.stderr
    assert b"from the NVTX ranges forward, step" in nothing.stderr
    assert of_a_run.returncode == 2
    assert b"is a run" in of_a_run.stderr
    assert no_numbers.returncode == 2
    assert b"name FILE before it" in no_numbers.stderr


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.json", b"", "give a file written by --gpuperf-json"),
        ("run.json", b"[]", "give a file written by --gpuperf-json"),
        ("some.ncu-rep", b"not a report", "name a .ncu-rep file"),
        ("some.ncu-rep", b"", "profile again: ncu did not finish it"),
        pytest.param(
            *("run.json", b"NVR\0", "profile again"),
            marks=pytest.mark.skipif(
                importlib.util.find_spec("ncu_report") is None,
                reason="needs ncu-report, which finds that it is cut off",
            ),
        ),
    ],
)
def test_what_a_file_is_named_says_what_it_should_be(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    """Where its bytes do not: a damaged run was not made by ncu."""
    path = tmp_path / name
    path.write_bytes(content)
    done = command("show", str(path))

    assert done.returncode == 4
    assert words in done.stderr


def test_collectors_that_were_not_used_are_no_news_of_a_file(tmp_path: Path) -> None:
    """Its reader cannot choose them any more; why there was no GPU is a fact of it."""
    run = runs.run((runs.record("test_a", runs.time_of(1e-3)),), session_id="s1")
    absent = HeaderNote(about="binary", text="binary: cuobjdump is not there")
    told = (absent, runs.no_gpu("CPU only: NVML does not start: Unknown Error"))
    header = replace(run.header, notes=told)
    shown = gpuperf("show", written(tmp_path, "a.json", replace(run, header=header)))

    assert b"cuobjdump" not in shown.stdout
    assert b"NVML does not start" in shown.stdout


def test_text_is_utf8_whatever_the_terminal_says(stored: str) -> None:
    """A C locale is not a reason to fail."""
    done = gpuperf("show", stored, PYTHONIOENCODING="ascii", LC_ALL="C")

    assert done.returncode == 0
    assert "±0.3 %" in done.stdout.decode("utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "no command was named"),
        (("show",), 2, "required: FILE"),
        (("show", "x.json", "--format=xml"), 2, "'xml' is not one of"),
        (("show", "x.json", "--metrics=,"), 2, "--metrics: no metric is named"),
        (("compare", "one.json"), 2, "gpuperf compare .gpuperf run.json"),
        (("compare", "a", "b", "--max-regression=5"), 2, "write 5% or off"),
        (("compare", "a", "b", "--max-regression=x"), 2, "write 5% or off"),
        (("compare", "a", "b", "--max-regression=-5%"), 2, "write 5% or off"),
        (("show", "missing.json"), 4, "missing.json: it cannot be read"),
        (("show", "missing.ncu-rep"), 4, "missing.ncu-rep: it cannot be read"),
        (("compare", "a.json", "b.json"), 4, "a.json: it cannot be read"),
        (("compare", "a.json", "b.json"), 4, "b.json: it cannot be read"),
        (("show", "x.ncu-rep", "--top=0"), 2, "not a whole number from 1 on"),
        (("show", "x.ncu-rep", "--top=2", "--list"), 2, "--list, --top: only one"),
        (("show", "x.ncu-rep", "--metrics=time", "--details"), 2, "only one of them"),
        (("show", "x.ncu-rep", "--sort=name", "--top=2"), 4, "it cannot be read"),
        (("show", "x.ncu-rep", "--metrics=time", "--list"), 4, "it cannot be read"),
        (("show", "."), 4, "it is a folder"),
        (("show", "."), 4, "pytest --gpuperf-replay=."),
        (("cache", "info", "--folder=nowhere"), 4, "nowhere: it is not a folder"),
        (("cache", "clear", f"--folder={__file__}"), 4, "it is not a folder"),
    ],
)
def test_an_error_says_what_and_where_and_never_shows_a_traceback(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    """Wrong usage is 2, a file that cannot be read is 4; nothing goes to stdout."""
    done = command(*arguments)

    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"not a run", "not JSON"),
        (b'{"schema": "pytest-gpuperf/run/99"}', "pytest-gpuperf/run/99"),
        (b'{"half": ', "not JSON"),
        (b'{"schema": "pytest-gpuperf/run/2"}', "missing required field"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_named(
    tmp_path: Path, content: bytes, words: str
) -> None:
    """The file, what is wrong with it and a remedy; a name cannot move the cursor."""
    path = tmp_path / "evil\x1b[2J.json"
    path.write_bytes(content)
    done = command("show", str(path))
    text = done.stderr

    assert done.returncode == 4
    assert words in text
    assert "evil\\x1b[2J.json" in text
    assert "\n    remedy: " in text


def test_help_names_the_exit_codes() -> None:
    """--help tells a script what to expect."""
    done = gpuperf("--help")

    assert done.returncode == 0
    assert b"exit codes:\n   0 good\n   1 a limit failed" in done.stdout
    assert b"as 5%, or off (5%)" in gpuperf("compare", "--help").stdout


@pytest.mark.parametrize(
    ("option", "content"),
    [  # a report that is read and refused, and files that are refused unread
        ("--format=json", b"text"),
        ("--format=text", b"text"),
        ("--metrics=a__b.sum", b"NVR\0"),
    ],
)
def test_a_capture_is_read_before_any_codec_is_imported(
    tmp_path: Path, option: str, content: bytes
) -> None:
    """Counters as JSON need none; else a file that is not a report is refused first."""
    path = tmp_path / "not.ncu-rep"
    path.write_bytes(content)
    code = (
        "import sys; from pytest_gpuperf.cli import main;"
        f" code = main(['show', {str(path)!r}, '--format=json', {option!r}]);"
        " print(code, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=HUNG_S
    )
    found, *modules = done.stdout.decode().split()

    assert found == "4"
    assert HEAVY.isdisjoint(modules)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_all_of_a_long_answer_is_written(tmp_path: Path, unbuffered: str) -> None:
    """A pipe takes a part at a time, and an unbuffered stream does not insist."""
    records = tuple(runs.record(f"test_{n}", runs.time_of(1e-3)) for n in range(500))
    path = written(tmp_path, "long.json", runs.run(records))
    done = gpuperf("show", path, "--format=json", PYTHONUNBUFFERED=unbuffered)

    assert done.stdout == Path(path).read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes of this kind")
def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    """`gpuperf show … | head` ends without a word, as other commands do."""
    records = tuple(runs.record(f"test_{n}", runs.time_of(1e-3)) for n in range(2_000))
    path = written(tmp_path, "long.json", runs.run(records))
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_gpuperf", "show", path, "--format=json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        said = process.stderr.read()

    assert (process.returncode, said) == (128 + signal.SIGPIPE, b"")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes a named pipe")
def test_a_pipe_is_no_capture_and_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody may ever write into it; only standard input is waited for."""
    path = tmp_path / "pipe.ncu-rep"
    os.mkfifo(path)

    done = gpuperf("show", str(path))

    assert done.returncode == 4
    assert b"it is a folder, a pipe or a device" in done.stderr
    assert b"a run may be piped into -" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="closes what a POSIX shell closes")
@pytest.mark.parametrize(("closed", "code"), [("1", 4), ("2", 0), ("1 2", 4)])
def test_a_closed_stream_is_no_traceback(stored: str, closed: str, code: int) -> None:
    """Without standard output it cannot do its work; without the other it can."""
    redirected = " ".join(f"{number}>&-" for number in closed.split())
    shell = f'exec "$0" -m pytest_gpuperf show "$1" {redirected}'
    done = subprocess.run(
        ["/bin/sh", "-c", shell, sys.executable, stored],
        capture_output=True,
        check=False,
        timeout=HUNG_S,
    )

    assert done.returncode == code
    assert (b"standard output is closed" in done.stderr) is (closed == "1")
    assert b"Traceback" not in done.stderr


def test_an_interrupt_is_130(stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the command as a shell expects, without a traceback."""

    class Interrupted:
        """A standard output during which Ctrl-C is pressed."""

        @property
        def buffer(self) -> None:
            """Interrupt."""
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdout", Interrupted())

    assert cli.main(["show", stored]) == 130


def test_a_larger_stack_than_in_the_older_run_is_exit_code_1(tmp_path: Path) -> None:
    """Exact metrics are decided by one older run; `off` only shows."""
    old = run_of("s1", runs.value_of("stack_bytes", 0, "bytes"))
    new = run_of("s2", runs.value_of("stack_bytes", 48, "bytes"))
    old_path, new_path = (
        written(tmp_path, name, run) for name, run in (("a.json", old), ("b.json", new))
    )
    worse = gpuperf("compare", old_path, new_path)
    equal = gpuperf("compare", old_path, old_path, "--strict")
    shown = gpuperf("compare", old_path, new_path, "--max-regression=off")

    assert (worse.returncode, equal.returncode, shown.returncode) == (1, 0, 0)
    assert b"REGRESSED test_a: stack_bytes 48 B, was 0 B" in worse.stdout


def test_two_runs_decide_no_time(tmp_path: Path) -> None:
    """One older session does not tell how sessions differ: 0, and 3 with --strict."""
    old = written(tmp_path, "a.json", run_of("s1", runs.time_of(100e-6)))
    new = written(tmp_path, "b.json", run_of("s2", runs.time_of(150e-6)))
    done = gpuperf("compare", old, new, "--format=json")

    assert done.returncode == 0
    assert [verdict["reason"] for verdict in json.loads(done.stdout)["verdicts"]] == [
        "too-few-sessions"
    ]
    assert gpuperf("compare", old, new, "--strict").returncode == 3


def test_files_are_compared_without_a_store(tmp_path: Path) -> None:
    """The remedy is another file, never an option of pytest."""
    old = written(tmp_path, "a.json", run_of("s1", runs.time_of(100e-6)))
    other = runs.run((runs.record("test_b", runs.time_of(1e-6)),), session_id="s3")
    few = gpuperf(
        "compare", old, written(tmp_path, "b.json", run_of("s2", runs.time_of(150e-6)))
    )
    none = gpuperf("compare", old, written(tmp_path, "c.json", other), "--format=json")

    assert b"remedy: name 1 more run file\n" in few.stdout
    assert b"--gpuperf" not in few.stdout
    (verdict,) = json.loads(none.stdout)["verdicts"]
    assert verdict["remedy"] == "name an older run file that has it"


def test_a_unit_is_text_in_markdown(tmp_path: Path) -> None:
    """Whoever records a number chooses its unit: a comment shows it, and runs nothing."""
    unit = "<img src=x onerror=alert(1)>"
    sides = [
        runs.run((runs.record("test_x", replace(runs.time_of(value), unit=unit)),))
        for value in (1.0, 2.0)
    ]
    old, new = (written(tmp_path, f"{n}.json", run) for n, run in enumerate(sides))
    markdown = gpuperf("compare", old, new, "--format=markdown").stdout.decode()

    (row,) = (line for line in markdown.splitlines() if line.startswith("| `test_x`"))

    assert row.count(r"\<img src=x onerror=alert(1)\>") == 2


def test_two_runs_are_shown_side_by_side(tmp_path: Path) -> None:
    """Was, now, ratio and interval of every test, the worst first, whatever is decided."""
    sides = [
        runs.run(
            tuple(
                runs.record(name, runs.time_of(value * 1e-6))
                for name, value in values.items()
            ),
            session_id=session_id,
        )
        for session_id, values in (
            ("s1", {"test_same": 100, "test_slow": 100, "test_gone": 5}),
            ("s2", {"test_same": 101, "test_slow": 150, "test_new": 7}),
        )
    ]
    old, new = (written(tmp_path, f"{n}.json", run) for n, run in enumerate(sides))
    text = gpuperf("compare", old, new).stdout.decode()
    pairs = json.loads(gpuperf("compare", old, new, "--format=json").stdout)[
        "comparisons"
    ]
    markdown = gpuperf("compare", old, new, "--format=markdown").stdout.decode()
    rows = [line.split() for line in text.splitlines() if line.startswith("  test_")]

    assert [row[0] for row in rows[-2:]] == ["test_slow", "test_same"]
    assert rows[-2][1:6] == ["100", "us", "150", "us", "1.500"]
    assert text.startswith("0.json -> 1.json\n")
    assert text.count("now/was") == 1
    assert "test_gone" in text
    assert "gone" in {row[-1] for row in rows}
    (slow,) = (pair for pair in pairs if pair["test"].endswith("test_slow"))
    assert slow["ratio"] == pytest.approx(1.5)
    assert slow["interval"][0] < 1.5 < slow["interval"][1]
    assert slow["interval_of"] == "sessions"
    assert slow["adjusted_ratio"] == pytest.approx(1.5)
    assert markdown.count("| `test_slow` |") == 1


def test_files_that_have_nothing_in_common_say_so(tmp_path: Path) -> None:
    """So do a run that is compared with itself, and a folder that is no store."""
    measured = {
        name: runs.run((runs.record(name, runs.time_of(1e-6)),), session_id=name)
        for name in ("test_a", "test_b")
    }
    old, new = (written(tmp_path, f"{n}.json", run) for n, run in measured.items())
    again = runs.run((runs.record("test_b", runs.time_of(2e-6)),), session_id="s3")
    third = written(tmp_path, "third.json", again)
    (tmp_path / "folder").mkdir()

    def said(*files: str, code: int = 0) -> str:
        """Return what is printed, on one line."""
        done = gpuperf("compare", *files)
        assert done.returncode == code
        return " ".join(done.stdout.decode().split())

    nothing = f"nothing that {new} measured is in the older files"
    assert nothing in said(old, new, code=4)
    assert f"the older files hold only the session of {new} itself" in said(new, new)
    apart = said(third, new, new)
    assert f"hold the session of {new}, too: it was left out" in apart
    assert "0.500" in apart
    empty = str(tmp_path / "folder")
    assert f"{empty} holds no session: name a store" in said(empty, new, code=4)


def test_runs_of_two_machines_are_shown_and_not_compared(tmp_path: Path) -> None:
    """As two reports of two GPUs are not, and no script takes that for *unchanged*."""
    time = replace(runs.time_of(1e-6), source=Source.HOST)
    old, new = (
        written(
            tmp_path,
            f"{cpu}.json",
            runs.run(
                (
                    replace(
                        runs.record("test_a", time),
                        facts={"host-time": {"cpu_model": cpu}},
                    ),
                ),
                session_id=cpu,
            ),
        )
        for cpu in ("old", "new")
    )

    done = gpuperf("compare", old, new)

    assert done.returncode == 4
    assert b"incomparable" in done.stdout


def test_the_last_file_is_judged(tmp_path: Path) -> None:
    """The runs before it are the baseline, however many there are."""
    older = [
        written(tmp_path, f"{n}.json", run_of(f"s{n}", runs.time_of(100e-6 + n * 1e-8)))
        for n in range(4)
    ]
    same = replace(run_of("s9", runs.time_of(100.02e-6)))
    done = gpuperf("compare", *older, written(tmp_path, "new.json", same))

    assert done.returncode == 0
    assert b"unchanged" in done.stdout
