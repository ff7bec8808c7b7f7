"""collect.replay: a recording is read as it was written, or refused."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.disk import files_end_at
from fakes.privileges import no_privileges
from pytest_gpuperf.collect import replay
from pytest_gpuperf.collect.replay import Recorder, read_readings, read_recording
from pytest_gpuperf.errors import CaptureFormatError, ReportError
from pytest_gpuperf.model.environment import Environment, Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Role, without_samples
from pytest_gpuperf.model.sample import Estimate, Series
from unit.model.records import any_record

SESSION = Session(id="s1", started_unix_s=1e9, host="h", commit="c0ffee", dirty=False)
ENVIRONMENT = Environment(
    cpu_model=None, core_count=4, python_minor="3.12", platform="linux"
)
KEY = RecordKey(test_id="tests/test_x.py::test_a")


def record(name: str = "", *, role: Role = Role.MAIN, process_index: int = 0) -> Record:
    return Record(
        key=replace(KEY, name=name),
        kind=Kind.MEASURE,
        estimates=(Estimate(metric="time", value=1e-3, unit="s", source="host"),),
        series=(Series(metric="time", unit="s", source="host", values=(1e-3, 2e-3)),),
        role=role,
        process_index=process_index,
    )


def names_in(folder: str) -> list[str]:
    return sorted(entry.name for entry in Path(folder).iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return the folder of a recording that has begun."""
    path = str(tmp_path / "kept" / "run")
    replay.start_recording(path, SESSION, ENVIRONMENT)
    return path


def test_a_recording_is_read_as_it_was_written(folder: str) -> None:
    """Session, environment and every record, by key, role and process."""
    main, named = record(), record("b")
    again = record(role=Role.REPEAT, process_index=2)
    Recorder(folder, writer="main").keep(main)
    Recorder(folder, writer="gw1").keep(named)
    Recorder(folder, writer="repeat-2").keep(again)

    found = read_recording(folder)

    assert (found.session, found.environment) == (SESSION, ENVIRONMENT)
    assert found.records == {
        (KEY, Role.MAIN, 0): main,
        (named.key, Role.MAIN, 0): named,
        (KEY, Role.REPEAT, 2): again,
    }
    assert found.main(KEY) == main
    assert found.main(replace(KEY, name="none")) is None
    assert found.of_role(Role.REPEAT, [KEY.test_id]) == [again]
    assert found.of_role(Role.REPEAT, ["another"]) == []
    assert found.of_role(Role.CONFIRM, [KEY.test_id]) == []


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
)
@given(st.lists(any_record(Record), max_size=4))
def test_any_record_is_kept(folder: str, records: list[Record]) -> None:
    """Whatever it holds, line breaks in its names too, a record is one line."""
    for left in Path(folder).glob("readings-*"):
        left.unlink()
    replay.start_recording(folder, SESSION, ENVIRONMENT)
    recorder = Recorder(folder, writer="main")
    for each in records:
        recorder.keep(each)

    assert read_readings(folder) == {
        (each.key, each.role, each.process_index): each for each in records
    }


def test_the_last_of_two_records_counts(folder: str) -> None:
    """A test that ran again in the same process is kept as it ran last."""
    recorder = Recorder(folder, writer="main")
    recorder.keep(record())
    later = replace(record(), choice="other")
    recorder.keep(later)

    assert read_recording(folder).main(KEY) == later


def test_nothing_recorded_is_an_empty_recording(folder: str) -> None:
    """A run whose tests measured nothing can be read."""
    assert read_recording(folder).records == {}


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_line_that_a_kill_cut_off_is_left_out(folder: str, cut: int) -> None:
    """What was measured before the kill is there."""
    recorder = Recorder(folder, writer="main")
    recorder.keep(record("whole"))
    recorder.keep(record("cut"))
    recorder.path.write_bytes(recorder.path.read_bytes()[:-cut])

    found = read_readings(folder)

    assert [key.name for key, _, _ in found] == ["whole"]


@pytest.mark.parametrize("line", [b"", b"{}", b'{"key": 3}', b"\xff", b"[1, 2"])
def test_a_broken_line_is_named(folder: str, line: bytes) -> None:
    """Any other line must be whole: the file, the line and the remedy are told."""
    recorder = Recorder(folder, writer="gw3")
    recorder.keep(record())
    good = recorder.path.read_bytes()
    recorder.path.write_bytes(good + line + b"\n" + good)

    with pytest.raises(CaptureFormatError, match="line 2: ") as caught:
        read_recording(folder)

    assert caught.value.path == str(recorder.path)
    assert caught.value.remedy == "record it again with --gpuperf-record"


def test_a_full_disk_costs_one_record(folder: str) -> None:
    """Half a line is taken back, so that the lines after it can be read."""
    recorder = Recorder(folder, writer="main")
    recorder.keep(record("before"))
    size = recorder.path.stat().st_size

    with (
        files_end_at(size + 10),
        pytest.raises(ReportError, match="cannot be written") as caught,
    ):
        recorder.keep(record("lost"))
    recorder.keep(record("after"))

    assert caught.value.remedy == "make room, or choose another folder"
    assert [key.name for key, _, _ in read_readings(folder)] == ["before", "after"]


def test_a_recorder_without_its_folder_says_so(tmp_path: Path) -> None:
    """A folder that went away is an error with the file's name."""
    recorder = Recorder(str(tmp_path / "gone"), writer="main")

    with pytest.raises(ReportError, match=r"readings-main\.jsonl cannot be written"):
        recorder.keep(record())


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="this system follows links")
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_a_recording_is_not_written_through_a_link(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    """Its folder may be for several users, who know the names in it."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "recording"
    replay.start_recording(str(folder), SESSION, ENVIRONMENT)
    recorder = Recorder(str(folder), writer="main")
    link(victim, recorder.path)

    with pytest.raises(ReportError, match="cannot be written"):
        recorder.keep(record())

    assert victim.read_text() == "precious"


def test_readings_are_never_replaced(folder: str) -> None:
    """A run on a GPU machine is not lost to the next one with the same option."""
    Recorder(folder, writer="gw7").keep(record())

    with pytest.raises(ReportError, match="readings of an earlier run") as caught:
        replay.start_recording(folder, SESSION, ENVIRONMENT)

    assert caught.value.remedy == "remove them, or choose another folder"
    assert len(read_recording(folder).records) == 1


def test_traces_are_never_replaced(folder: str) -> None:
    """A run that was killed before its first reading may have kept what the GPU did."""
    trace = Path(folder) / "traces-gw7.1.jsonl"
    trace.write_text("{}\n")

    with pytest.raises(ReportError, match="readings of an earlier run"):
        replay.start_recording(folder, SESSION, ENVIRONMENT)

    assert trace.read_text() == "{}\n"


def test_a_recording_without_readings_is_replaced(folder: str) -> None:
    """What a run left that measured nothing is in nobody's way."""
    (Path(folder) / "readings-gw7.jsonl").touch()
    (Path(folder) / "traces-gw7.jsonl").touch()
    (Path(folder) / ".recording.json.17.tmp").write_text("what a kill left")
    newer = replace(SESSION, id="s2")

    replay.start_recording(folder, newer, ENVIRONMENT)

    assert read_recording(folder).session == newer
    assert read_recording(folder).records == {}
    assert names_in(folder) == ["recording.json"]


@pytest.mark.parametrize("name", ["notes.txt", "readings-main.txt", ".git", "a.jsonl"])
def test_a_folder_with_something_else_in_it_is_refused(folder: str, name: str) -> None:
    """Nobody's files are deleted, and those of the recording are not either."""
    Recorder(folder, writer="main").keep(record())
    (Path(folder) / name).write_text("mine")
    before = names_in(folder)

    with pytest.raises(ReportError, match="not part of a recording") as caught:
        replay.start_recording(folder, SESSION, ENVIRONMENT)

    assert name in caught.value.message
    assert caught.value.remedy == "choose an empty folder"
    assert names_in(folder) == before


def test_a_recording_cannot_be_a_file(tmp_path: Path) -> None:
    """A file in its place is an error of ours, with a remedy."""
    place = tmp_path / "file"
    place.write_text("mine")

    with pytest.raises(ReportError, match="cannot be written") as caught:
        replay.start_recording(str(place), SESSION, ENVIRONMENT)

    assert caught.value.remedy == "choose a folder of your own"
    assert place.read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "it is not a recording (recording.json: No such file or directory)"),
        (b"", "it is not a recording ("),
        (b"[]", "it is not a recording ("),
        (b'{"session": {}}', "it is not a recording ("),
        (b'{"schema": "pytest-gpuperf/recording/1"}', "it is not a recording ("),
        (b'{"schema": "pytest-gpuperf/recording/2"}', "recording/2' is not"),
        (b'{"schema": "pytest-gpuperf/run/1"}', "run/1' is not"),
    ],
)
def test_what_is_no_recording_is_refused(
    tmp_path: Path, text: bytes | None, said: str
) -> None:
    """The folder or its head is named; another version says that first."""
    if text is not None:
        (tmp_path / "recording.json").write_bytes(text)

    with pytest.raises(CaptureFormatError) as caught:
        read_recording(str(tmp_path))

    assert said in caught.value.message
    assert caught.value.path.startswith(str(tmp_path))
    again = "record it again with --gpuperf-record"
    assert caught.value.remedy == (
        "name a folder of --gpuperf-record" if text is None else again
    )


def test_a_head_with_more_in_it_is_read(folder: str) -> None:
    """A newer minor version may say more."""
    head = Path(folder) / "recording.json"
    head.write_text(json.dumps(json.loads(head.read_text()) | {"extra": 1}))

    assert read_recording(folder).session == SESSION


def test_readings_that_cannot_be_read_are_named(folder: str) -> None:
    """A folder in the place of a file is an error of ours."""
    (Path(folder) / "readings-main.jsonl").mkdir()

    with pytest.raises(CaptureFormatError, match="it cannot be read") as caught:
        read_readings(folder)

    assert caught.value.path.endswith("readings-main.jsonl")


@pytest.mark.skipif(os.name == "nt", reason="needs permissions of Unix")
@pytest.mark.parametrize("name", ["recording.json", "readings-main.jsonl"])
def test_a_recording_that_nobody_may_read_is_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its remedy is the permission, and not another folder or another recording."""
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.chdir(place)
        Path(place).chmod(0o755)
        replay.start_recording("run", SESSION, ENVIRONMENT)
        Recorder("run", writer="main").keep(record())
        Path("run", name).chmod(0)

        with no_privileges(), pytest.raises(CaptureFormatError) as caught:
            read_recording("run")

    said = f"{Path('run', name)}: it cannot be read (Permission denied)"
    assert caught.value.message == said
    assert caught.value.remedy == "make it and its folder readable"


def test_samples_stay_where_they_are() -> None:
    """What travels has the estimates, and no samples; what has none is itself."""
    whole = record()

    light = without_samples(whole)

    assert light == replace(whole, series=())
    assert without_samples(light) is light
