"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Generator

# pytester forgets the modules that a run in this process has loaded, and numpy cannot
# be loaded twice: so it is loaded before
import numpy as np  # noqa: F401 - see above
import pytest
import scipy.special  # noqa: F401 - see above
from hypothesis import settings

from fakes.project import Project

pytest_plugins = ["pytester"]

# a machine that is busy is no failure: nothing here is timed
settings.register_profile("untimed", deadline=None)
# for all interpreters but one: what differs between them is seen in a few examples
settings.register_profile("brief", deadline=None, max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "untimed"))


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A user's project, in an empty folder."""
    return Project(pytester, monkeypatch)


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
