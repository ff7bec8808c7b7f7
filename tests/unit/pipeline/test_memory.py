"""pipeline.memory: whose stored sessions a measurement is held against."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.baseline.changes import Append, Restart
from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.baseline.stored_record import stored_record
from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    BaselineError,
    GpuPerfError,
)
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.checkout import Checkout
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import (
    FILES,
    REFERENCES,
    Kind,
    Record,
    RecordKey,
    StoredRecord,
)
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.pipeline import store_changes
from pytest_gpuperf.pipeline.memory import Memory, slug_of

KEY = RecordKey(test_id="test_a.py::test_a")


def record(**facts: str) -> Record:
    """Return what was measured on a machine with some facts."""
    time = Estimate(metric="time", value=1e-3, unit="s", source="host")
    return Record(
        key=KEY, kind=Kind.MEASURE, estimates=(time,), facts={"host-time": facts}
    )


@pytest.mark.parametrize(
    ("facts", "folder"),
    [
        ({"gpu_name": "NVIDIA H200", "cpu_model": "EPYC 9"}, "nvidia-h200"),
        ({"cpu_model": "EPYC 9", "core_count": "64"}, "epyc-9-64"),
        ({}, "host"),
    ],
)
def test_a_folder_is_named_after_the_gpu(facts: dict[str, str], folder: str) -> None:
    """After the processor where no GPU was used."""
    assert slug_of(record(**facts)) == folder


def test_a_binary_is_of_the_chips_that_it_is_for() -> None:
    """Whatever machine it was read on."""
    kernels = tuple(
        KernelResources(
            name=target,
            demangled=None,
            target=target,
            registers_count=1,
            stack_bytes=0,
            shared_bytes=0,
            constant_bytes=0,
        )
        for target in ("sm_90", "sm_80", "sm_90")
    )
    binary = Record(key=KEY, kind=Kind.BINARY, estimates=(), kernels=kernels)

    assert slug_of(binary) == "sm-80-sm-90"


def test_sessions_are_those_of_the_same_gpu(tmp_path: Path) -> None:
    """Another GPU's are elsewhere, and are never compared with."""
    memory = Memory(
        Config(root=str(tmp_path), baseline=str(tmp_path / "store"), update=Update.NEW)
    )
    here, there = record(gpu_name="NVIDIA H200"), record(gpu_name="NVIDIA L4")
    session = Session(id="s1", started_unix_s=1.0, host="h")
    change = Append(record=stored_record([here], session))
    store_changes.write(memory, {slug_of(here): [change]})
    again = Memory(Config(root=str(tmp_path), baseline=str(tmp_path / "store")))

    assert [stored.session.id for stored in again.sessions(here)] == ["s1"]
    assert again.sessions(there) == ()
    assert again.elsewhere([here]) == {}
    assert again.elsewhere([there]) == {KEY: ("nvidia-h200",)}


def test_values_that_nobody_asks_for_are_not_read(tmp_path: Path) -> None:
    """Of the catalogue only the metrics asked for, of a project's own all of them."""
    names = ("time", "time.p95", "tokens")
    now = replace(
        record(),
        estimates=tuple(
            Estimate(metric=name, value=1.0, unit="s", source="host") for name in names
        ),
    )
    session = Session(id="s1", started_unix_s=1.0, host="h")
    place = str(tmp_path / "store")
    storing = Memory(Config(root=str(tmp_path), baseline=place, update=Update.NEW))
    change = Append(record=stored_record([now], session))
    store_changes.write(storing, {slug_of(now): [change]})
    memory = Memory(Config(root=str(tmp_path), baseline=place))

    read = [memory.sessions(now, asked) for asked in ((), ("time.p95",), ())]
    storing.forget()

    assert [[v.metric for (s,) in [stored] for v in s.values] for stored in read] == [
        ["time", "tokens"],
        [*names],
        [*names],
    ]
    assert storing.sessions(now) == read[-1]


def test_the_command_for_a_damaged_line_can_be_typed(tmp_path: Path) -> None:
    """The name of a store may hold a space: it is one word of the command."""
    store = tmp_path / "my store"
    config = Config(
        root=str(tmp_path),
        baseline=str(store),
        update=Update.NEW,
        option_texts={"gpuperf_baseline": "my store"},
    )
    session = Session(id="s1", started_unix_s=1.0, host="h")
    change = Append(record=stored_record([record()], session))
    store_changes.write(Memory(config), {slug_of(record()): [change]})
    (path,) = store.rglob("test_a.json")
    path.write_bytes(path.read_bytes().replace(b"0.001", b"0.002"))

    memory = Memory(config)
    memory.check()
    assert memory.sessions(record()) == ()
    *_, told = memory.remarks()

    assert told.endswith('gpuperf baseline accept "my store" --edited')


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "truncated"),
        (b'{"schema":"pytest-gpuperf/baseline/9"}', "pytest-gpuperf/baseline/9"),
    ],
)
def test_a_found_store_goes_on_without_a_file_that_it_cannot_read(
    tmp_path: Path, content: bytes, told: str
) -> None:
    """It says so once; a store that was named, or is written to, refuses."""
    place = tmp_path / ".gpuperf"
    config = Config(root=str(tmp_path), baseline=str(place), update=Update.NEW)
    session = Session(id="s1", started_unix_s=1.0, host="h")
    change = Append(record=stored_record([record()], session))
    store_changes.write(Memory(config), {slug_of(record()): [change]})
    (path,) = place.rglob("test_a.json")
    path.with_name("test_s.json").write_bytes(content)
    found = Memory(replace(config, update=None))
    found.check()
    found.check()
    (remark,) = found.remarks()

    assert found.modules() == {"test_a.py"}
    assert [stored.session.id for stored in found.sessions(record())] == ["s1"]
    assert remark.startswith("left out of the baseline: ")
    assert str(tmp_path) not in remark
    assert "test_s.json" in remark
    assert told in remark
    for strict in (config, replace(config, update=None, baseline_named=True)):
        with pytest.raises(GpuPerfError, match="test_s"):
            Memory(strict).check()


def test_a_file_of_another_tool_is_named(tmp_path: Path) -> None:
    """A file of no known tool keeps the words of the reader."""
    path = tmp_path / "a.json"
    memory = Memory(Config(root=str(tmp_path), baseline=str(path), baseline_named=True))
    path.write_text('{"meta": {"version": {"json": {}, "nvbench": {}}}}')

    with pytest.raises(
        BaselineCorruptError, match="it is a result of nvbench"
    ) as caught:
        memory.check()
    assert caught.value.remedy == "name a store that --gpuperf-update has written"
    assert caught.value.path == str(path)
    path.write_text("{}")
    with pytest.raises(BaselineCorruptError, match="it is not a baseline"):
        memory.check()


def with_store(folder: Path, *stored: StoredRecord, **given: object) -> Memory:
    """Return the memory of a run whose store has some sessions of one machine."""
    store = open_store("store", folder, create=True)
    store.write("h", [Append(record=session) for session in stored])
    config = Config(root=str(folder), baseline=str(folder / "store"))
    return Memory(replace(config, **given))


def session_of(number: int, test_id: str, **changed: object) -> StoredRecord:
    """Return a session that was stored under a test id."""
    session = Session(id=f"s{number}", started_unix_s=float(number), host="h")
    first = replace(record(gpu_name="h"), key=RecordKey(test_id=test_id))
    return replace(stored_record([first], session), **changed)


def test_an_id_is_never_the_key_of_another_test(tmp_path: Path) -> None:
    """Old sessions are found by the id, new ones by the key, however equal they look."""
    shown = KEY.test_id
    memory = with_store(
        tmp_path,
        session_of(1, shown, schema_version=2),  # of this test, by its id
        session_of(2, shown),  # of another test, by its key
        session_of(3, f"pkg/{shown}"),
    )
    measured = record(gpu_name="h")
    as_key = [session.session.id for session in memory.sessions(measured)]
    memory.learn(shown, f"pkg/{shown}")
    sessions = memory.sessions(measured)

    assert as_key == ["s1", "s2"]  # what a test of that id and key has
    assert [session.session.id for session in sessions] == ["s1", "s3"]
    assert {session.key for session in sessions} == {KEY}


def test_the_next_store_gives_old_sessions_their_keys(tmp_path: Path) -> None:
    """They are moved once, and found as they were."""
    memory = with_store(tmp_path, session_of(1, KEY.test_id, schema_version=2))
    memory.learn(KEY.test_id, "pkg/" + KEY.test_id)
    store_changes.write(memory, {"h": [Append(record=session_of(2, KEY.test_id))]})
    memory.forget()
    stored = open_store("store", tmp_path).load("h")

    assert [key.test_id for key in stored] == [f"pkg/{KEY.test_id}"]
    assert [s.session.id for s in memory.sessions(record(gpu_name="h"))] == ["s1", "s2"]


def test_absent_tests_are_found_by_keys_and_by_ids(tmp_path: Path) -> None:
    """A test of the run is absent under neither of its names."""
    memory = with_store(
        tmp_path,
        session_of(1, "test_a.py::here", schema_version=2),
        session_of(1, "test_a.py::gone", schema_version=2),
        session_of(2, "pkg/test_a.py::there"),
        session_of(2, "pkg/test_a.py::lost"),
        checkout=Checkout(root="/r", rootdir="pkg"),
    )
    run = {name: f"test_a.py::{name}" for name in ("here", "there")}
    for test_id in run.values():
        memory.learn(test_id, f"pkg/{test_id}")

    modules = memory.modules()

    assert modules == {"pkg/test_a.py"}
    assert memory.keys([*run.values()], modules=["test_a.py"]) == ()
    assert memory.keys([*run.values()], modules=modules) == (
        "pkg/test_a.py::lost",
        "pkg/test_a.py::gone",
    )


@pytest.mark.parametrize("accepted", [False, True])
def test_a_kept_session_has_its_files(tmp_path: Path, *, accepted: bool) -> None:
    """Only accepted values are said to be missing in it, and files are no values."""
    session = Session(id="s1", started_unix_s=1.0, host="h")
    value = stored_record([record()], session)
    files = replace(value, key=RecordKey(test_id=REFERENCES, name=FILES))
    memory = Memory(Config(root=str(tmp_path), baseline="postgresql://lost/x"))
    memory.lose(BaselineError("lost", remedy="find it"))
    changes = [Append(record=value), Append(record=files)]

    with pytest.raises(BaselineError) as caught:
        store_changes.write(
            memory, {"host": [*changes, *[Restart(record=value)] * accepted]}
        )

    assert ("without 1 accepted measurement" in str(caught.value)) == accepted
    kept = open_store(str(tmp_path / ".gpuperf-unsent" / "s1.json"), tmp_path)
    assert kept.load("host").keys() == {KEY, files.key}


def test_many_tests_of_a_database_are_read_beside_one(tmp_path: Path) -> None:
    """One that was read before them, and one that is asked for after them."""
    place = "sqlite:///perf.db"
    now = record(gpu_name="NVIDIA H200")
    keys = [RecordKey(test_id=f"test_a.py::test[{n}]") for n in range(1_050)]
    head = Session(id="s1", started_unix_s=1.0, host="h")
    store = open_store(place, str(tmp_path), create=True)
    changes = [
        Append(record=stored_record([replace(now, key=each)], head)) for each in keys
    ]
    store.write(slug_of(now), changes)
    memory = Memory(Config(root=str(tmp_path), baseline=place))
    before = memory.sessions(replace(now, key=keys[0]))
    for each in keys[1:-1]:
        memory.learn(each.test_id, "")
    memory.read([slug_of(now)])

    found = [memory.sessions(replace(now, key=each)) for each in keys]
    assert [[r.session.id for r in several] for several in found] == [["s1"]] * 1_050
    assert [several[0].key for several in found] == keys
    assert before == found[0]
