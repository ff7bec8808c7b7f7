"""Commands that read what was measured: `show` and `compare`; PYTEST_DONT_REWRITE.

`show` of a capture hands the reader's bytes on and needs neither msgspec nor the records.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import (
    GOOD,
    UNDECIDED,
    WORSE,
    print_bytes,
    read_run,
    read_runs,
    say,
)
from pytest_gpuperf.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.collect.ncu.capture import Capture
    from pytest_gpuperf.model.run import Run

__all__ = ["compare", "show"]

_NO_VALUE = b'"value":null'  # what the reader writes of a counter that a launch lacks


def show(arguments: argparse.Namespace) -> int:
    """Print a capture or a run."""
    file, form, metrics = arguments.file, arguments.format, arguments.metrics
    if _is_json(file):
        return _show_run(read_run(file), form, metrics)
    from pytest_gpuperf.collect.ncu.text import capture_text
    from pytest_gpuperf.collect.runner import ProcessRunner

    runner = ProcessRunner()
    if form == "json":  # the records that the other forms need cost as much as the rest
        # a name with two underscores is a counter's: the catalogue need not be asked
        if doubtful := [name for name in metrics or () if "__" not in name]:
            from pytest_gpuperf.pipeline.shown import refuse_catalogue

            refuse_catalogue(doubtful)
        content = capture_text(file, runner=runner, metrics=metrics)
        print_bytes(content)
        if metrics is not None and _NO_VALUE in content:
            _say_what_lacks(file, metrics)
        return GOOD
    from pytest_gpuperf.collect.ncu.capture import read_capture
    from pytest_gpuperf.pipeline.captured import analyses
    from pytest_gpuperf.pipeline.shown import selected
    from pytest_gpuperf.report.forms import capture_bytes

    def read(names: Sequence[str] | None) -> Capture:
        return read_capture(file, runner=runner, metrics=names)

    if metrics is None:
        capture = read(None)
        limits = analyses(capture)
        return print_bytes(capture_bytes(capture, form, metrics=None, analyses=limits))
    capture, remarks = selected(read, metrics)
    return print_bytes(capture_bytes(capture, form, metrics=metrics, remarks=remarks))


def compare(arguments: argparse.Namespace) -> int:
    """Judge the last run against the sessions of those before it."""
    if len(arguments.files) < 2:  # noqa: PLR2004 - one run has nothing beside it
        message = "one file has nothing to be compared with"
        raise ConfigError(message, remedy="give the older runs first, the newest last")
    runs = read_runs(arguments.files)
    from pytest_gpuperf.model.verdict import JUDGED, Outcome
    from pytest_gpuperf.pipeline.compare import compare_runs
    from pytest_gpuperf.report.forms import run_bytes

    judged = compare_runs(runs, max_regression=arguments.max_regression)
    print_bytes(run_bytes(judged, arguments.format))
    verdicts = judged.verdicts
    worse = {Outcome.FAILED, Outcome.REGRESSED}  # without a threshold: only shown
    if any(
        v.outcome in worse and (v.limit or v.threshold is not None) for v in verdicts
    ):
        return WORSE
    decided = any(verdict.outcome in JUDGED for verdict in verdicts)
    return UNDECIDED if arguments.strict and not decided else GOOD


def _say_what_lacks(file: str, metrics: Sequence[str]) -> None:
    """Say on standard error which counters a capture lacks; it is read once more."""
    from pytest_gpuperf.collect.ncu.capture import read_capture
    from pytest_gpuperf.collect.runner import ProcessRunner
    from pytest_gpuperf.pipeline.shown import selected

    def read(names: Sequence[str] | None) -> Capture:
        return read_capture(file, runner=ProcessRunner(), metrics=names)

    say(f"gpuperf: {sentence}" for sentence in selected(read, metrics)[1])


def _show_run(run: Run, form: str, metrics: tuple[str, ...] | None) -> int:
    """Print a run; what it was asked for and lacks is said on standard error."""
    from pytest_gpuperf.report.forms import only_metrics, run_bytes

    if metrics is None:
        return print_bytes(run_bytes(run, form))
    from pytest_gpuperf.pipeline.shown import absent_from_run

    print_bytes(run_bytes(only_metrics(run, metrics), form))
    say(f"gpuperf: {sentence}" for sentence in absent_from_run(run, metrics))
    return GOOD


def _is_json(path: str) -> bool:
    """Return whether a file begins like a JSON object; a capture never does."""
    if not os.path.isfile(path):  # noqa: PTH113 - as below; a pipe would be waited for
        return path.endswith(".json")  # whoever reads it says what is wrong
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not imported on this path
            return file.read(64).lstrip().startswith(b"{")
    except OSError:
        return path.endswith(".json")
