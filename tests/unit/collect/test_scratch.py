"""collect.scratch: folders that a killed process does not leave for ever."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuperf.collect.appended_file import AppendedFile
from pytest_gpuperf.collect.scratch import ScratchFolder, user_cache

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="nothing is swept there: it has no flock"
)
# makes a folder, and waits until its standard input ends
OWNER = """
import sys
from pytest_gpuperf.collect.scratch import (ScratchFolder)
folder = ScratchFolder("run")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the temporary folder of this process and of those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def owner() -> subprocess.Popen[str]:
    """Start a process with a folder of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_killed_process_leaves_no_folder_for_ever(temporary: Path) -> None:
    """The next one removes it; one of a process that runs it leaves."""
    with owner() as dead, owner() as alive:
        assert dead.stdout is not None
        assert alive.stdout is not None
        left, used = (Path(p.stdout.readline().strip()) for p in (dead, alive))  # type: ignore[union-attr] # piped
        (left / "spec.json").touch()
        dead.kill()
        dead.wait()
        with ScratchFolder("child") as folder:
            assert {*temporary.iterdir()} == {used, Path(folder)}
        alive.communicate("")

    assert [*temporary.iterdir()] == []


def test_only_own_folders_are_removed(temporary: Path) -> None:
    """A folder without our lock, a link, and what is no folder stay."""
    (temporary / "gpuperf-notes").mkdir()
    (temporary / "gpuperf-file").touch()
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".owner").touch()
    (temporary / "gpuperf-link").symlink_to(elsewhere)
    if os.geteuid() == 0:
        foreign = temporary / "gpuperf-run-foreign"
        foreign.mkdir()
        (foreign / ".owner").touch()
        os.chown(foreign, 65534, 65534)
    before = {*temporary.rglob("*")}

    with ScratchFolder("run"):
        pass

    assert {*temporary.rglob("*")} == before


def lock_of(folder: ScratchFolder) -> int:
    """Return the number of a folder's open lock."""
    wanted = [path.stat() for path in Path(folder.path).iterdir()]
    for number in range(3, 256):
        try:
            state = os.fstat(number)
        except OSError:
            continue
        if any(os.path.samestat(state, other) for other in wanted):
            return number
    raise AssertionError(folder.path)


@pytest.mark.skipif(sys.platform == "win32", reason="an open file has another number")
def test_code_that_closed_all_files_ends_nothing(temporary: Path) -> None:
    """As one that becomes a daemon: the folder goes, and what another opened stays."""
    shut, taken = ScratchFolder("run"), ScratchFolder("run")
    os.close(lock_of(shut))
    shut.remove()
    with temporary.joinpath("mine").open("wb") as mine:
        number = lock_of(taken)
        os.dup2(mine.fileno(), number)
        taken.remove()
        is_mine = os.path.samestat(os.fstat(number), os.fstat(mine.fileno()))
        os.close(number)

    assert is_mine
    assert [path.name for path in temporary.iterdir()] == ["mine"]


def test_a_fork_leaves_the_folder(temporary: Path) -> None:
    """A worker of a data loader ends before the run does."""
    folder = ScratchFolder("run")
    code = """
import os
from pytest_gpuperf.collect.scratch import (ScratchFolder)
folder = ScratchFolder("run")
if not os.fork():
    raise SystemExit
os.wait()
assert os.path.exists(folder.path)
"""
    path = os.pathsep.join(filter(None, sys.path))
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=True
    )

    assert [*temporary.iterdir()] == [Path(folder.path)]
    assert folder.is_empty()
    Path(folder.path, "expected").touch()
    assert not folder.is_empty()
    shutil.rmtree(folder.path)
    folder.remove()


def cut_short(path: Path, error: type[BaseException]) -> None:
    """Append half a line, then raise."""
    with AppendedFile(path).appending() as (file, _):
        file.write(b"tw")
        file.flush()
        raise error


def test_what_cannot_be_appended_whole_leaves_the_file_as_it_was(
    tmp_path: Path,
) -> None:
    """Half a line would spoil the next one, also where Ctrl-C ends it."""
    path = tmp_path / "readings.jsonl"
    with AppendedFile(path).appending() as (file, size_bytes):
        file.write(b"one\n")
    assert size_bytes == 0
    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error):
            cut_short(path, error)
        assert path.read_bytes() == b"one\n"


def test_a_link_is_neither_appended_to_nor_cut(tmp_path: Path) -> None:
    """Its target is somebody's file."""
    target, path = tmp_path / "target", tmp_path / "link"
    target.write_text("mine")
    path.symlink_to(target)

    with pytest.raises(OSError), AppendedFile(path).appending():  # noqa: PT011 - ELOOP or EMLINK by system
        pytest.fail("it was opened")

    assert target.read_text() == "mine"


def append(file: AppendedFile, text: bytes) -> None:
    """Append a line."""
    with file.appending() as (stream, _):
        stream.write(text)


@pytest.fixture(name="kept")
def kept_(tmp_path: Path) -> Iterator[AppendedFile]:
    """Return a file that is open, with a line in it."""
    file = AppendedFile(tmp_path / "kept.jsonl")
    file.open()
    append(file, b"one\n")
    yield file
    file.close()


def test_an_open_file_is_written_to_without_opening_any(
    kept: AppendedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a test has put into the place of what opens files."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a test allows no files")

    for module, name in ((os, "open"), (os, "fstat"), (io, "open"), (builtins, "open")):
        monkeypatch.setattr(module, name, refuse)
    append(kept, b"two\n")
    monkeypatch.undo()

    assert kept.path.read_bytes() == b"one\ntwo\n"


def descriptor_of(path: Path) -> int:
    """Return the number of this process's descriptor of a file."""
    there = path.stat()
    numbers = (int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    for number in numbers:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(number), there):
                return number
    raise AssertionError("it is not open")


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed in /proc")
def test_a_file_that_a_test_has_closed_is_opened_again(
    kept: AppendedFile, tmp_path: Path
) -> None:
    """Its number is that of the test's own file by now, which gets nothing."""
    number = descriptor_of(kept.path)
    os.close(number)
    victim = tmp_path / "victim"
    theirs = os.open(victim, os.O_WRONLY | os.O_CREAT)
    if theirs != number:
        os.dup2(theirs, number)
    append(kept, b"two\n")
    kept.close()

    assert kept.path.read_bytes() == b"one\ntwo\n"
    assert victim.read_bytes() == b""
    os.fstat(number)  # and it is still open
    for ours in {theirs, number}:
        os.close(ours)


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed in /proc")
def test_closing_leaves_the_number_of_another_file_open(
    kept: AppendedFile, tmp_path: Path
) -> None:
    """A test that closed every descriptor opens files of its own."""
    number = descriptor_of(kept.path)
    os.close(number)
    theirs = os.open(tmp_path / "victim", os.O_WRONLY | os.O_CREAT)
    if theirs != number:
        os.dup2(theirs, number)
    kept.close()

    os.fstat(number)
    for ours in {theirs, number}:
        os.close(ours)


def test_a_file_that_was_removed_is_made_anew(kept: AppendedFile) -> None:
    """What is written to a file without a name is lost."""
    kept.path.unlink()
    append(kept, b"two\n")

    assert kept.path.read_bytes() == b"two\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_appends_whole_lines_to_the_same_file(kept: AppendedFile) -> None:
    """Nothing that its parent has written is written again."""
    pid = os.fork()
    if not pid:
        append(kept, b"two\n")
        os._exit(0)
    os.waitpid(pid, 0)
    append(kept, b"three\n")

    assert kept.path.read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("platform", "named", "expected"),
    [
        ("linux", "", "/home/me/.cache/pytest-gpuperf/ncu"),
        ("linux", "/big/cache", "/big/cache/pytest-gpuperf/ncu"),
        ("linux", "cache", "/home/me/.cache/pytest-gpuperf/ncu"),
        ("freebsd14", "/big/cache", "/big/cache/pytest-gpuperf/ncu"),
        ("darwin", "/big/cache", "/home/me/Library/Caches/pytest-gpuperf/ncu"),
        ("win32", "/big/cache", "/local/pytest-gpuperf/Cache/ncu"),
    ],
)
def test_what_outlives_a_process_lies_where_the_system_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, platform: str, named: str, expected: str
) -> None:
    """A cache of XDG must be absolute, and is one of Unix alone."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    monkeypatch.setenv("LOCALAPPDATA", "/local")

    assert user_cache("ncu", platform) == Path(expected)
