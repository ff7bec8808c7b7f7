"""Write the tests collected by a command line to a file, without running any test.

The reader is the parent process.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from pathlib import Path

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.collect.loaded_files import digest_of
from pytest_gpuperf.model import codec
from pytest_gpuperf.pipeline.side_process import (
    LISTING_VARIABLE,
    ROOT_VARIABLE,
    CollectedTest,
    CollectedTests,
)

# The last lines of a failed collection that are kept, since the error is at the end.
_FAILURE_LINES = 3
_failures: dict[str, str] = {}
_errors: list[BaseException] = []


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Write the rootdir to a file and exit, if the parent process requests that."""
    file = os.environ.get(ROOT_VARIABLE)
    if file is None:
        return None
    Path(file).write_bytes(os.fsencode(config.rootpath))
    return 0


def pytest_exception_interact(
    call: pytest.CallInfo[object], report: pytest.CollectReport | pytest.TestReport
) -> None:
    """Keep exceptions raised during the collection."""
    if isinstance(report, pytest.CollectReport) and call.excinfo is not None:
        _errors.append(call.excinfo.value)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Keep the reason for a failed collection."""
    if report.failed:
        lines = report.longreprtext.splitlines()
        # A line of carets is useless without the source line that it marks.
        errors = [line[1:].strip() for line in lines if line.startswith("E ")]
        useful = [line for line in errors if any(map(str.isalnum, line))] or lines
        # Joined into one line, because the text becomes part of a sentence.
        _failures[report.nodeid] = _encodable(" | ".join(useful[-_FAILURE_LINES:]))


@pytest.hookimpl(trylast=True)  # After all plugins that deselect.
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Write the remaining tests to a file, and leave no test to run."""
    # Imported here, because a process that only reports the rootdir does not need it.
    from pytest_gpuperf.hooks.identity import KeyMaker

    keys, counts = KeyMaker(config), Counter[str]()
    tests = []
    for item in items:
        key = keys.key_of(item)
        counts[key] += 1
        number = f"#{counts[key]}" if counts[key] > 1 else ""  # A repeated test.
        # The source of the test function, or the file if there is no function.
        function = getattr(item, "function", None)
        try:
            source = inspect.getsource(inspect.unwrap(function)).encode()  # type: ignore[arg-type] # None raises the TypeError
        except (OSError, TypeError, ValueError):
            source = item.path.read_bytes() if item.path.is_file() else b""
        test = CollectedTest(
            test_id=_encodable(f"{item.nodeid}{number}"),
            key=_encodable(f"{key}{number}"),
            source=digest_of(source),
            measures=options.measures(item),
        )
        tests.append(test)
    listing = CollectedTests(
        tests=tuple(tests),
        failures=_failures,
        # pytest wraps the exception of a test module.
        is_import_error=all(
            isinstance(error.__cause__ or error, ImportError) for error in _errors
        ),
    )
    text = codec.to_text(listing)
    Path(os.environ[LISTING_VARIABLE]).write_text(text, encoding="utf-8")
    items.clear()


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
