"""collect.leases: one run at a time on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_gpuperf.collect.leases import FOLDER_VARIABLE, exclusive, lease_folder
from pytest_gpuperf.errors import CollectError, DeviceHeldError

AMPLE_S = 60.0
# holds the lock until its standard input ends
HOLDER = """
import sys
from pathlib import Path
from pytest_gpuperf.collect.leases import exclusive
with exclusive(sys.argv[1], folder=Path(sys.argv[2]), timeout_s=60):
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


def started(source: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_never_overlap(tmp_path: Path) -> None:
    """Their spans on the GPU lie one behind the other."""
    workers = [started(WORKER, tmp_path) for _ in range(2)]

    said = "".join(worker.communicate(timeout=AMPLE_S)[0] for worker in workers)

    spans = sorted(tuple(map(float, line.split())) for line in said.splitlines())
    assert len(spans) == 4
    assert all(spans[i][1] <= spans[i + 1][0] for i in range(3))


def test_who_holds_it_is_named(tmp_path: Path) -> None:
    """The error has the file and the process, and its remedy names the process."""
    holder = started(HOLDER, "GPU-1/2", tmp_path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"

    with (
        pytest.raises(DeviceHeldError) as caught,
        exclusive("GPU-1/2", folder=tmp_path, timeout_s=0),
    ):
        pass
    with exclusive("GPU-2", folder=tmp_path, timeout_s=0):
        pass  # another GPU is free
    holder.communicate("", timeout=AMPLE_S)
    with exclusive("GPU-1/2", folder=tmp_path, timeout_s=AMPLE_S) as path:
        pass

    assert caught.value.holder == holder.pid
    assert caught.value.path == str(path) == str(tmp_path / "gpu-GPU-1_2.lock")
    assert str(path) in str(caught.value)
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

    assert int(told) == os.getpid()


def test_a_holder_that_did_not_say_is_another_process(tmp_path: Path) -> None:
    """The lock counts, not the note beside it."""
    with exclusive("0", folder=tmp_path) as path:
        path.with_name("gpu-0.lock.pid").write_text("?", encoding="ascii")
        with (
            pytest.raises(DeviceHeldError, match="another process has held") as caught,
            exclusive("0", folder=tmp_path, timeout_s=0),
        ):
            pass

    assert caught.value.holder is None


def test_it_is_waited_for(tmp_path: Path) -> None:
    """As long as it may take and no longer."""
    with exclusive("0", folder=tmp_path):
        start = time.monotonic()
        with (
            pytest.raises(DeviceHeldError, match=r"for 0\.3 s"),
            exclusive("0", folder=tmp_path, timeout_s=0.3),
        ):
            pass

        assert 0.3 <= time.monotonic() - start < AMPLE_S


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
