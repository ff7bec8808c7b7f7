"""What all tests share."""

from __future__ import annotations

import atexit
import compileall
import gc
import importlib
import os
import pkgutil
import shutil
import sys
import tempfile
from collections.abc import Generator
from functools import cache
from pathlib import Path

# pytester forgets the modules that a run in this process has loaded, and each run would
# load them anew; numpy cannot be loaded twice. So they are loaded before
import blake3  # noqa: F401 - see above
import filelock  # noqa: F401 - see above
import numpy as np  # noqa: F401 - see above
import pytest
from hypothesis import settings

import pytest_gpuperf
from fakes.project import Project

for _module in pkgutil.walk_packages(pytest_gpuperf.__path__, "pytest_gpuperf."):
    if not _module.name.endswith("__main__"):  # it starts the command
        importlib.import_module(_module.name)

pytest_plugins = ["pytester"]

# programs that tests start, the fake ncu among them, are scripts of this Python
os.environ["PATH"] = os.pathsep.join(
    (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
)

# No test waits for measurements of another process. A worker of xdist inherits the folder
# of the process that started it, and needs its own.
_PREFIX = "gpuperf-tests-"
if _PREFIX in os.environ.setdefault("GPUPERF_LOCK_DIR", _PREFIX):
    os.environ["GPUPERF_LOCK_DIR"] = _locks = tempfile.mkdtemp(prefix=_PREFIX)
    atexit.register(shutil.rmtree, _locks, ignore_errors=True)

# a machine that is busy is not a failure: nothing here is timed
settings.register_profile("untimed", deadline=None)
# for all that repeats: what differs between environments is seen in a few examples
settings.register_profile("brief", deadline=None, max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "untimed"))


def pytest_configure(config: pytest.Config) -> None:
    """Compile what tests start: those processes write no byte code, and read ours."""
    if sys.dont_write_bytecode or hasattr(config, "workerinput"):
        return
    package = Path(pytest_gpuperf.__file__).parent
    for folder in (package, Path(__file__).with_name("fakes")):
        compileall.compile_dir(folder, quiet=2)


def pytest_collection_finish() -> None:
    """Let nobody who collects garbage look through the thousands of tests each time."""
    gc.freeze()


@pytest.fixture
def project(
    request: pytest.FixtureRequest,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> Project:
    """
    A user's project, in an empty folder.

    Its runs find no ncu of this machine, which would look for the GPU of a double. Tests of a
    real GPU do.
    """
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("PATH", _path_without_ncu(os.environ["PATH"]))
    return Project(pytester, monkeypatch)


@cache
def _path_without_ncu(path: str) -> str:
    """Return a PATH with links to all that its folders hold, but for ncu."""
    folders = path.split(os.pathsep)
    return os.pathsep.join(
        _linked(folder) if shutil.which("ncu", path=folder) else folder
        for folder in folders
    )


def _linked(folder: str) -> str:
    """Return a new folder with links to the files of another, but for ncu."""
    links = tempfile.mkdtemp(prefix=_PREFIX)
    atexit.register(shutil.rmtree, links, ignore_errors=True)
    for entry in os.scandir(folder):
        if entry.name != "ncu":
            Path(links, entry.name).symlink_to(Path(folder, entry.name).absolute())
    return links


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which tests are marked: the keywords of a report hold ids of parameters too."""
    report = yield
    report.uses_gpu = item.get_closest_marker("gpu") is not None  # type: ignore[attr-defined] # our own
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests used a GPU: where all of them are skipped, a run is green too."""
    ours = {
        outcome: {r.nodeid for r in reports if getattr(r, "uses_gpu", False)}
        for outcome, reports in terminalreporter.stats.items()
        if outcome in {"passed", "failed", "error", "skipped"}
    }
    total = set[str]().union(*ours.values())
    ran = total - ours.get("skipped", set())
    if total:
        terminalreporter.write_line(f"{len(ran)} of {len(total)} GPU tests ran")
