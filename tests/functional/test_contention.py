"""Calls in several threads on a machine that has more threads to run than cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fakes.project import Project

CORES = os.cpu_count() or 1
BUSY = "import os\nwhile os.getppid() == {parent}:\n    pass\n"
TWO_THREADS = """
    import hashlib
    import threading

    DATA = bytes(1 << 21)

    def digest():
        hashlib.sha256(DATA).digest()  # it lets other threads run

    def two_threads():
        other = threading.Thread(target=digest)
        other.start()
        digest()
        other.join()

    def test_threads(gpuperf):
        gpuperf(two_threads)

    def test_one(gpuperf):
        gpuperf(digest)
"""


@pytest.fixture
def crowded() -> Iterator[None]:
    """Give the machine one thread more than it has cores."""
    argv = (sys.executable, "-c", BUSY.format(parent=os.getpid()))
    busy = [subprocess.Popen(argv) for _ in range(CORES)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.skipif(
    sys.platform != "linux" or CORES > 16,
    reason="it needs a busy process for each core",
)
@pytest.mark.usefixtures("crowded")
def test_threads_that_share_the_cores_are_told_with_the_load(project: Project) -> None:
    """One thread tells itself when it was interrupted, so that nothing need be said."""
    project.write(TWO_THREADS)
    project.environment.setenv("OMP_NUM_THREADS", "2")
    ended = project.spawn("-q", "--gpuperf-json=run.json")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    notes = {
        record["key"]["test_id"]: {n["code"]: n["text"] for n in record["notes"]}
        for record in project.report()["records"]
    }
    text = notes["test_it.py::test_threads"]["oversubscribed"]
    assert f"on {CORES} cores" in text
    assert text.endswith("; OMP_NUM_THREADS=2")
    assert "oversubscribed" not in notes["test_it.py::test_one"]
    assert {
        r["soft_facts"]["OMP_NUM_THREADS"] for r in project.report()["records"]
    } == {"2"}
