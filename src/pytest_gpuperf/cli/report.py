"""The commands `report` and `export`: runs as files for people, and for other programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.merge import with_merged_shards
from pytest_gpuperf.cli.output import (
    GOOD,
    STANDARD_STREAM,
    each,
    is_capture,
    is_folder,
    name_of,
    print_bytes,
    read_run,
    refuse_replacing,
    say,
    told_on_terminals,
)
from pytest_gpuperf.collect.checkout import below_workspace, checkout_of
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.report import exports
from pytest_gpuperf.report.exports import (
    chrome_trace_bytes,
    void_measurements,
    without_times,
)
from pytest_gpuperf.report.runs import report_bytes, write_output
from pytest_gpuperf.report.summary import incompleteness

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_gpuperf.model.run import Run

_FORMS = {  # By suffix. A stream, as /dev/fd/63, has none.
    "": "html",
    ".htm": "html",
    ".html": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".csv": "csv",
}
# Formats that leave no measurement out.
_WHOLE = frozenset({"csv", "annotations"})
# The name endings of files that Allure reads.
_ALLURE_FILES = ("-perf.json", "performance.json")


def report(arguments: argparse.Namespace) -> int:
    """
    Write the last run as HTML, Markdown or CSV, or captures as HTML.

    The samples of other runs are shown next to its own.

    Raises:
        ConfigError: There are older runs, and only HTML shows them. Or the file's name
            belongs to another form, or is that of an input.

        RecordError: A file is not a run.

        ReportError: The report cannot be written, or Jinja2 is not installed.
    """
    form = arguments.format
    if form is None:
        end = os.path.splitext(arguments.output)[1].lower()  # noqa: PTH122 - pathlib is not imported on this path
        if end not in _FORMS:
            message = f"{arguments.output}: a report is not written as {end}"
            remedy = "end its name with .html, .md or .csv, or give --format"
            raise ConfigError(message, remedy=remedy)
        form = _FORMS[end]
    refuse_replacing(arguments.output, arguments.runs)
    captures = [path for path in arguments.runs if is_capture(path)]
    if captures:
        runs = [path for path in arguments.runs if path not in captures]
        if runs:
            message = (
                f"{', '.join(map(name_of, runs))} is not a capture, and the others are"
            )
            raise ConfigError(message, remedy="write a report of each kind")
        if form != "html":
            message = f"{form} takes a run, and {captures[0]} is a capture"
            remedy = f"end the report's name with .html, or print it: gpuperf show {captures[0]} --format markdown"
            raise ConfigError(message, remedy=remedy)
        # Needed only for captures.
        from pytest_gpuperf.cli.records import report_of
        from pytest_gpuperf.report.html.captures import captures_html

        reports = each(dict.fromkeys(captures), report_of)
        return _write(arguments.output, captures_html(reports))
    *older, run = _read(arguments.runs)
    if older and form != "html":
        message = f"{form} takes one run, and {len(older) + 1} were named"
        remedy = "name one, or the shards of one, or compare them: gpuperf compare"
        raise ConfigError(message, remedy=remedy)
    older.sort(key=lambda earlier: earlier.header.session.started_unix_s)
    with told_on_terminals(f"writing {arguments.output}"):
        content = report_bytes(run, form, older=older)
    return _write(arguments.output, content)


def _read(paths: Sequence[str]) -> list[Run]:
    runs = each(paths, read_run)
    named = with_merged_shards(zip(paths, runs, strict=True))
    for path, run in named:
        # The merge has said what its runs lack.
        is_read = any(run is each_read for each_read in runs)
        if is_read and (reason := incompleteness(run)):
            say([f"gpuperf: {name_of(path)} is {reason}"])
    return [run for _, run in named]


def export(arguments: argparse.Namespace) -> int:
    """
    Write a run in the format of another program.

    Raises:
        CaptureFormatError: A trace is requested, and the recording is missing or
            damaged.

        ConfigError: The file's name is not one that the program reads, or is the run's.

        RecordError: The file is not a run.

        ReportError: The export cannot be written.
    """
    form, output, digits = arguments.to, arguments.output, arguments.digits
    if digits is not None and form != "openmetrics":
        message = f"--digits is for openmetrics, and --to names {form}"
        raise ConfigError(message, remedy="drop it")
    named_file = output != STANDARD_STREAM
    if form == "allure" and named_file and not output.endswith(_ALLURE_FILES):
        message = f"Allure does not read {output}"
        remedy = "name a file of its results folder: allure-results/gpuperf-perf.json"
        raise ConfigError(message, remedy=remedy)
    refuse_replacing(output, arguments.files)
    if form == "chrome-trace":
        return _export_trace(arguments)
    *others, run = _read(arguments.files)
    if others:
        message = f"{len(others) + 1} runs were named, and one is exported"
        raise ConfigError(message, remedy="name one, or the shards of one")
    _say_what_is_left_out(run, form)
    if form == "openmetrics":
        how = {} if digits is None else {"digits": digits}
        content = exports.openmetrics_bytes(run, **how)
    elif form == "annotations":
        below = below_workspace(checkout_of(os.curdir, os.curdir).root)
        content = exports.annotations_bytes(run, below=below)
    else:
        with told_on_terminals(f"writing {output}"):
            content = exports.EXPORTS[form](run)
    return _write(output, content)


def _export_trace(arguments: argparse.Namespace) -> int:
    from pytest_gpuperf.cli.records import recording_of, traces_of
    from pytest_gpuperf.collect.binary.demangling import native_demangler

    folder, *others = arguments.files
    if others:
        message = f"{len(others) + 1} files were named, and a trace shows one process"
        raise ConfigError(message, remedy="export each of them")
    if not is_folder(folder):
        command = "gpuperf export DIR --to chrome-trace"
        (run,) = _read([folder])
        folder = recording_of(run, folder, command=command)
    with told_on_terminals(f"reading {folder}"):
        traces = traces_of(folder)
        content = chrome_trace_bytes(traces, demangle=native_demangler())
    return _write(arguments.output, content)


def _write(path: str, content: bytes) -> int:
    if path == STANDARD_STREAM:
        return print_bytes(content)
    write_output(path, content)
    return GOOD


def _say_what_is_left_out(run: Run, form: str) -> None:
    """
    Print the number of measurements left out of an export on standard error, and the
    reason.
    """
    if form in _WHOLE:
        return
    void_count = len(void_measurements(run))
    if void_count:
        subject = (
            "1 measurement is" if void_count == 1 else f"{void_count} measurements are"
        )
        say([f"gpuperf: {subject} void and left out; gpuperf show FILE says why"])
    count = len(without_times(run)) if form == "pytest-benchmark" else 0
    if count:
        subject = "1 measurement has" if count == 1 else f"{count} measurements have"
        are = "is" if count == 1 else "are"
        say([f"gpuperf: {subject} no samples of a time and {are} left out"])
