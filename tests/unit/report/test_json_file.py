"""report.runs: a whole file or none, of a shape that is written down."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fakes import runs
from fakes.disk import files_end_at
from pytest_gpuperf.errors import ReportError
from pytest_gpuperf.model.codec import decode_run, run_schema
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import BoundClass
from pytest_gpuperf.model.run import MachineShift
from pytest_gpuperf.report.runs import (
    check_stream,
    is_stream,
    write_output,
    write_report,
)


def schema() -> dict[str, Any]:
    """Return the schema that is in the package."""
    text = files("pytest_gpuperf").joinpath("run.schema.json").read_text("utf-8")
    read: dict[str, Any] = json.loads(text)
    return read


def test_the_schema_of_the_package_is_the_schema_of_the_records() -> None:
    """run.schema.json is made from the records: `python tests/unit/report/make_schema.py`."""
    assert ordered(schema()) == ordered(json.loads(json.dumps(run_schema())))


def ordered(part: Any) -> Any:
    """Return a schema as every msgspec writes it.

    The order of alternatives has changed, and the names of a mapping are typed from 0.23 on.
    """
    if isinstance(part, dict):
        names = sorted(part.keys() - {"propertyNames"})
        return {name: ordered(part[name]) for name in names}
    if isinstance(part, list):
        return sorted(map(ordered, part), key=json.dumps)
    return part


def test_a_written_run_fits_its_schema_and_reads_back(tmp_path: Path) -> None:
    """What is written is valid by the schema of the package, and means the same run."""
    path = tmp_path / "run.json"
    write_report(runs.gpu_run(), "json", str(path))

    jsonschema.Draft202012Validator(schema()).validate(json.loads(path.read_bytes()))
    assert decode_run(path.read_bytes()) == runs.gpu_run()
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_says_what_the_machine_did_and_what_was_expected(tmp_path: Path) -> None:
    """Shifts, expected failures and the caches of children are in the file."""
    path = tmp_path / "run.json"
    moved = MachineShift(
        bound_class=BoundClass.MEMORY,
        metric="time",
        effect=0.019,
        control_count=8,
        moved=True,
    )
    run = runs.gpu_run()
    run = replace(
        run,
        header=replace(run.header, jit_cache="fresh"),
        shifts=(moved,),
        xfailed=(runs.FAILED.key.test_id,),
    )
    write_report(run, "json", str(path))

    jsonschema.Draft202012Validator(schema()).validate(json.loads(path.read_bytes()))
    assert decode_run(path.read_bytes()) == run


def test_an_older_file_is_replaced_and_keeps_its_link(tmp_path: Path) -> None:
    """A link to a report stays a link; its target is replaced."""
    target, link = tmp_path / "old.json", tmp_path / "latest.json"
    target.write_text("old")
    link.symlink_to(target)
    write_report(runs.run(), "json", str(link))

    assert link.is_symlink()
    assert decode_run(target.read_bytes()) == runs.run()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/run.json", "does not exist"),
        (".", "it is a folder"),
        ("file/run.json", "does not exist"),
    ],
)
def test_a_path_that_cannot_work_is_refused(
    tmp_path: Path, name: str, why: str
) -> None:
    """The error names the file and what to do."""
    (tmp_path / "file").write_text("")
    path = str(tmp_path / name)

    with pytest.raises(ReportError, match=why) as caught:
        write_output(path, b"{}")

    assert path in str(caught.value)
    assert caught.value.remedy


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_folder_that_is_read_only_is_refused(tmp_path: Path) -> None:
    """A report is not written where nothing may be created."""
    tmp_path.chmod(0o500)

    with pytest.raises(ReportError, match="cannot be written to"):
        write_output(str(tmp_path / "run.json"), b"{}")


def test_a_limit_of_the_size_of_files_has_its_own_remedy(tmp_path: Path) -> None:
    """No other folder and no free space would help."""
    with files_end_at(4096), pytest.raises(ReportError, match="too large") as caught:
        write_output(str(tmp_path / "run.json"), b" " * 8192)

    assert caught.value.remedy == "allow larger files: ulimit -f"


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """Nothing half-written stays, and what was there is untouched."""
    path = tmp_path / "run.json"
    path.write_text("old")
    (tmp_path / f".run.json.{os.getpid()}.tmp").mkdir()  # in the way of the new one

    with pytest.raises(ReportError, match="cannot be written") as caught:
        write_output(str(path), b"new")

    assert path.read_text() == "old"
    assert isinstance(caught.value.__cause__, OSError)


def test_a_report_is_not_written_through_a_link_beside_it(tmp_path: Path) -> None:
    """Whoever shares the folder may have guessed the name of the unfinished file."""
    path, victim = tmp_path / "run.json", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".run.json.{os.getpid()}.tmp").symlink_to(victim)
    write_output(str(path), b"content")

    assert victim.read_text() == "precious"
    assert path.read_bytes() == b"content"
    assert not path.is_symlink()


def test_what_was_begun_is_removed_when_it_is_stopped(tmp_path: Path) -> None:
    """Ctrl-C or a wrong value in the middle of a report leaves no file."""
    with pytest.raises(TypeError):
        write_output(str(tmp_path / "run.json"), "text")  # type: ignore[arg-type]

    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """`--gpuperf-json=/dev/stdout` and named pipes get the bytes."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    write_output(str(path), b"content")
    reader.join(timeout=10)

    assert got == [b"content"]
    assert path.is_fifo()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_that_nobody_reads_is_an_error(tmp_path: Path) -> None:
    """A run does not wait for ever when it has ended."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    with pytest.raises(ReportError, match="pipe: the report cannot be written"):
        write_output(str(path), b"content")


@pytest.mark.skipif(os.name == "nt", reason="modes of Unix")
def test_a_report_keeps_the_mode_of_the_file_that_it_replaces(tmp_path: Path) -> None:
    """What a person made private stays private."""
    path = tmp_path / "run.json"
    path.touch()
    path.chmod(0o640)
    write_output(str(path), b"content")

    assert path.stat().st_mode & 0o777 == 0o640


def test_a_device_is_a_place_to_write_to() -> None:
    """A path below /dev is written to as it is, whatever it leads to."""
    write_output(os.devnull, b"content")

    assert not Path(os.devnull).is_file()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no descriptors as files")
@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd", "link"])
def test_a_descriptor_that_is_a_file_is_written_on(tmp_path: Path, folder: str) -> None:
    """Behind what others wrote by it, and the file stays the one that they opened."""
    file = tmp_path / "run.json"
    with file.open("wb", buffering=0) as stream:
        stream.write(b"heading\n")
        path = f"{folder}/{stream.fileno()}"
        if folder == "link":
            (tmp_path / "link").symlink_to(f"/dev/fd/{stream.fileno()}")
            path = str(tmp_path / "link")
        if Path(path).exists():
            write_output(path, b"content\n")
            stream.write(b"foot\n")

            assert is_stream(path)
            check_stream(path)
            assert file.read_bytes() == b"heading\ncontent\nfoot\n"
    assert {each.name for each in tmp_path.iterdir()} <= {"run.json", "link"}


def test_a_descriptor_that_is_closed_is_told_before_anything_runs() -> None:
    """With what opens it."""
    with pytest.raises(ReportError, match="987654> FILE"):
        check_stream("/dev/fd/987654")


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "-"])
def test_standard_output_is_written_on(
    path: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Also where a shell has made a file of it: nothing before it is lost."""
    if path != "-" and not Path(path).exists():
        pytest.skip("no such file here")
    sys.stdout.write("before\n")
    write_output(path, b"content\n")

    assert capfdbinary.readouterr().out == b"before\n\ncontent\n"


def test_the_summary_of_a_step_is_added_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command of the step writes to it; another file is replaced."""
    summary, other = tmp_path / "step.md", tmp_path / "other.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    (tmp_path / "link.md").symlink_to(summary)
    for path in (summary, other, tmp_path / "link.md"):
        write_output(str(path), b"# A\n")
    write_output(str(other), b"# B\n")
    check_stream(str(summary))

    assert summary.read_bytes() == b"# A\n\n# A\n"
    assert other.read_bytes() == b"# B\n"
    assert is_stream(str(summary))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no/step.md"))
    with pytest.raises(ReportError, match="cannot be written"):
        check_stream(str(tmp_path / "no/step.md"))


def test_a_file_that_is_mounted_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses to put another file into its place."""

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    file = tmp_path / "run.json"
    file.write_bytes(b"an older and longer one")
    number = file.stat().st_ino
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, busy)
    write_output(str(file), b"content")

    assert file.read_bytes() == b"content"
    assert file.stat().st_ino == number
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
