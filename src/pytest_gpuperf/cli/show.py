"""Commands that read what was measured: `show` and `compare`.

`show` of a capture hands the reader's bytes on and needs neither msgspec nor the records.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
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

# what `report_counters`, which is not imported yet, has read beside the counters that
# are named: a test compares them, and where they differ the report is read twice
_BESIDE = (
    "gpu__time_duration.sum",
    "gpu__time_duration.avg",
    "device__attribute_compute_capability_major",
    "device__attribute_compute_capability_minor",
    "device__attribute_display_name",
)
_CAPTURE = b"NVR\0"  # how every report of Nsight Compute begins
_NO_VALUE = b'"value":null'  # what the reader writes of a counter that a launch lacks


def show(arguments: argparse.Namespace) -> int:
    """Print a capture or a run."""
    file, form, metrics = arguments.file, arguments.format, arguments.metrics
    if arguments.launches:
        return _show_launches(file, form, metrics)
    if _is_json(file):
        return _show_run(read_run(file), form, metrics)
    # when Python ends it looks through all that is left, for 5 to 12 ms and for nothing
    atexit.register(gc.freeze)
    if form != "json":
        return _show_capture(file, form, metrics)
    from pytest_gpuperf.collect.ncu.text import capture_text
    from pytest_gpuperf.collect.runner import ProcessRunner

    if doubtful := _not_counters(metrics):
        from pytest_gpuperf.pipeline.shown import refuse_catalogue

        refuse_catalogue(doubtful)
    content = capture_text(file, runner=ProcessRunner(), metrics=metrics)
    print_bytes(content)
    if metrics is not None and _NO_VALUE in content:
        _say_what_lacks(file, metrics)
    return GOOD


def _show_capture(file: str, form: str, metrics: tuple[str, ...] | None) -> int:
    """Print a capture as text, of which the records cost as much as the reading."""
    from pytest_gpuperf.collect.ncu.text import capture_text
    from pytest_gpuperf.collect.runner import ProcessRunner

    runner = ProcessRunner(_load_records)
    names = None if metrics is None else (*dict.fromkeys((*metrics, *_BESIDE)),)
    text = None
    if not _not_counters(metrics):  # read at once: no record is needed to say what
        text = capture_text(file, runner=runner, metrics=names)
    from pytest_gpuperf.collect.ncu.capture import decode_capture, read_capture
    from pytest_gpuperf.measure.captured import analyses
    from pytest_gpuperf.pipeline.shown import selected
    from pytest_gpuperf.report.forms import capture_bytes

    def read(asked: Sequence[str] | None) -> Capture:
        if text is not None and asked == names:
            return decode_capture(text)
        return read_capture(file, runner=runner, metrics=asked)

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


def _load_records() -> None:
    """Import what a capture becomes."""
    import pytest_gpuperf.pipeline.shown
    import pytest_gpuperf.report.forms  # noqa: F401 - for who imports a name from it


def _not_counters(metrics: Sequence[str] | None) -> list[str]:
    """Return the names that the catalogue must be asked for."""
    # a name with two underscores is a counter's
    return [name for name in metrics or () if "__" not in name]


def _say_what_lacks(file: str, metrics: Sequence[str]) -> None:
    """Say on standard error which counters a capture lacks; it is read once more."""
    from pytest_gpuperf.collect.ncu.capture import read_capture
    from pytest_gpuperf.collect.runner import ProcessRunner
    from pytest_gpuperf.pipeline.shown import selected

    def read(names: Sequence[str] | None) -> Capture:
        return read_capture(file, runner=ProcessRunner(), metrics=names)

    say(f"gpuperf: {sentence}" for sentence in selected(read, metrics)[1])


def _show_launches(file: str, form: str, metrics: tuple[str, ...] | None) -> int:
    """Print every launch that a recording has; a run names its recording."""
    if metrics is not None:
        message = "--launches and --metrics exclude each other"
        raise ConfigError(message, remedy="a launch has no metrics: drop one of them")
    is_folder = os.path.isdir(file)  # noqa: PTH112 - pathlib is not imported on this path
    if not is_folder and not _is_json(file):
        message = f"--launches: {file} is no recording, and no run"
        remedy = "name a folder of --gpuperf-record; of a capture, leave --launches out"
        raise ConfigError(message, remedy=remedy)
    from pytest_gpuperf.collect.binary.demangle import native_demangler
    from pytest_gpuperf.pipeline.shown import kept_traces, recording_of
    from pytest_gpuperf.report.launches import launch_blocks

    folder = file if is_folder else recording_of(read_run(file), file)
    for block in launch_blocks(kept_traces(folder), form, demangle=native_demangler()):
        print_bytes(block)
    return GOOD


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
    """Return whether a file is a run: its bytes say so, or its name where they do not."""
    start = b""
    if os.path.isfile(path):  # noqa: PTH113 - as below; a pipe would be waited for
        with (
            contextlib.suppress(OSError),  # whoever reads it says what is wrong
            open(path, "rb") as file,  # noqa: PTH123 - pathlib is not imported on this path
        ):
            start = file.read(64).lstrip()
    if start.startswith((b"{", _CAPTURE)):
        return start.startswith(b"{")
    return path.endswith(".json")
