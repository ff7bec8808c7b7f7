"""collect.leases: one run at a time on a GPU."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import FakeClock
from pytest_gpuperf.collect import leases
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.leases import (
    FOLDER_VARIABLE,
    Presence,
    ProcessActivity,
    ProcessState,
    descends_from,
    exclusive,
    exclusive_machine,
    lease_folder,
)
from pytest_gpuperf.errors import CollectError, DeviceHeldError

AMPLE_S = 60.0
# holds the lock until its standard input ends
HOLDER = """
import sys
from pathlib import Path
from pytest_gpuperf.collect.leases import exclusive
name, folder, *test = sys.argv[1:]
with exclusive(name, test="".join(test), folder=Path(folder), timeout_s=60):
    print("held", flush=True)
    sys.stdin.read()
"""
# writes down when it has had the GPU, and that twice
WORKER = """
import sys, time
from pathlib import Path
from pytest_gpuperf.collect.leases import exclusive
for _ in range(2):
    with exclusive("0", folder=Path(sys.argv[1]), timeout_s=60):
        start = time.monotonic()
        time.sleep(0.1)
        print(start, time.monotonic(), flush=True)
"""
# is there until its standard input ends, and says what it is told to
USER = """
import sys
from pathlib import Path
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.leases import ProcessActivity, Presence
present = Presence("GPU-A", SystemClock(), folder=Path(sys.argv[1]))
print("there", flush=True)
for line in sys.stdin:
    present.publish(ProcessActivity(line.strip()), "test_it.py::test_x")
    print("said", flush=True)
"""
# asks for what the process that started it holds
CHILD = """
import sys
from pathlib import Path
from pytest_gpuperf.collect.leases import exclusive
with exclusive("0", folder=Path(sys.argv[1]), timeout_s=0):
    print("not waited")
"""


def started(source: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def holding(
    folder: Path, device: str, test: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """Let another process have a GPU."""
    with started(HOLDER, device, folder, test) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.communicate("", timeout=AMPLE_S)


def test_two_processes_never_overlap(tmp_path: Path) -> None:
    """Their spans on the GPU lie one behind the other."""
    workers = [started(WORKER, tmp_path) for _ in range(2)]

    said = "".join(worker.communicate(timeout=AMPLE_S)[0] for worker in workers)

    spans = sorted(tuple(map(float, line.split())) for line in said.splitlines())
    assert len(spans) == 4
    assert all(spans[i][1] <= spans[i + 1][0] for i in range(3))


def test_who_holds_it_is_named(tmp_path: Path) -> None:
    """The error has the file and the process, and its remedy names the process."""
    with holding(tmp_path, "GPU-1/2", "test_a.py::test_x") as holder:
        with (
            pytest.raises(DeviceHeldError) as caught,
            exclusive("GPU-1/2", folder=tmp_path, timeout_s=0),
        ):
            pass
        with exclusive("GPU-2", folder=tmp_path, timeout_s=0):
            pass  # another GPU is free
    with exclusive("GPU-1/2", folder=tmp_path, timeout_s=AMPLE_S) as path:
        pass

    assert caught.value.holder == holder.pid
    assert caught.value.path == str(path) == str(tmp_path / "gpu-1_2.lock")
    assert caught.value.message == (
        f"process {holder.pid} has held GPU-1/2 for 0 s, now for "
        f"test_a.py::test_x ({path})"
    )
    assert f"process {holder.pid}" in caught.value.remedy


def test_a_holder_that_dies_gives_it_back(tmp_path: Path) -> None:
    """No lock outlives its process, and what it wrote down misleads nobody."""
    holder = started(HOLDER, "0", tmp_path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.communicate(timeout=AMPLE_S)

    with exclusive("0", folder=tmp_path, timeout_s=AMPLE_S) as path:
        told = path.with_name("gpu-0.lock.pid").read_text(encoding="ascii")

    assert f'"pid":{os.getpid()},' in told


def test_a_holder_that_did_not_say_is_another_process(tmp_path: Path) -> None:
    """The lock counts, not the note beside it."""
    with holding(tmp_path, "0"):
        (tmp_path / "gpu-0.lock.pid").write_text("?", encoding="ascii")
        with (
            pytest.raises(DeviceHeldError, match="another process has held") as caught,
            exclusive("0", folder=tmp_path, timeout_s=0),
        ):
            pass

    assert caught.value.holder is None


def test_it_is_waited_for(tmp_path: Path) -> None:
    """As long as it may take and no longer."""
    with holding(tmp_path, "0"):
        start = time.monotonic()
        with (
            pytest.raises(DeviceHeldError, match=r"for 0\.3 s"),
            exclusive("0", folder=tmp_path, timeout_s=0.3),
        ):
            pass

        assert 0.3 <= time.monotonic() - start < AMPLE_S


def test_the_limit_is_for_one_holder(tmp_path: Path) -> None:
    """Where tests take turns all of them end: what counts is how long one has it."""
    with started(HOLDER, "0", tmp_path, "the first") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        note = tmp_path / "gpu-0.lock.pid"
        with started(
            HOLDER.replace("timeout_s=60", "timeout_s=3"), "0", tmp_path, "the last"
        ) as last:
            assert last.stdout is not None
            for number in range(8):  # as if the GPU had changed hands
                time.sleep(0.5)
                told = note.read_text(encoding="utf-8")
                note.write_text(told.replace("the first", f"the first {number}"))
            first.communicate("", timeout=AMPLE_S)
            held = last.stdout.readline()
            last.communicate("", timeout=AMPLE_S)

    assert held == "held\n"


def test_one_process_has_it_once(tmp_path: Path) -> None:
    """A test that has the GPU may start what locks it, and what it starts may too."""
    with exclusive("0", folder=tmp_path), exclusive("0", folder=tmp_path, timeout_s=0):
        child = started(CHILD, tmp_path)
        said, _ = child.communicate(timeout=AMPLE_S)
        with holding(tmp_path, "1"):
            pass

    assert said == ("not waited\n" if sys.platform == "linux" else "")
    with holding(tmp_path, "0"):  # and then it is free
        pass


def test_an_instance_has_one_name(tmp_path: Path) -> None:
    """CUDA calls it as if it were a whole GPU, and NVML does not."""
    with exclusive("MIG-A1", folder=tmp_path) as one:
        pass
    with exclusive("GPU-a1", folder=tmp_path) as other:
        pass

    assert one == other


def test_processes_know_what_others_do(tmp_path: Path) -> None:
    """Each says it in a file of its own; who has ended says nothing any more."""
    present = Presence("GPU-a", SystemClock(), folder=tmp_path)
    with started(USER, tmp_path) as user:
        assert user.stdin is not None
        assert user.stdout is not None
        user.stdout.readline()
        (quiet,) = present.other_processes()
        for word in ("measuring", "quiet"):
            user.stdin.write(f"{word}\n")
            user.stdin.flush()
            user.stdout.readline()
        (later,) = present.other_processes()
        user.kill()
    gone = present.other_processes()
    left = [*tmp_path.iterdir()]
    present.close()

    assert (quiet.pid, quiet.activity, quiet.measured_ns) == (
        user.pid,
        ProcessActivity.QUIET,
        None,
    )
    assert quiet.since_ns < later.since_ns == later.measured_ns
    assert later.test == "test_it.py::test_x"
    assert present.is_local(later)
    assert gone == ()
    assert len(left) == 2  # of this process
    assert [*tmp_path.iterdir()] == []


# as HOLDER, of the whole machine
MACHINE_HOLDER = HOLDER.replace("import exclusive", "import exclusive_machine").replace(
    "exclusive(name, ", "exclusive_machine("
)


def test_the_machine_is_had_by_one_run(tmp_path: Path) -> None:
    """Who has it is told once, and named where it is not given back; no GPU is held."""
    holders: list[ProcessState] = []
    with started(MACHINE_HOLDER, "-", tmp_path, "block 1") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(DeviceHeldError, match=r"has held this machine for 1\.2 s"),
            exclusive_machine(
                test="block 2", folder=tmp_path, timeout_s=1.2, waiting=holders.append
            ),
        ):
            pass
        with exclusive("0", folder=tmp_path, timeout_s=0):
            pass
        assert [(h.pid, h.test) for h in holders] == [(holder.pid, "block 1")]
        holder.communicate("", timeout=AMPLE_S)
    with exclusive_machine(
        test="block 2", folder=tmp_path, timeout_s=0, waiting=holders.append
    ):
        assert len(holders) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="has no such modes")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o700])
def test_who_may_use_the_folder_may_use_its_locks(tmp_path: Path, mode: int) -> None:
    """Whatever this user's own files are like: the folder may be for several users."""
    tmp_path.chmod(mode)
    with exclusive("0", folder=tmp_path) as path:
        pass
    present = Presence("0", FakeClock(), folder=tmp_path)
    (alive,) = tmp_path.glob("*.alive")
    files = path, alive, alive.with_suffix(""), tmp_path / "gpu-0.lock.pid"
    modes = {each.stat().st_mode & 0o777 for each in files}
    present.close()

    assert modes == {mode & 0o666}


def test_what_cannot_be_read_is_nobodys(tmp_path: Path) -> None:
    """A file of another version, or half of one, does not stop a run."""
    clock = FakeClock()
    present = Presence("0", clock, folder=tmp_path)
    other = Presence("0", clock, folder=tmp_path)
    (file,) = (
        path
        for path in tmp_path.glob("gpu-0.user-*")
        if path.suffix != ".alive" and path != present._file
    )
    for content in ('{"pid": "many"}', '{"pid": 1', '{"other": ' + "[" * 3000):
        file.write_text(content, encoding="utf-8")
        assert present.other_processes() == ()
    assert len(other.other_processes()) == 1
    other.close()
    present.close()


@given(st.text(st.characters(codec=None), max_size=400))
def test_any_name_of_a_test_is_told(name: str) -> None:
    """A long one shortened, one that no file can hold without what it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        one, other = (Presence("0", FakeClock(), folder=Path(folder)) for _ in "ab")
        one.publish(ProcessActivity.MEASURING, "x" * 400)
        one.publish(ProcessActivity.MEASURING, name)
        (said,) = other.other_processes()
        one.close()
        other.close()

    told = (name or "x" * 400)[:300]
    assert said.test == told.encode(errors="replace").decode()


def test_a_presence_without_a_place_says_so(tmp_path: Path) -> None:
    """As a lock does, with the variable that names another place."""
    (tmp_path / "file").touch()

    with pytest.raises(CollectError, match=FOLDER_VARIABLE):
        Presence("0", FakeClock(), folder=tmp_path / "file")


def test_descent_is_read_from_the_process_list(tmp_path: Path) -> None:
    """A name may hold parentheses; a loop ends; without a list nobody has a parent."""
    for pid, parent in ((7, 5), (5, 1), (8, 9), (9, 8)):
        (tmp_path / str(pid)).mkdir()
        text = f"{pid} (a) b) S {parent} 0"
        (tmp_path / str(pid) / "stat").write_text(text, encoding="utf-8")

    assert [pid for pid in (1, 5, 7, 8, 9, 6) if descends_from(5, pid, tmp_path)] == [
        5,
        7,
    ]
    assert not descends_from(5, 7, tmp_path / "none")


def test_an_error_gives_it_back(tmp_path: Path) -> None:
    """Whatever happens in the block, the next run can have the GPU."""
    with pytest.raises(KeyboardInterrupt), exclusive("0", folder=tmp_path):
        raise KeyboardInterrupt

    with exclusive("0", folder=tmp_path, timeout_s=0) as path:
        assert path.exists()


def test_a_place_without_locks_is_named(tmp_path: Path) -> None:
    """A file where the folder should be: the error says how to name another."""
    (tmp_path / "file").touch()

    with (
        pytest.raises(CollectError, match=FOLDER_VARIABLE),
        exclusive("0", folder=tmp_path / "file"),
    ):
        pass


def test_the_folder_is_named_or_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runs of a user meet in one place."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    usual = lease_folder()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))

    with exclusive("0") as path:
        assert path.parent == lease_folder() == tmp_path / "locks"
    assert usual.name.startswith("pytest-gpuperf-")


@pytest.mark.skipif(os.name != "posix", reason="TEMP is the user's own there")
def test_runs_with_other_temporary_folders_meet(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job scheduler gives each job its TMPDIR; the machine and its GPUs are the same."""
    folders = []
    for name in ("a", "b"):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        with exclusive("0") as gpu, exclusive_machine(test="x") as machine:
            folders += [gpu.parent, machine.parent]

    assert folders == [lease_folder()] * 4
    assert lease_folder().parent == shared


def test_a_system_without_that_folder_has_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container whose one place to write to is TMPDIR."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(leases, "_SYSTEM_FOLDER", str(tmp_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert lease_folder().parent == tmp_path


# another user who places files where the locks are

not_on_windows = pytest.mark.skipif(
    sys.platform == "win32", reason="another user cannot place a link there"
)


@not_on_windows
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_the_holder_is_not_written_through_a_link(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    """The file that the link names stays as it is, and the lock is held without a name."""
    victim, locks = tmp_path / "victim.txt", tmp_path / "locks"
    victim.write_text("precious", encoding="ascii")
    victim.chmod(0o600)
    locks.mkdir()
    link(victim, locks / "gpu-a.lock.pid")

    with (
        exclusive("GPU-a", folder=locks),
        started(CHILD.replace('"0"', '"GPU-a"'), locks) as child,
    ):
        assert child.wait(AMPLE_S) != 0

    assert victim.read_text(encoding="ascii") == "precious"
    assert victim.stat().st_mode & 0o777 == 0o600


@not_on_windows
def test_the_holder_is_not_made_through_a_link(tmp_path: Path) -> None:
    """A link to a file that is not there makes none."""
    (tmp_path / "gpu-a.lock.pid").symlink_to(tmp_path / "created.txt")

    with exclusive("GPU-a", folder=tmp_path):
        pass

    assert not (tmp_path / "created.txt").exists()


def test_only_states_are_removed(tmp_path: Path) -> None:
    """A file with another name stays, whatever else is in the folder."""
    present = Presence("GPU-a", FakeClock(), folder=tmp_path)
    others = {
        f"gpu-a.user-{name}" for name in ("my-notes", "7-0123456", "7-01234567.c")
    }
    for name in (*others, "gpu-a.user-7-01234567"):
        (tmp_path / name).touch()

    assert present.other_processes() == ()
    left = {path.name for path in tmp_path.iterdir()}
    present.close()

    assert others <= left
    assert "gpu-a.user-7-01234567" not in left


@not_on_windows
def test_a_pipe_in_place_of_a_state_is_not_waited_for(tmp_path: Path) -> None:
    """Neither to read who holds the lock, nor to write it."""
    os.mkfifo(tmp_path / "gpu-a.lock.pid")

    with exclusive("GPU-a", folder=tmp_path, timeout_s=AMPLE_S) as path:
        assert path.exists()


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the temporary folder of all users; no other folder is named."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(leases, "_SYSTEM_FOLDER", str(tmp_path))
    return tmp_path


@not_on_windows
def test_the_users_own_folder_is_private(shared: Path) -> None:
    """Whatever the umask is: nobody else can place a file in it."""
    before = os.umask(0)
    try:
        with exclusive("GPU-a") as path:
            assert path.parent.parent == shared
    finally:
        os.umask(before)

    assert lease_folder().stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


@not_on_windows
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_an_own_folder_that_others_can_write_to_is_refused(
    shared: Path, mode: int
) -> None:
    """Another user may have placed links in it."""
    folder = lease_folder()
    assert folder.parent == shared
    folder.mkdir()
    folder.chmod(mode)

    with (
        pytest.raises(CollectError, match="other users can write to the folder"),
        exclusive("GPU-a"),
    ):
        pass
    with pytest.raises(CollectError, match="other users can write to the folder"):
        Presence("GPU-a", FakeClock())

    assert list(folder.iterdir()) == []


@not_on_windows
def test_a_folder_that_another_user_has_made_is_refused(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is this user's, and its owner is not."""
    user = os.getuid() + 1
    (shared / f"pytest-gpuperf-{user}").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: user)

    with (
        pytest.raises(CollectError, match="the folder belongs to another user"),
        exclusive("GPU-a"),
    ):
        pass


@not_on_windows
def test_a_link_in_place_of_the_users_own_folder_is_refused(shared: Path) -> None:
    """Even one to a folder of this user."""
    (shared / "mine").mkdir(mode=0o700)
    lease_folder().symlink_to(shared / "mine")

    with pytest.raises(CollectError, match="the folder is a link"), exclusive("GPU-a"):
        pass

    assert list((shared / "mine").iterdir()) == []


# as another user, plants a folder, its mode, and links in it as NAME=TARGET
PLANTED = """
import os, sys
user, folder, mode, *links = sys.argv[1:]
os.setgroups([])
os.setgid(int(user))
os.setuid(int(user))
os.makedirs(folder, exist_ok=True)
if mode:
    os.chmod(folder, int(mode, 8))
for link in links:
    name, target = link.split("=")
    os.symlink(target, os.path.join(folder, name))
"""
SECOND_USER = 65534  # nobody's id, on Linux and macOS


@pytest.fixture
def reachable() -> Iterator[Path]:
    """Return a folder that another user can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o711)
        yield folder


@pytest.fixture
def planted() -> Callable[..., None]:
    """Return what another user does; root is needed for it."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("another user cannot be had: this is not root")

    def plant(folder: Path, *links: str, mode: str = "") -> None:
        subprocess.run(
            [sys.executable, "-c", PLANTED, str(SECOND_USER), folder, mode, *links],
            check=True,
        )

    return plant


@pytest.fixture
def victim(reachable: Path) -> Path:
    """Return this user's folder, with a file and hooks that others may not write."""
    folder = reachable / "victim"
    (folder / "hooks").mkdir(parents=True)
    for name in ("precious.txt", "hooks/pre-commit", "hooks/7-01234567"):
        (folder / name).write_text("precious", encoding="ascii")
        (folder / name).chmod(0o600)
    return folder


def state_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the mode and the content of each file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_text("ascii"))
        for path in files
    }


@not_on_windows
@pytest.mark.parametrize("is_named", [False, True], ids=["temporary", "named"])
def test_another_user_cannot_use_this_ones_rights(
    is_named: bool,
    reachable: Path,
    victim: Path,
    planted: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Links in the lock folder, and the folder itself: no file is written, made or lost.

    In the sticky temporary folder the other user comes first; in a folder that is shared
    on purpose that user may place any name beside the files of this one.
    """
    place = reachable / "all"
    place.mkdir()
    place.chmod(0o777 if is_named else 0o1777)
    monkeypatch.setattr(leases, "_SYSTEM_FOLDER", str(place))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    if is_named:
        monkeypatch.setenv(FOLDER_VARIABLE, str(place))
    before = state_of(victim)
    planted(
        lease_folder(),
        f"gpu-abc.lock.pid={victim}/precious.txt",
        f"gpu-abc.user-7-01234567={victim}/hooks/7-01234567",
        f"gpu-abc.user-8-01234567.alive={victim}/created.txt",
        f"gpu-abc.users={victim}/hooks",
        f"gpu-new.lock.pid={victim}/created.txt",
        f"gpu-sym.lock={victim}/precious.txt",
        mode="" if is_named else "777",
    )
    for device in ("GPU-abc", "GPU-new", "GPU-sym"):
        with contextlib.suppress(CollectError), exclusive(device, timeout_s=0):
            assert is_named
        with contextlib.suppress(CollectError):
            present = Presence(device, FakeClock())
            assert is_named
            present.other_processes()
            present.publish(ProcessActivity.WORKING)
            present.close()

    assert state_of(victim) == before


@not_on_windows
def test_a_lock_is_not_opened_through_a_hard_link(tmp_path: Path) -> None:
    """A lock has its folder's mode: it would be given to the file elsewhere."""
    victim, locks = tmp_path / "victim.txt", tmp_path / "locks"
    victim.touch(mode=0o600)
    locks.mkdir()
    locks.chmod(0o777)
    (locks / "gpu-a.lock").hardlink_to(victim)

    with (
        pytest.raises(CollectError, match="the file is a link") as refusal,
        exclusive("GPU-a", folder=locks),
    ):
        pass

    assert victim.stat().st_mode & 0o777 == 0o600
    assert "that only this user can write to" in refusal.value.remedy
