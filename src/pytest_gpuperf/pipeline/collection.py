"""What a side collects, and which files that loads: a process that runs no test."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import CollectorTimeoutError, SidesRefusedError
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.pipeline.proof import Loaded
from pytest_gpuperf.pipeline.repeat import ChildSpec

if TYPE_CHECKING:
    from pytest_gpuperf.collect.runner import Finished, Runner
    from pytest_gpuperf.measure.site import ProcessIdentity
    from pytest_gpuperf.pipeline.side_command import SideCommand

__all__ = ["LISTING_VARIABLE", "CollectedTest", "Collection", "Listing", "collect"]

LISTING_VARIABLE = "PYTEST_GPUPERF_LISTING"  # the file to write the tests to
_PLUGIN = "pytest_gpuperf.hooks.listing"
_SHOWN_LINES = 15  # of what a process printed that listed nothing


class CollectedTest(Frozen, frozen=True, kw_only=True):
    """
    A test that was collected.

    Attributes:
        test_id: The test.

        source: The digest of its own source.

        measures: Whether it uses the plugin.
    """

    test_id: str
    source: str
    measures: bool


class Listing(Frozen, frozen=True, kw_only=True):
    """
    What a process has collected.

    Attributes:
        tests: In the order to run them.

        failures: Why something could not be collected, by its id.

        is_import_error: Whether each of them is an import that found nothing.
    """

    tests: tuple[CollectedTest, ...]
    failures: Mapping[str, str] = {}
    is_import_error: bool = True


class Collection(Frozen, frozen=True, kw_only=True):
    """
    What a side collects.

    Attributes:
        tests: Those that measure, by id.

        loaded: The code that was loaded for it.

        failure: Why it is not complete; "": it is.

        is_import_error: Whether that is because imports found nothing, or nobody knows.
    """

    tests: Mapping[str, CollectedTest]
    loaded: Loaded
    failure: str = ""
    is_import_error: bool = True


def collect(
    command: SideCommand, identity: ProcessIdentity, runner: Runner, *, timeout_s: float
) -> Collection:
    """
    Let a side collect its tests.

    Args:
        command: The side's.

        identity: This process's.

        runner: Starts the side's.

        timeout_s: How long it may take [s].

    Raises:
        SidesRefusedError: There is no room for its files.

        CollectError: It did not start, or did not end.
    """
    with tempfile.TemporaryDirectory(dir=command.scratch, prefix="collect-") as scratch:
        listing = Path(scratch, "listing.json")
        spec = Path(scratch, "spec.json")
        child = ChildSpec(
            test_ids=(),
            identity=replace(identity, writer="collect", spool=None, expected=None),
            out=str(Path(scratch, "answers.jsonl")),
        )
        spec.write_text(codec.to_text(child), encoding="utf-8")
        environment = {
            **command.environment(scratch, 0),
            command.command.variable: str(spec),
            LISTING_VARIABLE: str(listing),
        }
        extra = ("-p", _PLUGIN, "--collect-only", "-q")
        try:
            finished = runner.run(
                command.argv(scratch, extra),
                timeout_s=timeout_s,
                cwd=command.folder,
                env=environment,
            )
        except CollectorTimeoutError as error:
            side, remedy = command.side.value, "find out what its imports wait for"
            message = (
                f"the {side} side did not collect its tests within {timeout_s:g} s"
            )
            raise CollectorTimeoutError(message, remedy=remedy) from error
        loaded = command.loaded(scratch)
        if not listing.exists():
            _check_room(finished, command.scratch)
            tail = "\n".join(finished.log_tail.splitlines()[-_SHOWN_LINES:])
            failure = f"it collected nothing (exit {finished.exit_code}): {tail}"
            return Collection(tests={}, loaded=loaded, failure=failure)
        listed = codec.from_text(listing.read_bytes(), Listing)
    failures = (
        f"it cannot collect {name}: {text}" for name, text in listed.failures.items()
    )
    return Collection(
        tests={test.test_id: test for test in listed.tests},
        loaded=loaded,
        failure=next(failures, ""),
        is_import_error=listed.is_import_error,
    )


def _check_room(finished: Finished, folder: str) -> None:
    """Refuse if a process had no room to write in."""
    text = os.strerror(errno.ENOSPC)
    if text.encode() in finished.stdout + finished.stderr:
        message = f"a process could not write below {folder} ({text})"
        remedy = "make room there, or set TMPDIR to another folder"
        raise SidesRefusedError(message, remedy=remedy)
