"""Rules of baseline.files: whole or not at all, whatever happens."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.privileges import no_privileges
from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.files import (
    kind_of,
    listed,
    locked,
    read_whole,
    write_files,
    write_new,
)
from pytest_gpuperf.baseline.store import DirectoryStore, open_store
from pytest_gpuperf.errors import BaselineError
from unit.baseline import writer
from unit.baseline.samples import key, stored

unix = pytest.mark.skipif(
    os.name == "nt", reason="needs signals and permissions of Unix"
)
PLACES = (".gpuperf", "baseline.json")


def start(*arguments: object, code: str | None = None) -> subprocess.Popen[str]:
    """Start the writer, or some code, in a process of its own."""
    program = [writer.__file__] if code is None else ["-c", code]
    return subprocess.Popen(
        [sys.executable, *map(str, program), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def stored_numbers(place: Path) -> list[set[int]]:
    """Return the sessions that each test of the writer has, oldest first."""
    found = open_store(str(place), "/", create=True).load("h200")
    return [{int(each.session.id[1:]) for each in one} for one in found.values()]


@pytest.mark.parametrize("place", PLACES)
def test_runs_at_once_lose_nothing(place: str, tmp_path: Path) -> None:
    """Four processes store five sessions each: all twenty are there, in every test."""
    processes = [start(tmp_path / place, first, 5) for first in (0, 5, 10, 15)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors

    assert stored_numbers(tmp_path / place) == [set(range(20))] * writer.TESTS_COUNT


@unix
@pytest.mark.parametrize("place", PLACES)
def test_a_kill_at_any_operation_leaves_a_whole_store(
    place: str, tmp_path: Path
) -> None:
    """Each test has the sessions from before, with or without the one being written."""
    before = tmp_path / "before"
    writer.main(str(before / place), 0, 2)
    process = start(place, 2, 1, before)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    copies = [folder for folder in tmp_path.iterdir() if folder != before]
    assert len(copies) > 4

    for folder in copies:
        for found in stored_numbers(folder / place):
            assert {0, 1} <= found <= {0, 1, 2}
        writer.main(str(folder / place), 2, 1)
        assert stored_numbers(folder / place) == [{0, 1, 2}] * writer.TESTS_COUNT
        if place == ".gpuperf":
            assert not list(folder.rglob("*.tmp"))


@unix
@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_time_loses_nothing_stored(seed: int, tmp_path: Path) -> None:
    """What a run has reported as stored is there after it was killed."""
    place = tmp_path / ".gpuperf"
    process = start(place, 0, 1000)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(random.Random(seed).uniform(0, 0.2))
    process.kill()
    output, _ = process.communicate(timeout=60)
    last = max([0, *map(int, output.split("\n")[:-1])])

    for found in stored_numbers(place):
        assert set(range(max(0, last - 18), last + 1)) <= found
    DirectoryStore(place, lock_timeout_s=5).write("h200", [Append(record=stored(9999))])


FULL = """
import resource, sys
from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.errors import BaselineError
from unit.baseline.samples import stored
store = open_store(sys.argv[1], "/")
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
tests = [stored(9, test_id="a.py::t")]
tests += [stored(9, test_id=f"tests/test_gemm.py::t[{n}]") for n in range(200)]
try:
    store.write("h200", [Append(record=each) for each in tests])
except BaselineError as error:
    print(error)
"""


@unix
@pytest.mark.parametrize("place", PLACES)
def test_a_limit_of_files_leaves_the_old_store(place: str, tmp_path: Path) -> None:
    """No file is replaced before all texts are on the disk; the remedy is named."""
    store = open_store(place, tmp_path, create=True)
    store.write("h200", [Append(record=stored(1))])

    output, errors = start(tmp_path / place, code=FULL).communicate(timeout=60)

    assert "allow larger files, as by ulimit -f" in output, errors
    assert ".json: cannot be written" in output
    assert store.load("h200") == {key(): (stored(1, arrival=1),)}
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.fixture
def shut_folder() -> Iterator[Path]:
    """Return the folder of a store that may be looked into; its mode is put back."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        DirectoryStore(folder).write("h200", [Append(record=stored(1))])
        yield folder
        for path in (folder, folder / "h200"):
            path.chmod(0o700)


@unix
def test_an_unreadable_file_is_named(shut_folder: Path) -> None:
    """A baseline that may not be read is not an empty baseline."""
    path = shut_folder / "h200" / "tests.test_gemm.json"
    path.chmod(0)

    with (
        no_privileges(),
        pytest.raises(BaselineError, match="cannot be read") as caught,
    ):
        DirectoryStore(shut_folder).load("h200")

    assert str(path) in caught.value.message
    assert "permission" in caught.value.remedy


@unix
def test_an_unreadable_folder_is_named(shut_folder: Path) -> None:
    """Neither is one whose names may not be read, nor one that may not be entered."""
    (shut_folder / "h200").chmod(0)

    with no_privileges():
        with pytest.raises(BaselineError, match="h200: cannot be read"):
            DirectoryStore(shut_folder).load("h200")
        with pytest.raises(BaselineError, match="cannot be read"):
            open_store("h200/x.json", shut_folder)


@unix
def test_a_read_only_store_is_named(shut_folder: Path) -> None:
    """It can be compared with, and not be written; nothing waits for a lock there."""
    for path in shut_folder.rglob("*.lock"):
        path.unlink()
    (shut_folder / "h200").chmod(0o555)

    with no_privileges():
        store = DirectoryStore(shut_folder, lock_timeout_s=0.2)
        assert store.load("h200") == {key(): (stored(1, arrival=1),)}
        with pytest.raises(BaselineError, match="cannot be written") as caught:
            store.write("h200", [Append(record=stored(2))])

    assert "permission" in caught.value.remedy


@unix
def test_a_read_only_folder_gets_no_gitignore(shut_folder: Path) -> None:
    """The error names the file that could not be made."""
    shut_folder.chmod(0o555)

    with no_privileges(), pytest.raises(BaselineError, match="new: cannot be written"):
        write_new(shut_folder / "new", b"")


HOLDER = """
import sys
from pathlib import Path
from pytest_gpuperf.baseline.files import locked
with locked(Path(sys.argv[1]), timeout_s=5):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_that_is_held_is_named(tmp_path: Path) -> None:
    """Waiting ends, the holder's file is named, and nothing was written."""
    store = DirectoryStore(tmp_path, lock_timeout_s=0.1)
    store.write("h200", [Append(record=stored(1))])
    lock = tmp_path / "store.lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"

    with pytest.raises(BaselineError, match="another run held the lock") as caught:
        store.write("h200", [Append(record=stored(2))])
    process.communicate(timeout=60)

    assert str(lock) in caught.value.message
    assert store.load("h200") == {key(): (stored(1, arrival=1),)}
    store.write("h200", [Append(record=stored(2))])


@unix
def test_a_link_in_place_of_the_lock_is_named(tmp_path: Path) -> None:
    """Whoever shares the folder may have put it there; its target stays as it is."""
    lock, victim = tmp_path / "a.lock", tmp_path / "victim"
    victim.write_text("precious")
    lock.symlink_to(victim)

    with (
        pytest.raises(BaselineError, match=r"a\.lock: cannot be written"),
        locked(lock, timeout_s=0),
    ):
        pass
    assert victim.read_text() == "precious"


def test_an_error_inside_opens_the_lock(tmp_path: Path) -> None:
    """The next run does not wait for one that failed."""
    with pytest.raises(KeyError), locked(tmp_path / "a.lock", timeout_s=0):
        raise KeyError

    with locked(tmp_path / "a.lock", timeout_s=0):
        pass


def test_nothing_is_not_an_error(tmp_path: Path) -> None:
    """What is not there is None, or nothing."""
    assert read_whole(tmp_path / "none") is None
    assert listed(tmp_path / "none", "*") == []
    assert kind_of(tmp_path / "none") is None
    assert kind_of(tmp_path) == "folder"
    write_files({})


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    """write_new is for what nobody has written yet."""
    write_new(tmp_path / "a", b"1")
    write_new(tmp_path / "a", b"2")

    assert read_whole(tmp_path / "a") == b"1"


def test_files_are_replaced_together(tmp_path: Path) -> None:
    """When one of them cannot be written, none is."""
    (tmp_path / "a").write_bytes(b"old")
    texts = {tmp_path / "a": b"new", tmp_path / "none" / "b": b"new"}

    with pytest.raises(BaselineError, match=r"none.b: cannot be written"):
        write_files(texts)

    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    assert read_whole(tmp_path / "a") == b"old"
