"""collect.memory: what new processes can have, as Linux says it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpuperf.collect.memory import (
    fits_in_memory,
    free_bytes,
    largest_process_bytes,
)

GIB = 1 << 30
MEMINFO = "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n"


def machine(folder: Path, *, group: str = "", **files: str) -> Path:
    """Write what Linux says of its memory, and of a control group."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text(MEMINFO, encoding="utf-8")
    (folder / "proc/self/cgroup").write_text(f"0::/{group}\n", encoding="utf-8")
    place = folder / "sys/fs/cgroup" / group
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / f"memory.{name}").write_text(text, encoding="utf-8")
    return folder


def test_what_can_be_had_without_swapping_is_free(tmp_path: Path) -> None:
    """Not what nobody uses: caches are given up."""
    assert free_bytes(machine(tmp_path)) == 8 * GIB


@pytest.mark.parametrize("group", ["", "user.slice/job"])
def test_a_container_has_no_more_than_its_limit(tmp_path: Path, group: str) -> None:
    """Pages of files that it has read are not used up."""
    place = machine(
        tmp_path,
        group=group,
        max=f"{4 * GIB}\n",
        current=f"{3 * GIB}\n",
        stat=f"anon 1\ninactive_file {GIB}\n",
    )

    assert free_bytes(place) == 2 * GIB


def test_a_group_without_a_limit_has_all(tmp_path: Path) -> None:
    """As on most machines."""
    assert free_bytes(machine(tmp_path, max="max\n", current="5\n")) == 8 * GIB


def test_a_system_that_does_not_say_refuses_nothing(tmp_path: Path) -> None:
    """Nothing is refused for it."""
    assert free_bytes(tmp_path) is None


@pytest.mark.skipif(sys.platform == "win32", reason="does not say")
def test_a_process_is_known_by_the_most_that_it_had() -> None:
    """This one has Python and pytest in it."""
    largest = largest_process_bytes()

    assert largest is not None
    assert 10 << 20 < largest < 1 << 40
    assert fits_in_memory(0)
    if free_bytes() is not None:
        assert not fits_in_memory(1 << 30)


# A program that takes 300 MB, and starts another one.
_LARGE = """
import subprocess, sys
held = bytearray(300_000_000)
held[::4096] = bytes(len(held[::4096]))
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""
_SMALL = """
from pytest_gpuperf.collect.memory import largest_process_bytes
print(largest_process_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells them apart")
def test_the_program_that_started_a_process_is_no_part_of_it() -> None:
    """A run under a large build daemon would have no room for its processes."""
    argv = [sys.executable, "-c", _LARGE, _SMALL]
    ended = subprocess.run(argv, capture_output=True, check=True, text=True)

    assert 1 << 20 < int(ended.stdout) < 200_000_000
