"""What the `gpuperf` command prints, in each of its forms; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence

from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.report.captures import (
    Analyses,
    CaptureLike,
    capture_lines,
    capture_markdown,
)
from pytest_gpuperf.report.lines import Line

__all__ = ["capture_bytes", "only_metrics", "run_bytes"]


def run_bytes(run: Run, form: str, *, width: int | None = None) -> bytes:
    """
    Return a run as it is printed [UTF-8]; without commands: they belong to its machine.

    Args:
        run: The run.

        form: text, json or markdown.

        width: Characters of a line of text; None: the terminal's, 100 where there is
            none.
    """
    if form == "json":
        from pytest_gpuperf.model.codec import encode_run

        return encode_run(run)
    if form == "markdown":
        from pytest_gpuperf.report.markdown import run_markdown

        return run_markdown(run, commands=False).encode()
    from pytest_gpuperf.report.terminal import run_lines

    return _joined(
        run_lines(run, commands=False, width=width or _width(), verbose=True)
    )


def capture_bytes(
    capture: CaptureLike,
    form: str,
    *,
    metrics: Sequence[str] | None,
    analyses: Analyses | None = None,
    width: int | None = None,
) -> bytes:
    """
    Return a capture as it is printed [UTF-8].

    Args:
        capture: The capture.

        form: text or markdown; as JSON it is printed as its reader wrote it.

        metrics: What was asked for; None: the few that say most.

        analyses: What limits each launch of each range; None: not known.

        width: Characters of a line of text; None: the terminal's, 100 where there is
            none.
    """
    if form == "markdown":
        return capture_markdown(capture, metrics=metrics, analyses=analyses).encode()
    lines = capture_lines(
        capture, metrics=metrics, analyses=analyses, width=width or _width()
    )
    return _joined(lines)


def only_metrics(run: Run, metrics: Sequence[str]) -> Run:
    """Return a run without the metrics that were not asked for."""
    records = tuple(
        replace(
            record,
            estimates=tuple(
                each for each in record.estimates if each.metric in metrics
            ),
            series=tuple(each for each in record.series if each.metric in metrics),
            unmeasured=tuple(
                each for each in record.unmeasured if each.metric in metrics
            ),
        )
        for record in run.records
    )
    verdicts = tuple(each for each in run.verdicts if each.metric in metrics)
    return replace(run, records=records, verdicts=verdicts)


def _joined(lines: Iterable[Line]) -> bytes:
    """Return lines as text."""
    return "".join(f"{line.text}\n" for line in lines).encode()


def _width() -> int:
    """Return the terminal's width."""
    return shutil.get_terminal_size((100, 24)).columns
