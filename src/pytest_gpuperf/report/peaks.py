"""The peaks of devices, as `gpuperf doctor` prints them; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pytest_gpuperf.model.roofline import Peak, Peaks
from pytest_gpuperf.report import display
from pytest_gpuperf.report.tables import Column, markdown_table, text_table

__all__ = ["peaks_bytes"]

_ANY_WIDTH = 10_000  # sources are sentences: a line is as long as it is


def peaks_bytes(found: Sequence[Peaks], remarks: Sequence[str], form: str) -> bytes:
    """
    Return peaks as they are printed [UTF-8]; what is not known stands there with why.

    Args:
        found: The devices.

        remarks: What is to be said besides, a sentence each.

        form: text, json or markdown.
    """
    if form == "json":
        content = {
            "devices": [_plain(peaks) for peaks in found],
            "remarks": list(remarks),
        }
        return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()
    lines: list[str] = []
    for peaks in found:
        notes = [display.escape(note) for note in peaks.notes]
        if form == "markdown":
            table = list(markdown_table(_columns(peaks)))
            lines += [f"### {display.escape(peaks.device)}", "", *table, ""]
            lines += [f"- {note}" for note in notes]
        else:
            table = list(text_table(_columns(peaks), width=_ANY_WIDTH))
            lines += [display.escape(peaks.device), *(f"  {line}" for line in table)]
            lines += [f"  note: {note}" for note in notes]
    lines += [display.escape(remark) for remark in remarks]
    return "".join(f"{line}\n" for line in lines).encode()


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
