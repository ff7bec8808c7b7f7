"""Files of other tools that people give to our commands."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pytest_gpuperf import cli
from pytest_gpuperf.collect.ncu.text import check_file
from pytest_gpuperf.errors import CaptureFormatError

NSYS = "of Nsight Systems: it has the times of kernels, and none of their counters"
TORCH = "a trace of PyTorch's profiler"
# how files begin that real tools wrote: Nsight Systems 2023.4, PyTorch's profiler, gzip
STARTS = [
    ("a.nsys-rep", b"NVIDIA Tegra Profiler Report 2023@4@4@54-234433681190v0.\n", NSYS),
    ("a.qdstrm", b"U3w[END]NVIDIA Nsight Systems Stream 2023.4.4.54\n\xdc\x14", NSYS),
    ("a.json", b'{\n  "schemaVersion": 1,\n  "deviceProperties": [\n', TORCH),
    ("b.json", b'{"displayTimeUnit":"ms","traceEvents":[{"ph":"M"}]}', TORCH),
    ("a.json.gz", b"\x1f\x8b\x08\x08\0\0\0\0", "compressed with gzip"),
    ("c.json", b'{"machine_info": {"node": "x"}}', "a run of pytest-benchmark"),
]
# the system refuses to look at it, as in a folder without permission
NOWHERE = "x" * 300
COMMANDS = [
    ("show",),
    ("show", "--format=json"),
    ("compare", "old.json"),
    ("export", "--to=csv"),
    ("utilization",),
    ("scorecard", "--throughput=1", "--hardware=gb10"),
    ("parity", "old.json"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(("name", "start", "told"), STARTS)
def test_a_file_of_another_tool_is_named_as_such(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    name: str,
    start: bytes,
    told: str,
) -> None:
    """By what it begins with, with what to do instead, and without its bytes."""
    monkeypatch.chdir(tmp_path)
    for path in (Path(name), Path("old.json")):
        path.write_bytes(start)

    assert cli.main([*command, name]) == 4
    said = capsys.readouterr().err
    assert told in said
    assert "\n    remedy: " in said
    assert len(said) < 500


@pytest.mark.parametrize(
    ("command", "says_it"),
    [(("show",), True), (("show", "--metrics=a__b.sum"), True), (("compare",), False)],
)
def test_what_show_takes_besides_is_said_by_show_alone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    says_it: bool,
) -> None:
    """Whoever compares or reports captures has no use for it."""
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"hello")
    files = [str(path)] * (1 if command[0] == "show" else 2)

    assert cli.main([*command, *files]) == 4
    said = capsys.readouterr().err
    assert "name a .ncu-rep file; save a compressed one" in said
    assert ("gpuperf show also takes" in said) is says_it


def test_an_export_of_nsys_is_no_other_database(tmp_path: Path) -> None:
    """SQLite writes every table's text at the start of its file."""
    for name, table in (("nsys", "META_DATA_EXPORT"), ("other", "users")):
        connection = sqlite3.connect(tmp_path / name)
        connection.execute(f"CREATE TABLE {table} (name TEXT, value TEXT)")
        connection.commit()
        connection.close()

    with pytest.raises(CaptureFormatError, match="an export of Nsight Systems"):
        check_file(str(tmp_path / "nsys"))
    with pytest.raises(CaptureFormatError, match="it is not a report of Nsight Comp"):
        check_file(str(tmp_path / "other"))


@pytest.mark.parametrize("command", [("export", "--to=csv"), ("utilization",)])
def test_a_report_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """Nobody needs to know which byte is not JSON."""
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(b"NVR\0\1\2")

    assert cli.main([*command, str(path)]) == 4
    assert "it is a report of Nsight Compute" in capsys.readouterr().err


def test_bytes_are_not_quoted_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is not text has no readings of a GPU."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"\0\1\n" * 5000)

    assert cli.main(["utilization", str(path)]) == 4
    said = capsys.readouterr().err
    assert "it is not text" in said
    assert len(said) < 300


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "a.json", "b.json"),
        ("report", "a.json", "b.json", "--output=c.html"),
        ("parity", "a.json", "b.json"),
    ],
    ids=" ".join,
)
def test_every_unreadable_file_is_named_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    """Whoever mends one must not meet the next one afterwards."""
    monkeypatch.chdir(tmp_path)
    Path("a.json").touch()

    assert cli.main([*command]) == 4
    said = capsys.readouterr().err
    assert "a.json: it is empty; b.json: it cannot be read" in said
    assert "remedy: give a" in said
    assert "; check the path" in said


def test_what_cannot_be_shown_is_told_what_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A test's file is none of them, and captures are not all that is shown."""
    path = tmp_path / "test_four.py"
    path.write_text("def test_four(gpuperf): ...\n")

    cli.main(["show", str(path)])
    told = " ".join(capsys.readouterr().err.split())

    assert "name a .ncu-rep file" in told
    assert "a run's JSON file, a recording (--launches) and a compiled binary" in told


@pytest.mark.parametrize(
    "command",
    [
        ("compare", NOWHERE, "run.json"),
        ("export", NOWHERE, "--to=chrome-trace"),
        ("show", NOWHERE, "--launches"),
        ("utilization", NOWHERE),
        ("cache", "info", f"--folder={NOWHERE}"),
        ("scorecard", "run.json", "--throughput=1", f"--hardware={NOWHERE}.json"),
    ],
    ids=lambda command: command[0],
)
def test_a_path_where_nobody_may_look_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    """Asking the system whether it is a folder must not end in a traceback."""
    monkeypatch.chdir(tmp_path)

    assert cli.main([*command]) in {2, 4}
    said = capsys.readouterr().err
    assert NOWHERE in said
    assert "\n    remedy: " in said


def test_launches_of_a_missing_file_are_a_missing_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option is right: the file is not there."""
    monkeypatch.chdir(tmp_path)

    assert cli.main(["show", "nowhere", "--launches"]) == 4
    assert "nowhere: it cannot be read (No such file" in capsys.readouterr().err
