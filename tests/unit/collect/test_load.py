"""collect.load: runnable threads and cores, from a file that stays open."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.load import Load, LoadFile

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="no other system counts them in a file"
)
CORES = os.cpu_count() or 1


@pytest.fixture
def averages(tmp_path: Path) -> Path:
    path = tmp_path / "loadavg"
    path.write_text("12.87 13.24 12.63 13/160 20145\n")
    return path


def test_the_fourth_number_is_of_runnable_threads(averages: Path) -> None:
    """It is read anew with each look, and held against all cores of the machine."""
    file = LoadFile(str(averages))
    first = file.load()
    averages.write_text("0.00 0.01 0.05 1/160 20146\n")

    assert first == Load(13, CORES)
    assert file.load() == Load(1, CORES)


@pytest.mark.parametrize(
    "text",
    ["", "0.00 0.00 0.00 0/0 0\n", "3 4 5 6/7 8\n", "0.00 0.00 0.00 1/2 3\nmore\n"],
)
def test_another_text_is_no_load(averages: Path, text: str) -> None:
    """A sandbox reports no thread at all, though one asks."""
    averages.write_text(text)

    assert LoadFile(str(averages)).load() is None


def test_a_missing_file_is_no_load(tmp_path: Path) -> None:
    """So it is where /proc is not mounted."""
    assert LoadFile(str(tmp_path / "none")).load() is None


def test_a_descriptor_that_now_is_another_files_is_left_alone(
    averages: Path, tmp_path: Path
) -> None:
    """Its text may look alike; the load is unknown from then on."""
    file = LoadFile(str(averages))
    file.load()
    other = tmp_path / "other"
    other.write_text("9.99 9.99 9.99 99/100 101\n")
    descriptor = _descriptor_of(averages)
    assert descriptor is not None
    with other.open("rb") as stream:
        os.dup2(stream.fileno(), descriptor)
    try:
        assert file.load() is None
        del file
        assert os.read(descriptor, 4) == b"9.99"  # it is not closed either
    finally:
        os.close(descriptor)


def test_the_file_is_closed_with_its_owner(averages: Path) -> None:
    """A process that runs pytest again and again has descriptors left."""
    file = LoadFile(str(averages))
    file.load()
    assert _descriptor_of(averages) is not None
    del file

    assert _descriptor_of(averages) is None


def test_a_file_that_was_closed_is_no_load(averages: Path) -> None:
    """A run closes it at its end, and nothing opens it again."""
    file = LoadFile(str(averages))
    file.load()
    file.close()

    assert _descriptor_of(averages) is None
    assert file.load() is None


def test_the_system_has_this_thread_at_least() -> None:
    """It runs while it asks."""
    load = SystemClock().load()

    assert load is not None
    assert load.runnable_count >= 1
    assert load.core_count == CORES


def _descriptor_of(path: Path) -> int | None:
    """Return the descriptor that a file is open by, or None."""
    links = Path("/proc/self/fd")
    names = (link for link in links.iterdir() if link.is_symlink())
    return next((int(n.name) for n in names if n.readlink() == path), None)
