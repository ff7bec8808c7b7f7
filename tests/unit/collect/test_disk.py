"""collect.disk: work that waits for the disk, through one file without a name."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from fakes.disk import files_end_at
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.disk import DISK_WORKLOADS, DiskFile

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="no process knows its disk blocks there"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_workloads_write_blocks_and_leave_nothing(folder: Path) -> None:
    """Nothing has a name, so that a killed process leaves nothing either."""
    clock, file = SystemClock(), DiskFile()
    before = clock.blocks_count()
    for _ in range(2):
        file.begin()
        for name in DISK_WORKLOADS:
            file.workloads[name]()
    after = clock.blocks_count()

    assert list(folder.iterdir()) == []
    assert before is not None
    assert after is not None
    assert after > before or _is_memory(folder)


def _is_memory(folder: Path) -> bool:
    """Return whether a file that is written there takes no blocks."""
    clock = SystemClock()
    before = clock.blocks_count()
    with (folder / "probe").open("wb") as stream:
        stream.write(b"x" * 65536)
        os.fsync(stream.fileno())
    return clock.blocks_count() == before


def test_nothing_is_opened_after_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake file system takes os away, and every descriptor may be in use."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    file = DiskFile()
    for name in ("open", "write", "fsync", "pwrite", "ftruncate"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr("builtins.open", refuse)
    file.begin()
    for workload in file.workloads.values():
        workload()


def test_a_file_that_a_test_has_closed_is_not_written(folder: Path) -> None:
    """Nor is the one that has its number now, even if that has no name either."""
    file = DiskFile()
    descriptor = _descriptor_in(folder)
    os.close(descriptor)
    with tempfile.TemporaryFile(dir=folder) as other:
        if other.fileno() != descriptor:  # the system gives the first free number
            os.dup2(other.fileno(), descriptor)
        with pytest.raises(OSError, match="a test has closed its file"):
            file.begin()
        del file

        assert os.fstat(descriptor).st_size == 0
        if other.fileno() != descriptor:
            os.close(descriptor)


def test_a_full_disk_is_an_error(folder: Path) -> None:
    """It is one of the work, and not of the test beside which it is done."""
    file = DiskFile()
    with files_end_at(8192), pytest.raises(OSError, match=r"File too large|No space"):
        file.begin()


def test_a_folder_that_is_gone_is_told_when_it_is_needed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most processes never need it."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "gone"))
    file = DiskFile()

    with pytest.raises(OSError, match="No such file"):
        file.begin()


def _descriptor_in(folder: Path) -> int:
    """Return the descriptor of the file without a name in a folder."""
    for number in range(3, 256):
        try:
            state = os.fstat(number)
        except OSError:
            continue
        is_there = state.st_dev == folder.stat().st_dev
        if is_there and state.st_nlink == 0 and state.st_size == 32:
            return number
    raise AssertionError
