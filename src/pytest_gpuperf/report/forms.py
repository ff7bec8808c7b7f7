"""What the `gpuperf` command prints, in each of its forms."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.roofline import Peak, Peaks
from pytest_gpuperf.model.run import Header, Run
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import (
    Analyses,
    CaptureLike,
    capture_lines,
    capture_markdown,
)
from pytest_gpuperf.report.lines import (
    Column,
    Line,
    Style,
    markdown_table,
    text_table,
    wrapped,
)

__all__ = ["capture_bytes", "only_metrics", "peaks_bytes", "run_bytes"]

_INDENT = "  "  # before a table, and between its columns
_LEAST_SOURCE = 16  # characters of a line: no word of a source is longer


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

    told = replace(run, header=_lasting(run.header))
    return _joined(
        run_lines(told, commands=False, width=width or _width(), verbose=True)
    )


def capture_bytes(
    capture: CaptureLike,
    form: str,
    *,
    metrics: Sequence[str] | None,
    analyses: Analyses | None = None,
    remarks: Sequence[str] = (),
    width: int | None = None,
) -> bytes:
    """
    Return a capture as it is printed [UTF-8].

    Args:
        capture: The capture.

        form: text or markdown; as JSON it is printed as its reader wrote it.

        metrics: What was asked for; None: the few that say most.

        analyses: What limits each launch of each range; None: not known.

        remarks: What is to be said of the metrics that were asked for, a sentence each.

        width: Characters of a line of text; None: the terminal's, 100 where there is
            none.
    """
    if form == "markdown":
        return capture_markdown(
            capture, metrics=metrics, analyses=analyses, remarks=remarks
        ).encode()
    lines = capture_lines(
        capture,
        metrics=metrics,
        analyses=analyses,
        remarks=remarks,
        width=width or _width(),
    )
    return _joined(lines)


def peaks_bytes(
    found: Sequence[Peaks],
    remarks: Sequence[str],
    form: str,
    *,
    width: int | None = None,
) -> bytes:
    """
    Return peaks as they are printed [UTF-8]; what is not known stands there with why.

    Args:
        found: The devices.

        remarks: What is to be said besides, a sentence each.

        form: text, json or markdown.

        width: Characters of a line of text; None: the terminal's, 100 where there is
            none.
    """
    if form == "json":
        content = {
            "devices": [_plain(peaks) for peaks in found],
            "remarks": list(remarks),
        }
        return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()
    if form == "markdown":
        return _peaks_markdown(found, remarks).encode()
    room = width or _width()
    lines = [line for peaks in found for line in _peaks_lines(peaks, room)]
    for remark in remarks:
        lines += wrapped(display.escape(remark), width=room)
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


def _lasting(header: Header) -> Header:
    """Return a header without what its reader could only have done when it ran."""
    notes = tuple(note for note in header.notes if note.about == "gpu" and note.code)
    return replace(header, sentences=tuple(note.text for note in notes), notes=notes)


def _joined(lines: Iterable[Line]) -> bytes:
    """Return lines as text."""
    return "".join(f"{line.text}\n" for line in lines).encode()


def _width() -> int:
    """Return the terminal's width."""
    return shutil.get_terminal_size((100, 24)).columns


def _peaks_lines(peaks: Peaks, width: int) -> Iterator[Line]:
    """Yield the peaks of a device; a source goes on below itself."""
    yield Line(display.escape(peaks.device), Style.TITLE)
    *figures, source = _columns(peaks)
    table = text_table(figures, width=width)
    left = max(map(len, table))
    room = max(width - left - 2 * len(_INDENT), _LEAST_SOURCE)
    for row, cell in zip(table, (source.head, *source.cells), strict=True):
        for place, part in enumerate(textwrap.wrap(cell, room)):
            yield Line(f"{_INDENT}{'' if place else row:{left}}{_INDENT}{part}")
    for note in peaks.notes:
        text = f"{_INDENT}note: {display.escape(note)}"
        yield from wrapped(text, width=width)


def _peaks_markdown(found: Sequence[Peaks], remarks: Sequence[str]) -> str:
    """Return peaks as Markdown."""
    lines: list[str] = []
    for peaks in found:
        table = markdown_table(_columns(peaks))
        lines += [f"### {display.escape(peaks.device)}", "", *table, ""]
        lines += [f"- {display.escape(note)}" for note in peaks.notes]
    lines += [display.escape(remark) for remark in remarks]
    return "".join(f"{line}\n" for line in lines)


def _columns(peaks: Peaks) -> tuple[Column, ...]:
    """Return the table of a device: what is known first, in the order of the fields."""
    fields = [*_fields(peaks)]
    return (
        Column(head="peak", cells=tuple(name for name, _, _ in fields)),
        Column(
            head="value",
            cells=tuple(_value(peak, unit) for _, peak, unit in fields),
            blank="-",
            right=True,
        ),
        Column(head="label", cells=tuple(peak.label.value for _, peak, _ in fields)),
        Column(
            head="source",
            cells=tuple(display.escape(peak.source) for _, peak, _ in fields),
        ),
    )


def _fields(peaks: Peaks) -> list[tuple[str, Peak, str]]:
    """Return every peak with its name and unit."""
    memory = [(n, p, "bytes/s") for n, p in reversed([*peaks.bytes_per_s.items()])]
    return [*memory, *((n, p, "FLOP/s") for n, p in peaks.flop_per_s.items())]


def _value(peak: Peak, unit: str) -> str:
    """Return a peak as text; "" where it is not known."""
    return "" if peak.value is None else display.value(peak.value, unit)


def _plain(peaks: Peaks) -> Mapping[str, object]:
    """Return the peaks of a device as builtins."""
    return {
        "device": peaks.device,
        "l2_bytes": peaks.l2_bytes,
        "notes": list(peaks.notes),
        "peaks": {
            name: {
                "value": peak.value,
                "unit": unit,
                "label": peak.label.value,
                "source": peak.source,
                "clock_hz": peak.clock_hz,
            }
            for name, peak, unit in _fields(peaks)
        },
    }
