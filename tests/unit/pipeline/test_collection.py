"""Rules of pipeline.side_process: what a side says of its tests, and what it may not."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.runner import Call, FakeRunner, finished
from pytest_gpuperf.collect.runner import Finished
from pytest_gpuperf.errors import CollectorTimeoutError, SidesRefusedError
from pytest_gpuperf.measure.site import ProcessIdentity
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.repeat import ChildSpec
from pytest_gpuperf.pipeline.side_process import (
    LISTING_VARIABLE,
    CollectedTest,
    CollectedTests,
    Collection,
    SideCommand,
    collect,
)

SESSION = Session(id="s", started_unix_s=0.0, host="h")
IDENTITY = ProcessIdentity(session=SESSION, spool="/spool", expected="/expected")


class Child(FakeRunner):
    """A runner whose process writes a listing, if any."""

    def __init__(
        self, listing: CollectedTests | str | None, end: Finished | Exception
    ) -> None:
        super().__init__([end])
        self._listing = listing
        self.spec: ChildSpec | None = None

    def answer(self, call: Call) -> Finished:
        assert call.env is not None
        self.spec = codec.from_text(Path(call.env["CHILD"]).read_bytes(), ChildSpec)
        if self._listing is not None:
            text = self._listing
            text = text if isinstance(text, str) else codec.to_text(text)
            Path(call.env[LISTING_VARIABLE]).write_text(text)
        return super().answer(call)


@pytest.fixture
def collected(tmp_path: Path) -> Callable[[Child], Collection]:
    """Return what lets the old side collect."""
    command = SideCommand(
        side=Side.OLD,
        folder=str(tmp_path),
        command=CommandLine(args=("tests",), folder=str(tmp_path), variable="CHILD"),
        tree=str(tmp_path),
        other_tree="",
        environments=(),
        scratch=str(tmp_path),
    )
    return lambda child: collect(command, IDENTITY, child, timeout_s=5.0)


def test_a_process_that_collects_runs_nothing(
    collected: Callable[[Child], Collection],
) -> None:
    """It is a child without tests, with the plugin that lists; nothing of it is kept."""
    test = CollectedTest(test_id="a", source="s", measures=True)
    child = Child(CollectedTests(tests=(test,)), finished())

    collection = collected(child)

    assert collection.tests == {"a": test}
    assert collection.failure == ""
    (call,) = child.calls
    at = call.argv.index("-p")
    assert call.argv[at : at + 3] == (
        "-p",
        "pytest_gpuperf.hooks.listing",
        "--collect-only",
    )
    assert child.spec is not None
    assert child.spec.test_ids == ()
    assert (child.spec.identity.spool, child.spec.identity.expected) == (None, None)


def test_what_cannot_be_collected_is_named(
    collected: Callable[[Child], Collection],
) -> None:
    """The first of it, with the last lines of its traceback."""
    listing = CollectedTests(
        tests=(), failures={"tests/test_a.py": "E  SyntaxError"}, is_import_error=False
    )

    collection = collected(Child(listing, finished(2)))

    assert collection.failure == "cannot collect tests/test_a.py: E  SyntaxError"
    assert not collection.is_import_error


def test_a_process_that_lists_nothing_shows_its_last_lines(
    collected: Callable[[Child], Collection],
) -> None:
    """The last that tells of an error, as where a conftest.py cannot be imported."""
    texts = {
        b"ImportError in conftest\nconftest.py:1\n    1/0\nE   ZeroDivisionError: why\n": (
            "ZeroDivisionError: why"
        ),
        b"usage: pytest\npytest: error: unrecognized arguments: --x\n  rootdir: /tmp\n": (
            "pytest: error: unrecognized arguments: --x"
        ),
        b"one\n\n  two\n": "one | two",
        b"": "it printed nothing",
    }
    failures = [collected(Child(None, finished(4, stderr=t))).failure for t in texts]

    assert failures == [f"collected nothing (exit 4): {t}" for t in texts.values()]


@pytest.mark.parametrize("listing", [None, "", '{"tests":[{"test'])
def test_a_process_without_room_is_a_full_disk(
    collected: Callable[[Child], Collection], tmp_path: Path, listing: str | None
) -> None:
    """Not a side that cannot collect: the folder is named, a part of a list not read."""
    text = f"OSError: [Errno 28] {os.strerror(errno.ENOSPC)}".encode()

    with pytest.raises(SidesRefusedError, match="make room there") as caught:
        collected(Child(listing, finished(1, stderr=text)))

    assert str(tmp_path) in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"])
def test_a_side_that_was_ended_from_outside_is_named(
    collected: Callable[[Child], Collection], name: str
) -> None:
    """Nothing is wrong with its code: another build would not mend it."""
    with pytest.raises(SidesRefusedError, match=f"{name} ended the old") as caught:
        collected(Child(None, finished(-signal.Signals[name])))

    assert "run it again" in caught.value.remedy


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"])
def test_a_side_that_crashes_has_not_collected(
    collected: Callable[[Child], Collection], name: str
) -> None:
    """An extension of another ABI ends it so: a build of its own may mend that."""
    text = b"Fatal Python error: Aborted"
    collection = collected(Child(None, finished(-signal.Signals[name], stderr=text)))

    assert collection.failure == (
        f"collected nothing ({name}): Fatal Python error: Aborted"
    )
    assert collection.is_import_error


def test_a_side_that_hangs_is_named(
    collected: Callable[[Child], Collection],
) -> None:
    """With its limit."""
    late = CollectorTimeoutError("python did not end within 5 s", remedy="wait")

    with pytest.raises(
        CollectorTimeoutError, match="the old side did not collect its tests within 5 s"
    ):
        collected(Child(None, late))
