"""What the doctor found, in each form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence

from pytest_gpuperf.model.finding import Finding, Readiness, Status
from pytest_gpuperf.model.roofline import Peaks
from pytest_gpuperf.report.escape import code, escape, prose
from pytest_gpuperf.report.forms import peaks_bytes
from pytest_gpuperf.report.lines import Column, Line, Style, markdown_table, wrapped

__all__ = ["doctor_bytes"]

_WHOLE = (Status.STOPS, Status.BENDS)  # shown with all that is known of them
_STYLES = {Status.STOPS: Style.BAD, Status.BENDS: Style.DOUBT}


def doctor_bytes(
    findings: Sequence[Finding],
    peaks: Sequence[Peaks],
    remarks: Sequence[str],
    form: str,
    *,
    state: Readiness,
    verdict: str,
    width: int | None = None,
) -> bytes:
    """
    Return what was found on a machine as it is printed [UTF-8].

    Args:
        findings: What stands in the way, and what does not.

        peaks: The devices.

        remarks: What is to be said besides, a sentence each.

        form: text, json or markdown.

        state: Whether the machine is ready.

        verdict: Why, as a sentence.

        width: Characters of a line of text; None: the terminal's, 100 where there is
            none.
    """
    room = width or shutil.get_terminal_size((100, 24)).columns
    rest = peaks_bytes(peaks, remarks, form, width=room)
    if form == "json":
        content = {
            "ready": state is Readiness.READY,
            "state": state.value,
            "verdict": verdict,
            "findings": [_plain(finding) for finding in findings],
            **json.loads(rest),
        }
        return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()
    head = f"{state.value}: {verdict}"
    if form == "markdown":
        lines: Iterator[str] = _markdown(head, findings)
    else:
        lines = (line.text for line in _lines(head, findings, room))
    return "".join(f"{line}\n" for line in (*lines, "")).encode() + rest


def _lines(head: str, findings: Sequence[Finding], width: int) -> Iterator[Line]:
    """Yield lines of text: the worst first, what is not known by its reason."""
    yield from wrapped(escape(head), width=width, style=Style.TITLE)
    for status in _WHOLE:
        for each in _of(findings, status):
            title = f"{status.value:5}  {each.id} ({', '.join(each.concerns)})"
            yield from wrapped(title, width=width, style=_STYLES[status])
            yield from wrapped(escape(each.cause), width=width, depth=1)
            for text in each.evidence:
                yield from wrapped(f"read: {escape(text)}", width=width, depth=1)
            if each.remedy:
                text = f"remedy: {escape(each.remedy)}"
                yield from wrapped(text, width=width, depth=1)
    for reason, unknown in _by_reason(findings).items():
        ids = ", ".join(each.id for each in unknown)
        yield from wrapped(f"unknown  {ids}", width=width, style=Style.DOUBT)
        yield from wrapped(escape(reason), width=width, depth=1)
        for remedy in dict.fromkeys(each.remedy for each in unknown if each.remedy):
            yield from wrapped(f"remedy: {escape(remedy)}", width=width, depth=1)
    if good := ", ".join(each.id for each in _of(findings, Status.OK)):
        yield from wrapped(f"ok     {good}", width=width)


def _markdown(head: str, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield lines of Markdown: a table of all that is not as it should be."""
    yield f"### {prose(head)}"
    yield ""
    shown = [each for status in _WHOLE for each in _of(findings, status)]
    shown += [each for unknown in _by_reason(findings).values() for each in unknown]
    yield from markdown_table(
        (
            Column(head="status", cells=tuple(each.status.value for each in shown)),
            Column(head="finding", cells=tuple(f"`{each.id}`" for each in shown)),
            Column(
                head="concerns", cells=tuple(", ".join(each.concerns) for each in shown)
            ),
            Column(head="cause", cells=tuple(prose(each.cause) for each in shown)),
            Column(
                head="read",
                cells=tuple("; ".join(map(code, each.evidence)) for each in shown),
            ),
            Column(
                head="remedy", cells=tuple(code(each.remedy or "") for each in shown)
            ),
        )
    )
    yield ""
    if good := ", ".join(f"`{each.id}`" for each in _of(findings, Status.OK)):
        yield f"ok: {good}"


def _of(findings: Sequence[Finding], status: Status) -> list[Finding]:
    """Return the findings of a status, in their order."""
    return [each for each in findings if each.status is status]


def _by_reason(findings: Sequence[Finding]) -> Mapping[str, list[Finding]]:
    """Return what is not known by why: a library that is missing hides many things."""
    reasons: dict[str, list[Finding]] = {}
    for each in _of(findings, Status.UNKNOWN):
        reasons.setdefault(each.cause, []).append(each)
    return reasons


def _plain(finding: Finding) -> Mapping[str, object]:
    """Return a finding as builtins."""
    return {
        "id": finding.id,
        "status": finding.status.value,
        "concerns": list(finding.concerns),
        "cause": finding.cause,
        "evidence": list(finding.evidence),
        "remedy": finding.remedy,
    }
