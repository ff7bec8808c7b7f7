"""Files are replaced whole or not at all, whatever ends the write."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_gpuperf.disk import (
    locked,
    read_regular,
    regular_size_bytes,
    write_all,
    write_whole,
)

POSIX = pytest.mark.skipif(os.name == "nt", reason="POSIX only")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_cannot_be_written_leaves_all_of_them(tmp_path: Path) -> None:
    """No file is replaced before all contents are on the disk."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"old")
    (tmp_path / f".b.{os.getpid()}.tmp").mkdir()  # Instead of the temporary file.

    with pytest.raises(OSError, match="b") as caught:
        write_all({first: b"new", second: b"new"})

    assert caught.value.filename == str(second)
    assert first.read_bytes() == b"old"
    assert names_in(tmp_path) == [f".b.{os.getpid()}.tmp", "a"]


def test_a_write_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    """A wrong type stands for Ctrl-C: it is no OSError either."""
    with pytest.raises(TypeError):
        write_all({tmp_path / "a": b"new", tmp_path / "b": 1})  # type: ignore[dict-item]

    assert names_in(tmp_path) == []


@POSIX
def test_a_link_is_followed_and_the_mode_kept(tmp_path: Path) -> None:
    """The target of a store's link is replaced, and the link stays a link."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)

    write_all({link: b"new"})

    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640


@POSIX
def test_a_link_that_another_user_placed_is_replaced(tmp_path: Path) -> None:
    """A cache's file in a shared folder leads to no other file."""
    victim, path = tmp_path / "victim", tmp_path / "a"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)

    write_whole(path, b"new", sync=False)

    assert not path.is_symlink()
    assert path.read_bytes() == b"new"
    assert victim.read_bytes() == b"precious"


@POSIX
def test_two_names_of_one_file_are_one_file(tmp_path: Path) -> None:
    """The later content stays."""
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    write_all({tmp_path / "a": b"1", tmp_path / "b": b"2"})

    assert (tmp_path / "a").read_bytes() == b"2"
    assert names_in(tmp_path) == ["a", "b"]


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    """What was removed during a run stays removed."""
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "gone" / "a", b"new")

    assert names_in(tmp_path) == []


@POSIX
def test_a_new_lock_file_is_no_program(tmp_path: Path) -> None:
    """Versions of filelock differ in the mode that they are given."""
    with locked(tmp_path / "a.lock", timeout_s=1):
        mode = (tmp_path / "a.lock").stat().st_mode

    assert not mode & 0o7133


@POSIX
def test_a_temporary_file_is_no_link_of_another_user(tmp_path: Path) -> None:
    """A guessed name leads to no other file."""
    path, victim = tmp_path / "a", tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / f".a.{os.getpid()}.tmp").symlink_to(victim)

    write_whole(path, b"new")

    assert victim.read_bytes() == b"precious"
    assert not path.is_symlink()


@POSIX
def test_a_mounted_file_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses to replace a mount point."""

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    path = tmp_path / "a"
    path.write_bytes(b"old and longer")
    number = path.stat().st_ino
    monkeypatch.setattr(os, "replace", busy)

    write_whole(path, b"new")

    assert path.read_bytes() == b"new"
    assert path.stat().st_ino == number
    assert names_in(tmp_path) == ["a"]


@POSIX
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit of the file size fails as a full disk does, in the middle of a write."""
    path = tmp_path / "a"
    path.write_bytes(b"old")
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from pytest_gpuperf.disk import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    write_whole(Path(sys.argv[1]), bytes(100_000))\n"
        "except OSError as error:\n"
        "    print(error.errno, error.filename)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.split() == [str(errno.EFBIG), str(path)]
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["a"]


@POSIX
def test_a_kill_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    """A reader never sees a part of a file."""
    path = tmp_path / "a"
    contents = {bytes([letter]) * 1_000_000 for letter in b"xy"}
    path.write_bytes(min(contents))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pytest_gpuperf.disk import write_whole\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for letter in b'xy':\n"
        "        write_whole(Path(sys.argv[1]), bytes([letter]) * 1_000_000, sync=False)\n"
    )
    for number in range(10):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.001 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

        assert path.read_bytes() in contents


@pytest.mark.parametrize("name", ["folder", "pipe"])
@POSIX
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, name: str) -> None:
    """Reading a pipe would block."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(OSError, match="a folder, a pipe or a device") as caught:
        read_regular(tmp_path / name, most_bytes=10)

    assert caught.value.errno == errno.EINVAL


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    """A larger one is refused before a byte of it is read."""
    path = tmp_path / "a"
    path.write_bytes(b"12345")

    assert read_regular(path, most_bytes=5) == b"12345"
    assert regular_size_bytes(path) == 5
    with pytest.raises(OSError, match="more than 0") as caught:
        read_regular(path, most_bytes=4)
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing", most_bytes=4)


@POSIX
def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    """Another process waits, up to its limit. The file stays when the lock is released."""
    path = tmp_path / "a.lock"
    code = (
        "import sys\n"
        "from pytest_gpuperf.disk import locked\n"
        "with locked(sys.argv[1], timeout_s=0):\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(TimeoutError), locked(path, timeout_s=0.01):
            raise AssertionError
        holder.communicate()

    with locked(path, timeout_s=1):
        assert path.exists()
    assert path.exists()


@POSIX
def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Another user may have placed it."""
    (tmp_path / "victim").touch()
    (tmp_path / "a.lock").symlink_to(tmp_path / "victim")

    with (
        pytest.raises(OSError, match="symbolic link") as caught,
        locked(tmp_path / "a.lock", timeout_s=0),
    ):
        raise AssertionError

    assert caught.value.errno == errno.ELOOP
