"""measure.turns: who has the GPU during a test, and who is known to have been on it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.nvml import FakeGpu, FakeNvml
from fakes.runner import FakeRunner
from fakes.runtime import FakeRuntime
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.collect.leases import (
    FOLDER_VARIABLE,
    Presence,
    ProcessActivity,
    exclusive,
)
from pytest_gpuperf.config import Config, Lock
from pytest_gpuperf.errors import ConfigError, DeviceHeldError
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.measure.turns import Turns, without_siblings
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.telemetry import DeviceDeltas, Sharing

ONE, TWO = "GPU-aa00", "GPU-bb00"
TEST, OTHERS = "test_it.py::test_x", "test_other.py::test_y"


class Place:
    """A process on a machine with two GPUs."""

    def __init__(
        self,
        folder: Path,
        *,
        lock: Lock = Lock.EXCLUSIVE,
        in_use: bool = True,
        option_texts: Mapping[str, str] | None = None,
        in_block: bool = False,
    ) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.runtime = FakeRuntime(self.clock, in_use=in_use, uuid=ONE)
        config = Config(
            root="/", lock=lock, lock_timeout_s=0, option_texts=option_texts or {}
        )
        identity = ProcessIdentity(
            session=Session(id="s", started_unix_s=0.0, host="h")
        )
        query = query_devices(FakeNvml(FakeGpu(uuid=ONE), FakeGpu(uuid=TWO)))
        self.site = Site(
            config,
            identity,
            clock=self.clock,
            runner=FakeRunner(),
            runtime=self.runtime,
            query=lambda: query,
        )
        self.modules: set[str] = set()
        self.turns = Turns(
            self.site, modules=self.modules, driver=lambda: None, in_block=in_block
        )

    def free(self, uuid: str) -> bool:
        """Return whether another thread could have a GPU at once."""
        try:
            with holding(uuid):
                return True
        except DeviceHeldError:
            return False


@pytest.fixture(name="folder", autouse=True)
def folder_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the process a place of its own for locks."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "locks"


@contextmanager
def holding(uuid: str) -> Iterator[None]:
    """Let another thread have a GPU, as another process would."""
    held, over, errors = threading.Event(), threading.Event(), list[Exception]()

    def hold() -> None:
        try:
            with exclusive(uuid, test=OTHERS, timeout_s=0):
                held.set()
                over.wait()
        except DeviceHeldError as error:
            errors.append(error)
            held.set()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        if errors:
            raise errors[0]
        yield
    finally:
        over.set()
        thread.join()


def deltas(*pids: int) -> DeviceDeltas:
    """Return what sensors say where other processes were listed."""
    sharing = Sharing.FOREIGN if pids else Sharing.ALONE
    return DeviceDeltas(
        gpu_uuid=ONE, gpu_index=0, duration_s=1.0, sharing=sharing, foreign_pids=pids
    )


def test_a_test_has_the_gpu_until_it_ends(folder: Path) -> None:
    """And whoever waits can read which test that is."""
    place = Place(folder)
    with place.turns.measuring(TEST):
        during = place.free(ONE), place.free(TWO)
        note = (folder / "gpu-aa00.lock.pid").read_text(encoding="utf-8")
    place.turns.close()

    assert during == (False, True)
    assert TEST in note
    assert place.free(ONE)


def test_what_uses_no_gpu_waits_for_nobody(folder: Path) -> None:
    """Nothing is locked, and no file is made."""
    place = Place(folder, in_use=False)
    with place.turns.measuring(TEST):
        place.turns.ensure()

    assert not folder.exists()


@pytest.mark.parametrize("name", ["torch", "cuda.bindings", "numba.cuda"])
def test_a_framework_may_come_to_use_it(folder: Path, name: str) -> None:
    """It loads the driver when its first tensor is made, which is too late to wait."""
    place = Place(folder, in_use=False)
    place.modules.add(name)
    with place.turns.measuring(TEST):
        assert not place.free(ONE)


def test_a_gpu_that_comes_into_use_is_waited_for(folder: Path) -> None:
    """A fixture may have loaded what uses it: at the next measurement at the latest."""
    place = Place(folder, in_use=False)
    with place.turns.measuring(TEST):
        before = place.free(ONE)
        place.runtime.in_use = True
        place.turns.ensure()
        after = place.free(ONE)

    assert (before, after) == (True, False)


def test_a_test_that_changes_the_gpu_changes_its_turn(folder: Path) -> None:
    """It never keeps one while it waits for another: two that do would wait for ever."""
    place = Place(folder)
    with place.turns.measuring(TEST):
        place.runtime.uuid = TWO
        place.turns.ensure()
        place.turns.ensure()
        assert (place.free(ONE), place.free(TWO)) == (True, False)
        place.runtime.uuid = ONE
        with holding(ONE), pytest.raises(DeviceHeldError, match=OTHERS):
            place.turns.ensure()
        assert place.free(TWO)
    with place.turns.measuring(TEST):
        assert place.turns.refusal is None
        assert (place.free(ONE), place.free(TWO)) == (False, True)


def test_a_gpu_that_is_held_refuses_one_test(folder: Path) -> None:
    """With who has it; the next test asks again."""
    place = Place(folder)
    with holding(ONE), place.turns.measuring(TEST):
        refusal = place.turns.refusal
    with place.turns.measuring(TEST):
        assert place.turns.refusal is None

    assert refusal is not None
    assert refusal.metric == "time"
    assert OTHERS in refusal.reason
    assert refusal.remedy.endswith("has ended, or end it")


def test_sharing_waits_for_nobody(folder: Path) -> None:
    """But others can tell that it measures."""
    place, other = Place(folder, lock=Lock.SHARED), Place(folder, lock=Lock.SHARED)
    with holding(ONE), place.turns.measuring(TEST), other.turns.measuring(OTHERS):
        first = place.turns.other_users(None)
        second = other.turns.other_users(deltas())

    for found, rival in ((first, OTHERS), (second, TEST)):
        assert found.void is not None
        assert found.void.code == "foreign-process"
        assert f"({rival}) measured on the same GPU; take turns:" in found.void.text


def test_who_has_measured_meanwhile_is_a_rival(folder: Path) -> None:
    """Although it has ended before; one that ended before the turn began is not."""
    place, other = Place(folder, lock=Lock.SHARED), Place(folder, lock=Lock.SHARED)
    with place.turns.measuring(TEST):
        place.clock.advance(1)
        other.clock.advance(1)
        with other.turns.measuring(OTHERS):
            pass
        meanwhile = place.turns.other_users(None)
    with place.turns.measuring(TEST):
        afterwards = place.turns.other_users(None)

    assert meanwhile.void is not None
    assert afterwards.void is None


@pytest.mark.parametrize("lock", [Lock.EXCLUSIVE, Lock.SHARED])
def test_who_waits_shares_nothing(folder: Path, lock: Lock) -> None:
    """A context that is listed computes nothing between the tests of its process."""
    place = Place(folder, lock=lock)
    waits = Presence(ONE, place.clock)
    pid = waits._state.pid
    place.clock.advance(1)
    with place.turns.measuring(TEST):
        alone = place.turns.other_users(deltas(pid))
        others = place.turns.other_users(deltas(pid, 1))
        waits.publish(ProcessActivity.WORKING, OTHERS)
        works = place.turns.other_users(deltas(pid))
        place.clock.advance(1)
        waits.publish(ProcessActivity.QUIET)
        worked = place.turns.other_users(deltas(pid))
    with place.turns.measuring(TEST):
        again = place.turns.other_users(deltas(pid))
    waits.close()

    assert alone.deltas == again.deltas == deltas()
    assert others.deltas == deltas(1)
    assert works.deltas == worked.deltas == deltas(pid)
    assert [each.void for each in (alone, others, works, worked)] == [None] * 4


def test_a_process_of_another_namespace_is_known_by_no_id(folder: Path) -> None:
    """Its number may be that of somebody else here."""
    place = Place(folder)
    waits = Presence(ONE, place.clock)
    waits._state = type(waits._state)(pid=waits._state.pid, place="pid:[1]")
    waits.publish(ProcessActivity.QUIET)
    with place.turns.measuring(TEST):
        found = place.turns.other_users(deltas(waits._state.pid))

    assert found.deltas == deltas(waits._state.pid)


def test_a_test_that_measures_nothing_says_so(folder: Path) -> None:
    """In a process that has measured before, and so has a context."""
    place, other = Place(folder), Presence(ONE, FakeClock())
    with place.turns.working():
        before = other.other_processes()
    with place.turns.measuring(TEST):
        pass
    with place.turns.working():
        (during,) = other.other_processes()
    (after,) = other.other_processes()
    place.turns.close()
    place.turns.close()

    assert before == ()
    assert (during.activity, after.activity) == (
        ProcessActivity.WORKING,
        ProcessActivity.QUIET,
    )
    assert other.other_processes() == ()


def test_use_without_a_turn_is_said(folder: Path) -> None:
    """What is imported inside a measured function comes too late to wait for."""
    place = Place(folder, in_use=False)
    with place.turns.measuring(TEST):
        place.turns.ensure()
        place.runtime.in_use = True
        found = place.turns.other_users(deltas())

    assert [note.code for note in found.notes] == ["no-turn"]
    assert place.turns.other_users(deltas()).notes == ()  # outside of any test


def test_where_nothing_can_be_locked_the_run_goes_on(folder: Path) -> None:
    """It is lost, with a remedy, and asked for once."""
    folder.touch()
    place = Place(folder)
    with place.turns.measuring(TEST):
        place.turns.ensure()
        found = place.turns.other_users(deltas(1))

    assert found.deltas == deltas(1)
    assert found.notes == ()
    absence = place.site.lost["lock"]
    assert absence.reason.startswith("no turns are taken on the GPU: ")
    assert FOLDER_VARIABLE in absence.remedy


def test_turns_that_were_asked_for_by_name_are_taken(folder: Path) -> None:
    """Or the test ends with an error: no other way stands in."""
    folder.touch()
    place = Place(folder, option_texts={"gpuperf_lock": "exclusive"})
    with (
        place.turns.measuring(TEST),
        pytest.raises(ConfigError, match="--gpuperf-lock=exclusive cannot be used"),
    ):
        place.turns.ensure()


def test_a_place_that_is_gone_is_lost_too(folder: Path) -> None:
    """What others cannot be told any more, the header says."""
    place = Place(folder)
    with place.turns.measuring(TEST):
        pass
    shutil.rmtree(folder)
    with place.turns.working():
        pass

    assert "lock" in place.site.lost


def test_processes_of_a_block_are_one_user(folder: Path) -> None:
    """Their parent holds the GPU for all; what it has not started is foreign to them."""
    place, other = (Place(folder, in_block=True) for _ in range(2))
    with holding(ONE), place.turns.measuring(TEST), other.turns.measuring(OTHERS):
        users = place.turns.other_users(deltas(os.getpid(), os.getppid()))
        foreign = place.turns.other_users(deltas(os.getpid(), 1))
    place.turns.close()
    other.turns.close()

    assert (users.void, foreign.void) == (None, None)
    assert users.deltas is not None
    assert users.deltas.sharing is Sharing.ALONE
    assert foreign.deltas is not None
    assert foreign.deltas.foreign_pids == (1,)


def test_sensors_of_a_block_name_no_sibling() -> None:
    """Also where no turns are taken on the GPU."""
    alone = without_siblings(deltas(os.getpid()))

    assert alone is not None
    assert alone.sharing is Sharing.ALONE
    assert without_siblings(None) is None
