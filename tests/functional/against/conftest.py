"""Two sides of real repositories. A third of the tests runs by default, all of them with

    GPUPERF_ALL_REPOSITORIES=1 pytest tests/functional/against

(some need hatchling, editables, meson-python, scikit-build-core, cmake, ninja, pytest-cov
or a compiler, and are skipped by name where those are missing).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.project import Project
from fakes.repositories import Repo, without_git_variables
from functional.against.repository import OLD, Repository

ALL = bool(os.environ.get("GPUPERF_ALL_REPOSITORIES"))
PROGRAM = Path(__file__).with_name("program.py")
TEST_IDS = ["tests/test_core.py::test_work"]


@pytest.fixture(autouse=True)
def _git(request: pytest.FixtureRequest) -> None:
    """Skip where git is missing, and by default what takes long."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    if not ALL and request.node.get_closest_marker("long") is not None:
        pytest.skip("takes long: set GPUPERF_ALL_REPOSITORIES=1")


@pytest.fixture(name="repository")
def repository_(project: Project, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Return a project with one commit, whose runs wait for no other run."""
    monkeypatch.setenv("GPUPERF_LOCK_DIR", str(project.path / ".git"))
    repository = Repository(project)
    repository.commit("as it was", **OLD)
    return repository


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """Return an empty repository."""
    return Repo.make(tmp_path / "made")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Return the temporary folder of the runs that a test starts."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def opened(tmp_path: Path, scratch: Path) -> Callable[..., dict[str, Any]]:
    """Return what opens the two sides of a repository, as its own Python does it."""

    def open_(repo: Repo, **request: object) -> dict[str, Any]:
        wish = {
            "revision": "HEAD~1",
            "test_ids": TEST_IDS,
            "args": repo.args,
            "paths": repo.paths,
            "start": repo.start or ("-m", "pytest"),
            "plugins": _plugins(),
            "cache_folder": str(tmp_path / "cache"),
            "measures": False,
            **repo.request,
            **request,
        }
        argv = [repo.python, str(PROGRAM), json.dumps(wish)]
        variables = {"TMPDIR": str(scratch), "TOLD": str(tmp_path / "told")}
        done = subprocess.run(
            argv,
            cwd=repo.root / repo.below,
            env={**without_git_variables(), **variables, **repo.env},
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        told = tmp_path / "told"
        answer["told"] = told.read_text().split() if told.exists() else []
        told.unlink(missing_ok=True)
        return answer

    return open_


def _plugins() -> list[str]:
    """Return the plugins that a run of pytest in this environment has."""
    from importlib.util import find_spec

    names = {"cacheprovider": "pytest", "pytest_cov": "pytest_cov", "xdist": "xdist"}
    names["randomly"] = "pytest_randomly"
    return [name for name, module in names.items() if find_spec(module)]


def pytest_configure() -> None:
    """Let no setting of the run that tests us reach the runs that are tested."""
    os.environ.pop("PYTEST_ADDOPTS", None)
