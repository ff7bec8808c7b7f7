"""pipeline.memory: whose stored sessions a measurement is held against."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.baseline.history import Append, stored_record
from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.sample import Estimate
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
    memory.write({slug_of(here): [change]})
    again = Memory(Config(root=str(tmp_path), baseline=str(tmp_path / "store")))

    assert [stored.session.id for stored in again.sessions(here)] == ["s1"]
    assert again.sessions(there) == ()
    assert again.elsewhere([here]) == {}
    assert again.elsewhere([there]) == {KEY: ("nvidia-h200",)}


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
    Memory(config).write({slug_of(record()): [change]})
    (path,) = store.rglob("test_a.json")
    path.write_bytes(path.read_bytes().replace(b"0.001", b"0.002"))

    memory = Memory(config)
    memory.check()
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
    Memory(config).write({slug_of(record()): [change]})
    (path,) = place.rglob("test_a.json")
    path.with_name("test_s.json").write_bytes(content)
    found = Memory(replace(config, update=None))
    found.check()
    found.check()
    (remark,) = found.remarks()

    assert [stored.session.id for stored in found.sessions(record())] == ["s1"]
    assert remark.startswith("left out of the baseline: ")
    assert str(tmp_path) not in remark
    assert "test_s.json" in remark
    assert told in remark
    for strict in (config, replace(config, update=None, baseline_named=True)):
        with pytest.raises(GpuPerfError, match="test_s"):
            Memory(strict).check()
