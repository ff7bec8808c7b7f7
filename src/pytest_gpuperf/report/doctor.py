"""The doctor's findings on a machine, and the peaks of the GPUs, in every form."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from pytest_gpuperf.model.gap import Condition, Finding, Obstacle, Readiness, Status
from pytest_gpuperf.model.roofline import Peak, Peaks
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import code, escape, prose
from pytest_gpuperf.report.lines import (
    Column,
    Line,
    Style,
    column,
    document,
    json_bytes,
    line_width,
    markdown_table,
    text_bytes,
    text_table,
    wrapped,
)

_BAD = (Status.STOPS, Status.DISTORTS)  # Shown with cause, evidence and remedy.
_STYLES = {Status.STOPS: Style.BAD, Status.DISTORTS: Style.DOUBT}
_OBSTACLES = {
    Obstacle.PEAKS_FAILED: "--measure-peaks failed",
    Obstacle.NO_GPU: "there is no GPU to measure with",
    Obstacle.NO_TIMING: "there is a GPU, but its time cannot be measured",
    Obstacle.LOST: "cannot be measured here: ",
}
_INDENT = "  "  # Before a table, and between columns.
# Characters of a line. No word of a source is longer.
_LEAST_SOURCE = 16


def doctor_bytes(
    findings: Sequence[Finding],
    peaks: Sequence[Peaks],
    remarks: Sequence[str],
    form: str,
    *,
    condition: Condition,
    width: int | None = None,
) -> bytes:
    """
    Return the findings and peaks of a machine as printed output [UTF-8].

    Args:
        findings: All findings, good findings included.

        peaks: The peaks of each device.

        remarks: Further sentences.

        form: text, json or markdown.

        condition: Whether the machine is ready, and why it is not.

        width: Characters of a line of text, or None for the width of the terminal, 100 without a
            terminal.
    """
    state = condition.state
    if condition.of_host:
        can = "can" if condition.obstacle is None else "cannot"
        verdict = f"calls and loops {can} be timed by the host's clock"
    elif condition.obstacle is None:
        verdict = "everything on the GPU can be measured"
    else:
        verdict = f"{_OBSTACLES[condition.obstacle]}{', '.join(condition.lost)}"
    if form == "json":
        plain = {
            "ready": state is Readiness.READY,
            "state": state.value,
            "verdict": verdict,
            "findings": [
                {
                    "id": finding.id,
                    "status": finding.status.value,
                    "concerns": list(finding.concerns),
                    "cause": finding.cause,
                    "evidence": list(finding.evidence),
                    "remedy": finding.remedy,
                }
                for finding in findings
            ],
            **_peaks_plain(peaks, remarks),
        }
        return json_bytes(document("doctor", plain))
    head = f"{state.value}: {verdict}"
    width = line_width(width)
    lines: Iterator[str | Line] = (
        _markdown(head, findings)
        if form == "markdown"
        else _lines(head, findings, width)
    )
    return text_bytes((*lines, "")) + peaks_bytes(peaks, remarks, form, width=width)


def _lines(head: str, findings: Sequence[Finding], width: int) -> Iterator[Line]:
    yield from wrapped(escape(head), width=width, style=Style.TITLE)
    for status in _BAD:
        for finding in _of(findings, status):
            title = f"{status.value:5}  {finding.id} ({', '.join(finding.concerns)})"
            yield from wrapped(title, width=width, style=_STYLES[status])
            yield from wrapped(escape(finding.cause), width=width, depth=1)
            for text in finding.evidence:
                yield from wrapped(f"evidence: {escape(text)}", width=width, depth=1)
            if finding.remedy:
                text = f"remedy: {escape(finding.remedy)}"
                yield from wrapped(text, width=width, depth=1)
    for reason, unknown in _by_reason(findings).items():
        ids = ", ".join(finding.id for finding in unknown)
        yield from wrapped(f"unknown  {ids}", width=width, style=Style.DOUBT)
        yield from wrapped(escape(reason), width=width, depth=1)
        for remedy in dict.fromkeys(f.remedy for f in unknown if f.remedy):
            yield from wrapped(f"remedy: {escape(remedy)}", width=width, depth=1)
    if good := ", ".join(f.id for f in _of(findings, Status.OK)):
        yield from wrapped(f"ok     {good}", width=width)


def _markdown(title: str, findings: Sequence[Finding]) -> Iterator[str]:
    yield f"### {prose(title)}"
    yield ""
    shown = [finding for status in _BAD for finding in _of(findings, status)]
    shown += [f for unknown in _by_reason(findings).values() for f in unknown]
    cells = {
        "status": [f.status.value for f in shown],
        "finding": [f"`{f.id}`" for f in shown],
        "concerns": [", ".join(f.concerns) for f in shown],
        "cause": [prose(f.cause) for f in shown],
        "evidence": ["; ".join(map(code, f.evidence)) for f in shown],
        "remedy": [code(f.remedy or "") for f in shown],
    }
    yield from markdown_table([column(head, texts) for head, texts in cells.items()])
    yield ""
    if good := ", ".join(f"`{f.id}`" for f in _of(findings, Status.OK)):
        yield f"ok: {good}"


def _of(findings: Sequence[Finding], status: Status) -> list[Finding]:
    return [finding for finding in findings if finding.status is status]


def _by_reason(findings: Sequence[Finding]) -> Mapping[str, list[Finding]]:
    reasons: dict[str, list[Finding]] = {}
    for finding in _of(findings, Status.UNKNOWN):
        reasons.setdefault(finding.cause, []).append(finding)
    return reasons


def peaks_bytes(
    devices: Sequence[Peaks],
    remarks: Sequence[str],
    form: str,
    *,
    width: int | None = None,
) -> bytes:
    """
    Return peaks as printed output [UTF-8]. An unknown peak is shown with the reason.

    Args:
        devices: The devices.

        remarks: Further sentences.

        form: text, json or markdown.

        width: Characters of a line of text, or None for the width of the terminal, 100 without a
            terminal.
    """
    if form == "json":
        return json_bytes(_peaks_plain(devices, remarks))
    lines: list[str | Line] = []
    if form == "markdown":
        for peaks in devices:
            lines += [
                f"### {escape(peaks.device)}",
                "",
                *markdown_table(_columns(peaks)),
            ]
            lines += ["", *(f"- {escape(note)}" for note in peaks.notes)]
        return text_bytes([*lines, *map(escape, remarks)])
    width = line_width(width)
    for peaks in devices:
        lines.append(Line(escape(peaks.device), Style.TITLE))
        *figures, source = _columns(peaks)
        table = text_table(figures, width=width)
        left = max(map(len, table))
        room = max(width - left - 2 * len(_INDENT), _LEAST_SOURCE)
        for row, cell in zip(table, (source.head, *source.cells), strict=True):
            for place, part in enumerate(textwrap.wrap(cell, room)):
                head = "" if place else row
                lines.append(Line(f"{_INDENT}{head:{left}}{_INDENT}{part}"))
        for note in peaks.notes:
            lines += wrapped(f"{_INDENT}note: {escape(note)}", width=width)
    for remark in remarks:
        lines += wrapped(escape(remark), width=width)
    return text_bytes(lines)


def _columns(peaks: Peaks) -> tuple[Column, ...]:
    fields = [*_fields(peaks)]
    return (
        column("peak", (name for name, _, _ in fields)),
        column(
            "value",
            (
                "" if peak.value is None else display.value(peak.value, unit)
                for _, peak, unit in fields
            ),
            blank="-",
            right=True,
        ),
        column("label", (peak.label.value for _, peak, _ in fields)),
        column("source", (escape(peak.source) for _, peak, _ in fields)),
    )


def _fields(peaks: Peaks) -> list[tuple[str, Peak, str]]:
    memory = [(n, p, "bytes/s") for n, p in reversed([*peaks.bytes_per_s.items()])]
    return [*memory, *((n, p, "FLOP/s") for n, p in peaks.flop_per_s.items())]


def _peaks_plain(
    devices: Sequence[Peaks], remarks: Sequence[str]
) -> Mapping[str, object]:
    return {
        "devices": [
            {
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
            for peaks in devices
        ],
        "remarks": list(remarks),
    }
