"""Every launch of a measurement is kept with its recording, and can be printed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fakes import fake_cuda
from fakes.project import XDIST, Project, command
from pytest_gpuperf.report.lines import SCHEMAS

TESTS = """
    import gpu
    import pytest

    @pytest.mark.gpuperf(iterations=10)
    def test_call(gpuperf):
        gpuperf(gpu.launch)

    @pytest.mark.gpuperf(iterations=10)
    def test_pair(gpuperf):
        gpuperf.compare(gpu.launch, lambda: [gpu.launch() for _ in range(3)])

    def test_range(gpuperf):
        with gpuperf.range("outer"):
            gpu.launch()
            with gpuperf.range("inner"):
                gpu.launch()
"""


@pytest.fixture(autouse=True)
def seen(machine: Path, project: Project) -> None:
    """Let CUPTI's double see what the project's GPU does."""
    fake_cuda.with_cupti(project)
    project.write(TESTS)


def show(
    project: Project, *arguments: str, folder: str = "", columns: int = 100
) -> subprocess.CompletedProcess[str]:
    """Run `gpuperf show` in a folder of the project."""
    return command("show", *arguments, folder=project.path / folder, columns=columns)


def export(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `gpuperf export` in the project."""
    return command("export", *arguments, folder=project.path)


def measured(project: Project, *arguments: str) -> dict[str, Any]:
    """Return what `gpuperf show --launches` says as JSON, by test and name."""
    done = show(project, *arguments, "--launches", "--format=json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["schema"] == SCHEMAS["show FILE --launches"]
    found = content["measurements"]
    return {
        f"{each['key']['test_id'].partition('::')[2]} {each['key']['name']}".strip(): (
            each
        )
        for each in found
    }


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_every_measurement_has_its_launches(
    project: Project, workers: tuple[str, ...]
) -> None:
    """Sides of a comparison and ranges in each other too; the record says where."""
    ended = project.spawn(*workers, "--gpuperf-record=kept", "--gpuperf-json=run.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = measured(project, "kept")
    records = {
        f"{each['key']['test_id'].partition('::')[2]} {each['key']['name']}".strip(): (
            each["activity"]
        )
        for each in project.report()["records"]
        if each["activity"]
    }

    assert {name: each["launches_count"] for name, each in found.items()} == {
        "test_call": 1,
        "test_pair a": 1,
        "test_pair b": 3,
        "test_range outer": 2,
        "test_range inner": 1,
    }
    assert records.keys() == found.keys()
    for name, each in found.items():
        assert len(each["launches"]) == records[name]["launches_count"]
        assert (project.path / "kept" / records[name]["kept"]["file"]).is_file()
    (launch,) = found["test_call"]["launches"]
    assert (launch["demangled"], launch["duration_ns"]) == ("axpy(float*)", 200_000)
    assert (launch["grid"], launch["block"]) == ([8, 2, 1], [128, 1, 1])
    assert launch["start_ns"] > 0
    assert launch["gap_ns"] is None


def test_a_replayed_run_has_the_same_launches_and_the_same_summary(
    project: Project,
) -> None:
    """With no GPU; either run's JSON file leads to the recording."""
    project.spawn("--gpuperf-record=kept", "--gpuperf-json=1.json")
    (project.path / "gpu.py").write_text("def launch(): pass\n", "utf-8")
    for name in ("LD_LIBRARY_PATH", "FAKE_CUDA", "FAKE_NVML_SCRIPT"):
        project.environment.delenv(name, raising=False)
    project.spawn("--gpuperf-replay=kept", "--gpuperf-json=2.json")

    def summaries(name: str) -> list[str]:
        return sorted(
            json.dumps(each["activity"]) for each in project.report(name)["records"]
        )

    assert summaries("1.json") == summaries("2.json")
    assert measured(project, "1.json") == measured(project, "2.json")
    assert measured(project, "1.json") == measured(project, "kept")


def test_a_recording_is_found_beside_the_runs_file(project: Project) -> None:
    """Wherever the command runs; a recording of another session is not the run's."""
    project.spawn("--gpuperf-record=kept", "--gpuperf-json=run.json", "-k", "range")
    (project.path / "elsewhere").mkdir()
    beside = show(project, "../run.json", "--launches", folder="elsewhere")
    (project.path / "kept").rename(project.path / "old")
    project.spawn("--gpuperf-record=kept", "-k", "range")
    other = show(project, "../run.json", "--launches", folder="elsewhere")

    assert "test_it.py::test_range outer: 2 launches" in beside.stdout
    assert (other.returncode, other.stdout) == (4, "")
    assert "run.json: the recording kept, which has its launches" in other.stderr


def test_launches_are_printed_as_text_and_as_markdown(project: Project) -> None:
    """A line each: when, how long, the gap before it, where, and which kernel."""
    project.spawn("--gpuperf-record=kept")
    text = show(project, "kept", "--launches", columns=120).stdout.splitlines()
    narrow = show(project, "kept", "--launches", columns=80).stdout.splitlines()
    start = text.index("test_it.py::test_pair b: 3 launches")
    heads, *rows = (line.split() for line in text[start + 1 : start + 5])
    table = show(project, "kept", "--launches", "--format=markdown").stdout

    assert " ".join(heads) == (
        "start us duration us gap us device stream grid block kernel"
    )
    assert [row[1] for row in rows] == ["200.000"] * 3
    assert [row[2] == "n/a" for row in rows] == [True, False, False]
    assert [row[3:] for row in rows] == [
        ["0", "7", "8x2x1", "128x1x1", "axpy(float*)"]
    ] * 3
    assert max(map(len, narrow)) <= 80
    assert "axpy(float*)" in narrow
    assert "### test\\_it.py::test\\_pair b: 3 launches\n" in table
    assert table.count("| 0 | 7 | 8x2x1 | 128x1x1 | `axpy(float*)` |") == 8


def test_a_damaged_recording_is_named_with_its_line(project: Project) -> None:
    """What stands before the damage is printed; then file, line and byte."""
    project.spawn("--gpuperf-record=kept")
    file = project.path / "kept" / "traces-main.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.index(b'"end"') + 10])
    cut = show(project, "kept", "--launches")
    file.write_bytes(whole.replace(b'"grid":[8,', b'"grid":[9,', 1))
    damaged = show(project, "kept", "--launches")

    line, byte = whole[: whole.index(b'"end"')].count(b"\n") + 1, b'"end"'
    begins = whole.rindex(b"\n", 0, whole.index(byte)) + 1
    assert cut.returncode == damaged.returncode == 4
    assert f"traces-main.jsonl: line {line} (byte {begins}) is cut off" in cut.stderr
    assert "traces-main.jsonl: line 2 (byte" in damaged.stderr
    assert "is damaged: its checksum does not match" in damaged.stderr
    assert "record it again with --gpuperf-record" in damaged.stderr


def test_what_has_no_launches_says_why(project: Project) -> None:
    """Each with what to do instead."""
    project.write("def test_it(gpuperf):\n    gpuperf.record('x', 1)\n")
    project.spawn("--gpuperf-record=none", "--gpuperf-json=none.json")
    project.spawn("--gpuperf-json=unkept.json")
    project.write(TESTS)
    project.spawn("--gpuperf-record=kept", "--gpuperf-json=run.json", "-k", "range")
    (project.path / "kept").rename(project.path / "moved")
    (project.path / "x.ncu-rep").touch()
    said = {
        arguments: show(project, *arguments, "--launches")
        for arguments in [
            *(("none",), ("none.json",), ("unkept.json",), ("run.json",)),
            *(("x.ncu-rep",), ("moved", "--metrics=time"), ("moved",)),
        ]
    }

    def error(*arguments: str) -> tuple[int, str]:
        return said[arguments].returncode, said[arguments].stderr

    for name in ("none", "none.json"):
        assert error(name)[0] == 4
        assert "none: the recording has no launches: CUPTI did not" in error(name)[1]
    assert "unkept.json: the run has no recording" in error("unkept.json")[1]
    assert (
        "recording kept, which has its launches, does not exist" in error("run.json")[1]
    )
    assert "gpuperf show DIR --launches" in error("run.json")[1]
    exported = export(project, "run.json", "--to=chrome-trace")
    assert exported.returncode == 4
    assert "name its folder: gpuperf export DIR --to chrome-trace" in exported.stderr
    assert error("x.ncu-rep")[0] == error("moved", "--metrics=time")[0] == 2
    assert "x.ncu-rep is neither a recording nor a run" in error("x.ncu-rep")[1]
    assert "exclude each other" in error("moved", "--metrics=time")[1]
    assert error("moved") == (0, "")
