"""A user's project: test files, a store, and pytest started on them."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import pytest_gpuperf
from pytest_gpuperf import cli

PLUGIN = ("-p", "pytest_gpuperf.plugin")
XDIST = ("-p", "xdist.plugin")
# A process that takes longer hangs: on a busy machine a comparison takes minutes.
HUNG_S = 600.0
# what says nothing of how a run goes, and is another for each test
_OF_ONE_TEST = {"HOME", "PYTEST_CURRENT_TEST", "PYTEST_DEBUG_TEMPROOT", "USERPROFILE"}
# what a number of sessions of a test file leaves in a folder that was empty
_left: dict[object, dict[Path, bytes]] = {}

# values come from the environment, so that a later run of the same test can be slower
VALUES = """
    import os

    import pytest


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["a", "b", "c"])
    def test_x(gpuperf, name):
        value = float(os.environ.get(f"VALUE_{name}", "1"))
        gpuperf.record("x", value, unit="s", better="lower")
"""


def hears_interrupts() -> None:
    """Undo what a shell, or nohup, does to what it starts in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def command(
    *arguments: str, folder: Path | None = None, columns: int = 100
) -> subprocess.CompletedProcess[str]:
    """Run `gpuperf` in this process; return what a shell would see of it."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    with (
        pytest.MonkeyPatch.context() as environment,
        redirect_stdout(streams[0]),
        redirect_stderr(streams[1]),
    ):
        environment.setenv("COLUMNS", str(columns))
        if folder is not None:
            environment.chdir(folder)
        try:
            code: Any = cli.main([*arguments])
        except SystemExit as end:  # argparse ends so
            code = end.code
    for stream in streams:
        stream.seek(0)
    texts = [stream.read() for stream in streams]
    return subprocess.CompletedProcess(["gpuperf", *arguments], code, *texts)


class Project:
    """
    A folder with tests in it.

    Attributes:
        path: The folder.
    """

    def __init__(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # what is installed beside us must not change what these tests see
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
        monkeypatch.delenv("GPUPERF_BASELINE", raising=False)
        for name in ("WORKER", "WORKER_COUNT", "TESTRUNUID"):
            monkeypatch.delenv(f"PYTEST_XDIST_{name}", raising=False)
        # a file that is written twice in one second keeps its stamp: no byte code of it
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.setenv("COLUMNS", "200")  # no line is broken or shortened
        if "PYTHONPATH" in os.environ:  # it may be relative to where we were started
            source = str(Path(pytest_gpuperf.__file__).resolve().parents[1])
            monkeypatch.setenv("PYTHONPATH", source, prepend=os.pathsep)
        self._pytester = pytester
        self.environment = monkeypatch
        self.path = pytester.path

    def write(self, text: str, name: str = "test_it.py") -> Path:
        """Write a file of the project."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def run(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in this process."""
        _need_xdist(arguments)
        return self._pytester.runpytest_inprocess(
            *PLUGIN, *_without_alone(arguments), *arguments, no_reraise_ctrlc=True
        )

    def spawn(
        self, *arguments: str, typed: str = "", timeout: float = HUNG_S
    ) -> subprocess.CompletedProcess[str]:
        """Run pytest in a process of its own."""
        alone = _without_alone(arguments)
        return self.plain(*PLUGIN, *alone, *arguments, typed=typed, timeout=timeout)

    def plain(
        self, *arguments: str, typed: str = "", timeout: float = HUNG_S
    ) -> subprocess.CompletedProcess[str]:
        """Run pytest in a process of its own, with no plugin named."""
        _need_xdist((*arguments, os.environ.get("PYTEST_ADDOPTS", "")))
        return subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            capture_output=True,
            check=False,
            cwd=self.path,
            encoding="utf-8",
            input=typed,
            timeout=timeout,
        )

    def set_values(self, **values: float) -> None:
        """Say what the tests of `VALUES` are going to record."""
        for name, value in values.items():
            self.environment.setenv(f"VALUE_{name}", repr(value))

    def store(self, text: str = VALUES, sessions: int = 3) -> None:
        """Write a test file, and keep sessions of it in `.gpuperf`.

        An empty folder gets what the same sessions, in the same environment, have left in
        another one before.
        """
        is_empty = not any(self.path.iterdir())
        usual = (item for item in os.environ.items() if item[0] not in _OF_ONE_TEST)
        key = (text, sessions, frozenset(usual))
        self.write(text)
        if is_empty and key in _left:
            for name, content in _left[key].items():
                place = self.path / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            return
        for _ in range(sessions):
            ended = self.run("-q", "--gpuperf-update=all")
            assert ended.ret == 0, ended.stdout.str()
        if is_empty:
            _left[key] = {
                path.relative_to(self.path): path.read_bytes()
                for path in self.path.rglob("*")
                if path.is_file()
            }

    def edit_store(self, before: str, after: str) -> None:
        """Change a text in the store by hand, and accept the lines."""
        place = self.path / ".gpuperf"
        texts = {path: path.read_text("utf-8") for path in place.glob("**/*.json")}
        assert any(before in text for text in texts.values())
        for path, text in texts.items():
            path.write_text(text.replace(before, after), "utf-8")
        assert cli.main(["baseline", "accept", str(place), "--edited"]) == 0

    def junit(self, name: str = "junit.xml") -> list[Case]:
        """Return the test cases of a JUnit file."""
        root = ET.parse(self.path / name).getroot()  # noqa: S314 - our own run wrote it
        return [Case(element) for element in root.iter("testcase")]

    def report(self, name: str = "run.json") -> dict[str, Any]:
        """Return what a run wrote with --gpuperf-json."""
        read: dict[str, Any] = json.loads((self.path / name).read_bytes())
        return read

    def outcomes(self, name: str = "run.json") -> set[tuple[str, str]]:
        """Return test name and outcome of every verdict of a run."""
        return {
            (verdict["key"]["test_id"].partition("::")[2], verdict["outcome"])
            for verdict in self.report(name)["verdicts"]
        }


class Case:
    """A test case of a JUnit file: its name, and what became of it."""

    def __init__(self, element: ET.Element) -> None:
        self.name = element.get("name")
        self.children = [child.tag for child in element if child.tag != "properties"]
        self.message = " ".join(child.get("message", "") for child in element)
        self.properties = {
            str(each.get("name")): str(each.get("value"))
            for each in element.iter("property")
        }

    def __eq__(self, other: object) -> bool:
        return (self.name, *self.children) == other

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return repr((self.name, *self.children))


def lines(ended: pytest.RunResult, *parts: str) -> list[str]:
    """Return the lines of a run's output that hold all of some texts."""
    return _having(ended.outlines + ended.errlines, parts)


def _without_alone(arguments: Iterable[str]) -> tuple[str, ...]:
    """Return what spares a run that stores the process that measures tests alone."""
    stores = any(argument.startswith("--gpuperf-update") for argument in arguments)
    return ("-ogpuperf_alone=0",) if stores else ()


def _need_xdist(arguments: Iterable[str]) -> None:
    """Skip a test that starts workers where nothing can."""
    wanted = any("xdist" in argument for argument in arguments)
    if wanted and importlib.util.find_spec("xdist") is None:
        pytest.skip("starts workers: pip install pytest-xdist")


def _having(texts: Iterable[str], parts: Iterable[str]) -> list[str]:
    """Return the texts that hold all parts."""
    return [text for text in texts if all(part in text for part in parts)]
