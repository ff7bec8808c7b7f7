"""The command `report`: runs as one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import GOOD, print_bytes, read_run

if TYPE_CHECKING:
    import argparse

__all__ = ["report"]

_STANDARD_OUTPUT = "-"


def report(arguments: argparse.Namespace) -> int:
    """
    Write the last run as an HTML page, the others' samples beside its own.

    Raises:
        RecordError: A file is not a run.

        ReportError: The page cannot be written, or Jinja2 is not installed.
    """
    from pytest_gpuperf.report.html.document import html_bytes
    from pytest_gpuperf.report.runs import write_html

    *older, run = map(read_run, arguments.runs)
    older.sort(key=lambda earlier: earlier.header.session.started_unix_s)
    if arguments.output == _STANDARD_OUTPUT:
        return print_bytes(html_bytes(run, older))
    write_html(run, arguments.output, older=older)
    return GOOD
